//! A progress bar: one line on a terminal, no output elsewhere.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The line is drawn anew this often.
const PACE: Duration = Duration::from_millis(250);
/// Shorter tests show no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// Characters of the bar.
const WIDTH: u64 = 40;

/// Counts, and shows the count.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    painter: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    all: u64,
    done: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    /// For `all` steps. Shown if standard error is a terminal.
    pub(crate) fn new(all: u64) -> Self {
        let progress = Progress::of(all);
        if std::io::stderr().is_terminal() {
            let shared = Arc::clone(&progress.shared);
            *progress.painter.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(std::thread::spawn(move || paint(&shared)));
        }
        progress
    }

    /// Without output.
    pub(crate) fn silent() -> Self {
        Progress::of(0)
    }

    fn of(all: u64) -> Self {
        let shared = Shared { all, done: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        Progress { shared: Arc::new(shared), painter: Mutex::new(None) }
    }

    /// One step more.
    pub(crate) fn step(&self) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(painter) = self.painter.lock().unwrap_or_else(PoisonError::into_inner).take() {
            painter.thread().unpark();
            // It draws, and cannot fail.
            let _ = painter.join();
        }
    }
}

fn paint(shared: &Shared) {
    let began = Instant::now();
    let mut is_drawn = false;
    while !shared.is_over.load(Ordering::Relaxed) {
        std::thread::park_timeout(PACE);
        if began.elapsed() > PATIENCE {
            is_drawn = true;
            let done = shared.done.load(Ordering::Relaxed);
            let _ = write!(std::io::stderr(), "\r{}", line(done, shared.all, began.elapsed()));
        }
    }
    if is_drawn {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// The bar, the share, the count, and how long it will take if it goes on so.
fn line(done: u64, all: u64, elapsed: Duration) -> String {
    let (done, all) = (done.min(all), all.max(1));
    let full = (done * WIDTH / all) as usize;
    let bar = "#".repeat(full) + &".".repeat(WIDTH as usize - full);
    let left = match done {
        0 => String::from("?"),
        _ => format!("{:.0} s", elapsed.as_secs_f64() / done as f64 * (all - done) as f64),
    };
    format!("[{bar}] {:>3} % {done}/{all}, {left} left \x1b[K", done * 100 / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far() {
        let half = line(50, 100, Duration::from_secs(10));
        assert!(half.contains(" 50 % 50/100, 10 s left") && half.matches('#').count() == 20, "{half}");
        assert!(line(0, 7, Duration::ZERO).contains("  0 % 0/7, ? left"));
        assert!(line(9, 7, Duration::from_secs(1)).contains("100 % 7/7, 0 s left"), "never more than all");
    }

    #[test]
    fn silent_progress_counts() {
        let progress = Progress::silent();
        progress.step();
        assert_eq!(progress.shared.done.load(Ordering::Relaxed), 1);
        assert!(progress.painter.lock().unwrap().is_none());
    }
}
