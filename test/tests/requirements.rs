//! Checks `docs/spec/requirements-sm.md` and `requirements-usnic.md`: each numbered requirement has a row, and the
//! files and tests that the row names exist. Reads sources only; it does not run those tests.
#![forbid(unsafe_code)]

use std::fs;

use dapl_test::stage::workspace;

/// A page with numbered requirements.
struct Page {
    path: &'static str,
    /// Prefixes of the requirements, and the number of requirements of each prefix, in the order of the page.
    requirements: &'static [(&'static str, usize)],
}

const PAGES: [Page; 2] = [
    Page { path: "docs/spec/requirements-sm.md", requirements: &[("SM", 27), ("CM", 11)] },
    Page { path: "docs/spec/requirements-usnic.md", requirements: &[("US", 12), ("UR", 11)] },
];

/// Packages whose unit tests are named by module path, and their source folders.
const PACKAGES: [(&str, &str); 5] = [
    ("dapl::", "dapl/src"),
    ("dapl_software::", "providers/common/src"),
    ("daplsm::", "providers/sm/src"),
    ("daplusnic::", "providers/usnic/src"),
    ("datinfo::", "dat/datinfo/src"),
];

/// Prefix of the checks of `cargo xtask test net`, and the files that define the checks.
const CHECKS: (&str, [&str; 4]) = (
    "net::",
    [
        "test/xtask/src/net/flows.rs",
        "test/xtask/src/net/settings.rs",
        "test/xtask/src/net/ends.rs",
        "test/xtask/src/net/trust.rs",
    ],
);

/// A table row that names files and tests.
struct Row {
    name: String,
    does: String,
    files: Vec<String>,
    tests: Vec<String>,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(workspace().join(path)).ok()
}

impl Page {
    /// All table rows of four cells, without the heading rows.
    fn rows(&self) -> Vec<Row> {
        let page = read(self.path).unwrap_or_else(|| panic!("{} is not in the repository", self.path));
        let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let row = |line: &str| {
            let [name, does, files, tests] =
                line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>()[..]
            else {
                return None;
            };
            let row = Row { name: name.into(), does: does.into(), files: names(files), tests: names(tests) };
            (tests != "tests").then_some(row)
        };
        page.lines().filter_map(row).collect()
    }

    fn is_requirement(&self, row: &Row) -> bool {
        self.requirements.iter().any(|(prefix, _)| row.name.starts_with(&format!("{prefix}-")))
    }
}

/// The files that may define the test with this path, and the test's name.
fn candidate_files(path: &str) -> (Vec<String>, &str) {
    let Some((place, name)) = path.rsplit_once("::") else { return (Vec::new(), path) };
    if place.ends_with(".rs") {
        return (vec![place.into()], name);
    }
    if let Some(case) = place.strip_prefix("conformance::") {
        return (vec![format!("test/conformance/src/cases/{}.rs", case.replace("::", "/"))], name);
    }
    let package = PACKAGES.iter().find_map(|(package, sources)| Some((place.strip_prefix(package)?, sources)));
    let Some((module, sources)) = package else { return (Vec::new(), name) };
    let path = |module: &str| module.replace("::", "/");
    let mut files = vec![format!("{sources}/{}.rs", path(module)), format!("{sources}/{}/mod.rs", path(module))];
    // A module `tests` or `interleavings` is at the foot of its parent's file, or in a separate file.
    if let Some(parent) = ["::tests", "::interleavings"].iter().find_map(|suffix| module.strip_suffix(suffix)) {
        let parent = path(parent);
        files.extend(
            [
                format!("{parent}.rs"),
                format!("{parent}/mod.rs"),
                format!("{parent}_tests.rs"),
                format!("tests/{parent}.rs"),
            ]
            .map(|file| format!("{sources}/{file}")),
        );
    }
    (files, name)
}

/// Whether a test, or a check or group of checks of `cargo xtask test net`, has this path.
fn exists(test: &str) -> bool {
    if let Some(check) = test.strip_prefix(CHECKS.0) {
        return CHECKS.1.iter().filter_map(|place| read(place)).any(|text| has_check(&text, check));
    }
    let (files, name) = candidate_files(test);
    files.iter().filter_map(|place| read(place)).any(|text| has_test(&text, name))
}

/// Whether the text defines a check or a group of checks of this name. A group may be built from a list of names.
fn has_check(text: &str, name: &str) -> bool {
    let (group, item) = name.split_once("::").unwrap_or((name, ""));
    let is_listed = text.contains(&format!("format!(\"{group}::{{")) && text.contains(&format!("(\"{item}\","));
    let has_group = || ["Check::new(", "format!("].iter().any(|make| text.contains(&format!("{make}\"{group}::")));
    text.contains(&format!("Check::new(\"{name}\",")) || if item.is_empty() { has_group() } else { is_listed }
}

/// Whether the text defines a test with this name: a function under `#[test]`, or a conformance case.
fn has_test(text: &str, name: &str) -> bool {
    let is_function = |at: usize| {
        let above = text[..at].trim_end();
        above.ends_with("#[test]")
    };
    let is_case = |at: usize| {
        let line = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        let behind = text[at + name.len()..].trim_start();
        line.starts_with('"') && line.ends_with("\":") && (behind.starts_with("=>") || behind.starts_with(','))
    };
    text.match_indices(&format!("fn {name}(")).any(|(at, _)| is_function(at))
        || text.match_indices(name).any(|(at, _)| is_case(at))
}

#[test]
fn every_requirement_has_a_row() {
    for page in PAGES {
        let rows = page.rows();
        let found: Vec<_> = rows.iter().filter(|row| page.is_requirement(row)).map(|row| row.name.as_str()).collect();
        let all =
            page.requirements.iter().flat_map(|(prefix, count)| (1..=*count).map(move |n| format!("{prefix}-{n}")));
        assert_eq!(found, all.collect::<Vec<_>>(), "{}", page.path);
        for row in rows {
            let is_complete = !row.does.is_empty() && !row.files.is_empty() && !row.tests.is_empty();
            assert!(is_complete, "{}: {} has an empty cell", page.path, row.name);
        }
    }
}

#[test]
fn files_and_tests_of_every_row_exist() {
    let mut wrong = Vec::new();
    for row in PAGES.iter().flat_map(Page::rows) {
        for file in row.files.iter().filter(|file| read(file).is_none()) {
            wrong.push(format!("{}: no file {file}", row.name));
        }
        for test in row.tests.iter().filter(|test| !exists(test)) {
            wrong.push(format!("{}: no test {test}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_test_functions_and_cases_count_as_tests() {
    let text = "#[test]\nfn real() {\n}\nfn helper() {}\n// fn remark() is not\n\"a 1\": case => pair(x, y),\n\"a 2\": bare,\n";
    for name in ["real", "case", "bare"] {
        assert!(has_test(text, name), "{name}");
    }
    for name in ["helper", "remark", "pair", "rea", "absent", "x"] {
        assert!(!has_test(text, name), "{name}");
    }
    assert_eq!(candidate_files("daplother::absent").0, Vec::<String>::new());
    assert!(!exists("daplsm::absent") && !exists("daplusnic::ranges::tests::absent") && !exists("net::absent"));
}

#[test]
fn only_listed_checks_count_as_checks() {
    let text = "Check::new(\"one::plain\", run);\n(\"listed\", &[]),\nCheck::new(format!(\"many::{name}\"), run);\n";
    for name in ["one::plain", "one", "many", "many::listed"] {
        assert!(has_check(text, name), "{name}");
    }
    for name in ["one::listed", "one::pla", "plain", "listed", "man", "many::absent", "none"] {
        assert!(!has_check(text, name), "{name}");
    }
}
