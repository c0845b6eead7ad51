//! The text of a dat.conf. Edits change single lines; comments, order, blanks and unknown lines are preserved.
//!
//! The grammar is that of libdat (dat.conf(5)); a test compares the results of both parsers. This module does no I/O.
#![forbid(unsafe_code)]

use std::ops::Range;

/// Maximum length of an IA name, as in libdat.
const NAME_MAX: usize = 255;

/// A dat.conf as lines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ConfText {
    /// The lines, each with its line end. The last line may have none.
    lines: Vec<Vec<u8>>,
}

/// A field of a line of dat.conf.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Field {
    /// Value without quotes.
    pub(super) text: Vec<u8>,
    /// Range in the line, including quotes.
    range: Range<usize>,
}

/// An entry of a dat.conf: the fields that identify it, and its line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FileEntry {
    /// Line number, counted from 0.
    pub(super) index: usize,
    pub(super) name: Vec<u8>,
    /// API version as written, such as `u1.2`.
    pub(super) api: Vec<u8>,
    /// Thread safety as written, such as `threadsafe`.
    pub(super) safety: Vec<u8>,
    pub(super) library: Vec<u8>,
    /// Whether the fourth field is `default`.
    pub(super) is_default: bool,
}

impl FileEntry {
    /// Whether the two entries have the same name, version and thread safety. An open could then use either of them.
    pub(super) fn has_key_of(&self, other: &FileEntry) -> bool {
        (&self.name, &self.api, &self.safety) == (&other.name, &other.api, &other.safety)
    }
}

impl ConfText {
    pub(super) fn new(text: &[u8]) -> Self {
        ConfText { lines: text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect() }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.lines.concat()
    }

    /// Line `index`, counted from 0, without its line end.
    pub(super) fn line(&self, index: usize) -> &[u8] {
        without_end(&self.lines[index])
    }

    /// Returns the lines with at least five fields, enabled or not. Lines with fewer fields or an unclosed quote are
    /// skipped.
    pub(super) fn entries(&self) -> Vec<FileEntry> {
        (0..self.lines.len()).filter_map(|index| self.entry(index)).collect()
    }

    fn entry(&self, index: usize) -> Option<FileEntry> {
        entry_of(index, &self.fields(index)?)
    }

    fn fields(&self, index: usize) -> Option<Vec<Field>> {
        let line = self.lines.get(index)?;
        fields(line, if index == 0 && line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 })
    }

    /// Appends a line, with the line end of the first line.
    pub(super) fn push(&mut self, line: &[u8]) {
        let end: &[u8] = if self.lines.first().is_some_and(|line| line.ends_with(b"\r\n")) { b"\r\n" } else { b"\n" };
        if let Some(last) = self.lines.last_mut().filter(|last| !last.ends_with(b"\n")) {
            last.extend_from_slice(end);
        }
        self.lines.push([line, end].concat());
    }

    /// Replaces a line, and keeps its line end.
    pub(super) fn replace(&mut self, index: usize, line: &[u8]) {
        let length = self.line(index).len();
        let end = self.lines[index].split_off(length);
        let mark: &[u8] = if index == 0 && self.lines[0].starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK } else { b"" };
        self.lines[index] = [mark, line, &end].concat();
    }

    /// Removes lines. `indexes` refer to the text before the removal.
    pub(super) fn remove(&mut self, indexes: &[usize]) {
        let mark = self.lines.first().is_some_and(|line| line.starts_with(BYTE_ORDER_MARK));
        let mut index = 0;
        self.lines.retain(|_| {
            index += 1;
            !indexes.contains(&(index - 1))
        });
        if let Some(first) = self.lines.first_mut().filter(|first| mark && !first.starts_with(BYTE_ORDER_MARK)) {
            first.splice(..0, BYTE_ORDER_MARK.iter().copied());
        }
    }

    /// Enables or disables an entry: changes its fourth field. Returns false if nothing changes.
    pub(super) fn set_default(&mut self, index: usize, is_default: bool) -> bool {
        let Some(field) = self.fields(index).and_then(|fields| fields.into_iter().nth(3)) else { return false };
        let word: &[u8] = if is_default { b"default" } else { b"nondefault" };
        if field.text == word {
            return false;
        }
        self.lines[index].splice(field.range, word.iter().copied());
        true
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn entry_of(index: usize, fields: &[Field]) -> Option<FileEntry> {
    let [name, api, safety, default, library, ..] = fields else { return None };
    let texts = [name, api, safety, library].map(|field| field.text.clone());
    let [name, api, safety, library] = texts;
    Some(FileEntry { index, name, api, safety, library, is_default: default.text == b"default" })
}

/// Splits a line into fields, starting at a byte position. `None` if a quote is not closed.
fn fields(line: &[u8], start: usize) -> Option<Vec<Field>> {
    let line = without_end(line);
    let (mut fields, mut at) = (Vec::new(), start);
    while let Some(byte) = line.get(at) {
        match byte {
            b' ' | b'\t' => at += 1,
            b'#' => break,
            b'"' => {
                let (text, used) = quoted(&line[at + 1..])?;
                fields.push(Field { text, range: at..at + 1 + used });
                at += 1 + used;
            }
            _ => {
                let used = bare(&line[at..]);
                fields.push(Field { text: line[at..at + used].to_vec(), range: at..at + used });
                at += used;
            }
        }
    }
    Some(fields)
}

/// Returns the text up to the closing quote, and the number of bytes including that quote. `None` if there is no such
/// quote.
fn quoted(rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut text = Vec::new();
    let mut bytes = rest.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((text, at + 1)),
            b'\\' => text.push(*bytes.next()?.1),
            other => text.push(*other),
        }
    }
    None
}

/// Length of an unquoted field. The field ends before a blank, or after a quote that is not escaped by a backslash.
fn bare(rest: &[u8]) -> usize {
    let mut is_escaped = false;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b' ' | b'\t' => return at,
            b'"' if !is_escaped => return at + 1,
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    rest.len()
}

/// Formats a value as a field, in quotes if needed.
pub(super) fn field(text: &[u8]) -> Vec<u8> {
    let is_plain = !text.is_empty() && text.iter().all(|byte| !matches!(byte, b' ' | b'\t' | b'"' | b'\\' | b'#'));
    if is_plain {
        return text.to_vec();
    }
    let escaped = text.iter().flat_map(|byte| match byte {
        b'"' | b'\\' => vec![b'\\', *byte],
        other => vec![*other],
    });
    [b'"'].into_iter().chain(escaped).chain([b'"']).collect()
}

/// Checks that libdat would accept a new line, and returns its entry.
pub(super) fn checked(line: &[u8]) -> Result<FileEntry, String> {
    if let Some(bad) = line.iter().find(|byte| matches!(byte, 0 | b'\n' | b'\r')) {
        return Err(format!("it contains the byte {bad:#04x}, which a line of dat.conf cannot have"));
    }
    let fields = fields(line, 0).ok_or("a quote is not closed")?;
    let entry = entry_of(0, &fields).filter(|_| (7..=8).contains(&fields.len())).ok_or_else(|| {
        format!(
            "it has {} fields, but an entry has eight, the last optional: name, api_version, thread_safety, default, \
                 lib_path, provider_version, ia_params, platform_params",
            fields.len()
        )
    })?;
    let shown = |text: &[u8]| text.escape_ascii().to_string();
    if entry.name.is_empty() || entry.name.len() > NAME_MAX {
        return Err(format!("the name has {} bytes; 1 to {NAME_MAX} are allowed", entry.name.len()));
    }
    if version(&entry.api).is_none() {
        return Err(format!(
            "api_version is \"{}\"; allowed is u or k and major.minor, such as u1.2",
            shown(&entry.api)
        ));
    }
    if !matches!(entry.safety.as_slice(), b"threadsafe" | b"nonthreadsafe") {
        return Err(format!("thread_safety is \"{}\"; allowed is threadsafe or nonthreadsafe", shown(&entry.safety)));
    }
    if !matches!(fields[3].text.as_slice(), b"default" | b"nondefault") {
        return Err(format!("the fourth field is \"{}\"; allowed is default or nondefault", shown(&fields[3].text)));
    }
    if entry.library.is_empty() {
        return Err("lib_path is empty; a library's file name is needed".to_owned());
    }
    Ok(entry)
}

/// Parses `u1.2` or `k1.2` into 1 and 2.
pub(super) fn version(api: &[u8]) -> Option<(u16, u16)> {
    let text = std::str::from_utf8(api).ok()?;
    let (major, minor) = text.strip_prefix(['u', 'k'])?.split_once('.')?;
    let number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    Some((number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests;
