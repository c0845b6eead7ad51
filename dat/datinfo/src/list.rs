//! Output of `datinfo` (entries, whether each opens, attributes), `datinfo list` (names), `datinfo discover` (lines for
//! this machine), and `datinfo --version`.
#![forbid(unsafe_code)]

use std::fmt::Write;

use serde_json::{Value, json};

use crate::adapter::{self, OpenResult};
use crate::options::Options;
use crate::registry::{Registry, ReportedEntry};
use crate::words::wrapped;
use crate::{print_json, print_output, print_result};

/// Column at which the values of attributes begin.
const VALUE_COLUMN: usize = 41;

/// Prints the entries and whether each adapter opens. Returns true if any adapter opens.
pub(crate) fn list(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    // The JSON output contains the entries for all versions of the API. The text contains those for the requested
    // version, or all with `--all` or `--ia`.
    let (entries, others) = if options.json { (registry.wanted(options), None) } else { registry.openable(options) };
    let opened = adapter::open_all(options, &entries);
    let usable = opened.iter().any(OpenResult::is_open);
    if options.json {
        print_json(&document(&registry, &entries, &opened, options.verbose));
        return Ok(usable);
    }
    let mut text = String::new();
    for trouble in &registry.unreadable {
        let _ = writeln!(text, "{trouble}");
    }
    if entries.is_empty() {
        let origin = registry.origin.as_deref().unwrap_or("the registry");
        let _ = writeln!(text, "no adapter in {origin}");
    }
    let paragraphs: Vec<String> =
        entries.iter().zip(&opened).map(|(entry, opened)| lines(entry, opened, options.verbose)).collect();
    text += &paragraphs.join("\n");
    let mut remarks = String::new();
    if let Some(others) = others {
        remarks += &wrapped(&format!("{others}; --all shows them"), 0);
    }
    for absent in
        registry.absent.iter().filter(|absent| options.names.is_empty() || options.names.contains(&absent.name))
    {
        let line = format!("{}  {}: not used: the line {}; {}", absent.name, absent.id, absent.why, absent.remedy);
        remarks += &wrapped(&line, 0);
    }
    let dropped = registry.diagnostics.iter().filter(|diagnostic| diagnostic.is_dropped).count();
    if dropped > 0 {
        let _ = writeln!(remarks, "invalid lines: {dropped}; datinfo check explains them");
    }
    if !text.is_empty() && !remarks.is_empty() {
        text.push('\n');
    }
    print_output(&(text + &remarks));
    Ok(usable)
}

/// Prints the names of the adapters for the requested API version, or with `is_all` for all versions, without opening
/// them. Each name is printed once. Returns true if there is any.
pub(crate) fn names(options: &Options, is_all: bool) -> crate::Result {
    let registry = Registry::read(options, None)?;
    let mut names: Vec<&str> = Vec::new();
    for entry in registry.entries.iter().filter(|entry| is_all || entry.is_for(options.api)) {
        if !names.contains(&entry.name.as_str()) {
            names.push(&entry.name);
        }
    }
    let lines = || names.iter().map(|name| format!("{name}\n")).collect();
    print_result(options, || json!({ "names": names }), lines);
    Ok(!names.is_empty())
}

fn document(registry: &Registry, entries: &[ReportedEntry], opened: &[OpenResult], with_attributes: bool) -> Value {
    let adapters: Vec<Value> = entries
        .iter()
        .zip(opened)
        .map(|(entry, opened)| {
            let mut value = json!(entry);
            opened.add_to(&mut value, with_attributes);
            value
        })
        .collect();
    json!({
        "origin": registry.origin,
        "libdat": {"version": registry.version, "files": registry.files},
        "adapters": adapters,
        "out_of_use": registry.absent,
        "diagnostics": registry.diagnostics,
        "unreadable": registry.unreadable,
    })
}

/// Text for an adapter: whether it opens, its entry, why it does not open or close, and with `-v` all attributes.
fn lines(entry: &ReportedEntry, opened: &OpenResult, verbose: bool) -> String {
    let ReportedEntry { name, version, safety, library, params, id, .. } = entry;
    let mut text = match opened {
        OpenResult::Yes(attributes, _) => {
            let address = attributes["address"].as_str();
            wrapped(
                &format!("{name}  opens{}", address.map_or(String::new(), |address| format!(", address {address}"))),
                0,
            )
        }
        OpenResult::No(reason) if reason.code.is_empty() => wrapped(&format!("{name}  does not open"), 0),
        OpenResult::No(reason) => wrapped(&format!("{name}  does not open ({})", reason.code), 0),
    };
    if !library.is_empty() {
        let params = if params.is_empty() { String::new() } else { format!(" \"{params}\"") };
        text += &wrapped(&format!("DAT {version} {safety}: {library}{params}"), 2);
    } else if !version.is_empty() {
        text += &wrapped(&format!("DAT {version} {safety}"), 2);
    }
    if !id.is_empty() {
        text += &wrapped(id, 2);
    }
    match opened {
        OpenResult::Yes(attributes, closed) => {
            text += &closed.as_ref().map_or(String::new(), |closed| wrapped(&format!("but {closed}"), 2));
            if verbose {
                text += &attribute_lines(attributes);
            }
        }
        OpenResult::No(reason) => {
            text += &wrapped(&reason.cause, 2);
            if !reason.remedy.is_empty() {
                text += &wrapped(&format!("-> {}", reason.remedy), 2);
            }
        }
    }
    text
}

fn attribute_lines(attributes: &Value) -> String {
    let mut text = String::new();
    let lists = ["ia", "transport_specific", "vendor_specific", "provider", "provider_specific"];
    for list in lists.iter().filter(|list| attributes[**list].as_array().is_some_and(|list| !list.is_empty())) {
        let _ = writeln!(text, "  {list}:");
        for row in attributes[*list].as_array().into_iter().flatten() {
            let (name, unit) = (row["name"].as_str().unwrap_or_default(), row["unit"].as_str().unwrap_or_default());
            let value = match &row["value"] {
                Value::String(text) => text.clone(),
                Value::Number(number) if unit == "address" => {
                    number.as_u64().map_or(number.to_string(), |number| format!("{number:#x}"))
                }
                Value::Array(rows) if !rows.is_empty() => matrix(rows),
                other => other.to_string(),
            };
            let unit = if unit == "address" { "" } else { unit };
            let value = wrapped(format!("{value} {unit}").trim_end(), VALUE_COLUMN);
            let _ = write!(text, "    {name:<36} {}", value.trim_start());
        }
    }
    text
}

/// Formats a matrix of truth values. A short text replaces a matrix whose values are all equal.
fn matrix(rows: &[Value]) -> String {
    let mut cells = rows.iter().flat_map(|row| row.as_array().into_iter().flatten());
    let first = cells.clone().next().and_then(Value::as_bool);
    match first {
        Some(first) if cells.all(|cell| cell.as_bool() == Some(first)) => {
            format!("{first} for all combinations")
        }
        _ => Value::from(rows).to_string().replace("],[", "], ["),
    }
}

/// Prints lines of dat.conf for the adapters of this machine.
pub(crate) fn discover(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    if !registry.is_ours {
        return Err(
            "this libdat.so.1 is of another project and cannot list adapters; name that of dapl-rs with --libdat"
                .into(),
        );
    }
    let lines = || registry.discovered.iter().map(|line| format!("{line}\n")).collect();
    print_result(options, || json!({ "lines": registry.discovered }), lines);
    Ok(!registry.discovered.is_empty())
}

/// Prints the versions of this program, of libdat, and of the libraries that are loaded to open the adapters.
pub(crate) fn versions(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    let (entries, _) = registry.openable(options);
    let opened = adapter::open_all(options, &entries);
    let mut files: Vec<Value> = vec![json!({"file": "datinfo", "version": env!("CARGO_PKG_VERSION")})];
    let libdat = registry.version.clone().unwrap_or_else(|| "of another project".to_owned());
    let mut add = |file: &str, version: &str| {
        if files.iter().all(|known| known["file"] != file) {
            files.push(json!({"file": file, "version": version}));
        }
    };
    for file in &registry.files {
        add(file, &libdat);
    }
    for (entry, opened) in entries.iter().zip(&opened) {
        let OpenResult::Yes(attributes, _) = opened else { continue };
        // The provider-specific attribute `version` is more precise than the two version numbers of the ABI.
        let specific = attributes["provider_specific"].as_array().into_iter().flatten();
        let precise = specific.filter(|one| one["name"] == "version").find_map(|one| one["value"].as_str());
        let own = precise.or(attributes["version"].as_str()).unwrap_or_default();
        for file in attributes["files"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let is_provider = file.ends_with(entry.library.rsplit('/').next().unwrap_or_default());
            let version = if is_provider { own } else { of_name(file) };
            add(file, version);
        }
    }
    print_result(options, || json!({ "files": files }), || files.iter().map(line_of).collect());
    Ok(true)
}

fn line_of(file: &Value) -> String {
    let text = |name: &str| file[name].as_str().unwrap_or_default().to_owned();
    format!("{} {}\n", text("file"), text("version")).trim_end().to_owned() + "\n"
}

/// The version after `.so.` in a library's file name; empty if there is none.
fn of_name(file: &str) -> &str {
    file.rsplit_once(".so.").map_or("", |(_, version)| version)
}
