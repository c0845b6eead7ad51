//! The text format of counters, and its parser.
//!
//! Each line consists of fields separated by tabs. The first line names the format; the last line marks a complete
//! text. The parser skips unknown lines, and additional fields at the end of a line. The writer replaces control
//! characters in a field by `?`. The parser accepts any bytes and returns counters or an error; it replaces characters
//! that could control a terminal by `?`.
//!
//! ```text
//! dapl-counters 1
//! process   4711    mpirun
//! adapter   usnic0  usnic   0x7f0123456740
//! count     sent bytes  bytes   123456
//! ep        0x7f0123456780  Connected
//! level     round trip  ns      21000
//! left out  0
//! end
//! ```
//!
//! A `count` only grows; a `level` rises and falls.
#![forbid(unsafe_code)]

use std::fmt::{Display, Write};

/// Start of the first line; the version follows.
const FORM: &str = "dapl-counters ";
/// Version of the format.
const VERSION: &str = "1";
/// Maximum length of a text in bytes.
pub const MOST: usize = 4 << 20;

/// A text that is being written.
#[derive(Debug)]
pub struct Text(String);

impl Text {
    /// Begins the text of a process: the first line, and the process id and name.
    pub fn new(pid: u32, program: &str) -> Self {
        let mut text = Text(format!("{FORM}{VERSION}\n"));
        text.line(&["process", &pid.to_string(), program]);
        text
    }

    fn line(&mut self, words: &[&str]) {
        for (n, word) in words.iter().enumerate() {
            if n > 0 {
                self.0.push('\t');
            }
            self.0.extend(word.chars().map(|letter| if letter.is_control() { '?' } else { letter }));
        }
        self.0.push('\n');
    }

    /// Adds an IA: its name in the registry, its transport, and its handle. The EPs and values added next belong to it.
    pub fn adapter(&mut self, name: &str, provider: &str, handle: usize) {
        self.line(&["adapter", name, provider, &format!("{handle:#x}")]);
    }

    /// Adds an EP of the last IA. The values added next belong to the EP.
    pub fn ep(&mut self, handle: usize, state: &str) {
        self.line(&["ep", &format!("{handle:#x}"), state]);
    }

    /// Adds a value. `unit` is empty for plain numbers. With `is_level` the value rises and falls; otherwise it only
    /// grows.
    pub fn count(&mut self, name: &str, unit: &str, is_level: bool, value: impl Display) {
        let mut number = String::new();
        // Writing to a string does not fail.
        let _ = write!(number, "{value}");
        self.line(&[if is_level { "level" } else { "count" }, name, unit, &number]);
    }

    /// Adds the number of EPs of the last IA that the text omits.
    pub fn left_out(&mut self, eps: usize) {
        self.line(&["left out", &eps.to_string()]);
    }

    /// Appends the last line, `end`, and returns the text.
    pub fn end(mut self) -> String {
        self.line(&["end"]);
        self.0
    }
}

/// Counters of the IAs that a process has opened over one provider library.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Process {
    /// Process id, in the PID namespace of the process.
    pub pid: u32,
    /// Name of the program, as `ps` shows it.
    pub program: String,
    /// The open IAs of the library that answered.
    pub adapters: Vec<Adapter>,
}

/// An open IA and its counters.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Adapter {
    /// Name in the registry, such as `usnic0`.
    pub name: String,
    /// Name of the transport, such as `usnic`.
    pub provider: String,
    /// Handle in its process, such as `0x7f0123456740`. Distinguishes IAs with the same name.
    pub handle: String,
    /// Counters of the IA.
    pub counts: Vec<Count>,
    /// The EPs that are in the text.
    pub eps: Vec<Endpoint>,
    /// Number of EPs that are not in `eps`.
    pub left_out: u64,
}

impl Adapter {
    /// Removes the EPs from `eps`, and adds their number to `left_out`.
    pub fn leave_out_endpoints(&mut self) {
        self.left_out = self.left_out.saturating_add(self.eps.len() as u64);
        self.eps.clear();
    }
}

/// An EP and its counters.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Endpoint {
    /// Handle in its process, such as `0x7f0123456780`.
    pub handle: String,
    /// State, such as `Connected`.
    pub state: String,
    /// Counters of the EP and of its connection.
    pub counts: Vec<Count>,
}

/// A counter or a level.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Count {
    /// Name, such as `posts.send`.
    pub name: String,
    /// Unit, such as `bytes`; empty for plain numbers.
    pub unit: String,
    /// Value when the process answered.
    pub value: u64,
    /// True for a level, which rises and falls; a counter only grows.
    pub is_level: bool,
}

/// Reason why a text cannot be parsed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ParseError {
    /// The text has another version of the format.
    Version(String),
    /// The text is truncated: the line `end` is missing.
    Incomplete,
    /// The text is malformed.
    Invalid,
}

/// Parses a text.
///
/// Errors: the bytes are not a text of this format, the text has another version, or it is incomplete.
pub fn read(bytes: &[u8]) -> Result<Process, ParseError> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MOST).ok_or(ParseError::Invalid)?;
    let (form, rest) = text.split_once('\n').ok_or_else(|| beginning(text))?;
    match form.strip_prefix(FORM) {
        Some(VERSION) => {}
        Some(other) => return Err(ParseError::Version(shown(&other.chars().take(20).collect::<String>()))),
        None => return Err(ParseError::Invalid),
    }
    let lines = rest
        .strip_suffix("end\n")
        .filter(|lines| lines.is_empty() || lines.ends_with('\n'))
        .ok_or(ParseError::Incomplete)?;
    let mut process = Process::default();
    lines.lines().try_for_each(|line| take(&mut process, line)).ok_or(ParseError::Invalid)?;
    Ok(process)
}

/// The error for a text without a newline: `Incomplete` if it is a prefix of the first line, else `Invalid`.
fn beginning(text: &str) -> ParseError {
    let first = format!("{FORM}{VERSION}");
    if first.starts_with(text) { ParseError::Incomplete } else { ParseError::Invalid }
}

/// Adds the content of a line to `process`. `None` if a number is missing or malformed, or if an EP, a value or a
/// number of omitted EPs precedes the first IA.
fn take(process: &mut Process, line: &str) -> Option<()> {
    let mut words = line.split('\t');
    let (kind, first, second, third) = (words.next()?, words.next(), words.next(), words.next());
    match (kind, first, second) {
        ("process", Some(pid), Some(program)) => (process.pid, process.program) = (pid.parse().ok()?, shown(program)),
        ("adapter", Some(name), Some(provider)) => process.adapters.push(Adapter {
            name: shown(name),
            provider: shown(provider),
            handle: shown(third.unwrap_or_default()),
            ..Adapter::default()
        }),
        ("ep", Some(handle), Some(state)) => {
            let ep = Endpoint { handle: shown(handle), state: shown(state), counts: Vec::new() };
            process.adapters.last_mut()?.eps.push(ep);
        }
        ("count" | "level", Some(name), Some(unit)) => {
            let value = third?.parse().ok()?;
            let adapter = process.adapters.last_mut()?;
            let counts = adapter.eps.last_mut().map_or(&mut adapter.counts, |ep| &mut ep.counts);
            counts.push(Count { name: shown(name), unit: shown(unit), value, is_level: kind == "level" });
        }
        ("left out", Some(eps), _) => process.adapters.last_mut()?.left_out = eps.parse().ok()?,
        _ => {}
    }
    Some(())
}

/// Replaces each character that is neither a letter, a digit, a space nor printable ASCII. This replaces all characters
/// that affect a terminal: control characters, and those that change the text direction.
pub(crate) fn shown(word: &str) -> String {
    let is_harmless = |letter: char| letter == ' ' || letter.is_ascii_graphic() || letter.is_alphanumeric();
    word.chars().map(|letter| if is_harmless(letter) { letter } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> String {
        let mut text = Text::new(4711, "a\tb\nc");
        text.adapter("usnic0", "usnic", 0x30);
        text.count("sent bytes", "bytes", false, u64::MAX);
        text.ep(0x40, "Connected");
        text.count("rtt", "ns", true, 21);
        text.left_out(3);
        text.adapter("sm0", "sm", 0x50);
        text.end()
    }

    #[test]
    fn written_counter_text_is_read_back() {
        let read = read(sample().as_bytes()).unwrap();
        assert_eq!((read.pid, read.program.as_str(), read.adapters.len()), (4711, "a?b?c", 2));
        let first = &read.adapters[0];
        assert_eq!((first.name.as_str(), first.provider.as_str(), first.left_out), ("usnic0", "usnic", 3));
        assert_eq!((first.counts[0].value, first.counts[0].unit.as_str()), (u64::MAX, "bytes"));
        assert_eq!((first.eps[0].handle.as_str(), first.eps[0].counts[0].value), ("0x40", 21));
        assert_eq!((first.counts[0].is_level, first.eps[0].counts[0].is_level), (false, true));
        let second = Adapter { name: "sm0".into(), provider: "sm".into(), handle: "0x50".into(), ..Adapter::default() };
        assert_eq!(read.adapters[1], second);
    }

    #[test]
    fn truncated_counter_text_is_refused_at_any_length() {
        let text = sample();
        (0..text.len()).for_each(|end| assert_eq!(read(&text.as_bytes()[..end]), Err(ParseError::Incomplete), "{end}"));
    }

    #[test]
    fn malformed_counter_lines_are_refused_and_unknown_ones_ignored() {
        let with = |line: &str| read(format!("{FORM}1\n{line}\nend\n").as_bytes());
        for line in [
            "count\ta\t\t1",
            "ep\t0x1\tA",
            "left out\t1",
            "process\t-1\ta",
            "adapter\ta\tb\ncount\ta\t\t99999999999999999999",
            "adapter\ta\tb\nlevel\ta\tb",
        ] {
            assert_eq!(with(line), Err(ParseError::Invalid), "{line:?}");
        }
        assert_eq!(with("future\t1\t2\n\n\t\t"), Ok(Process::default()));
        assert_eq!(read(b"dapl-counters 1\nend\n"), Ok(Process::default()));
        assert_eq!(read(b"dapl-counters 1\nfriend\n"), Err(ParseError::Incomplete));
        assert_eq!(read(b"dapl-counters 2\nend\n"), Err(ParseError::Version("2".into())));
        assert_eq!(read(b"dapl-counters 1\x1b[2J\nend\n"), Err(ParseError::Version("1?[2J".into())));
        for other in [&[0xFF; 100][..], b"HTTP/1.1 400 Bad Request\r\n", b"HTTP", &vec![b'a'; MOST + 1]] {
            assert_eq!(read(other), Err(ParseError::Invalid));
        }
    }

    #[test]
    fn control_characters_of_program_names_are_replaced() {
        let text = "dapl-counters 1\nprocess\t1\ta\x1b[2J\u{202e}\u{85}b\u{e4} c\nend\n";
        assert_eq!(read(text.as_bytes()).unwrap().program, "a?[2J??b\u{e4} c");
    }

    #[test]
    fn counter_text_parser_does_not_panic_on_flipped_bits() {
        let mut bytes = sample().into_bytes();
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(read(&bytes).is_ok());
    }
}
