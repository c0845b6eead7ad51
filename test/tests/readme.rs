//! Checks three documents. README.md has at most 150 lines, and its C program runs. The variables in docs/settings.md
//! are those that the code reads. The files and names in docs/architecture.md exist. Also checks that every DAT call is
//! implemented.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use dapl_test::run::{self, Finished, SM0, Sandbox};
use dapl_test::stage::{Profile, stage, workspace};
use dat_settings::{BUILD_TIME, VariableClass, look_up};

fn readme() -> String {
    fs::read_to_string(workspace().join("README.md")).expect("README.md is in the repository")
}

fn run(source: &str) -> Finished {
    let stage = stage(Profile::Dev);
    let program = run::program(&stage, source);
    Sandbox::new(&stage, Some(SM0)).start(program, &[]).finish(Duration::from_secs(120))
}

/// First and second cell, without backquotes, of all table rows whose first cell starts with this prefix.
fn rows(readme: &str, prefix: &str) -> Vec<(String, String)> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ").map(|cell| cell.replace('`', ""));
        let (first, second) = (cells.next()?, cells.next()?);
        first.starts_with(prefix).then(|| (first, second.trim_end_matches(" |").to_owned()))
    };
    readme.lines().filter_map(row).collect()
}

#[test]
fn readme_program_equals_the_tested_first_program_and_runs() {
    let readme = readme();
    let block = readme
        .split("```c\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("README.md has a block of C code");
    let source = fs::read_to_string(workspace().join("test/c/first.c")).unwrap();
    assert_eq!(source.split_once("*/\n").unwrap().1, block, "the program in README.md differs from test/c/first.c");
    let finished = run("test/c/first.c");
    assert!(finished.status.success() && finished.stdout.starts_with("sm0: messages of up to "), "{finished:#?}");
}

#[test]
fn every_dat_call_is_implemented() {
    let mut absent = BTreeSet::new();
    visit(&workspace().join("dapl/src"), &mut |path, text| {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dapl_")) {
            for function in text.split("pub unsafe extern \"C\" fn dapl_").skip(1) {
                let body = function.split("\npub ").next().unwrap_or_default();
                if body.contains("Error::NotImplemented") || body.contains("guard(|| Err(") {
                    absent.insert(format!("dat_{}", function.split(['<', '(']).next().unwrap()));
                }
            }
        }
    });
    assert!(absent.is_empty(), "{absent:?}");
}

#[test]
fn settings_page_lists_exactly_the_variables_that_the_code_reads() {
    let mut read = BTreeSet::new();
    for environment in ["dat/src", "dat/settings/src", "dapl/src", "providers"] {
        visit(&workspace().join(environment), &mut |_, text| {
            // Variable names in unit tests do not count.
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let parts: Vec<_> = product.split('"').collect();
            // The text after `prefix: ` in a settings table is the common start of variable names, not a variable.
            for literal in parts.windows(2).filter(|pair| !pair[0].ends_with("prefix: ")).map(|pair| pair[1]) {
                let is_variable = ["DAPL_", "DAT_OVERRIDE", "DAT_DBG_"].iter().any(|start| literal.starts_with(start));
                // Variables without effect are known only to be reported.
                let is_variable = is_variable && !matches!(look_up(literal), VariableClass::NoEffect(_));
                if is_variable && literal.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                    read.insert(literal.to_owned());
                }
            }
        });
    }
    let settings =
        fs::read_to_string(workspace().join("docs/settings.md")).expect("docs/settings.md is in the repository");
    let table: BTreeSet<String> =
        rows(&settings, "DAPL_").into_iter().chain(rows(&settings, "DAT_")).map(|(names, _)| names).collect();
    let table: BTreeSet<String> = table.iter().flat_map(|names| names.split(", ")).map(str::to_owned).collect();
    assert_eq!(table, read);
    // `datinfo` prints the variables in the settings tables; libdat reports all others as unknown.
    let is_known = |name: &&String| matches!(look_up(name), VariableClass::Read(..)) || **name == BUILD_TIME;
    let unknown: Vec<_> = table.iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "variables that dat/settings does not list: {unknown:?}");
}

#[test]
fn readme_has_at_most_150_lines() {
    let lines = readme().lines().count();
    assert!(lines <= 150, "README.md has {lines} lines; its limit is 150");
}

/// Whether a name on the architecture page is a path in the repository.
fn is_path(name: &str) -> bool {
    ["dat/", "dapl/", "providers/", "test/", "docs/", "dtest/"].iter().any(|folder| name.starts_with(folder))
}

fn architecture(file: &str) -> String {
    fs::read_to_string(workspace().join("docs").join(file)).unwrap_or_else(|e| panic!("cannot read docs/{file}: {e}"))
}

#[test]
fn files_named_by_the_architecture_page_exist() {
    let (page, picture) = (architecture("architecture.md"), architecture("architecture.svg"));
    let mut named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).filter(|name| is_path(name)).collect();
    assert!(named.len() > 40, "only {} files are named", named.len());
    let words = picture.split(|c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c));
    named.extend(words.filter(|word| is_path(word)));
    let missing: Vec<_> = named.iter().filter(|path| !workspace().join(path).exists()).collect();
    assert!(missing.is_empty(), "docs/architecture.* name files that do not exist: {missing:?}");
}

/// Whether a Rust source defines an item of this name.
fn defines(text: &str, name: &str) -> bool {
    ["fn", "const", "static", "struct", "enum", "trait", "type", "mod"].iter().any(|kind| {
        let item = format!("{kind} {name}");
        text.match_indices(&item)
            .any(|(at, _)| !text[at + item.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    })
}

/// Checks the names in one answer of the architecture page. In "`name` in `file`" and "`name`, `name` in `file`" the
/// file must define the names; every other name must occur in a file of the answer. Returns the number of definitions
/// and of other names.
fn check_names(answer: &str) -> (usize, usize) {
    let parts: Vec<&str> = answer.split('`').collect();
    let read = |path: &str| fs::read_to_string(workspace().join(path)).unwrap_or_default();
    let is_name = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut defined = BTreeSet::new();
    for file in (3..parts.len()).step_by(2).filter(|at| is_path(parts[*at]) && parts[at - 1] == " in ") {
        let text = read(parts[file]);
        let mut name = file - 2;
        while is_name(parts[name]) {
            assert!(defines(&text, parts[name]), "{} does not define {}", parts[file], parts[name]);
            defined.insert(name);
            if name < 3 || ![", ", " and ", " or "].contains(&parts[name - 1]) {
                break;
            }
            name -= 2;
        }
    }
    let spans = || (1..parts.len()).step_by(2);
    let all: String = spans().filter(|at| is_path(parts[*at])).map(|at| read(parts[at])).collect();
    let others: Vec<usize> = spans().filter(|at| is_name(parts[*at]) && !defined.contains(at)).collect();
    for name in &others {
        assert!(all.contains(parts[*name]), "no file of this answer contains {}: {answer}", parts[*name]);
    }
    (defined.len(), others.len())
}

#[test]
fn names_in_answers_of_the_architecture_page_are_defined_in_their_files() {
    let page = architecture("architecture.md");
    let answers = page.lines().filter(|line| line.contains("? | ")).filter_map(|line| line.split("? | ").nth(1));
    let counts: Vec<_> = answers.map(check_names).collect();
    let defined: usize = counts.iter().map(|(defined, _)| defined).sum();
    let others: usize = counts.iter().map(|(_, others)| others).sum();
    assert!(defined >= 30 && others >= 10, "only {defined} definitions and {others} other names were checked");
}

#[test]
#[should_panic(expected = "does not define connection_numbers")]
fn an_answer_whose_file_does_not_define_the_name_is_refused() {
    check_names("`dto_status` and `connection_numbers` in `dapl/src/evd/dapl_evd.rs`");
}

fn visit(directory: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        // Names in `tests` folders do not count.
        if path.is_dir() && !path.ends_with("tests") {
            visit(&path, see);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            see(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}
