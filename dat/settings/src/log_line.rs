//! Format of log lines, and suppression of repeated messages.
//!
//! libdat and all providers use this module, so that their lines can be sorted and searched together. Pure: time,
//! process and thread are arguments.
#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

/// The library, process, thread and IA that a log message comes from, and its level.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// `libdat`, `libdat2` or `dapl`.
    pub library: &'a str,
    /// `error`, `warn`, `info`, `debug`, `trace`.
    pub level: &'a str,
    pub process: u32,
    pub thread: i32,
    /// Name of the IA that the message is about; empty if there is none.
    pub ia: &'a str,
}

/// Formats a message as log lines, one for each line of the text:
/// `2026-11-24T19:34:12.123456Z error dapl[4711/4712 sm0]: text`.
///
/// `now` is the time since 1970; the lines state it in UTC. Control characters except tabs become `?`.
pub fn lines(origin: &Origin<'_>, now: Duration, text: &str) -> String {
    let before = format!("{} {}", utc(now), tag(origin));
    let clean =
        |line: &str| line.chars().map(|c| if c.is_control() && c != '\t' { '?' } else { c }).collect::<String>();
    text.lines().map(|line| format!("{before} {}\n", clean(line))).collect()
}

/// Returns the text of a log line without time, level, library, process, thread and IA. A text of any other form is
/// returned unchanged.
pub fn text_of(line: &str) -> &str {
    let rest = line.splitn(3, ' ').nth(2).and_then(|rest| rest.split_once("]: "));
    let is_line =
        line.get(..27).is_some_and(|time| time.ends_with('Z') && time.starts_with(|c: char| c.is_ascii_digit()));
    rest.filter(|_| is_line).map_or(line, |(_, text)| text)
}

/// Removes the numbers that the standard library appends to the texts of system errors, such as ` (os error 2)`.
pub fn without_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => clean.push_str(rest),
            _ => clean.extend([BEGIN, part]),
        }
    }
    clean
}

/// The part of a log line between the time and the text.
fn tag(Origin { library, level, process, thread, ia }: &Origin<'_>) -> String {
    let blank = if ia.is_empty() { "" } else { " " };
    format!("{level} {library}[{process}/{thread}{blank}{ia}]:")
}

/// Formats a time since 1970 as ISO 8601 in UTC, with microseconds.
fn utc(now: Duration) -> String {
    let (days, second) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    // The calendar is computed with periods of 400 years (146,097 days), and with years that begin in March, so that a
    // leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", now.subsec_micros())
}

/// Suppresses a message that equals the previous one, and counts the repetitions.
#[derive(Debug)]
pub struct Folding {
    /// Length and hash of the last message, so that its text need not be stored.
    last: Option<(usize, u64)>,
    /// Number of repetitions that were not written.
    count: u64,
    /// Time at which the last line was written.
    written: Duration,
}

/// The lines to write for a message.
#[derive(Debug, Eq, PartialEq)]
pub struct FoldedLines {
    /// A line with the number of omitted repetitions of the previous message; written before the message.
    pub repeated: Option<String>,
    /// Whether the message itself is written.
    pub is_new: bool,
}

impl Folding {
    /// While a message is repeated, the number of repetitions is reported at this interval.
    const REPORT: Duration = Duration::from_secs(10);

    pub const fn new() -> Self {
        Folding { last: None, count: 0, written: Duration::ZERO }
    }

    /// Returns the lines to write for the next message. `now` is a time on a monotonic clock.
    pub fn take(&mut self, text: &str, now: Duration) -> FoldedLines {
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        let digest = Some((text.len(), hasher.finish()));
        if self.last != digest {
            let repeated = self.flush();
            self.last = digest;
            self.written = now;
            return FoldedLines { repeated, is_new: true };
        }
        self.count += 1;
        let is_due = now.saturating_sub(self.written) >= Self::REPORT;
        let repeated = if is_due { self.flush() } else { None };
        if is_due {
            self.written = now;
        }
        FoldedLines { repeated, is_new: false }
    }

    /// Returns a line with the number of repetitions that were not reported yet; `None` if there are none.
    pub fn flush(&mut self) -> Option<String> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then(|| format!("the last message was repeated {count} times"))
    }
}

impl Default for Folding {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_error_numbers_are_removed_from_error_texts() {
        let error = std::io::Error::from_raw_os_error(2);
        assert_eq!(
            without_numbers(&format!("a: {error}; b: {error}")),
            "a: No such file or directory; b: No such file or directory"
        );
        for text in ["", "a (os error", "a (os error x)", "(os error 2)"] {
            assert_eq!(without_numbers(text), text);
        }
    }

    #[test]
    fn log_line_has_time_level_process_thread_and_ia() {
        let origin = Origin { library: "dapl", level: "error", process: 7, thread: 8, ia: "sm0" };
        let now = Duration::new(1_795_548_852, 123_456_789);
        assert_eq!(
            lines(&origin, now, "a\x1b\nb"),
            "2026-11-24T19:34:12.123456Z error dapl[7/8 sm0]: a?\n\
            2026-11-24T19:34:12.123456Z error dapl[7/8 sm0]: b\n"
        );
        assert_eq!(text_of(lines(&origin, now, "a]: b").trim_end()), "a]: b");
        assert_eq!([text_of(""), text_of("a b c]: d")], ["", "a b c]: d"]);
        let plain = Origin { library: "libdat", level: "debug", ia: "", ..origin };
        assert_eq!(lines(&plain, Duration::ZERO, "x"), "1970-01-01T00:00:00.000000Z debug libdat[7/8]: x\n");
    }

    #[test]
    fn utc_dates_follow_the_gregorian_leap_years() {
        let date = |days: u64| utc(Duration::from_secs(days * 86_400))[..10].to_owned();
        let cases = [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (47_540, "2100-02-28"),
        ];
        for (days, text) in cases {
            assert_eq!(date(days), text);
        }
        assert_eq!(
            (date(47_541), date(19_722), date(19_723)),
            ("2100-03-01".into(), "2023-12-31".into(), "2024-01-01".into())
        );
    }

    #[test]
    fn repeated_log_messages_are_counted() {
        let mut folding = Folding::new();
        let second = Duration::from_secs;
        let new = |repeated: Option<&str>| FoldedLines { repeated: repeated.map(str::to_owned), is_new: true };
        assert_eq!(folding.take("a", second(0)), new(None));
        assert_eq!(folding.take("a", second(1)), FoldedLines { repeated: None, is_new: false });
        assert_eq!(folding.take("a", second(2)), FoldedLines { repeated: None, is_new: false });
        assert_eq!(folding.take("b", second(3)), new(Some("the last message was repeated 2 times")));
        assert_eq!(folding.take("b", second(13)).repeated.as_deref(), Some("the last message was repeated 1 times"));
        assert_eq!(
            (folding.take("b", second(14)).repeated, folding.flush().is_some(), folding.flush()),
            (None, true, None)
        );
        assert_eq!(folding.take("a", second(15)), new(None));
    }
}
