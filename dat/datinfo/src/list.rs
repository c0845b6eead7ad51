//! Prints the registry: entries and whether each opens, attributes, versions, adapters of this machine.
#![forbid(unsafe_code)]

use std::fmt::Write;

use serde_json::{Value, json};

use crate::adapter::{self, Opened};
use crate::options::Options;
use crate::registry::{Entry, Registry};
use crate::{say, say_json};

/// The listing; whether any adapter is usable.
pub(crate) fn list(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    // A tool gets all of them, each with its reason.
    let (entries, others) = if options.json { (registry.wanted(options), None) } else { registry.openable(options) };
    let opened = adapter::open_all(options, &entries);
    let usable = opened.iter().any(Opened::is_open);
    if options.json {
        say_json(&document(&registry, &entries, &opened, options.verbose));
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
    for (entry, opened) in entries.iter().zip(&opened) {
        text += &lines(entry, opened, options.verbose);
    }
    if let Some(others) = others {
        let _ = writeln!(text, "{others}; datinfo check explains them");
    }
    for absent in
        registry.absent.iter().filter(|absent| options.names.is_empty() || options.names.contains(&absent.name))
    {
        let _ =
            writeln!(text, "{}  {}: out of use: the line {}; {}", absent.name, absent.id, absent.why, absent.remedy);
    }
    let dropped = registry.complaints.iter().filter(|complaint| complaint.is_dropped).count();
    if dropped > 0 {
        let _ = writeln!(text, "lines that cannot be read: {dropped}; datinfo check explains them");
    }
    say(&text);
    Ok(usable)
}

fn document(registry: &Registry, entries: &[Entry], opened: &[Opened], with_attributes: bool) -> Value {
    let adapters: Vec<Value> = entries
        .iter()
        .zip(opened)
        .map(|(entry, opened)| {
            let mut value = json!(entry);
            let more = opened.json(with_attributes);
            value
                .as_object_mut()
                .zip(more.as_object().cloned())
                .into_iter()
                .for_each(|(value, more)| value.extend(more));
            value
        })
        .collect();
    json!({
        "origin": registry.origin,
        "libdat": {"version": registry.version, "files": registry.files},
        "adapters": adapters,
        "out_of_use": registry.absent,
        "complaints": registry.complaints,
        "unreadable": registry.unreadable,
    })
}

/// An adapter: its line, its state, and with `-v` all attributes.
fn lines(entry: &Entry, opened: &Opened, verbose: bool) -> String {
    let Entry { name, version, safety, library, params, id, .. } = entry;
    let mut text = name.clone();
    if !version.is_empty() {
        let _ = write!(text, "  {version} {safety}");
    }
    if !library.is_empty() {
        let _ = write!(text, "  {library} \"{params}\"");
    }
    if !id.is_empty() {
        let _ = write!(text, "  {id}");
    }
    match opened {
        Opened::Yes(attributes, closed) => {
            let address =
                attributes["address"].as_str().map_or(String::new(), |address| format!(", address {address}"));
            let _ = writeln!(text, "\n  opens{address}");
            if let Some(closed) = closed {
                let _ = writeln!(text, "  but {closed}");
            }
            if verbose {
                text += &attribute_lines(attributes);
            }
        }
        Opened::No(reason) => {
            let code = if reason.code.is_empty() { String::new() } else { format!(" ({})", reason.code) };
            let _ = writeln!(text, "\n  does not open{code}: {}", reason.line());
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
                other => other.to_string(),
            };
            let unit = if unit == "address" { "" } else { unit };
            let _ = writeln!(text, "    {name:<36} {value} {unit}");
        }
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Lines of dat.conf for what this machine has.
pub(crate) fn discover(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    if !registry.is_ours {
        return Err("this libdat.so.1 is another's, and cannot say what the machine has".to_owned());
    }
    match options.json {
        true => say_json(&json!({ "lines": registry.discovered })),
        false => say(&registry.discovered.iter().map(|line| format!("{line}\n")).collect::<String>()),
    }
    Ok(!registry.discovered.is_empty())
}

/// Versions of this program, of libdat, and of each library that an adapter's open loads.
pub(crate) fn versions(options: &Options) -> crate::Result {
    let registry = Registry::read(options, None)?;
    let (entries, _) = registry.openable(options);
    let opened = adapter::open_all(options, &entries);
    let mut files: Vec<Value> = vec![json!({"file": "datinfo", "version": env!("CARGO_PKG_VERSION")})];
    let libdat = registry.version.clone().unwrap_or_else(|| "another's".to_owned());
    let mut add = |file: &str, version: &str| {
        if files.iter().all(|known| known["file"] != file) {
            files.push(json!({"file": file, "version": version}));
        }
    };
    for file in &registry.files {
        add(file, &libdat);
    }
    for (entry, opened) in entries.iter().zip(&opened) {
        let Opened::Yes(attributes, _) = opened else { continue };
        // Prints the provider-specific attributes, which are more precise than the two version numbers of the ABI.
        let facts = attributes["provider_specific"].as_array().into_iter().flatten();
        let fact = facts.filter(|fact| fact["name"] == "version").find_map(|fact| fact["value"].as_str());
        let own = fact.or(attributes["version"].as_str()).unwrap_or_default();
        for file in attributes["files"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let is_provider = file.ends_with(entry.library.rsplit('/').next().unwrap_or_default());
            let version = if is_provider { own } else { of_name(file) };
            add(file, version);
        }
    }
    match options.json {
        true => say_json(&json!({ "files": files })),
        false => say(&files.iter().map(line_of).collect::<String>()),
    }
    Ok(true)
}

fn line_of(file: &Value) -> String {
    let text = |name: &str| file[name].as_str().unwrap_or_default().to_owned();
    format!("{} {}\n", text("file"), text("version")).trim_end().to_owned() + "\n"
}

/// The version after `.so.` in a library's name.
fn of_name(file: &str) -> &str {
    file.rsplit_once(".so.").map_or("", |(_, version)| version)
}
