//! Checks that references resolve. Citations of the specification (`spec/endpoints 5.3`) name a section of `docs/spec`.
//! Links between the documents name files and headings that exist.
#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use dapl_test::stage::workspace;

/// Version-controlled files with one of these extensions.
fn sources(extensions: &[&str]) -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files"]).current_dir(workspace()).output().expect("git lists the files");
    let is_wanted =
        |path: &Path| path.extension().is_some_and(|is| extensions.iter().any(|extension| is == *extension));
    let files = String::from_utf8_lossy(&listed.stdout);
    files.lines().map(PathBuf::from).filter(|path| is_wanted(path) && workspace().join(path).is_file()).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Section numbers of a page: of headings ("## 5 Title", "### 5.3. Title", "## A. Title"), list items and table rows.
/// An item is cited as section and item number ("13.12"), or by the item number alone in a page without numbered
/// sections.
fn sections(page: &str) -> BTreeSet<String> {
    let mut sections = BTreeSet::new();
    let mut section = String::new();
    for line in page.lines() {
        let first = |text: &str| text.split_whitespace().next().unwrap_or_default().trim_end_matches('.').to_owned();
        if line.starts_with('#') {
            let number = first(line.trim_start_matches('#'));
            let is_number = number.starts_with(|c: char| c.is_ascii_digit())
                || (number.len() <= 2 && number.starts_with(|c: char| c.is_ascii_uppercase()));
            section = if is_number { number } else { String::new() };
            sections.insert(section.clone());
        } else if let Some(item) = item(line) {
            sections.insert(if section.is_empty() { item } else { format!("{section}.{item}") });
        }
    }
    sections
}

/// The number of a list item ("13. Text") or of a table row ("| 13 | Text |", "| B9 | Text |", "| Q9 | Text |").
fn item(line: &str) -> Option<String> {
    let cell = line.strip_prefix("| ").map(|row| row.strip_prefix(['B', 'Q']).unwrap_or(row));
    let number: String = cell.unwrap_or(line).chars().take_while(char::is_ascii_digit).collect();
    let rest = &cell.unwrap_or(line)[number.len()..];
    let is_item = !number.is_empty() && rest.starts_with(if cell.is_some() { " |" } else { ". " });
    is_item.then_some(number)
}

/// The citations in a text: page and section. "spec/endpoints 8.3, 13.12" cites two sections.
fn citations(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("spec/") {
        let cited = &text[at + "spec/".len()..];
        let page: String = cited.chars().take_while(char::is_ascii_lowercase).collect();
        let Some(numbers) = cited[page.len()..].strip_prefix(' ') else { continue };
        for number in numbers.split(", ") {
            let section: String = number.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
            let is_section = section.starts_with(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase());
            if is_section {
                found.push((page.clone(), section.trim_end_matches('.').to_owned()));
            }
            if !is_section || section.len() < number.len() {
                break;
            }
        }
    }
    found
}

#[test]
fn citations_of_the_specification_resolve() {
    let mut pages = HashMap::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for path in sources(&["rs", "c", "h", "md", "except"]) {
        if path.ends_with("test/tests/citations.rs") || path.ends_with("docs/CONTRIBUTING.md") {
            continue; // the citations in these files are examples
        }
        for (page, section) in citations(&read(&path)) {
            count += 1;
            let file = PathBuf::from(format!("docs/spec/{page}.md"));
            let known = pages.entry(page.clone()).or_insert_with(|| match workspace().join(&file).is_file() {
                true => sections(&read(&file)),
                false => BTreeSet::new(),
            });
            if !known.contains(&section) {
                wrong.push(format!("{}: spec/{page} {section}", path.display()));
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "no such section:\n{}", wrong.join("\n"));
    assert!(count > 500, "only {count} citations were found");
}

/// The anchor that GitHub generates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    page.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Removes `..` from a path: `base/../a` becomes `a`.
fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// The targets of the Markdown links of a page, without code blocks and web addresses.
fn links(page: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let target: String = line[at + 2..].chars().take_while(|c| *c != ')').collect();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target);
            }
        }
    }
    found
}

#[test]
fn links_between_documents_resolve() {
    let mut wrong = Vec::new();
    for path in sources(&["md"]) {
        for link in links(&read(&path)) {
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => normalized(&path.parent().expect("the path of a document has a parent").join(file)),
            };
            let exists = workspace().join(&target).exists();
            let has_heading = || fragment.is_empty() || anchors(&read(&target)).contains(fragment);
            if !exists || !has_heading() {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links without a target:\n{}", wrong.join("\n"));
}

#[test]
fn sections_citations_and_links_of_a_page_are_parsed() {
    let page =
        "# Title\n## 1. One\n### 1.2 Two\n1. an item\n| Q7 | row |\n## B Letters\n### B1. Ring\n## Plain\n3. third\n";
    let known = sections(page);
    for section in ["1", "1.2", "1.2.1", "1.2.7", "B", "B1", "3"] {
        assert!(known.contains(section), "{section}: {known:?}");
    }
    let cited = citations("(spec/endpoints 8.3, 13.12) and spec/events 2. And spec/requirements-sm.md");
    let cited: Vec<_> = cited.iter().map(|(page, section)| format!("{page} {section}")).collect();
    assert_eq!(cited, ["endpoints 8.3", "endpoints 13.12", "events 2"]);
    assert_eq!(links("[a](b.md#c) [d](https://e)\n```\n[f](g)\n```\n"), ["b.md#c"]);
    assert_eq!(anchor(" What sm, and `usnic`, are"), "what-sm-and-usnic-are");
}
