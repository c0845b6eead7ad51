//! `datinfo add`, `remove` and `set-default`: change entries of a dat.conf.
//!
//! `text` changes single lines in memory; `file` locks and replaces the file. Each changed line is printed; a dry run
//! prints the same and writes nothing.
#![forbid(unsafe_code)]

mod file;
mod text;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dat::conf::api_version;
use serde_json::{Value, json};

use crate::options::{Add, Api, EditedConf, Options, Remove, SetDefault};
use crate::registry::{Registry, ReportedEntry};
use crate::settings::param_troubles;
use crate::{nearest, print_result};
use file::EditedFile;
use text::{ConfText, FileEntry, checked};

/// A changed line, for the output.
#[derive(Debug)]
struct ChangedLine {
    /// Kind of change: `added`, `removed`, or `now` for a line that was replaced or changed.
    verb: &'static str,
    /// Line number, counted from 1: of a removed line before the edit, of other lines after the edit.
    line: usize,
    text: String,
}

impl ChangedLine {
    fn new(verb: &'static str, index: usize, line: &[u8]) -> Self {
        let text = String::from_utf8_lossy(line);
        let text = text.chars().filter(|c| *c != '\u{feff}').map(|c| if c.is_control() && c != '\t' { '?' } else { c });
        ChangedLine { verb, line: index + 1, text: text.collect() }
    }
}

/// A function that edits the text, and returns the changed lines or an error.
type Edit<'a> = dyn Fn(&mut ConfText) -> Result<Vec<ChangedLine>, String> + 'a;

/// Executes `datinfo add`.
pub(crate) fn add(options: &Options, wanted: &Add) -> crate::Result {
    let lines = match (&wanted.name, &wanted.library) {
        (Some(name), Some(library)) => vec![line_of(options, wanted, name, library)],
        _ if wanted.discovered => missing_adapters(options, &wanted.conf)?,
        _ => {
            let file = wanted.from.as_deref();
            lines_of(file.ok_or("nothing to add: give a name and a library, --from or --discovered")?)?
        }
    };
    let warnings = wanted.library.as_deref().map_or(Vec::new(), |library| param_warnings(library, &wanted.params));
    edit(options, &wanted.conf, true, &warnings, &|text| {
        let mut changes = Vec::new();
        for line in &lines {
            changes.push(add_line(text, line, wanted.replace)?);
        }
        Ok(changes)
    })
}

/// Executes `datinfo remove`.
pub(crate) fn remove(options: &Options, wanted: &Remove) -> crate::Result {
    let others = match &wanted.from {
        Some(file) => lines_of(file)?.iter().map(|line| checked(line)).collect::<Result<Vec<_>, _>>()?,
        None if wanted.names.is_empty() => return Err("nothing to remove: give a name, or --from".to_owned()),
        None => Vec::new(),
    };
    edit(options, &wanted.conf, false, &[], &|text| {
        let mut gone = Vec::new();
        for name in &wanted.names {
            gone.extend(removed(text, name, options.api, wanted.line)?);
        }
        let is_other =
            |entry: &FileEntry| others.iter().any(|other| other.has_key_of(entry) && other.library == entry.library);
        gone.extend(text.entries().into_iter().filter(is_other).map(|entry| entry.index));
        if gone.is_empty() {
            return Err("has no entry of the file named by --from".to_owned());
        }
        let changes = gone.iter().map(|index| ChangedLine::new("removed", *index, text.line(*index))).collect();
        text.remove(&gone);
        Ok(changes)
    })
}

/// Executes `datinfo set-default`: enables the entry at `--line`, and disables the other entries with the same name,
/// version and thread safety. Without `--line`, enables all entries of the name; several with the same version and
/// thread safety are an error. With `--off`, disables the entry at `--line`, or all entries of the name. Only entries
/// for the version of `--api` count.
pub(crate) fn set_default(options: &Options, wanted: &SetDefault) -> crate::Result {
    edit(options, &wanted.conf, false, &[], &|text| {
        let entries = named(text, &wanted.name, options.api)?;
        let chosen = chosen(&entries, &wanted.name, options.api, wanted.line)?;
        let is_duplicate = |entry: &&FileEntry| entries.iter().filter(|other| other.has_key_of(entry)).count() > 1;
        if !wanted.off && wanted.line.is_none() && chosen.iter().any(is_duplicate) {
            let lines: Vec<String> =
                entries.iter().filter(|entry| entry.has_key_of(&entries[0])).map(described).collect();
            return Err(format!("\"{}\" has several entries: {}; choose one by --line", wanted.name, lines.join(", ")));
        }
        let mut changes = Vec::new();
        for entry in &entries {
            let is_chosen = chosen.iter().any(|chosen| chosen.index == entry.index);
            let is_duplicate = !wanted.off && chosen.iter().any(|chosen| chosen.has_key_of(entry));
            if (is_chosen || is_duplicate) && text.set_default(entry.index, is_chosen && !wanted.off) {
                changes.push(ChangedLine::new("now", entry.index, text.line(entry.index)));
            }
        }
        Ok(changes)
    })
}

/// Warnings about the parameters of a new entry. They are not errors, because the library may be newer than datinfo and
/// have more parameters.
fn param_warnings(library: &str, params: &str) -> Vec<String> {
    let entry = ReportedEntry { library: library.to_owned(), params: params.to_owned(), ..ReportedEntry::default() };
    let warnings = param_troubles(&entry).into_iter();
    warnings.map(|(found, allowed)| format!("ia_params: {found}; {allowed}")).collect()
}

/// Reads the file, edits its text, and prints the changes and the warnings. Writes the file if there are changes,
/// except in a dry run.
fn edit(
    options: &Options,
    conf: &EditedConf,
    may_create: bool,
    warnings: &[String],
    change: &Edit<'_>,
) -> crate::Result {
    let path = target(options, conf)?;
    let file = EditedFile::open(&path, may_create, Duration::from_secs(options.timeout))?;
    let mut text = ConfText::new(&file.text);
    let changes = change(&mut text).map_err(|error| format!("{}: {error}", path.display()))?;
    let is_new = !file.exists();
    if !conf.dry_run && !changes.is_empty() {
        file.write(&text.bytes())?;
    }
    let warned = || warnings.iter().map(|warning| format!("{}: {warning}\n", path.display())).collect::<String>();
    print_result(
        options,
        || document(&path, &changes, conf.dry_run, is_new, warnings),
        || lines(&path, &changes, conf.dry_run, is_new) + &warned(),
    );
    Ok(true)
}

fn document(path: &Path, changes: &[ChangedLine], is_dry: bool, is_new: bool, warnings: &[String]) -> Value {
    let rows: Vec<Value> =
        changes.iter().map(|change| json!({"change": change.verb, "line": change.line, "text": change.text})).collect();
    let is_written = !is_dry && !rows.is_empty();
    json!({
        "file": path.display().to_string(), "changes": rows, "written": is_written, "new": is_new, "warnings": warnings,
    })
}

fn lines(path: &Path, changes: &[ChangedLine], is_dry: bool, is_new: bool) -> String {
    let mut text = String::new();
    let file = path.display();
    for ChangedLine { verb, line, text: changed } in changes {
        let _ = writeln!(text, "{file}:{line}: {verb}: {changed}");
    }
    if changes.is_empty() {
        let _ = writeln!(text, "{file}: nothing to change");
    }
    if is_new {
        let instead = "programs that read this file do not have the built-in names, which datinfo discover prints";
        let _ = writeln!(text, "{file}: is new; {instead}");
    }
    if is_dry {
        let _ = writeln!(text, "{file}: dry run, not written");
    }
    text
}

/// The file to edit: the file that the user names, otherwise the one that libdat reads.
fn target(options: &Options, conf: &EditedConf) -> Result<PathBuf, String> {
    if let Some(file) = &conf.file {
        return Ok(file.clone());
    }
    let registry = Registry::read(options, None).map_err(|error| format!("{error}; name the file by --file"))?;
    registry.target.map(PathBuf::from).ok_or_else(|| "this libdat does not name its dat.conf; give --file".to_owned())
}

/// Formats the line of a new entry from the arguments of `datinfo add`.
fn line_of(options: &Options, wanted: &Add, name: &str, library: &str) -> Vec<u8> {
    let Api { major, minor } = options.api;
    let minor = minor.unwrap_or(if major == 1 { 2 } else { 0 });
    let version = wanted.provider_version.clone().unwrap_or_else(|| format!("dapl.{major}.{minor}"));
    let safety = if options.thread_safe { "threadsafe" } else { "nonthreadsafe" };
    let default = if wanted.nondefault { "nondefault" } else { "default" };
    let quoted = |text: &str| [b"\"", text.replace('\\', "\\\\").replace('"', "\\\"").as_bytes(), b"\""].concat();
    let fields = [
        text::field(name.as_bytes()),
        format!("u{major}.{minor}").into_bytes(),
        safety.into(),
        default.into(),
        text::field(library.as_bytes()),
        text::field(version.as_bytes()),
        quoted(&wanted.params),
        quoted(""),
    ];
    fields.join(&b' ')
}

/// Reads a file, or standard input for `-`. Returns the lines that are neither empty nor comments.
fn lines_of(file: &Path) -> Result<Vec<Vec<u8>>, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", file.display());
    let bytes = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map_err(fail)?;
        bytes
    } else {
        std::fs::read(file).map_err(fail)?
    };
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line).trim_ascii());
    let lines: Vec<Vec<u8>> =
        lines.filter(|line| !line.is_empty() && !line.starts_with(b"#")).map(<[u8]>::to_vec).collect();
    if lines.is_empty() { Err(format!("{}: has no entry", file.display())) } else { Ok(lines) }
}

/// Lines for the adapters of this machine whose names are not in the file.
fn missing_adapters(options: &Options, conf: &EditedConf) -> Result<Vec<Vec<u8>>, String> {
    let registry = Registry::read(options, None)?;
    let known = std::fs::read(target(options, conf)?).unwrap_or_default();
    let known = ConfText::new(&known).entries();
    let lines = registry.discovered.into_iter().map(String::into_bytes);
    let is_new = |line: &Vec<u8>| checked(line).is_ok_and(|entry| known.iter().all(|known| known.name != entry.name));
    Ok(lines.filter(is_new).collect())
}

fn add_line(text: &mut ConfText, line: &[u8], may_replace: bool) -> Result<ChangedLine, String> {
    let shown = || String::from_utf8_lossy(line).into_owned();
    let entry = checked(line).map_err(|error| format!("cannot add \"{}\": {error}", shown().escape_debug()))?;
    let known = text.entries().into_iter().find(|known| known.has_key_of(&entry));
    match known {
        Some(known) if may_replace => {
            text.replace(known.index, line);
            Ok(ChangedLine::new("now", known.index, line))
        }
        Some(known) => {
            let name = known.name.escape_ascii();
            Err(format!("\"{name}\" exists already: {}; give --replace to replace it", described(&known)))
        }
        None => {
            text.push(line);
            let index = text.entries().last().map_or(0, |entry| entry.index);
            Ok(ChangedLine::new("added", index, line))
        }
    }
}

/// Selects the entry at line number `line` among the entries of a name; without a number, all of them.
fn chosen<'a>(
    entries: &'a [FileEntry],
    name: &str,
    api: Api,
    line: Option<usize>,
) -> Result<Vec<&'a FileEntry>, String> {
    let Some(line) = line else { return Ok(entries.iter().collect()) };
    let entry = entries.iter().find(|entry| entry.index + 1 == line);
    entry.map(|entry| vec![entry]).ok_or_else(|| format!("line {line} is not an entry of \"{name}\" for DAT {api}"))
}

/// Finds the lines to remove: those with this name for this version of the API, or only line number `line`.
fn removed(text: &ConfText, name: &str, api: Api, line: Option<usize>) -> Result<Vec<usize>, String> {
    let entries = named(text, name, api)?;
    Ok(chosen(&entries, name, api, line)?.into_iter().map(|entry| entry.index).collect())
}

/// The entries of a name for the requested API version.
fn named(text: &ConfText, name: &str, api: Api) -> Result<Vec<FileEntry>, String> {
    let entries = text.entries();
    let is_version =
        |entry: &FileEntry| api_version(&entry.api).is_some_and(|(_, major, minor)| api.includes(major, minor));
    let (named, others): (Vec<FileEntry>, Vec<FileEntry>) =
        entries.into_iter().partition(|entry| entry.name == name.as_bytes() && is_version(entry));
    if !named.is_empty() {
        return Ok(named);
    }
    if let Some(other) = others.iter().find(|other| other.name == name.as_bytes()) {
        let version = String::from_utf8_lossy(&other.api[1..]).into_owned();
        return Err(format!("\"{name}\" exists only for DAT {version}; give --api {version}"));
    }
    let names: Vec<String> = others.iter().map(|other| String::from_utf8_lossy(&other.name).into_owned()).collect();
    let meant = nearest::of(name, names.iter().map(String::as_str));
    Err(format!("has no entry \"{name}\"{}", nearest::suffix(&meant)))
}

fn described(entry: &FileEntry) -> String {
    let state = if entry.is_default { "default" } else { "nondefault" };
    format!("line {} ({}, {state})", entry.index + 1, String::from_utf8_lossy(&entry.library))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "a u1.2 nonthreadsafe default l1 d.1.2 \"\" \"\"\n# comment\n\
                        a u1.2 nonthreadsafe nondefault l2 d.1.2 \"\" \"\"\na u2.0 nonthreadsafe default l3 d.2.0 \"\" \"\"\n";

    const V1: Api = Api { major: 1, minor: None };

    #[test]
    fn entries_to_remove_are_selected_by_name_version_and_line() {
        let text = ConfText::new(FILE.as_bytes());
        assert_eq!(removed(&text, "a", V1, None), Ok(vec![0, 2]));
        assert_eq!(removed(&text, "a", V1, Some(3)), Ok(vec![2]));
        assert_eq!(removed(&text, "a", Api { major: 2, minor: Some(0) }, None), Ok(vec![3]));
        assert!(removed(&text, "a", V1, Some(2)).is_err_and(|error| error.contains("line 2 is not an entry")));
        assert_eq!(removed(&text, "aa", V1, None), Err("has no entry \"aa\"".to_owned()));
        let other = ConfText::new(FILE.replace("u1.2", "u2.0").as_bytes());
        assert!(removed(&other, "a", V1, None).is_err_and(|error| error.ends_with("give --api 2.0")));
    }

    #[test]
    fn existing_entry_is_not_added_again_but_can_be_replaced() {
        let mut text = ConfText::new(FILE.as_bytes());
        let line = b"a u1.2 threadsafe default l4 d.1.2 \"\" \"\"";
        assert_eq!(add_line(&mut text, line, false).unwrap().line, 5);
        let error = add_line(&mut text, line, false).unwrap_err();
        assert_eq!(error, "\"a\" exists already: line 5 (l4, default); give --replace to replace it");
        assert_eq!(add_line(&mut text, line, true).unwrap().verb, "now");
        assert_eq!(text.bytes(), [FILE.as_bytes(), line, b"\n"].concat());
        assert!(add_line(&mut text, b"a", false).is_err_and(|error| error.contains("it has 1 fields")));
    }
}
