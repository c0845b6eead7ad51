//! Environment of the suite `rxe`: the staged libraries, dat.conf files with the guest's device, and the compiled C
//! programs.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use dapl_test::run::{self, SM0, of_2_0};
use dapl_test::stage::{self, Profile, Stage};

use crate::reference::{ADAPTER, SOCKET_LINE};
use crate::{Result, tree};

/// Registry line for the guest's device, under the name that all checks use.
const RXE0: &str = "rxe0 u1.2 threadsafe default libdaplverbs.so.1 dapl.1.2 \"rxe0 1\" \"\"\n";

/// Registry lines of the 1.2 reference for the same device: the library name selects the connection manager.
const RXE_CMA: &str = "rxe-cma u1.2 nonthreadsafe default libdaplcma.so.1 dapl.1.2 \"rxe0 1\" \"\"\n";
const RXE_SCM: &str = "rxe-scm u1.2 nonthreadsafe default libdaplscm.so.1 dapl.1.2 \"rxe0 1\" \"\"\n";

/// End of a registry line for DAT 2.0 programs, after the adapter name. The library name is that of the reference's
/// registry.
const RXE2: &str = " u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"rxe0 1\" \"\"\n";

/// The environment, built with all assertions, like tests on this machine.
pub(super) struct Setting {
    stage: Stage,
    conf: PathBuf,
    /// Path of a dat.conf in which the device has a line for DAT 2.0 only, because registry cases expect each name
    /// once.
    pub(super) conf_2_0: String,
    /// Paths of the programs.
    pub(super) dtest: String,
    pub(super) dapltest: String,
    /// Path of the driver of the conformance suite.
    pub(super) driver: PathBuf,
}

impl Setting {
    /// Builds the environment.
    pub(super) fn build() -> Result<Self> {
        let tree = tree::build(Profile::Dev)?;
        let driver = stage::built("dapl-conformance", Profile::Dev);
        let write = |name: &str, lines: String| {
            let path = tree.stage.root.join("etc").join(name);
            fs::write(&path, lines).map_err(|error| format!("{}: {error}", path.display())).map(|()| path)
        };
        let conf = write("rxe.conf", format!("{SM0}{RXE0}{RXE_CMA}{RXE_SCM}{ADAPTER}{RXE2}{SOCKET_LINE}"))?;
        let conf_2_0 = write("rxe-2.0.conf", of_2_0(RXE0))?.display().to_string();
        let [dtest, dapltest] = [&tree.dtest, &tree.dapltest].map(|program| program.display().to_string());
        Ok(Setting { dtest, dapltest, stage: tree.stage, conf, conf_2_0, driver })
    }

    /// Path of a compiled program of test/c, in the guest.
    pub(super) fn program(&self, source: &str) -> String {
        run::program(&self.stage, source).display().to_string()
    }

    /// Path of a program of test/c compiled for DAT 2.0, in the guest.
    pub(super) fn program_2(&self, source: &str) -> String {
        run::program_2(&self.stage, source).display().to_string()
    }

    /// Returns a job that runs a shell script with the arguments $1 and following.
    pub(super) fn shell(&self, text: &str, arguments: &[&str]) -> Job {
        let words = ["sh", "-c", text, "sh"].into_iter().chain(arguments.iter().copied()).map(str::to_owned);
        self.job(words.collect())
    }

    /// Returns a job that runs a program.
    pub(super) fn exec(&self, program: &Path, arguments: &[&str]) -> Job {
        let words = [program.display().to_string()].into_iter().chain(arguments.iter().map(|word| (*word).to_owned()));
        self.job(words.collect())
    }

    fn job(&self, words: Vec<String>) -> Job {
        // 7, the provider's default retry count, means infinite retries over soft-RoCE, so an exited peer would never
        // be detected.
        let more = vec![("DAPL_ACK_RETRY".to_owned(), "6".to_owned())];
        Job { words, lib: self.stage.lib.clone(), conf: self.conf.clone(), more }
    }
}

/// A command for a guest.
pub(super) struct Job {
    words: Vec<String>,
    lib: PathBuf,
    conf: PathBuf,
    more: Vec<(String, String)>,
}

impl Job {
    /// Adds an environment variable.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.more.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the command, run by a script that watches it.
    pub(super) fn watched(&self, script: &str, limit: Duration) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", &limit.as_secs().to_string()]).args(&self.words);
        command.env("LD_LIBRARY_PATH", &self.lib).env("DAT_OVERRIDE", &self.conf);
        command.envs(self.more.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// For the manager `none` sets the acknowledgement timeout to a second instead of a quarter. This manager exchanges no
/// messages, so the first data may be sent long before the peer is ready.
pub(super) fn patient(job: Job, manager: &str) -> Job {
    if manager == "none" { job.with("DAPL_ACK_TIMER", "18") } else { job }
}
