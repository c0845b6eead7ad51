//! `datinfo check`: each line of a dat.conf in words, and each complaint with what may stand there.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::options::Options;
use crate::registry::{Complaint, Entry, Registry};
use crate::{say, say_json};

/// Explains; whether nothing is wrong.
pub(crate) fn check(options: &Options, file: Option<&Path>) -> crate::Result {
    if let Some(file) = file {
        // In libdat's own words this would be no failure.
        std::fs::File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let registry = Registry::read(options, file)?;
    if !registry.is_ours {
        return Err("this libdat.so.1 is another's, and does not explain what it reads".to_owned());
    }
    let dropped = registry.complaints.iter().filter(|complaint| complaint.is_dropped).count();
    let is_well = dropped == 0 && registry.unreadable.is_empty() && !registry.entries.is_empty();
    if options.json {
        say_json(&json!({
            "origin": registry.origin,
            "well": is_well,
            "entries": registry.entries.iter().map(explained).collect::<Vec<Value>>(),
            "out_of_use": registry.absent.iter().map(|absent| absent.json()).collect::<Vec<_>>(),
            "complaints": registry.complaints.iter().map(|complaint| complaint.json()).collect::<Vec<_>>(),
            "unreadable": registry.unreadable,
        }));
        return Ok(is_well);
    }
    let mut text = format!("read: {}\n", registry.origin.as_deref().unwrap_or_default());
    registry.unreadable.iter().for_each(|trouble| text += &format!("{trouble}\n"));
    for entry in &registry.entries {
        let _ = writeln!(text, "{}: {}", entry.place, meaning(entry));
    }
    for absent in &registry.absent {
        let _ = writeln!(text, "{}: \"{}\" {}; {}", absent.place, absent.name, absent.why, absent.remedy);
    }
    for complaint in &registry.complaints {
        text += &line(complaint);
    }
    let (count, complaints) = (registry.entries.len(), registry.complaints.len());
    let _ = writeln!(text, "{count} adapters, {complaints} complaints, {dropped} lines dropped");
    say(&text);
    Ok(is_well)
}

fn explained(entry: &Entry) -> Value {
    let mut value = entry.json();
    value["meaning"] = json!(meaning(entry));
    value
}

/// A line in words.
fn meaning(entry: &Entry) -> String {
    let Entry { name, version, safety, library, params, .. } = entry;
    let who = if entry.is_version_1() { "" } else { " (for programs of that version, not for those of 1.2)" };
    let threads = match safety.as_str() {
        "threadsafe" => "for programs that ask for thread safety too",
        _ => "not for programs that ask for thread safety",
    };
    let given = if params.is_empty() { "no parameters".to_owned() } else { format!("the parameters \"{params}\"") };
    format!("\"{name}\" serves DAT {version}{who}, {threads}, by {library} with {given}")
}

fn line(complaint: &Complaint) -> String {
    let Complaint { place, column, field, found, allowed, is_dropped } = complaint;
    let cost = if *is_dropped { "; this record is dropped" } else { "" };
    format!("{place}:{column}: {field}: {found}; {allowed}{cost}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_in_words() {
        let text = |text: &str| text.to_owned();
        let entry = Entry {
            name: text("a"),
            version: text("2.0"),
            safety: text("nonthreadsafe"),
            library: text("l"),
            params: text("p"),
            place: text("f:1"),
        };
        assert_eq!(
            meaning(&entry),
            "\"a\" serves DAT 2.0 (for programs of that version, not for those of 1.2), not for programs that ask for \
             thread safety, by l with the parameters \"p\""
        );
        let plain = Entry { version: text("1.2"), safety: text("threadsafe"), params: String::new(), ..entry };
        assert_eq!(
            meaning(&plain),
            "\"a\" serves DAT 1.2, for programs that ask for thread safety too, by l with no parameters"
        );
    }
}
