//! Our side of a bench: `test/c/perf.c`, over the staged libraries.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl_test::run::{Room, SM0};
use dapl_test::stage::{Stage, workspace};

use super::pair::{Cores, pair};
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

/// What it is asked for: see its head.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) mode: &'static str,
    pub(super) size: u32,
    pub(super) count: u32,
    pub(super) options: Vec<String>,
    /// So many processes; from two on the server has the figure.
    pub(super) clients: u32,
    pub(super) cores: Cores,
}

impl Ask {
    /// A mode and its two numbers.
    pub(super) fn new(mode: &'static str, size: u32, count: u32) -> Self {
        Ask { mode, size, count, options: Vec::new(), clients: 1, cores: Cores::Apart }
    }

    /// With more options.
    pub(super) fn with(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(|option| (*option).to_owned()));
        self
    }

    /// What one would type.
    pub(super) fn line(&self) -> String {
        ["perf"].into_iter().map(str::to_owned).chain(self.words()).collect::<Vec<_>>().join(" ")
    }

    fn words(&self) -> Vec<String> {
        let ends = [self.mode.to_owned(), self.size.to_string(), self.count.to_string()];
        self.options.iter().cloned().chain(ends).collect()
    }
}

impl Perf {
    /// Compiles it.
    pub(super) fn new(stage: &Stage, adapter: &'static str) -> Self {
        let program = stage.root.join("bin/perf");
        stage.compile(&program, &[&workspace().join("test/c/perf.c")], &["-O2"]);
        Perf { program, adapter, stage: stage.clone(), next: AtomicU32::new(QUAL) }
    }

    /// Its line of JSON.
    pub(super) fn run(&self, ask: &Ask) -> Result<String> {
        let room = Room::new(&self.stage, Some(SM0));
        let qual = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let words = ask.words();
        let words = || words.iter().map(String::as_str);
        let common = || ["-P", self.adapter, "-q", &qual].into_iter().chain(words());
        let processes = ask.clients.to_string();
        let server: Vec<&str> = ["-s", "-p", &processes].into_iter().chain(common()).collect();
        let client: Vec<&str> = ["-h", "localhost"].into_iter().chain(common()).collect();
        let (server, client) = (room.command(&self.program, &server), room.command(&self.program, &client));
        // sm: a listener is a file named like its qualifier.
        let name = room.sm().join("quals").join(&qual);
        let is_ready = || std::fs::metadata(&name).is_ok_and(|file| file.len() > 0);
        let said = pair(&server, is_ready, (&client, ask.clients), ask.cores, ask.mode == "death")?;
        Ok(if ask.clients > 1 { said.server } else { said.client })
    }

    /// One number of it.
    pub(super) fn figure(&self, ask: &Ask, name: &str) -> Result<f64> {
        let said = self.run(ask)?;
        field(&said, name).ok_or_else(|| format!("{} said no {name}: {said}", ask.line()))
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

    #[test]
    fn options_come_before_the_mode() {
        let ask = Ask::new("write", 1_048_576, 500).with(&["-m", "-d", "16"]);
        assert_eq!(ask.line(), "perf -m -d 16 write 1048576 500");
    }
}
