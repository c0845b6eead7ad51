//! Manual pages: the texts of `docs/man/`, completed by prototypes and declarations from the headers, differences
//! between DAT 2.0 and 1.2, variables and their ranges from the table of docs/settings.md (which a test compares with
//! the code), date and version of the release.
//!
//! Errors in a page (wrong parameter names, a duplicate term) are reported here. The suites check the return codes
//! and program options in the generated pages.
#![forbid(unsafe_code)]

mod header;
mod roff;
mod settings;
mod source;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use dapl_test::stage::{target_directory, workspace};

use crate::{Result, release};
use header::Prototype;
use roff::Footer;
use source::{Block, Page};
use versions::Versions;

/// Headers that declare functions, and the header that programs include for them.
const HEADERS: [(&str, &str); 3] =
    [("dat.h", "dat/udat.h"), ("udat.h", "dat/udat.h"), ("dat_registry.h", "dat/dat_registry.h")];

/// Additional page names: macros, each with a copy of the page of the function that it calls.
const ALIASES: [(&str, &str); 1] = [("dat_ia_open", "dat_ia_openv")];

/// A generated page.
pub(crate) struct ManPage {
    /// Path, such as `man3/dat_ep_connect.3`.
    pub(crate) path: String,
    /// Text with man(7) macros.
    pub(crate) text: String,
}

/// Command `man`: writes all pages below a directory.
pub(crate) fn run(directory: Option<PathBuf>) -> Result {
    let root = directory.unwrap_or_else(|| target_directory().join("man"));
    let made = pages()?;
    write(&made, &root).map_err(|error| format!("{}: {error}", root.display()))?;
    println!("{} pages in {}; for instance: man -M {} dat_ep_connect", made.len(), root.display(), root.display());
    Ok(())
}

/// Command `settings`: writes the table of variables of docs/settings.md.
pub(crate) fn write_settings() -> Result {
    let path = workspace().join("docs/settings.md");
    fs::write(&path, settings::page(&read("docs/settings.md")?)?)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Replaces all pages below a directory, in the sections 1 to 9.
fn write(made: &[ManPage], root: &Path) -> std::io::Result<()> {
    for section in 1..=9 {
        let old = root.join(format!("man{section}"));
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    for page in made {
        let path = root.join(&page.path);
        fs::create_dir_all(path.parent().expect("the path of a man page has a parent"))?;
        fs::write(path, &page.text)?;
    }
    Ok(())
}

/// Generates all manual pages, without writing them.
pub(crate) fn pages() -> Result<Vec<ManPage>> {
    let declared = declared()?;
    let headers = read("dat/include/dat/dat.h")? + &read("dat/include/dat/udat.h")?;
    let versions = Versions::of(all_headers("dat")?, all_headers("dat2")?);
    let variables = settings::rows(&read("docs/settings.md")?);
    let release = release::current()?;
    let (date, release) = (release.date.as_str(), format!("dapl-rs {}", release.version));
    let foot = Footer { date, release: &release };
    let mut made = Vec::new();
    for path in sources()? {
        let wrong = |what: String| format!("{path}: {what}");
        let mut page = source::parse(&read(&path)?).map_err(wrong)?;
        if path != format!("docs/man/{}.{}.md", page.name, page.section) {
            return Err(wrong(format!("the first line names {}({}), not this file", page.name, page.section)));
        }
        settings::fill_in(&mut page, &variables).map_err(wrong)?;
        insert_declarations(&mut page, &headers).map_err(wrong)?;
        insert_versions(&mut page, &versions);
        let synopsis = synopsis(&mut page, &declared).map_err(wrong)?;
        let text = roff::render(&page, &synopsis, &foot);
        made.push(ManPage { path: format!("man{0}/{1}.{0}", page.section, page.name), text });
    }
    for (alias, page) in ALIASES {
        let found = made.iter().find(|made| made.path == format!("man3/{page}.3"));
        let text = found.ok_or_else(|| format!("the page {page}(3) of the alias {alias} does not exist"))?.text.clone();
        made.push(ManPage { path: format!("man3/{alias}.3"), text });
    }
    Ok(made)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// Names of the source files, sorted.
fn sources() -> Result<Vec<String>> {
    let entries = fs::read_dir(workspace().join("docs/man")).map_err(|error| format!("docs/man: {error}"))?;
    let names: BTreeSet<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    Ok(names.into_iter().filter(|name| name.ends_with(".md")).map(|name| format!("docs/man/{name}")).collect())
}

/// All functions of both versions, with the header that programs include. A function of both versions has the 1.2
/// prototype.
fn declared() -> Result<BTreeMap<String, (Prototype, &'static str)>> {
    let mut all = BTreeMap::new();
    for (file, include) in HEADERS {
        for prototype in header::prototypes(&read(&format!("dat/include/dat/{file}"))?) {
            all.insert(prototype.name.clone(), (prototype, include));
        }
    }
    for prototype in header::prototypes(&all_headers("dat2")?) {
        all.entry(prototype.name.clone()).or_insert((prototype, "dat2/udat.h"));
    }
    Ok(all)
}

/// Concatenates the headers of a version that declare functions.
fn all_headers(folder: &str) -> Result<String> {
    HEADERS.iter().map(|(file, _)| read(&format!("dat/include/{folder}/{file}"))).collect()
}

/// Adds the differences of 2.0 to the page of a call. Replaces the paragraphs `{changed calls}` and `{changed
/// types}`.
fn insert_versions(page: &mut Page, versions: &Versions) {
    for (_, blocks) in &mut page.sections {
        let replaced = blocks.drain(..).flat_map(|block| match &block {
            Block::Text(text) if text == "{changed calls}" => versions.changed_calls(),
            Block::Text(text) if text == "{changed types}" => versions.changed_types(),
            _ => vec![block],
        });
        *blocks = replaced.collect();
    }
    let section = versions.section(&page.name);
    if page.section == 3 && !section.is_empty() {
        let last = page.sections.iter().position(|(heading, _)| heading == "SEE ALSO").unwrap_or(page.sections.len());
        page.sections.insert(last, (versions::HEADING.to_owned(), section));
    }
}

/// Replaces each paragraph `{declaration: TYPE}` by the declaration in the headers. The page must explain all members
/// or values as terms.
fn insert_declarations(page: &mut Page, headers: &str) -> Result {
    let mut members = Vec::new();
    let sections = page.sections.iter_mut().map(|(_, blocks)| blocks);
    for block in std::iter::once(&mut page.description).chain(sections).flatten() {
        let Block::Text(text) = block else { continue };
        let Some(name) = text.strip_prefix("{declaration: ").and_then(|rest| rest.strip_suffix('}')) else { continue };
        let lines = header::type_declaration(headers, name).ok_or_else(|| format!("no header declares {name}"))?;
        members.extend(header::members(&lines));
        *block = Block::Code(lines);
    }
    let explained = page.all_terms();
    match members.into_iter().find(|member| !explained.contains(member)) {
        Some(member) => Err(format!("does not explain the member {member}")),
        None => Ok(()),
    }
}

/// Returns the page's SYNOPSIS: its own, or in section 3 the prototype, whose parameters the page must then explain.
fn synopsis(page: &mut Page, declared: &BTreeMap<String, (Prototype, &'static str)>) -> Result<Vec<String>> {
    let written =
        page.sections.iter().position(|(heading, _)| heading == "SYNOPSIS").map(|at| page.sections.remove(at));
    if let Some((_, blocks)) = written {
        return match &blocks[..] {
            [Block::Code(lines)] => Ok(lines.clone()),
            _ => Err("SYNOPSIS is not a single code block".to_owned()),
        };
    }
    if page.section != 3 {
        return Ok(Vec::new());
    }
    let Some((prototype, include)) = declared.get(&page.name) else {
        return Err(format!("no header declares {}", page.name));
    };
    let explained = page.terms("PARAMETERS");
    if explained != prototype.parameters {
        return Err(format!("PARAMETERS explains {explained:?}, but the header has {:?}", prototype.parameters));
    }
    Ok([&[format!("#include <{include}>"), String::new()], &prototype.lines[..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_function_has_a_valid_manual_page() {
        let made: BTreeSet<String> = pages().unwrap().into_iter().map(|page| page.path).collect();
        let missing: Vec<String> =
            declared().unwrap().into_keys().filter(|f| !made.contains(&format!("man3/{f}.3"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(made.contains("man3/dat_ia_open.3"), "{made:?}");
        for only_2_0 in ["dat_csp_create", "dat_extension_op", "dat_ib_post_fetch_and_add"] {
            assert!(made.contains(&format!("man3/{only_2_0}.3")), "{only_2_0}");
        }
    }

    #[test]
    fn settings_page_is_up_to_date() {
        let page = read("docs/settings.md").unwrap();
        assert!(settings::page(&page).unwrap() == page, "docs/settings.md is out of date: run cargo xtask settings");
    }

    #[test]
    fn page_whose_parameters_differ_from_the_header_is_refused() {
        let prototype = Prototype { name: "f".into(), lines: vec!["f(".into()], parameters: vec!["a".into()] };
        let declared = BTreeMap::from([("f".to_owned(), (prototype, "h"))]);
        let mut page = source::parse("# f(3) - x\n\ny\n\n## PARAMETERS\n\n- `b`: z\n").unwrap();
        assert_eq!(
            synopsis(&mut page, &declared),
            Err("PARAMETERS explains [\"b\"], but the header has [\"a\"]".to_owned())
        );
        let mut page = source::parse("# f(3) - x\n\ny\n\n## PARAMETERS\n\n- `a`: z\n").unwrap();
        assert_eq!(synopsis(&mut page, &declared), Ok(vec!["#include <h>".into(), String::new(), "f(".into()]));
    }
}
