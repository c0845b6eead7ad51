//! A progress bar: one line on a terminal, no output elsewhere.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Minimum time between two updates of the line.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// The bar appears after this time, so shorter tests show none.
const BAR_DELAY: Duration = Duration::from_secs(1);
/// Width of the bar in characters.
const WIDTH: u64 = 40;

/// When the test ends.
#[derive(Clone, Copy)]
enum ProgressEnd {
    Steps(u64),
    Time(Duration),
}

/// Counts the steps of a test and shows the count.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    painter: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    /// Total number of steps, or the duration of the test.
    end: ProgressEnd,
    done: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    /// Creates a progress bar for `all` steps, shown only if standard error is a terminal.
    pub(crate) fn new(all: u64) -> Self {
        Progress::shown(ProgressEnd::Steps(all))
    }

    /// Creates a progress bar for a test with this duration.
    pub(crate) fn timed(time: Duration) -> Self {
        Progress::shown(ProgressEnd::Time(time))
    }

    fn shown(end: ProgressEnd) -> Self {
        let progress = Progress::of(end);
        if std::io::stderr().is_terminal() {
            let shared = Arc::clone(&progress.shared);
            *progress.painter.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(std::thread::spawn(move || paint(&shared)));
        }
        progress
    }

    /// Creates a progress counter without output.
    pub(crate) fn hidden() -> Self {
        Progress::of(ProgressEnd::Steps(0))
    }

    fn of(end: ProgressEnd) -> Self {
        let shared = Shared { end, done: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        Progress { shared: Arc::new(shared), painter: Mutex::new(None) }
    }

    /// Counts a step.
    pub(crate) fn step(&self) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(painter) = self.painter.lock().unwrap_or_else(PoisonError::into_inner).take() {
            painter.thread().unpark();
            // The thread only draws and cannot fail.
            let _ = painter.join();
        }
    }
}

fn paint(shared: &Shared) {
    let began = Instant::now();
    let mut is_drawn = false;
    while !shared.is_over.load(Ordering::Relaxed) {
        std::thread::park_timeout(REFRESH_INTERVAL);
        if began.elapsed() > BAR_DELAY {
            is_drawn = true;
            let done = shared.done.load(Ordering::Relaxed);
            let _ = write!(std::io::stderr(), "\r{}", line(done, shared.end, began.elapsed()));
        }
    }
    if is_drawn {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// Formats the bar, the percentage, the count, and the estimated remaining time.
fn line(done: u64, end: ProgressEnd, elapsed: Duration) -> String {
    let share = match end {
        ProgressEnd::Steps(all) => done.min(all) as f64 / all.max(1) as f64,
        ProgressEnd::Time(time) => (elapsed.as_secs_f64() / time.as_secs_f64()).min(1.0),
    };
    let full = (share * WIDTH as f64) as usize;
    let bar = "#".repeat(full) + &".".repeat(WIDTH as usize - full);
    let (count, left) = match end {
        ProgressEnd::Steps(0) => (format!("{done}"), None),
        ProgressEnd::Steps(all) => {
            let rest = (share > 0.0).then(|| elapsed.as_secs_f64() / share * (1.0 - share));
            (format!("{}/{all}", done.min(all)), rest)
        }
        ProgressEnd::Time(time) => (format!("{done}"), Some(time.saturating_sub(elapsed).as_secs_f64())),
    };
    let left = left.map_or("?".to_owned(), |seconds| format!("{seconds:.0} s"));
    format!("[{bar}] {:>3.0} % {count}, {left} left \x1b[K", (share * 100.0).floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_line_has_share_count_and_remaining_time() {
        let half = line(50, ProgressEnd::Steps(100), Duration::from_secs(10));
        assert!(half.contains(" 50 % 50/100, 10 s left") && half.matches('#').count() == 20, "{half}");
        assert!(line(0, ProgressEnd::Steps(7), Duration::ZERO).contains("  0 % 0/7, ? left"));
        assert!(
            line(9, ProgressEnd::Steps(7), Duration::from_secs(1)).contains("100 % 7/7, 0 s left"),
            "the progress exceeds 100 %"
        );
        let timed = line(5000, ProgressEnd::Time(Duration::from_secs(10)), Duration::from_secs(4));
        assert!(timed.contains(" 40 % 5000, 6 s left") && timed.matches('#').count() == 16, "{timed}");
    }

    #[test]
    fn progress_is_counted_without_a_terminal() {
        let progress = Progress::hidden();
        progress.step();
        assert_eq!(progress.shared.done.load(Ordering::Relaxed), 1);
        assert!(progress.painter.lock().unwrap().is_none());
    }
}
