//! The guide: the summary names every page, the C programs compile as printed, and the first program transfers its
//! message. mdBook builds the guide if mdBook is installed. Also checks the links of the guide and of the other
//! documents in docs, docs/man and the root directory.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dapl_test::program::is_program;
use dapl_test::run::{SM0, Sandbox, USNIC0};
use dapl_test::stage::{Profile, Stage, stage, workspace};

const TIMEOUT: Duration = Duration::from_secs(300);

/// Path and text of each Markdown file in these directories.
fn pages(directories: &[&str]) -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(workspace().join(directory)).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                pages.push((path, text));
            }
        }
    }
    pages.sort();
    pages
}

/// Link targets of a page: the text in `](...)`, outside of code.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|prose| prose.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(to, _)| to))
        .collect()
}

/// Anchors that code forges generate for headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| -> String {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
    };
    headings.map(slug).collect()
}

#[test]
fn links_of_the_guide_have_existing_targets() {
    let mut dead = Vec::new();
    let mut count = 0;
    for (path, text) in pages(&["docs", "docs/guide/src", "docs/man", "."]) {
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            count += 1;
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let to = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there =
                to.exists() && anchor.is_none_or(|anchor| anchors(&fs::read_to_string(&to).unwrap()).contains(anchor));
            if !is_there {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(count > 40, "only {count} links were found");
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn summary_of_the_guide_names_every_page_once() {
    let summary = fs::read_to_string(workspace().join("docs/guide/src/SUMMARY.md")).unwrap();
    let mut named: Vec<&str> = links(&summary);
    named.sort_unstable();
    let there = pages(&["docs/guide/src"]);
    let there: Vec<&str> = there.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap()).collect();
    let there: Vec<&str> = there.into_iter().filter(|name| *name != "SUMMARY.md").collect();
    assert_eq!(named, there);
}

/// Writes each C source of the guide to a file.
fn sources() -> Vec<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide");
    fs::create_dir_all(&place).unwrap();
    let mut sources = Vec::new();
    for (path, text) in pages(&["docs/guide/src"]) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        for (at, block) in text.split("```c\n").skip(1).enumerate() {
            let file = place.join(format!("{name}-{at}.c"));
            fs::write(&file, block.split("```").next().unwrap()).unwrap();
            sources.push(file);
        }
    }
    sources
}

fn compile(stage: &Stage, source: &Path) -> PathBuf {
    let is_program = fs::read_to_string(source).unwrap().contains("int main(");
    let output = source.with_extension(if is_program { "run" } else { "o" });
    stage.compile(&output, &[source], if is_program { &["-Werror"] } else { &["-Werror", "-c"] });
    output
}

#[test]
fn programs_of_the_guide_compile_and_the_first_prints_hello() {
    let stage = stage(Profile::Dev);
    let made: Vec<PathBuf> = sources().iter().map(|source| compile(&stage, source)).collect();
    assert!(made.len() >= 3, "{made:?}");
    let hello =
        made.iter().find(|path| path.ends_with("first-program-0.run")).expect("the guide's first program was compiled");
    for (adapter, registry) in [("sm0", SM0), ("usnic0", USNIC0)] {
        // Many runs, because the order of events differs between runs.
        for _ in 0..100 {
            let sandbox = Sandbox::new(&stage, Some(registry));
            let server = sandbox.start(hello, &[adapter]);
            server.wait_for("listening", TIMEOUT);
            let client = sandbox.start(hello, &[adapter, "127.0.0.1"]).finish(TIMEOUT);
            assert!(client.status.success(), "{adapter}: {client:#?}");
            server.finish(TIMEOUT).expect_success("status 0: hello");
        }
    }
}

#[test]
fn mdbook_builds_the_guide() {
    if !is_program("mdbook") {
        println!("skipped: mdbook is missing; cargo install mdbook");
        return;
    }
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book");
    let mut mdbook = Command::new("mdbook");
    let run = mdbook.arg("build").arg(workspace().join("docs/guide")).arg("--dest-dir").arg(&output).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(output.join("first-program.html").exists());
}
