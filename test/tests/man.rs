//! The manual pages: every function that `libdat.so.1` exports has a page, and the pages of data structures show all
//! members. Every variable of `docs/settings.md` and every option of dtest1 is on a page. Examples compile, referenced
//! pages of this project exist, and mandoc reports nothing. The conformance suite checks the return codes
//! (`test/conformance/src/expected.rs`).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dapl_test::program::is_program;
use dapl_test::stage::{Profile, built, workspace};

/// Programs whose options must be on their manual page, and the source that contains their `--help` text. The suites of
/// datinfo and dapltest check the pages of these programs.
const PROGRAMS: [(&str, &str); 1] = [("dtest1", "dtest/dtest.c")];

/// Name prefixes of this project's pages; references to other pages are not checked.
const PROJECT_PREFIXES: [&str; 5] = ["dat", "dapl", "dtest", "udapl", "libdat"];

/// Generates all pages. Returns the directory, and the text by path below it.
fn pages(of: &str) -> (PathBuf, BTreeMap<String, String>) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{of}"));
    let output = Command::new(built("xtask", Profile::Dev)).arg("man").arg(&root).output().expect("xtask starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut pages = BTreeMap::new();
    for section in fs::read_dir(&root).unwrap().flatten() {
        for page in fs::read_dir(section.path()).unwrap().flatten() {
            let path = format!("{}/{}", section.file_name().display(), page.file_name().display());
            pages.insert(path, fs::read_to_string(page.path()).unwrap());
        }
    }
    (root, pages)
}

#[test]
fn every_exported_function_has_a_page_with_all_its_sections() {
    let (_, pages) = pages("functions");
    let facts = fs::read_to_string(workspace().join("test/abi/dat-1.2-symbols.json")).unwrap();
    let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
    let names = facts["linux"]["libdat"]["exported"].as_array().unwrap();
    assert_eq!(names.len(), 73);
    let sections = ["NAME", "SYNOPSIS", "DESCRIPTION", "PARAMETERS", "RETURN VALUE", "SEE ALSO"];
    for name in names.iter().map(|name| name.as_str().unwrap()) {
        let page = pages.get(&format!("man3/{name}.3")).unwrap_or_else(|| panic!("{name} has no page"));
        for section in sections {
            assert!(page.contains(&format!("\n.SH {section}\n")), "the page of {name} has no section {section}");
        }
        assert!(page.contains(&format!("DAT_RETURN {name}(")), "{name} shows no prototype");
    }
}

#[test]
fn data_structures_have_pages_with_every_member() {
    // The command fails if a page leaves out a member of its structure.
    let (_, pages) = pages("structures");
    for (page, declared) in [
        ("dat_event", &["} DAT_EVENT;", "} DAT_EVENT_NUMBER;", "} DAT_CONNECTION_EVENT_DATA;"][..]),
        ("dat_dto_completion_status", &["} DAT_DTO_COMPLETION_STATUS;"]),
        ("dat_ep_attr", &["} DAT_EP_ATTR;"]),
        ("dat_ep_param", &["} DAT_EP_PARAM;", "} DAT_EP_STATE;"]),
        ("dat_ia_attr", &["} DAT_IA_ATTR;"]),
        ("dat_provider_attr", &["struct dat_provider_attr {"]),
        ("dat_cr_param", &["} DAT_CR_PARAM;"]),
        ("dat_evd_param", &["struct dat_evd_param {", "} DAT_EVD_STATE;"]),
        ("dat_lmr_param", &["} DAT_LMR_TRIPLET;", "} DAT_RMR_TRIPLET;", "struct dat_lmr_param {", "} DAT_RMR_PARAM;"]),
        ("dat_srq_attr", &["} DAT_SRQ_ATTR;", "} DAT_SRQ_PARAM;"]),
        ("dat_region_description", &["} DAT_REGION_DESCRIPTION;"]),
    ] {
        let text = &pages[&format!("man7/{page}.7")];
        declared.iter().for_each(|line| assert!(text.contains(line), "{page} lacks {line}"));
    }
}

/// Calls whose page must contain an example.
const WITH_EXAMPLE: [&str; 12] = [
    "dat_ep_create",
    "dat_ep_connect",
    "dat_cr_accept",
    "dat_ep_post_send",
    "dat_ep_post_recv",
    "dat_ep_post_rdma_read",
    "dat_ep_post_rdma_write",
    "dat_evd_wait",
    "dat_cno_wait",
    "dat_lmr_create",
    "dat_rmr_bind",
    "dat_cno_fd_create",
];

#[test]
fn manual_page_examples_compile() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man-examples");
    fs::create_dir_all(&folder).unwrap();
    let pages = WITH_EXAMPLE.map(|call| (format!("{call}.3"), call));
    for (name, call) in pages.into_iter().chain([("dat_ib_extensions.7".into(), "dat_ib_post_fetch_and_add")]) {
        let page = fs::read_to_string(workspace().join(format!("docs/man/{name}.md"))).unwrap();
        let example = page.split("\n## EXAMPLE\n").nth(1).unwrap_or_else(|| panic!("{call} has no example"));
        let code = example.split("\n```").nth(1).unwrap_or_else(|| panic!("the example of {call} has no code"));
        // Calls of 2.0 that the library does not export are macros with upper-case names.
        let calls = [format!("{call}("), format!("{}(", call.to_uppercase())];
        assert!(calls.iter().any(|text| code.contains(text)), "the example of {call} does not call it");
        let file = folder.join(format!("{call}.c"));
        fs::write(&file, code).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
            .arg(workspace().join("dat/include"));
        let output = cc.arg(file).output().expect("cc starts");
        assert!(output.status.success(), "{call}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_variable_is_on_a_manual_page() {
    let (_, pages) = pages("variables");
    let page = fs::read_to_string(workspace().join("docs/settings.md")).unwrap();
    let table = page.split("\n## Variables\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').filter(|word| word.starts_with("DA")))
        .collect();
    assert!(names.len() > 35, "{names:?}");
    let of_environment: String = ["udapl", "dapl_sm", "dapl_usnic", "dapl_verbs"]
        .iter()
        .filter_map(|page| pages[&format!("man7/{page}.7")].split("\n.SH ENVIRONMENT\n").nth(1)?.split("\n.SH ").next())
        .map(|text| text.replace("\\fB", " "))
        .collect();
    let of_environment: BTreeSet<&str> = of_environment.split(|c: char| !c.is_ascii_uppercase() && c != '_').collect();
    let missing: Vec<_> = names.into_iter().filter(|name| !of_environment.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for (name, providers) in [("DAPL_DIR", &["sm", "usnic", "verbs"][..]), ("DAPL_RNR_RETRY", &["usnic", "verbs"])] {
        for provider in providers {
            let page = &pages[&format!("man7/dapl_{provider}.7")];
            assert!(page.contains(&format!("\\fB{name}\\fP")), "{name} is not on the page of {provider}");
        }
    }
}

#[test]
fn every_option_of_a_program_is_on_its_page() {
    let (_, pages) = pages("options");
    for (program, source) in PROGRAMS {
        let page = &pages[&format!("man1/{program}.1")];
        let source = fs::read_to_string(workspace().join(source)).unwrap();
        // In the source, a help line for an option begins with a quotation mark and two spaces.
        let options: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("\"  -")?.split([' ', '"']).next())
            .collect();
        assert!(options.len() > 5, "{program}: {options:?}");
        for option in options {
            let term = format!(".TP\n\\fB\\-{}", option.replace('-', "\\-"));
            let is_there = page.match_indices(&term).any(|(at, _)| page[at + term.len()..].starts_with(['\\', ' ']));
            assert!(is_there, "the page of {program} has no option -{option}");
        }
    }
}

#[test]
fn see_also_references_name_existing_pages() {
    let (_, pages) = pages("links");
    let mut missing = BTreeSet::new();
    for (path, text) in &pages {
        for (name, rest) in text.split("\\fB").filter_map(|part| part.split_once("\\fP(")) {
            let name = name.replace('\\', "");
            let Some(section) = rest.chars().next().filter(|_| rest[1..].starts_with(')')) else { continue };
            let is_ours = PROJECT_PREFIXES.iter().any(|start| name.starts_with(start));
            if is_ours && !pages.contains_key(&format!("man{section}/{name}.{section}")) {
                missing.insert(format!("{path}: {name}({section})"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn mandoc_reports_no_warning() {
    if !is_program("mandoc") {
        println!("skipped: mandoc is missing; install the Debian package mandoc");
        return;
    }
    let (root, pages) = pages("lint");
    let mut mandoc = Command::new("mandoc");
    let output = mandoc.args(["-T", "lint", "-W", "all"]).current_dir(root).args(pages.keys()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // mandoc looks up references in the system's directories, which lack this project's pages.
    let said: Vec<&str> = said.lines().filter(|line| !line.contains("referenced manual not found")).collect();
    assert!(said.is_empty(), "{said:#?}");
}
