//! Headless Chromium: opens a page from a file, returns its DOM after scripts have run, and takes screenshots.
//!
//! Each call has a temporary profile and a time limit.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dapl_test::program::is_program;
use dapl_test::run::Run;

use super::Scratch;

/// Time limit; longer than any page takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
const LIMIT_SECONDS: &str = "170";

/// Size of a browser window in pixels, and its colour scheme.
#[derive(Clone, Copy)]
pub(super) struct BrowserWindow {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) is_dark: bool,
}

/// Whether Chromium is installed; prints a line if not.
pub(super) fn is_there() -> bool {
    let there = is_program("chromium");
    if !there {
        println!("skipped: chromium is missing; install the Debian package chromium");
    }
    there
}

/// Returns the page's elements after its scripts have run.
pub(super) fn dump(page: &Path, window: BrowserWindow) -> String {
    run(page, window, &["--dump-dom"])
}

pub(super) fn picture(page: &Path, window: BrowserWindow) -> Picture {
    let file = page.with_extension("png");
    run(page, window, &[&format!("--screenshot={}", file.display())]);
    let mut decoder = png::Decoder::new(std::io::BufReader::new(
        fs::File::open(&file).expect("the browser has written the screenshot"),
    ));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    let samples = info.color_type.samples();
    assert!(samples >= 3, "{:?}", info.color_type);
    let pixels =
        bytes[..info.buffer_size()].chunks_exact(samples).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    Picture { width: info.width as usize, pixels }
}

/// Pixels of a screenshot, line by line.
pub(super) struct Picture {
    width: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Counts the pixels of a rectangle: those that approximately have this colour, and all of them.
    pub(super) fn count(&self, [left, top, width, height]: [f64; 4], colour: [u8; 3]) -> (usize, usize) {
        let is_like = |pixel: &[u8; 3]| pixel.iter().zip(&colour).all(|(one, other)| one.abs_diff(*other) < 24);
        let (left, right) = (left as usize, (left + width) as usize);
        assert!(right <= self.width, "column {right} is outside of the picture of width {}", self.width);
        let rows = self.pixels.chunks_exact(self.width).skip(top as usize).take(height as usize);
        let found = rows.map(|row| (row[left..right].iter().filter(|pixel| is_like(pixel)).count(), right - left));
        found.fold((0, 0), |(like, all), row| (like + row.0, all + row.1))
    }
}

fn run(page: &Path, window: BrowserWindow, what: &[&str]) -> String {
    let profile = Scratch::new("profile");
    let mut chromium = Command::new("timeout");
    chromium.args(["-s", "KILL", LIMIT_SECONDS, "chromium", "--headless"]);
    // Chromium's sandbox works neither as root nor in containers. It is not needed, because the page is trusted.
    chromium.args([
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-extensions",
    ]);
    chromium.args(["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]);
    chromium.args(["--force-device-scale-factor=1", "--virtual-time-budget=5000"]);
    chromium.arg(format!("--window-size={},{}", window.width, window.height));
    chromium.arg(format!("--blink-settings=preferredColorScheme={}", if window.is_dark { 0 } else { 1 }));
    chromium.arg(format!("--user-data-dir={}", profile.0.display()));
    chromium.args(what).arg(format!("file://{}", page.display()));
    chromium.env("HOME", &profile.0).env("XDG_CONFIG_HOME", &profile.0).env("XDG_CACHE_HOME", &profile.0);
    chromium.env("TMPDIR", &profile.0);
    let finished = Run::start(chromium).finish(LIMIT);
    assert!(finished.status.success(), "{}\n{}", finished.status, finished.stderr);
    finished.stdout
}
