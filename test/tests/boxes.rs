//! `docs/sm.md` has a row for each box of sm's design: none is missing, and the files and tests that it names are there.
//!
//! Reads sources only. That the tests pass is the business of those who run them.
#![forbid(unsafe_code)]

use std::fs;

use dapl_test::stage::workspace;

/// All boxes, by prefix.
const BOXES: [(&str, usize); 2] = [("SM", 22), ("CM", 11)];

/// A row of the page.
struct Row {
    name: String,
    does: String,
    files: Vec<String>,
    tests: Vec<String>,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(workspace().join(path)).ok()
}

fn rows() -> Vec<Row> {
    let page = read("docs/sm.md").expect("docs/sm.md is in the repository");
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let row = |line: &str| {
        let [name, does, files, tests] =
            line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let is_box = BOXES.iter().any(|(prefix, _)| name.starts_with(&format!("{prefix}-")));
        is_box.then(|| Row { name: name.into(), does: does.into(), files: names(files), tests: names(tests) })
    };
    page.lines().filter_map(row).collect()
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
    let Some(module) = place.strip_prefix("daplsm::") else { return (Vec::new(), name) };
    let file = |module: &str| format!("providers/sm/src/{}.rs", module.replace("::", "/"));
    // At the foot of its room, or in a file of its own.
    let room = ["::tests", "::interleavings"].iter().find_map(|foot| module.strip_suffix(foot));
    let folder = room.map(|room| format!("providers/sm/src/{}/mod.rs", room.replace("::", "/")));
    ([file(module)].into_iter().chain(room.map(file)).chain(folder).collect(), name)
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
    text.match_indices(&format!("fn {name}()")).any(|(at, _)| is_function(at))
        || text.match_indices(name).any(|(at, _)| is_case(at))
}

#[test]
fn every_box_has_its_row() {
    let rows = rows();
    let found: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    let all = BOXES.iter().flat_map(|(prefix, count)| (1..=*count).map(move |n| format!("{prefix}-{n}")));
    assert_eq!(found, all.collect::<Vec<_>>());
    for row in rows {
        assert!(!row.does.is_empty() && !row.files.is_empty() && !row.tests.is_empty(), "{} says too little", row.name);
    }
}

#[test]
fn the_files_and_tests_of_every_box_are_there() {
    let mut wrong = Vec::new();
    for row in rows() {
        for file in row.files.iter().filter(|file| read(file).is_none()) {
            wrong.push(format!("{}: there is no {file}", row.name));
        }
        for test in &row.tests {
            let (places, name) = places(test);
            if !places.iter().filter_map(|place| read(place)).any(|text| has_test(&text, name)) {
                wrong.push(format!("{}: there is no test {test}", row.name));
            }
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
    assert_eq!(places("daplsm::absent").0, Vec::<String>::new());
}
