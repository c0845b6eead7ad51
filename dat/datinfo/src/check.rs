//! `datinfo check`: explains the entries of a dat.conf, or of the files that programs read, lists unused lines, and
//! reports errors and warnings with the permitted values.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::options::Options;
use crate::registry::{Diagnostic, Registry, ReportedEntry};
use crate::settings::{is_ours, param_troubles};
use crate::{print_json, print_output};

/// Explains the entries and unused lines of `file`, or without `file` of the files that programs read. Returns true if
/// there is at least one entry, no error, and no file that cannot be read.
pub(crate) fn check(options: &Options, file: Option<&Path>) -> crate::Result {
    if let Some(file) = file {
        // A file that cannot be opened makes the command fail. libdat would only list the file as unreadable.
        std::fs::File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let registry = Registry::read(options, file)?;
    if !registry.is_ours {
        return Err("this libdat.so.1 is of another project and cannot explain dat.conf; name that of dapl-rs with \
                    --libdat"
            .to_owned());
    }
    let mut diagnostics = registry.diagnostics.clone();
    diagnostics.extend(warnings(&registry.entries));
    let dropped = diagnostics.iter().filter(|diagnostic| diagnostic.is_dropped).count();
    let is_wrong = diagnostics.iter().any(|diagnostic| diagnostic.is_wrong);
    let is_well = !is_wrong && registry.unreadable.is_empty() && !registry.entries.is_empty();
    if options.json {
        print_json(&json!({
            "origin": registry.origin,
            "well": is_well,
            "entries": registry.entries.iter().map(explained).collect::<Vec<Value>>(),
            "out_of_use": registry.absent,
            "diagnostics": diagnostics,
            "unreadable": registry.unreadable,
        }));
        return Ok(is_well);
    }
    let mut text = format!("read: {}\n", registry.origin.as_deref().unwrap_or_default());
    registry.unreadable.iter().for_each(|trouble| text += &format!("{trouble}\n"));
    for entry in &registry.entries {
        let _ = writeln!(text, "{}: {}", entry.id, meaning(entry));
    }
    for absent in &registry.absent {
        let _ = writeln!(text, "{}: \"{}\" {}; {}", absent.id, absent.name, absent.why, absent.remedy);
    }
    for diagnostic in &diagnostics {
        text += &line(diagnostic);
    }
    let (count, problems) = (registry.entries.len(), diagnostics.len());
    let _ = writeln!(text, "entries: {count}; errors and warnings: {problems}; invalid lines: {dropped}");
    print_output(&text);
    Ok(is_well)
}

fn explained(entry: &ReportedEntry) -> Value {
    let mut value = json!(entry);
    value["meaning"] = json!(meaning(entry));
    value
}

/// Explains an entry in words.
fn meaning(entry: &ReportedEntry) -> String {
    let ReportedEntry { name, version, safety, library, params, .. } = entry;
    let audience = if entry.is_version_1() { "" } else { " (not 1.2)" };
    let threads = match (safety.as_str(), is_ours(library)) {
        ("threadsafe", _) | (_, true) => "also those that request thread safety",
        _ => "except those that request thread safety",
    };
    let given = if params.is_empty() { "no parameters".to_owned() } else { format!("parameters \"{params}\"") };
    format!("\"{name}\" is for DAT {version} programs{audience}, {threads}: library {library}, {given}")
}

/// Errors and warnings about accepted lines for DAT 1: duplicate entries, missing libraries, invalid parameters.
fn warnings(entries: &[ReportedEntry]) -> Vec<Diagnostic> {
    let mut first: BTreeMap<(&str, &str, &str), &str> = BTreeMap::new();
    let mut warnings = Vec::new();
    for entry in entries.iter().filter(|entry| entry.is_version_1()) {
        let ReportedEntry { name, version, safety, library, id, .. } = entry;
        let mut warn = |field: &str, found: String, allowed: String, is_wrong| {
            let (id, column, field) = (id.clone(), None, field.to_owned());
            warnings.push(Diagnostic { id, column, field, found, allowed, is_dropped: false, is_wrong });
        };
        match first.entry((name, version, safety)) {
            Slot::Vacant(slot) => drop(slot.insert(id)),
            Slot::Occupied(slot) => {
                let found = format!("\"{name}\" {version} {safety} repeats the entry at {}", slot.get());
                let allowed =
                    "this entry is used only if the library of that entry does not load or does not register the name";
                warn("ia_name", found, allowed.to_owned(), false);
            }
        }
        if entry.file.as_ref().is_some_and(String::is_empty) {
            let where_to = if library.contains('/') {
                ""
            } else {
                ": neither in libdat's directory nor in the loader's search path"
            };
            let allowed = "install that library, or correct lib_path".to_owned();
            warn("lib_path", format!("{library} does not exist{where_to}"), allowed, true);
        }
        for (found, allowed) in param_troubles(entry) {
            warn("ia_params", found, allowed, true);
        }
    }
    warnings
}

fn line(diagnostic: &Diagnostic) -> String {
    let Diagnostic { id, column, field, found, allowed, is_dropped, .. } = diagnostic;
    let cost = if *is_dropped { "; this record is dropped" } else { "" };
    let column = column.map_or(String::new(), |column| format!(":{column}"));
    format!("{id}{column}: {field}: {found}; {allowed}{cost}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_explained_with_version_thread_safety_library_and_parameters() {
        let text = |text: &str| text.to_owned();
        let entry = ReportedEntry {
            name: text("a"),
            version: text("2.0"),
            safety: text("nonthreadsafe"),
            library: text("l"),
            params: text("p"),
            id: text("f:1"),
            file: None,
        };
        assert_eq!(
            meaning(&entry),
            "\"a\" is for DAT 2.0 programs (not 1.2), except those that request thread safety: library l, parameters \"p\""
        );
        let own = ReportedEntry { version: text("1.2"), library: text("libdaplsm.so.1"), ..entry.clone() };
        assert!(meaning(&own).contains(", also those that request thread safety: library libdaplsm.so.1"));
        let plain = ReportedEntry { version: text("1.2"), safety: text("threadsafe"), params: String::new(), ..entry };
        assert_eq!(
            meaning(&plain),
            "\"a\" is for DAT 1.2 programs, also those that request thread safety: library l, no parameters"
        );
    }
}
