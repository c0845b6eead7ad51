//! `docs/sm.md` and `docs/usnic.md` have a row for each box of their provider's design: none is missing, and the files and tests
//! that they name are there.
//!
//! Reads sources only. That the tests pass is the business of those who run them.
#![forbid(unsafe_code)]

use std::fs;

use dapl_test::stage::workspace;

/// A page that is held against the sources.
struct Page {
    path: &'static str,
    /// All boxes, by prefix, in the order of the page.
    boxes: &'static [(&'static str, usize)],
}

const PAGES: [Page; 2] = [
    Page { path: "docs/sm.md", boxes: &[("SM", 22), ("CM", 11)] },
    Page { path: "docs/usnic.md", boxes: &[("US", 12), ("UR", 8)] },
];

/// Packages whose unit tests are named by their modules, and where their sources are.
const PACKAGES: [(&str, &str); 5] = [
    ("dapl::", "dapl/src"),
    ("dapl_software::", "providers/common/src"),
    ("daplsm::", "providers/sm/src"),
    ("daplusnic::", "providers/usnic/src"),
    ("datinfo::", "dat/datinfo/src"),
];

/// The checks of `cargo xtask test net`, and where they are.
const CHECKS: (&str, [&str; 4]) = (
    "net::",
    [
        "test/xtask/src/net/flows.rs",
        "test/xtask/src/net/settings.rs",
        "test/xtask/src/net/ends.rs",
        "test/xtask/src/net/trust.rs",
    ],
);

/// A row of a page: a box, or something else that has files and tests.
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
    /// All rows of four cells; headings and what is below them have others, or no names in them.
    fn rows(&self) -> Vec<Row> {
        let page = read(self.path).unwrap_or_else(|| panic!("{} is in the repository", self.path));
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

    fn is_box(&self, row: &Row) -> bool {
        self.boxes.iter().any(|(prefix, _)| row.name.starts_with(&format!("{prefix}-")))
    }
}

/// The files where a test of this path may be, and its name.
fn places(path: &str) -> (Vec<String>, &str) {
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
    let mut places = vec![format!("{sources}/{}.rs", path(module)), format!("{sources}/{}/mod.rs", path(module))];
    // At the foot of its room, or in a file of its own that the room names.
    if let Some(room) = ["::tests", "::interleavings"].iter().find_map(|foot| module.strip_suffix(foot)) {
        let room = path(room);
        places.extend(
            [format!("{room}.rs"), format!("{room}/mod.rs"), format!("{room}_tests.rs"), format!("tests/{room}.rs")]
                .map(|file| format!("{sources}/{file}")),
        );
    }
    (places, name)
}

/// Is this there? A test of ours, or checks that `cargo xtask test net` finds by this name.
fn is_there(test: &str) -> bool {
    if let Some(check) = test.strip_prefix(CHECKS.0) {
        return CHECKS.1.iter().filter_map(|place| read(place)).any(|text| has_check(&text, check));
    }
    let (places, name) = places(test);
    places.iter().filter_map(|place| read(place)).any(|text| has_test(&text, name))
}

/// Is there a check of this name, or a group of them? The names of a group may be made of those of a list.
fn has_check(text: &str, name: &str) -> bool {
    let (group, item) = name.split_once("::").unwrap_or((name, ""));
    let is_listed = text.contains(&format!("format!(\"{group}::{{")) && text.contains(&format!("(\"{item}\","));
    let has_group = || ["Check::new(", "format!("].iter().any(|make| text.contains(&format!("{make}\"{group}::")));
    text.contains(&format!("Check::new(\"{name}\",")) || if item.is_empty() { has_group() } else { is_listed }
}

/// Is there a test of this name in the text? `#[test]` above the function, or a case of a conformance list.
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
fn every_box_has_its_row() {
    for page in PAGES {
        let rows = page.rows();
        let found: Vec<_> = rows.iter().filter(|row| page.is_box(row)).map(|row| row.name.as_str()).collect();
        let all = page.boxes.iter().flat_map(|(prefix, count)| (1..=*count).map(move |n| format!("{prefix}-{n}")));
        assert_eq!(found, all.collect::<Vec<_>>(), "{}", page.path);
        for row in rows {
            let says_all = !row.does.is_empty() && !row.files.is_empty() && !row.tests.is_empty();
            assert!(says_all, "{}: {} says too little", page.path, row.name);
        }
    }
}

#[test]
fn the_files_and_tests_of_every_row_are_there() {
    let mut wrong = Vec::new();
    for row in PAGES.iter().flat_map(Page::rows) {
        for file in row.files.iter().filter(|file| read(file).is_none()) {
            wrong.push(format!("{}: there is no {file}", row.name));
        }
        for test in row.tests.iter().filter(|test| !is_there(test)) {
            wrong.push(format!("{}: there is no test {test}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_no_test_is_not_taken_for_one() {
    let text =
        "#[test]\nfn real() {\n}\nfn helper() {}\n// fn told() is not\n\"a 1\": case => pair(x, y),\n\"a 2\": bare,\n";
    for name in ["real", "case", "bare"] {
        assert!(has_test(text, name), "{name}");
    }
    for name in ["helper", "told", "pair", "rea", "absent", "x"] {
        assert!(!has_test(text, name), "{name}");
    }
    assert_eq!(places("daplother::absent").0, Vec::<String>::new());
    assert!(!is_there("daplsm::absent") && !is_there("daplusnic::ranges::tests::absent") && !is_there("net::absent"));
}

#[test]
fn what_is_no_check_is_not_taken_for_one() {
    let text = "Check::new(\"one::plain\", run);\n(\"listed\", &[]),\nCheck::new(format!(\"many::{name}\"), run);\n";
    for name in ["one::plain", "one", "many", "many::listed"] {
        assert!(has_check(text, name), "{name}");
    }
    for name in ["one::listed", "one::pla", "plain", "listed", "man", "many::absent", "none"] {
        assert!(!has_check(text, name), "{name}");
    }
}
