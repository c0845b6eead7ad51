//! The text of a dat.conf. Edits change single lines; comments, order, blanks and unknown lines are preserved.
//!
//! libdat's parser splits the lines into fields (dat.conf(5)). This module does no I/O.
#![forbid(unsafe_code)]

use dat::conf::{NAME_MAX, Token, api_version, tokens};

/// A dat.conf as lines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ConfText {
    /// The lines, each with its line end. The last line may have none.
    lines: Vec<Vec<u8>>,
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

    /// Returns the fields of a line. `None` if a quote is not closed.
    fn fields(&self, index: usize) -> Option<Vec<Token>> {
        let line = without_end(self.lines.get(index)?);
        closed_tokens(&line[self.byte_order_mark(index).len()..])
    }

    /// Returns the byte order mark at the start of a line; empty if there is none.
    fn byte_order_mark(&self, index: usize) -> &'static [u8] {
        if index == 0 && self.lines[0].starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK } else { b"" }
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
        self.lines[index] = [self.byte_order_mark(index), line, &end].concat();
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
        let start = self.byte_order_mark(index).len();
        self.lines[index].splice(start + field.column - 1..start + field.end - 1, word.iter().copied());
        true
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn entry_of(index: usize, fields: &[Token]) -> Option<FileEntry> {
    let [name, api, safety, default, library, ..] = fields else { return None };
    let texts = [name, api, safety, library].map(|field| field.text.clone());
    let [name, api, safety, library] = texts;
    Some(FileEntry { index, name, api, safety, library, is_default: default.text == b"default" })
}

/// Splits a line into fields. `None` if a quote is not closed.
fn closed_tokens(line: &[u8]) -> Option<Vec<Token>> {
    let (tokens, unclosed) = tokens(line);
    unclosed.is_none().then_some(tokens)
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
    let fields = closed_tokens(line).ok_or("a quote is not closed")?;
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
    if api_version(&entry.api).is_none() {
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

#[cfg(test)]
mod tests;
