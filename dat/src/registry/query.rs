//! The registry as lines of text for tools: accepted and unused lines of the files, errors in lines, unreadable files,
//! which files are used, and the file to edit. Also the calling thread's last refusal, lines for the adapters of this
//! machine, and libdat's version.
//!
//! `thunk` returns the lines through the hook. Lines for the adapters of this machine have the form of dat.conf. In all
//! other lines, fields are separated by tabs, and bytes other than printable ASCII are escaped as in C. No library is
//! loaded.
#![forbid(unsafe_code)]

use super::lock;
use crate::loader::found;
use crate::report;
use crate::sources;

/// Line `index` of a topic (`dat_abi::hook::TELL_*`); `None` after the last line and for unknown topics.
pub(crate) fn line(topic: u32, index: usize) -> Option<String> {
    use dat_abi::hook::*;
    match topic {
        TELL_VERSION if index == 0 => Some(env!("CARGO_PKG_VERSION").to_owned()),
        TELL_REFUSAL if index == 0 => report::last_refusal().map(|refused| joined(&refused.fields())),
        TELL_DISCOVERED => sources::discovered().lines().nth(index).map(str::to_owned),
        _ => known(topic, index),
    }
}

/// A line of a topic about the files that were read.
fn known(topic: u32, index: usize) -> Option<String> {
    use dat_abi::hook::*;
    let mut registry = lock();
    registry.read_files();
    let files = registry.files.as_ref()?;
    match topic {
        TELL_ORIGIN if index == 0 => Some(joined(std::slice::from_ref(&files.origin))),
        TELL_TARGET if index == 0 => Some(escaped(&files.target.display().to_string())),
        TELL_UNREADABLE => files.unreadable.get(index).map(|text| joined(std::slice::from_ref(text))),
        TELL_ENTRY => files.conf.records.get(index).map(|record| {
            let key = &record.key;
            let safety = if key.thread_safe { "threadsafe" } else { "nonthreadsafe" };
            let bytes = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let version = format!("{}.{}", key.major, key.minor);
            let place = record.place.to_string();
            let fields = [&bytes(&key.name), &version, safety, &bytes(&record.library), &bytes(&record.params)];
            let library = found::library(&record.library).map_or(String::new(), |path| path.display().to_string());
            format!("{}\t{}\t{}", fields.join("\t"), escaped(&place), escaped(&library))
        }),
        TELL_ABSENT => files.conf.absent.get(index).map(|absent| {
            let name = absent.name.escape_ascii().to_string();
            format!("{name}\t{}", joined(&[absent.place.to_string(), absent.cause.clone(), absent.remedy.to_owned()]))
        }),
        TELL_DIAGNOSTIC => files.conf.diagnostics.get(index).map(|diagnostic| {
            let cost = if diagnostic.drops_record { "dropped" } else { "kept" };
            let (place, column) = (diagnostic.place.to_string(), diagnostic.column.to_string());
            let (field, found) = (diagnostic.field.to_owned(), diagnostic.found.clone());
            joined(&[place, column, field, found, diagnostic.allowed.to_owned(), cost.to_owned()])
        }),
        _ => None,
    }
}

fn joined(fields: &[String]) -> String {
    fields.iter().map(|field| escaped(field)).collect::<Vec<_>>().join("\t")
}

fn escaped(field: &str) -> String {
    field.as_bytes().escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_within_a_field_are_escaped() {
        assert_eq!(joined(&["a\tb".into(), "c\nd".into(), "\u{e9}\\".into()]), "a\\tb\tc\\nd\t\\xc3\\xa9\\\\");
    }

    #[test]
    fn unknown_queries_and_lines_beyond_the_last_return_none() {
        assert_eq!((line(u32::MAX, 0), line(dat_abi::hook::TELL_VERSION, 1)), (None, None));
        assert_eq!(line(dat_abi::hook::TELL_DISCOVERED, usize::MAX), None);
        assert!(line(dat_abi::hook::TELL_DISCOVERED, 0).is_some_and(|line| line.starts_with("sm0 u1.2 ")));
    }
}
