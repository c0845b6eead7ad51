//! What libdat tells people: one line on stderr per refusal, complaints about files, and the debug lines of `DAT_DBG_*`.
//!
//! Everyone but `thunk`'s hot path reports here. Never writes to stdout, never fails, and one line is one write. Some
//! programs try every name they are given, so refusals are told once each and at most four times in a process.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::loader::host;

/// Refusals told before one line points to the rest.
const MOST_REFUSALS: usize = 4;
/// Complaints about files told in full; a file with more is broken as a whole.
const MOST_COMPLAINTS: usize = 16;
/// Refusals remembered for "told once"; a program that asks for this many names gets repetitions.
const MOST_REMEMBERED: usize = 1024;

/// Bits of `DAT_DBG_TYPE`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Topic {
    /// Refusals, complaints. On unless the variable says otherwise.
    Errors = 0x1,
    /// Everything that limits would hide.
    General = 0x2,
    /// Files and loading.
    StaticRegistry = 0x4,
    /// Registrations.
    DynamicRegistry = 0x8,
    /// Calls into providers.
    ProviderCalls = 0x10,
    /// Calls of consumers.
    ConsumerCalls = 0x20,
}

/// Bits of `DAT_DBG_DEST`; 1 was stdout once, which is the consumer's.
const TO_STDERR: u32 = 1;
const TO_SYSLOG: u32 = 2;

#[derive(Clone, Copy)]
struct Settings {
    mask: u32,
    destination: u32,
}

/// What is to be told, and what has been.
pub(crate) struct Reporter {
    settings: Option<Settings>,
    told: BTreeSet<(Vec<u8>, String)>,
    refusals: usize,
    complaints: usize,
}

static REPORTER: Mutex<Reporter> =
    Mutex::new(Reporter { settings: None, told: BTreeSet::new(), refusals: 0, complaints: 0 });

thread_local! {
    /// Why this thread's last `dat_ia_openv` was refused, for the hook.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A name was refused: tells why, unless it was told before or enough was told.
pub(crate) fn refusal(name: &[u8], reason: &str) {
    let line = format!("cannot open \"{}\": {reason}", name.escape_ascii());
    LAST.with_borrow_mut(|last| last.clone_from(&line));
    let mut reporter = hold();
    let settings = reporter.settings();
    let told = &mut reporter.told;
    if told.len() < MOST_REMEMBERED && !told.insert((name.to_vec(), reason.to_owned())) {
        return;
    }
    let unlimited = settings.wants(Topic::General);
    if !settings.wants(Topic::Errors) && !unlimited {
        return;
    }
    reporter.refusals += 1;
    if unlimited || reporter.refusals <= MOST_REFUSALS {
        settings.write(&line);
    } else if reporter.refusals == MOST_REFUSALS + 1 {
        settings.write("further refusals are not shown; run with DAT_DBG_TYPE=0x3 to see them all");
    }
}

/// The last refusal of this thread; empty if there was none.
pub(crate) fn last_refusal() -> String {
    LAST.with_borrow(String::clone)
}

/// A file is not as it should be.
pub(crate) fn complaint(text: &dyn Display) {
    let mut reporter = hold();
    let settings = reporter.settings();
    let unlimited = settings.wants(Topic::General);
    if !settings.wants(Topic::Errors) && !unlimited {
        return;
    }
    reporter.complaints += 1;
    if unlimited || reporter.complaints <= MOST_COMPLAINTS {
        settings.write(&text.to_string());
    } else if reporter.complaints == MOST_COMPLAINTS + 1 {
        settings.write("further complaints are not shown; run with DAT_DBG_TYPE=0x3 to see them all");
    }
}

/// A line for those who asked for this topic; the text is made only then.
pub(crate) fn debug(topic: Topic, text: impl FnOnce() -> String) {
    let mut reporter = hold();
    let settings = reporter.settings();
    if settings.wants(topic) {
        settings.write(&text());
    }
}

/// Keeps others out, for `fork`.
pub(crate) fn hold() -> MutexGuard<'static, Reporter> {
    REPORTER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reporter {
    /// What the environment says, read at the first line that might be written.
    fn settings(&mut self) -> Settings {
        *self.settings.get_or_insert_with(Settings::from_environment)
    }
}

impl Settings {
    fn from_environment() -> Self {
        let mut wrong = Vec::new();
        let mask = setting("DAT_DBG_TYPE", 0..=u32::MAX, Topic::Errors as u32, &mut wrong);
        let destination = setting("DAT_DBG_DEST", 1..=3, TO_STDERR, &mut wrong);
        let settings = Self { mask, destination };
        for line in wrong {
            settings.write(&line);
        }
        settings
    }

    fn wants(self, topic: Topic) -> bool {
        self.mask & topic as u32 != 0
    }

    fn write(self, text: &str) {
        if self.destination & TO_STDERR != 0 {
            // Nobody can be told that stderr is closed.
            let _ = std::io::stderr().write_all(format!("libdat: {text}\n").as_bytes());
        }
        if self.destination & TO_SYSLOG != 0 {
            host::syslog(text);
        }
    }
}

/// One variable; rubbish is named, with what is allowed, and counts as unset.
fn setting(name: &str, allowed: std::ops::RangeInclusive<u32>, default: u32, wrong: &mut Vec<String>) -> u32 {
    let Some(text) = host::environment(name) else { return default };
    let value = text.to_str().and_then(integer).filter(|value| allowed.contains(value));
    value.unwrap_or_else(|| {
        let (from, to) = (allowed.start(), allowed.end());
        wrong.push(format!("{name}={text:?} is not a number from {from} to {to:#x}; {default} is used"));
        default
    })
}

/// As C writes integers: 0x is hexadecimal, a leading 0 octal.
fn integer(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = |text: &str, radix| {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        plain.then(|| u32::from_str_radix(text, radix).ok()).flatten()
    };
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None if text.len() > 1 && text.starts_with('0') => digits(&text[1..], 8),
        None => digits(text, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn integers_are_written_as_in_c() {
        for (text, value) in [("0", 0), ("10", 10), ("010", 8), ("0x1F", 31), (" 3 ", 3), ("0xffffffff", u32::MAX)] {
            assert_eq!(integer(text), Some(value), "{text:?}");
        }
        for text in ["", " ", "0x", "-1", "+1", "1x", "08", "4294967296", "1 2", "all"] {
            assert_eq!(integer(text), None, "{text:?}");
        }
    }
}
