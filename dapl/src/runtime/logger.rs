//! The log of this library: stderr, syslog or both, never stdout. A message is one write to stderr, even if it has
//! several lines; syslog gets one record per line. A message that repeats the previous one is only counted.
//!
//! `dat_provider_init` installs the logger once, unless the process has a logger. `DAPL_DBG_TYPE` selects messages
//! (spec/registry 14.1), `DAPL_DBG_DEST` the destination: 1 stderr, 2 syslog, 3 both. Errors and warnings are
//! rate-limited (`limit`). The errors of a failed open are passed to libdat for its own log line (`collect_errors`).

mod limit;

use std::cell::RefCell;
use std::ffi::CStr;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use dat_settings::log_line::{self, Folding, Origin};
use log::{Level, LevelFilter, Metadata, Record};

use crate::runtime::cancel;
use crate::runtime::sync::StaticMutex;
use limit::Limit;

/// Bits of `DAPL_DBG_TYPE` that the object layer interprets.
const ERRORS: u32 = 0x1;
const WARNINGS: u32 = 0x2;
const EVD: u32 = 0x4;
const CM: u32 = 0x8;
const EP: u32 = 0x10;
const UTILITIES: u32 = 0x20;
const CALLBACKS: u32 = 0x40;
const COUNTERS: u32 = 0x1000;

const STDERR: u32 = 1;
const SYSLOG: u32 = 2;

struct Logger {
    levels: u32,
    to: u32,
    began: Instant,
}

impl Logger {
    fn write(&self, level: Level, text: &str) {
        let _deferral = cancel::defer(); // `write` and `syslog` are cancellation points
        let level = level.as_str().to_ascii_lowercase();
        if self.to & STDERR != 0 {
            let (process, thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get());
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let ia = IA.with_borrow(Clone::clone);
            let lines =
                log_line::lines(&Origin { library: "dapl", level: &level, process, thread, ia: &ia }, now, text);
            // One write, so that lines of several threads do not mix. Errors of a closed stderr are ignored.
            let _ = std::io::stderr().write_all(lines.as_bytes());
        }
        if self.to & SYSLOG != 0 {
            // syslog adds the time itself; it adds the process id if the program has requested that (`LOG_PID`).
            text.lines().for_each(|line| syslog(&format!("dapl: {level}: {line}\0")));
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

static LOGGER: OnceLock<Logger> = OnceLock::new();
static STATE: StaticMutex<LogState> = StaticMutex::new(LogState { limit: Limit::new(), folding: Folding::new() });

/// State that the logger keeps between messages.
struct LogState {
    limit: Limit,
    folding: Folding,
}

thread_local! {
    /// Name of the IA that this thread logs about.
    static IA: RefCell<String> = const { RefCell::new(String::new()) };
    /// Errors logged during the open that this thread executes.
    static COLLECTED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`. Lines that the calling thread logs meanwhile contain the IA name `name`. Used by threads of an IA and
/// where errors are logged; too slow for a hot path.
pub fn with_ia<T>(name: &str, body: impl FnOnce() -> T) -> T {
    /// Restores the name, also when the body panics.
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            IA.set(std::mem::take(&mut self.0));
        }
    }
    let _restore = Restore(IA.replace(name.to_owned()));
    body()
}

/// Runs an open. Errors that this thread logs meanwhile are not printed, but returned, joined in one line.
pub(crate) fn collect_errors<T>(open: impl FnOnce() -> T) -> (T, String) {
    /// When dropped, ends the collection of errors, also if the open panics.
    struct StopCollecting;
    impl Drop for StopCollecting {
        fn drop(&mut self) {
            COLLECTED.set(None);
        }
    }
    let end = StopCollecting;
    COLLECTED.set(Some(String::new()));
    let result = open();
    let said = COLLECTED.take().unwrap_or_default();
    drop(end);
    (result, said)
}

/// Stores an error for [`collect_errors`]. Returns false if the calling thread is not executing `collect_errors`.
fn collect(text: &str) -> bool {
    COLLECTED.with_borrow_mut(|collected| {
        let Some(said) = collected else { return false };
        if !said.is_empty() {
            said.push_str("; ");
        }
        said.push_str(&text.replace('\n', " "));
        true
    })
}

/// Locks the rate limit and the folding of repeated messages while the process forks.
pub(crate) fn lock_for_fork() -> impl Sized {
    STATE.lock()
}

/// Creates the logger at the first call, and installs it in the `log` crate of this library, unless that has a logger
/// already.
pub fn install() {
    let logger = LOGGER.get_or_init(|| Logger {
        levels: variable("DAPL_DBG_TYPE", ERRORS | WARNINGS),
        to: variable("DAPL_DBG_DEST", STDERR),
        began: Instant::now(),
    });
    if log::set_logger(logger).is_ok() {
        log::set_max_level(match logger.levels {
            0 => LevelFilter::Off,
            ERRORS => LevelFilter::Error,
            levels if levels & !(ERRORS | WARNINGS) == 0 => LevelFilter::Warn,
            _ => LevelFilter::Trace,
        });
    }
}

/// Reads an environment variable as a number in C's notations (0x10, 010, 8). Returns `default` if the variable is not
/// set, or, with a message on stderr, if it is not a number.
fn variable(name: &str, default: u32) -> u32 {
    let Some(text) = std::env::var_os(name) else { return default };
    match text.to_str().and_then(number) {
        Some(value) => value,
        None => {
            let line = format!("dapl: {name}={text:?} is not a number from 0 to {}, using {default}\n", u32::MAX);
            let _ = std::io::stderr().write_all(line.as_bytes());
            default
        }
    }
}

/// Reads an environment variable; `None` if it is not set. Also returns `None` in a program that has more rights than
/// its user (set-uid), because the user controls the environment.
pub fn secure_variable(name: &str) -> Option<String> {
    // SAFETY: reads the auxiliary vector, which the kernel passed at exec.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure { None } else { Some(std::env::var_os(name)?.to_string_lossy().into_owned()) }
}

/// Parses a number in C's notations.
pub(crate) fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u32::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// The bit of `DAPL_DBG_TYPE` that enables lines of this level and module.
fn bit(level: Level, target: &str) -> u32 {
    match level {
        Level::Error => ERRORS,
        Level::Warn => WARNINGS,
        _ => match target.rsplit("::").next().unwrap_or_default() {
            module if module.contains("count") => COUNTERS,
            module if module.contains("evd") => EVD,
            module if module.contains("cm") || module.contains("cr") => CM,
            module if module.contains("ep") => EP,
            module if module.contains("cno") => CALLBACKS,
            _ => UTILITIES,
        },
    }
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.levels & bit(metadata.level(), metadata.target()) != 0
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = log_line::without_numbers(&record.args().to_string());
        if record.level() == Level::Error && collect(&text) {
            return;
        }
        let (level, now) = (record.level(), self.now());
        let (folded, left_out) = {
            let mut state = STATE.lock();
            let folded = state.folding.take(&text, now);
            // Only errors and warnings are limited: debug messages are off by default.
            let is_limited = folded.is_new && level <= Level::Warn;
            (folded, if is_limited { state.limit.take(now) } else { Some(0) })
        };
        if let Some(repeated) = folded.repeated {
            self.write(level, &repeated);
        }
        let Some(left_out) = left_out.filter(|_| folded.is_new) else { return };
        if left_out > 0 {
            self.write(level, &format!("{left_out} errors and warnings were suppressed by the rate limit"));
        }
        self.write(level, &text);
    }

    /// Logs how often the last message was repeated, if repetitions were suppressed.
    fn flush(&self) {
        let repeated = STATE.lock().folding.flush();
        if let Some(repeated) = repeated {
            self.write(Level::Warn, &repeated);
        }
    }
}

fn syslog(line: &str) {
    let Ok(line) = CStr::from_bytes_until_nul(line.as_bytes()) else { return };
    // SAFETY: both strings are NUL-terminated, and the format has one string argument.
    unsafe { libc::syslog(libc::LOG_USER | libc::LOG_WARNING, c"%s".as_ptr(), line.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_mask_is_parsed_in_c_notation() {
        assert_eq!([number("0x10"), number("010"), number("8"), number("0")], [Some(16), Some(8), Some(8), Some(0)]);
        assert_eq!([number("ten"), number(""), number("0x")], [None, None, None]);
    }

    #[test]
    fn log_mask_bit_depends_on_level_and_module() {
        assert_eq!(bit(Level::Error, "dapl::evd"), ERRORS);
        assert_eq!(bit(Level::Debug, "dapl::evd::dapli_evd"), EVD);
        assert_eq!(bit(Level::Trace, "dapl::cm"), CM);
        assert_eq!(bit(Level::Info, "sm::ring"), UTILITIES);
        assert_eq!(bit(Level::Info, "dapl::ia::dapli_counts"), COUNTERS);
    }
}
