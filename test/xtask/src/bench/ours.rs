//! Our side of a bench: `test/c/perf.c`, over the staged libraries.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl_test::run::Room;
use dapl_test::stage::{Stage, workspace};

use super::pair;
use crate::Result;

/// The first qualifier; each pair takes one of its own.
const QUAL: u32 = 45_300;

/// The program, for one adapter.
pub(super) struct Perf {
    program: PathBuf,
    adapter: &'static str,
    stage: Stage,
    next: AtomicU32,
}

impl Perf {
    /// Compiles it.
    pub(super) fn new(stage: &Stage, adapter: &'static str) -> Self {
        let program = stage.root.join("bin/perf");
        stage.compile(&program, &[&workspace().join("test/c/perf.c")], &["-O2"]);
        Perf { program, adapter, stage: stage.clone(), next: AtomicU32::new(QUAL) }
    }

    /// Half a round trip, in microseconds.
    pub(super) fn latency(&self, size: u32, iterations: u32) -> Result<f64> {
        self.run("lat", size, iterations, "usec")
    }

    /// Millions of messages per second.
    pub(super) fn rate(&self, size: u32, count: u32) -> Result<f64> {
        self.run("rate", size, count, "mps")
    }

    fn run(&self, what: &str, size: u32, count: u32, figure: &str) -> Result<f64> {
        let room = Room::new(&self.stage, Some(dapl_test::run::SM0));
        let qual = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let (size, count) = (size.to_string(), count.to_string());
        let common = ["-P", self.adapter, "-q", &qual, what, &size, &count];
        let server = room.command(&self.program, &[&["-s"], &common[..]].concat());
        let client = room.command(&self.program, &[&["-h", "localhost"], &common[..]].concat());
        // sm: a listener is a file named like its qualifier.
        let name = room.sm().join("quals").join(&qual);
        let said = pair(&server, || std::fs::metadata(&name).is_ok_and(|file| file.len() > 0), &client)?;
        field(&said, figure).ok_or_else(|| format!("perf {what} said no {figure}: {said}"))
    }
}

/// The number of a field in one line of JSON.
pub(super) fn field(line: &str, name: &str) -> Option<f64> {
    let rest = line.split_once(&format!("\"{name}\":"))?.1;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found() {
        assert_eq!(field("{\"what\":\"lat\",\"size\":8,\"usec\":0.123}\n", "usec"), Some(0.123));
        assert_eq!(field("{\"what\":\"rate\",\"mps\": 12.5 }", "mps"), Some(12.5));
        assert_eq!(field("", "usec"), None);
    }
}
