//! The log lines of libdat: `DAT_DBG_TYPE` and `DAT_DBG_LEVEL` select the topics, `DAT_DBG_DEST` the destination (stderr,
//! syslog or both). Also reports invalid values of these variables, and variables that are misspelt or have no effect.
//!
//! `report` calls [`read_settings`] before the first line that might be written. Nothing is written to stdout.
#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Instant, SystemTime};

use dat_settings::log_line::{self, FoldedLines, Folding, Origin};
use dat_settings::{LIBDAT, VariableClass, look_up, nearest};

use super::{Topic, has_errors};
use crate::api;
use crate::loader::host;

/// Bits of `DAT_DBG_DEST`. No bit selects stdout, which belongs to the program.
const TO_STDERR: u32 = 1;
const TO_SYSLOG: u32 = 2;

/// Maximum number of variables, unknown ones and those without effect, that are reported. An environment with more of
/// them uses such names for another purpose.
const MOST_UNKNOWN: usize = 8;
/// Maximum length of a variable's name in a log line.
const LONGEST_NAME: usize = 64;

static FOLDING: Mutex<Folding> = Mutex::new(Folding::new());
/// Start time of the clock for [`Folding`].
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
static MASK: AtomicU32 = AtomicU32::new(0);
static DESTINATION: AtomicU32 = AtomicU32::new(TO_STDERR);

/// Reads the environment. Called once.
pub(super) fn read_settings() {
    let mut wrong = Vec::new();
    let mask = setting("DAT_DBG_TYPE", &mut wrong) | setting("DAT_DBG_LEVEL", &mut wrong);
    MASK.store(mask, Ordering::Relaxed);
    DESTINATION.store(setting("DAT_DBG_DEST", &mut wrong), Ordering::Relaxed);
    if has_errors() {
        wrong.extend(unknown(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())));
    }
    // Errors in the settings are reported even if the settings disable messages.
    wrong.iter().for_each(|line| write("warn", line));
}

/// Whether a topic is enabled.
pub(super) fn has(topic: Topic) -> bool {
    MASK.load(Ordering::Relaxed) & topic as u32 != 0
}

/// Writes a line of an enabled topic. Lines that are often repeated are folded.
pub(super) fn log(level: &str, text: &str) {
    let text = log_line::without_numbers(text);
    // If another thread holds the lock, the line is written without the check for repetitions.
    let folded = FOLDING.try_lock().map(|mut folding| folding.take(&text, BEGAN.elapsed()));
    let FoldedLines { repeated, is_new } = folded.unwrap_or(FoldedLines { repeated: None, is_new: true });
    repeated.iter().chain(is_new.then_some(&text)).for_each(|text| write(level, text));
}

fn write(level: &str, text: &str) {
    let destination = DESTINATION.load(Ordering::Relaxed);
    if destination & TO_STDERR != 0 {
        let (library, process, thread) = (api::current().name, std::process::id(), host::thread_id());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let lines = log_line::lines(&Origin { library, level, process, thread, ia: "" }, now, text);
        // If stderr is closed, there is no other place to report the error.
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
    if destination & TO_SYSLOG != 0 {
        host::syslog(&format!("{}: {text}", api::current().name));
    }
}

/// Reads one variable. For an invalid value, adds a line with the permitted values to `wrong` and returns the default.
fn setting(variable: &'static str, wrong: &mut Vec<String>) -> u32 {
    let setting = LIBDAT
        .settings
        .iter()
        .find(|setting| setting.variable == variable)
        .expect("libdat's table has all variables that libdat reads");
    let default = setting.values.default();
    let value = host::environment(variable).map(|text| {
        let given = text.to_str().ok_or_else(|| setting.values.allowed()).and_then(|text| LIBDAT.value(setting, text));
        given.unwrap_or_else(|allowed| {
            wrong.push(format!("{variable}={text:?} is not {allowed}; {default} is used"));
            default.clone()
        })
    });
    value.unwrap_or(default).parse().expect("values of these variables fit into 32 bits")
}

/// Returns a line for each `DAT_` or `DAPL_` variable that is misspelt, or that has no effect but a known replacement
/// ([`VariableClass::NoEffect`]); at most [`MOST_UNKNOWN`] lines.
fn unknown(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let lines = names.filter_map(|name| match look_up(&name) {
        // A set-uid program reads no variables, so none is reported as misspelt.
        _ if host::is_privileged() => None,
        VariableClass::NoEffect(instead) => Some(format!("{name} is set and has no effect here; use {instead}")),
        VariableClass::Unknown => {
            let shown: String = name.chars().take(LONGEST_NAME).collect();
            let meant = nearest(&name).map_or(String::new(), |meant| format!("; the nearest name is {meant}"));
            Some(format!("{} is not a variable of DAT{meant}", shown.escape_debug()))
        }
        _ => None,
    });
    lines.take(MOST_UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(|name| (*name).to_owned())).collect()
    }

    #[test]
    fn unknown_dat_variable_is_reported_with_the_nearest_name() {
        assert_eq!(
            lines(&["DAT_OVERIDE", "DAT_OVERRIDE", "PATH", "DAPL_UCM_RETRY", "DAPL_SM_COLOUR", "DATA_DIR"]),
            ["DAT_OVERIDE is not a variable of DAT; the nearest name is DAT_OVERRIDE"]
        );
    }

    #[test]
    fn a_name_without_effect_is_reported_with_its_replacement() {
        assert_eq!(
            lines(&["DAPL_SCM_NETDEV", "DAPL_DBG_LEVEL"]),
            [
                "DAPL_SCM_NETDEV is set and has no effect here; use a network device or an address as the first word of ia_params",
                "DAPL_DBG_LEVEL is set and has no effect here; use DAPL_DBG_TYPE",
            ]
        );
    }

    #[test]
    fn reports_of_unknown_variables_are_shortened_and_limited() {
        let long = format!("DAT_\u{1b}[2J{}", "x".repeat(100_000));
        let line = lines(&[&long]).remove(0);
        assert!(line.starts_with("DAT_\\u{1b}[2Jxxx") && line.len() < 120, "{line}");
        let many: Vec<_> = (0..1000).map(|number| format!("DAT_{number}")).collect();
        assert_eq!(lines(&many.iter().map(String::as_str).collect::<Vec<_>>()).len(), MOST_UNKNOWN);
    }
}
