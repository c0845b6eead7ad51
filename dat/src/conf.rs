//! Parses dat.conf into records: the lexical grammar, the eight fields, and errors of lines.
//!
//! `sources` passes the bytes of one file and gets records and errors back. Pure: no file, no environment, no output;
//! no input causes a panic (`test/fuzz`). An invalid line has no effect on other lines.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

/// Maximum length of an IA name. `DAT_PROVIDER_INFO` has 256 bytes for it, including the NUL.
pub const NAME_MAX: usize = 255;

/// Name, version and thread safety of a record, of a registration, or of the provider that a program requests. Keys are
/// compared by all fields, so one name may be registered under several versions. Keys of one name are adjacent in sort
/// order.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// Name of the interface adapter; case-sensitive.
    pub name: Vec<u8>,
    /// Major number of the API version.
    pub major: u32,
    /// Minor number of the API version.
    pub minor: u32,
    /// Whether the record or registration declares thread safety, or the program requests it.
    pub thread_safe: bool,
}

/// Position of a line of a dat.conf.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LineNumber {
    /// Path by which the file was opened.
    pub file: Arc<str>,
    /// Line number, counted from 1.
    pub line: usize,
}

impl fmt::Display for LineNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One accepted record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// Fields 1 to 3.
    pub key: Key,
    /// Field 5: file name or path of the library.
    pub library: Vec<u8>,
    /// Field 7: instance data for `dat_provider_init`.
    pub params: Vec<u8>,
    /// Position in the file.
    pub place: LineNumber,
}

/// A line that is not used: it is disabled (`nondefault`), is for kernel programs, or was dropped because of an error.
/// If a program opens a name that has only such lines, the error message names the first of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnusedLine {
    /// Field 1 of the line.
    pub name: Vec<u8>,
    /// Position in the file.
    pub place: LineNumber,
    /// Reason why the line is not used.
    pub cause: String,
    /// What to change in the file.
    pub remedy: &'static str,
}

/// An error in a line of dat.conf, or a remark that the line is not used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Diagnostic {
    /// The line that contains the error.
    pub place: LineNumber,
    /// Column of the error in bytes, counted from 1.
    pub column: usize,
    /// The field's name, as in the documentation, or `end of record`.
    pub field: &'static str,
    /// Text found in the file, or a description such as `missing (end of line)`.
    pub found: String,
    /// Permitted values, or another explanation of the error or remark.
    pub allowed: &'static str,
    /// Whether the error drops the record. It does not if it is tolerated, or if the diagnostic is only a remark that a
    /// `nondefault` or kernel line is not used.
    pub drops_record: bool,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = if self.drops_record { "; this record is dropped" } else { "" };
        let Self { place, column, field, found, allowed, .. } = self;
        write!(f, "{place}:{column}: {field}: {found}; {allowed}{cost}")
    }
}

/// Parsed content of one file, or of several files in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Conf {
    /// Accepted records in file order.
    pub records: Vec<Record>,
    /// Unused lines in file order. A line whose name could not be read is in `diagnostics` only.
    pub absent: Vec<UnusedLine>,
    /// All errors and remarks, in file order.
    pub diagnostics: Vec<Diagnostic>,
}

/// Parses the bytes of one file.
pub fn parse(file: &Arc<str>, text: &[u8]) -> Conf {
    let mut conf = Conf::default();
    conf.append(file, text);
    conf
}

impl Conf {
    /// Parses the bytes of a further file, and appends its records, unused lines and errors.
    pub fn append(&mut self, file: &Arc<str>, text: &[u8]) {
        let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            // Strips the carriage return of a file with Windows line endings, which would be a token otherwise.
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            self.read_line(LineNumber { file: file.clone(), line: index + 1 }, line);
        }
    }

    fn read_line(&mut self, place: LineNumber, line: &[u8]) {
        let (tokens, unclosed) = tokens(line);
        let broken = lexical_error(&tokens, unclosed);
        if tokens.is_empty() && broken.is_none() {
            return;
        }
        let end = tokens.last().map_or(1, |token| token.end);
        let mut reader = LineReader { place, end, tokens, diagnostics: Vec::new() };
        let outcome = match broken {
            Some(trouble) => Err(trouble),
            None => reader.record(),
        };
        let name = reader.tokens.first().map(|token| token.text.clone());
        let mut cause = None;
        match outcome {
            Ok(ParsedLine::Kept(record)) => self.records.push(record),
            Ok(ParsedLine::Hidden(reason, remedy)) => cause = Some((reason.to_owned(), remedy)),
            Err(LineError { column, field, found, allowed }) => {
                cause = Some((format!("was dropped: {field}: {found}"), allowed));
                let place = reader.place.clone();
                reader.diagnostics.push(Diagnostic { place, column, field, found, allowed, drops_record: true });
            }
        }
        if let (Some(name), Some((cause, remedy))) = (name, cause) {
            self.absent.push(UnusedLine { name, place: reader.place, cause, remedy });
        }
        self.diagnostics.append(&mut reader.diagnostics);
    }
}

/// A line without an error: a record, or the reason why the line is not used, and the remedy.
enum ParsedLine {
    Kept(Record),
    Hidden(&'static str, &'static str),
}

/// Reason for dropping a record.
struct LineError {
    column: usize,
    field: &'static str,
    found: String,
    allowed: &'static str,
}

/// Reads the fields of a line from left to right, up to the first invalid field.
struct LineReader {
    place: LineNumber,
    /// The column after the last token, where errors about missing fields are reported.
    end: usize,
    tokens: Vec<Token>,
    diagnostics: Vec<Diagnostic>,
}

impl LineReader {
    fn record(&mut self) -> Result<ParsedLine, LineError> {
        let name = self.field(0, "ia_name", "the record has eight fields")?;
        if name.text.len() > NAME_MAX {
            let found = format!("{} bytes long", name.text.len());
            return Err(name.trouble("ia_name", found, "at most 255 bytes are allowed"));
        }
        let version = self.field(1, "api_version", API_VERSION)?;
        let (level, major, minor) =
            api_version(&version.text).ok_or_else(|| version.refused("api_version", API_VERSION))?;
        let thread_safe = self.word(2, "thread_safety", THREAD_SAFETY, ["threadsafe", "nonthreadsafe"])?;
        let default = self.word(3, "default", DEFAULT, ["default", "nondefault"])?;
        let library = self.field(4, "lib_path", "the file name of a library is required")?;
        if library.text.is_empty() {
            return Err(library.trouble("lib_path", "empty".to_owned(), "the file name of a library is required"));
        }
        let provider = self.field(5, "provider_version", PROVIDER_VERSION)?;
        if !is_provider_version(&provider.text) {
            self.remark(provider.column, "provider_version", quoted(&provider.text), PROVIDER_VERSION);
        }
        let params = self.field(6, "ia_params", "the provider's parameters are required, \"\" if there are none")?;
        if self.tokens.len() == 7 {
            self.remark(self.end, "platform_params", "missing".to_owned(), "\"\" belongs at the end of the line");
        }
        if let Some(extra) = self.tokens.get(8) {
            return Err(extra.refused("end of record", "only a comment may follow the eighth field"));
        }
        if major == 1 && is_for_libdat2(&library.text) {
            self.remark(library.column, "lib_path", quoted(&library.text), "a library named .so.2 serves u2.0");
        }
        if level == b'k' {
            self.remark(version.column, "api_version", quoted(&version.text), "user programs use only lines with u");
            return Ok(ParsedLine::Hidden("is a kernel (k...) record", "write u instead of k"));
        }
        if !default {
            self.remark(self.tokens[3].column, "default", "nondefault".to_owned(), "such a line is not used");
            return Ok(ParsedLine::Hidden("is marked nondefault", "write default instead"));
        }
        let key = Key { name: name.text, major: major.into(), minor: minor.into(), thread_safe };
        Ok(ParsedLine::Kept(Record { key, library: library.text, params: params.text, place: self.place.clone() }))
    }

    fn field(&self, index: usize, field: &'static str, allowed: &'static str) -> Result<Token, LineError> {
        let missing = || LineError { column: self.end, field, found: "missing (end of line)".to_owned(), allowed };
        self.tokens.get(index).cloned().ok_or_else(missing)
    }

    /// Parses a field that has one of two words. True for the first word.
    fn word(
        &self,
        index: usize,
        field: &'static str,
        allowed: &'static str,
        [yes, no]: [&str; 2],
    ) -> Result<bool, LineError> {
        let token = self.field(index, field, allowed)?;
        match &token.text {
            text if text == yes.as_bytes() => Ok(true),
            text if text == no.as_bytes() => Ok(false),
            _ => Err(token.refused(field, allowed)),
        }
    }

    fn remark(&mut self, column: usize, field: &'static str, found: String, allowed: &'static str) {
        let place = self.place.clone();
        self.diagnostics.push(Diagnostic { place, column, field, found, allowed, drops_record: false });
    }
}

const API_VERSION: &str = "allowed is u or k, followed by major.minor, such as u1.2; both numbers are at most 65535";
const THREAD_SAFETY: &str = "allowed is threadsafe or nonthreadsafe";
const DEFAULT: &str = "allowed is default or nondefault";
const PROVIDER_VERSION: &str = "the usual form is id.major.minor (dapl.1.2)";

/// Parses `u1.2` into (`u`, 1, 2). Only digits may precede and follow the dot.
pub fn api_version(text: &[u8]) -> Option<(u8, u16, u16)> {
    let (level, numbers) = text.split_first().filter(|(level, _)| matches!(level, b'u' | b'k'))?;
    let dot = numbers.iter().position(|byte| *byte == b'.')?;
    Some((*level, number(&numbers[..dot])?, number(&numbers[dot + 1..])?))
}

/// Parses decimal digits of a number that fits in 16 bits.
fn number(digits: &[u8]) -> Option<u16> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether the text has the form of `dapl.1.2`: an id without a dot, and two numbers.
fn is_provider_version(text: &[u8]) -> bool {
    let parts: Vec<&[u8]> = text.split(|byte| *byte == b'.').collect();
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    matches!(parts[..], [id, major, minor] if !id.is_empty() && digits(major) && digits(minor))
}

/// Whether the file name of a library contains `.so.2`, the version of provider libraries of DAT 2.0, at its end or
/// before a dot.
pub fn is_for_libdat2(library: &[u8]) -> bool {
    has_version(library, b".so.2")
}

/// Whether the library's name says that it is for `libdat.so.1`. Providers of this project have such names, and serve
/// both versions.
pub(crate) fn is_for_libdat1(library: &[u8]) -> bool {
    has_version(library, b".so.1")
}

/// Whether the file name contains `version` at its end or before a dot, as `libx.so.1` and `libx.so.1.2` for `.so.1`.
fn has_version(library: &[u8], version: &[u8; 5]) -> bool {
    let name = library.rsplit(|byte| *byte == b'/').next().unwrap_or(library);
    let tail = |at: usize| &name[at + version.len()..];
    name.windows(version.len()).enumerate().any(|(at, part)| part == version && matches!(tail(at), [] | [b'.', ..]))
}

/// Formats a token for a message: in quotes, at most 60 bytes, and escaped as in C except for printable ASCII.
fn quoted(text: &[u8]) -> String {
    let shown = text[..text.len().min(60)].escape_ascii();
    format!("\"{shown}{}\"", if text.len() > 60 { "..." } else { "" })
}

/// A token of a line, which is one field.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Token {
    /// The value, without quotes.
    pub text: Vec<u8>,
    /// Column of the first byte, which may be a quote, counted from 1.
    pub column: usize,
    /// The column after the token.
    pub end: usize,
}

impl Token {
    fn refused(&self, field: &'static str, allowed: &'static str) -> LineError {
        self.trouble(field, quoted(&self.text), allowed)
    }

    fn trouble(&self, field: &'static str, found: String, allowed: &'static str) -> LineError {
        LineError { column: self.column, field, found, allowed }
    }
}

/// Splits a line without its line end into tokens, up to a comment. Also returns the column of a quote that is not
/// closed; the text after it has no tokens.
pub fn tokens(line: &[u8]) -> (Vec<Token>, Option<usize>) {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(byte) = line.get(at) {
        let column = at + 1;
        match byte {
            b' ' | b'\t' => at += 1,
            b'#' => break,
            b'"' => {
                let Some((text, used)) = quoted_token(&line[at + 1..]) else { return (tokens, Some(column)) };
                at += 1 + used;
                tokens.push(Token { text, column, end: at + 1 });
            }
            _ => {
                let used = bare_token(&line[at..]);
                let text = line[at..at + used].to_vec();
                at += used;
                tokens.push(Token { text, column, end: at + 1 });
            }
        }
    }
    (tokens, None)
}

/// Returns an error if a quote is not closed, or if a token contains a NUL byte.
fn lexical_error(tokens: &[Token], unclosed: Option<usize>) -> Option<LineError> {
    let nul = tokens.iter().position(|token| token.text.contains(&0));
    let (column, index, found, allowed) = match (unclosed, nul) {
        (Some(column), _) => (column, tokens.len(), "a quote that is not closed", "it must end on the same line"),
        (None, Some(index)) => (tokens[index].column, index, "a NUL byte", "text must not contain it"),
        (None, None) => return None,
    };
    Some(LineError { column, field: FIELDS[index.min(8)], found: found.to_owned(), allowed })
}

/// Names of the fields in order, for lexical errors, which are found before the fields are parsed.
const FIELDS: [&str; 9] = [
    "ia_name",
    "api_version",
    "thread_safety",
    "default",
    "lib_path",
    "provider_version",
    "ia_params",
    "platform_params",
    "end of record",
];

/// Parses the text after an opening quote. Returns the text up to the closing quote, and the number of bytes including
/// that quote; `None` if there is no such quote. A backslash makes the next byte literal.
fn quoted_token(rest: &[u8]) -> Option<(Vec<u8>, usize)> {
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

/// Length of an unquoted token. It ends before a blank, or after the first quote that no backslash escapes. Backslashes
/// stay in the token, because Windows paths are written without quotes.
fn bare_token(rest: &[u8]) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b' ' | b'\t' => return at,
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a line with their columns, or the column of an error.
    fn split(line: &str) -> Result<Vec<(String, usize)>, usize> {
        match tokens(line.as_bytes()) {
            (_, Some(unclosed)) => Err(unclosed),
            (tokens, None) => {
                Ok(tokens.into_iter().map(|token| (String::from_utf8(token.text).unwrap(), token.column)).collect())
            }
        }
    }

    fn texts(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().map(|(text, _)| text).collect()
    }

    #[test]
    fn only_space_and_tab_separate_tokens() {
        assert_eq!(split(" a\tb "), Ok(vec![("a".into(), 2), ("b".into(), 4)]));
        assert_eq!(texts("a\x0bb\x0cc\rd"), ["a\x0bb\x0cc\rd"]);
    }

    #[test]
    fn comment_starts_only_at_the_start_of_a_token() {
        assert_eq!(texts("a lib#1.so #b c"), ["a", "lib#1.so"]);
        assert_eq!(texts(r##"a ""#b"##), ["a", ""]);
        assert_eq!(texts(r##""a # b" c"##), ["a # b", "c"]);
        assert!(texts("  # nothing").is_empty());
    }

    #[test]
    fn quoted_token_keeps_blanks_and_a_backslash_escapes_the_next_byte() {
        assert_eq!(texts(r#""a b""c" "\\ \" \n""#), ["a b", "c", r#"\ " n"#]);
        assert_eq!(texts(r#""""""#), ["", ""]);
    }

    #[test]
    fn bare_tokens_keep_backslashes_and_end_after_a_quote() {
        assert_eq!(texts(r"C:\dir\lib.dll x"), [r"C:\dir\lib.dll", "x"]);
        assert_eq!(texts(r#"ab"cd e"#), [r#"ab""#, "cd", "e"]);
        assert_eq!(texts(r#"a\"b c"#), [r#"a\"b"#, "c"], "an escaped quote does not end it");
        assert_eq!(texts(r#"a\\"b c"#), [r#"a\\""#, "b", "c"], "a backslash may be escaped");
    }

    #[test]
    fn an_unclosed_quote_drops_only_its_line() {
        for (line, column) in [("\"", 1), ("a b \"c d", 5), ("a \"\\\"", 3), ("ab\"\"", 4)] {
            assert_eq!(split(line), Err(column), "{line}");
        }
        let conf = parse(&"f".into(), b"\"\nx u1.2 threadsafe default l d.1.2 \"\" \"\"");
        assert_eq!((conf.records.len(), conf.diagnostics.len()), (1, 1));
    }

    #[test]
    fn library_of_dat_2_is_recognized_by_its_file_name() {
        for name in ["libdaplofa.so.2", "/usr/lib/libx.so.2", "libx.so.2.0.0"] {
            assert!(is_for_libdat2(name.as_bytes()), "{name}");
        }
        for name in ["libdaplcma.so.1", "libx.so", "/lib.so.2/libx.so.1", "libx.so.20", "libx.so.1.2", ""] {
            assert!(!is_for_libdat2(name.as_bytes()), "{name}");
        }
    }
}
