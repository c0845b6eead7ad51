//! The child process: reads the registry or opens one adapter, and prints results as lines of JSON.
//!
//! The child runs code of libdat and of providers, so it may crash; the parent (`child`) reports the crash. Results are
//! written to the original stdout. File descriptor 1 is redirected to stderr, so that output of a provider is not
//! mistaken for a result. The parent uses [`unescaped`] too.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;

use dat_abi::hook::*;
use serde_json::{Value, json};

use crate::attributes;
use crate::libdat::{Adapter, Code, Libdat};
use crate::options::Options;
use crate::registry::{Diagnostic, Registry, ReportedEntry, UnusableName};

/// Opens the adapter with this name and prints the results; without a name, prints the registry.
pub(crate) fn run(options: &Options, name: Option<&str>) -> crate::Result {
    let answers = rustix::io::dup(std::io::stdout()).and_then(|answers| {
        rustix::stdio::dup2_stdout(std::io::stderr())?;
        Ok(File::from(answers))
    });
    let mut answers = answers.map_err(|error| format!("cannot redirect stdout to stderr: {error}"))?;
    let mut answer = |value: Value| {
        writeln!(answers, "{value}").map_err(|error| format!("cannot write a result to stdout: {error}"))
    };
    let libdat = match Libdat::load(options.libdat.as_deref(), options.api) {
        Ok(libdat) => libdat,
        Err(error) => return answer(json!({ "error": error })).map(|()| true),
    };
    match name {
        None => {
            let registry = registry(&libdat).map_or_else(|error| json!({ "error": error }), |registry| json!(registry));
            answer(registry).map(|()| true)
        }
        Some(name) => {
            let adapter = match libdat.open(&unescaped(name), options.thread_safe) {
                Ok(adapter) => adapter,
                Err(code) => return answer(refusal(&libdat, &code)).map(|()| true),
            };
            answer(opened(&adapter))?;
            // The result of the close is printed separately, since a close can hang as well.
            let closed = adapter.close();
            answer(json!({"closed": closed.is_ok(), "code": closed.err().map(|code| words(&code))})).map(|()| true)
        }
    }
}

fn registry(libdat: &Libdat) -> Result<Registry, String> {
    let lines = |topic| libdat.lines(topic).unwrap_or_default().into_iter();
    let one = |topic| lines(topic).next().and_then(|fields| fields.into_iter().next());
    let (entries, is_ours) = match libdat.lines(TELL_ENTRY) {
        Some(entries) => (entries, true),
        None => match libdat.listed() {
            Ok(entries) => (entries, false),
            Err(code) => return Err(format!("libdat lists no provider: {}", words(&code))),
        },
    };
    let field = |fields: &[String], at: usize| fields.get(at).cloned().unwrap_or_default();
    let text = |fields: &[String], at: usize| readable(&field(fields, at));
    let entry = |fields: Vec<String>| ReportedEntry {
        name: field(&fields, 0),
        version: field(&fields, 1),
        safety: field(&fields, 2),
        library: field(&fields, 3),
        params: field(&fields, 4),
        id: text(&fields, 5),
        file: fields.get(6).map(|file| readable(file)),
    };
    let diagnostic = |fields: Vec<String>| Diagnostic {
        id: text(&fields, 0),
        column: field(&fields, 1).parse().ok(),
        field: text(&fields, 2),
        found: text(&fields, 3),
        allowed: text(&fields, 4),
        is_dropped: field(&fields, 5) == "dropped",
        is_wrong: field(&fields, 5) == "dropped",
    };
    let absent = |fields: Vec<String>| UnusableName {
        name: field(&fields, 0),
        id: text(&fields, 1),
        why: text(&fields, 2),
        remedy: text(&fields, 3),
    };
    Ok(Registry {
        is_ours,
        version: one(TELL_VERSION),
        origin: one(TELL_ORIGIN).map(|origin| readable(&origin)),
        target: one(TELL_TARGET).map(|target| readable(&target)),
        entries: entries.into_iter().map(entry).collect(),
        absent: lines(TELL_ABSENT).map(absent).collect(),
        diagnostics: lines(TELL_DIAGNOSTIC).map(diagnostic).collect(),
        unreadable: lines(TELL_UNREADABLE).map(|fields| text(&fields, 0)).collect(),
        discovered: lines(TELL_DISCOVERED).map(|fields| fields.join("\t")).collect(),
        files: files(),
    })
}

fn opened(adapter: &Adapter<'_>) -> Value {
    if !adapter.has_attributes() {
        return json!({"opened": true, "query": "attributes of DAT 2.0 are not shown", "files": files()});
    }
    let attributes = match adapter.attributes() {
        Ok(attributes) => attributes,
        Err(code) => return json!({"opened": true, "query": words(&code), "files": files()}),
    };
    let (ia, provider) = &*attributes;
    let named = |count, list| -> Vec<Value> {
        let pairs = adapter.named(count, list).into_iter();
        pairs.map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    json!({
        "opened": true,
        "address": adapter.address(ia.ia_address_ptr).map(|address| address.to_string()),
        "ia": attributes::document(attributes::of_ia(ia)),
        "provider": attributes::document(attributes::of_provider(provider)),
        "transport_specific": named(ia.num_transport_attr, ia.transport_attr),
        "vendor_specific": named(ia.num_vendor_attr, ia.vendor_attr),
        "provider_specific": named(provider.num_provider_specific_attr, provider.provider_specific_attr),
        "version": format!("{}.{}", provider.provider_version_major, provider.provider_version_minor),
        "files": files(),
    })
}

fn refusal(libdat: &Libdat, code: &Code) -> Value {
    let text = libdat.last_refusal_fields();
    let field =
        |at: usize| text.as_ref().and_then(|fields| fields.get(at)).map_or(String::new(), |text| readable(text));
    json!({
        "opened": false,
        "code": format!("{:#010x}", code.value),
        "type": code.words.kind,
        "subtype": code.words.detail,
        "kind": field(0),
        "id": field(2),
        "cause": field(3),
        "remedy": field(4),
        "files": files(),
    })
}

fn words(code: &Code) -> String {
    format!("{} {}", code.words.kind, code.words.detail).trim_end().to_owned()
}

/// Paths of the mapped libraries of libdat, of providers, and of rdma-core with its mlx and rxe drivers.
fn files() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<String> = Vec::new();
    for path in maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned())) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_ours = ["libdat", "libdapl", "libibverbs", "librdmacm", "libmlx", "librxe"];
        if is_ours.iter().any(|start| name.starts_with(start)) && !files.contains(&path) {
            files.push(path);
        }
    }
    files
}

/// Unescapes a text that is escaped as in C, and replaces control characters by `?`.
fn readable(text: &str) -> String {
    String::from_utf8_lossy(&unescaped(text)).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Unescapes a text that is escaped as in C, to bytes.
pub(crate) fn unescaped(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, used) = match (first, after) {
            (b'\\', [b'x', high, low, ..]) => match hexadecimal(*high, *low) {
                Some(byte) => (byte, 4),
                None => (b'\\', 1),
            },
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [other, ..]) => (*other, 2),
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[used..];
    }
    bytes
}

fn hexadecimal(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::{readable, unescaped};

    #[test]
    fn escaped_names_unescape_to_the_original() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&all.escape_ascii().to_string()), all);
        for odd in ["\\", "\\x", "\\x4", "a\\"] {
            assert!(!unescaped(odd).is_empty());
        }
    }

    #[test]
    fn printed_text_has_no_control_characters() {
        assert_eq!(readable(r#"a \"b\" \x1b[2J \xc3\xa9 \xff"#), "a \"b\" ?[2J \u{e9} \u{fffd}");
    }
}
