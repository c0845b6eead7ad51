//! `new-provider`: copies test/loopback, a small working provider, under another name.
//!
//! Below `providers/` the copy becomes a member of the workspace. Elsewhere (`--path`) it is a separate package that
//! refers to this checkout by absolute paths.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use dapl_test::stage::workspace;

use crate::Result;

/// The provider that is copied.
const TEMPLATE: &str = "test/loopback";

/// Maximum length of a name: the thread name `dapl-NAME` has at most 15 bytes.
const MAX_NAME: usize = 10;

/// Writes the provider and prints what to do next.
pub(crate) fn run(name: &str, path: Option<&Path>) -> Result {
    check(name)?;
    let home = workspace();
    let directory = path.map_or_else(|| home.join("providers").join(name), Path::to_path_buf);
    if directory.exists() {
        return Err(format!("{} exists already: give another name, or --path", directory.display()));
    }
    let is_member = path.is_none();
    for file in template_files(&home.join(TEMPLATE))? {
        let source = home.join(TEMPLATE).join(&file);
        let text = fs::read_to_string(&source).map_err(|error| format!("{}: {error}", source.display()))?;
        let text = renamed(&text, name);
        let (file, text) = match file.to_str() {
            Some("Cargo.toml") if !is_member => (file, alone(&text, home)?),
            Some("loopback.except") => (PathBuf::from(format!("{name}.except")), text),
            _ => (file, text),
        };
        write(&directory.join(file), &text)?;
    }
    if is_member {
        let (manifest, text) = root_manifest()?;
        write(&manifest, &with_member(&text, &format!("providers/{name}"))?)?;
    } else {
        // Use the dependency versions of this workspace.
        write(&directory.join("Cargo.lock"), &read(&home.join("Cargo.lock"))?)?;
    }
    announce(name, &directory, is_member);
    Ok(())
}

fn announce(name: &str, directory: &Path, is_member: bool) {
    let directory = directory.display();
    println!("wrote {directory}: the package dapl{name}, which makes libdapl{name}.so.1");
    if is_member {
        println!("build it and check it against the specification:");
        println!("  cargo xtask test conformance --package dapl{name} --mode one --except {directory}/{name}.except");
    } else {
        println!("build it, and name the library in a dat.conf:");
        println!("  cargo build --manifest-path {directory}/Cargo.toml");
        println!("  {name}0 u1.2 nonthreadsafe default {directory}/target/debug/libdapl{name}.so dapl.1.2 \"\" \"\"");
    }
    println!("docs/guide/src/writing-a-provider.md describes each file");
}

fn check(name: &str) -> Result {
    let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !is_word || name.len() > MAX_NAME {
        return Err(format!(
            "the name \"{name}\" has to be 1 to {MAX_NAME} lower-case letters and digits, beginning with a letter"
        ));
    }
    Ok(())
}

/// Relative paths of all files below a directory.
fn template_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let path = root.join(&directory);
        let entries = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for entry in entries.flatten() {
            let relative = directory.join(entry.file_name());
            if entry.path().is_dir() { directories.push(relative) } else { files.push(relative) }
        }
    }
    Ok(files)
}

/// Returns the template's text with the names of the new provider.
fn renamed(text: &str, name: &str) -> String {
    let (first, rest) = name.split_at(1);
    let type_name = first.to_ascii_uppercase() + rest;
    let text = text.replace("daplloopback", &format!("dapl{name}")).replace("dapl-loopback", &format!("dapl-{name}"));
    text.replace("\"loopback\"", &format!("\"{name}\""))
        .replace("Loopback", &type_name)
        .replace(", the template of cargo xtask new-provider", "")
}

/// Converts the manifest so that it inherits nothing from the workspace: dependencies on this project get absolute
/// paths, others a version.
fn alone(manifest: &str, home: &Path) -> Result<String> {
    let (_, root) = root_manifest()?;
    let value = |line: &str| -> Option<String> {
        let key = line.strip_suffix(".workspace = true")?;
        let found = root.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix("= "))?;
        Some(format!("{key} = {}", found.replace("path = \"", &format!("path = \"{}/", home.display()))))
    };
    let mut text = String::from("[workspace]\n\n");
    for line in manifest.split("\n[lints]").next().unwrap_or_default().lines() {
        let resolved = if line.ends_with(".workspace = true") {
            value(line).ok_or_else(|| format!("the workspace has no value for: {line}"))?
        } else {
            line.to_owned()
        };
        text += &resolved;
        text.push('\n');
    }
    Ok(text)
}

/// Adds a member to the workspace's manifest.
fn with_member(manifest: &str, member: &str) -> Result<String> {
    let known = "members = [";
    let (before, after) = manifest.split_once(known).ok_or("Cargo.toml has no list of members")?;
    let (list, rest) = after.split_once(']').ok_or("Cargo.toml: the list of members has no end")?;
    Ok(format!("{before}{known}{list}, \"{member}\"]{rest}"))
}

fn root_manifest() -> Result<(PathBuf, String)> {
    let path = workspace().join("Cargo.toml");
    let text = read(&path)?;
    Ok((path, text))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result {
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_provider_rejects_names_that_are_no_identifier() {
        for name in ["", "Wire", "9p", "a-b", "a b", "../x", "eleven-bytes", "elevenbytes"] {
            assert!(check(name).is_err(), "{name}");
        }
        assert!(check("wire").is_ok() && check("tenletters").is_ok());
    }

    #[test]
    fn new_provider_is_added_as_the_last_workspace_member() {
        let text = with_member("[workspace]\nmembers = [\"a\", \"b\"]\nexclude = []\n", "providers/c").unwrap();
        assert_eq!(text, "[workspace]\nmembers = [\"a\", \"b\", \"providers/c\"]\nexclude = []\n");
        assert!(with_member("[package]\n", "c").is_err());
    }

    #[test]
    fn new_provider_renames_its_names_but_keeps_rust_functions() {
        let text = "libdaplloopback.so.1 \"loopback\" Loopback ip.is_loopback() dapl-loopback";
        assert_eq!(renamed(text, "wire"), "libdaplwire.so.1 \"wire\" Wire ip.is_loopback() dapl-wire");
    }

    #[test]
    fn manifest_outside_of_the_workspace_inherits_nothing() {
        let template = read(&workspace().join(TEMPLATE).join("Cargo.toml")).unwrap();
        let text = alone(&template, Path::new("/src")).unwrap();
        assert!(!text.contains("workspace = true"), "{text}");
        assert!(text.contains("dapl = { path = \"/src/dapl\" }") && text.contains("edition = \"2024\""), "{text}");
    }
}
