//! Builds the test programs of the workspace and lists them, so that they can run concurrently.
//!
//! `cargo test` runs the programs of a workspace one after another, and a second cargo waits for the first one's
//! locks. A program that is started directly needs what cargo would set: its package's directory as current directory
//! and as `CARGO_MANIFEST_DIR`.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dapl_test::stage::workspace;
use serde_json::Value;

use crate::Result;
use crate::quiet::cargo;

/// A test program.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Program {
    /// Directory of its package.
    directory: PathBuf,
    /// Name of the cargo target: a file of `tests`, a library or a program.
    pub(crate) target: String,
    /// Whether it holds the tests beside the sources, not a file of `tests`.
    pub(crate) is_unit: bool,
    executable: PathBuf,
}

impl Program {
    /// Reads a message of cargo; `None` if it announces no test program.
    fn from_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let target = &message["target"];
        is_test.then_some(())?;
        Some(Program {
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
            target: target["name"].as_str()?.to_owned(),
            is_unit: target["kind"].as_array()?.iter().all(|kind| kind != "test"),
            executable: message["executable"].as_str()?.into(),
        })
    }

    /// The command that runs all tests of the program.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// Builds the libraries and programs of the workspace, for the stages of the suites. Without this step the first suites
/// build, and the others wait for them.
pub(crate) fn build_staged() -> Result {
    let status = cargo().args(["build", "--workspace", "--lib", "--bins"]).status();
    status.map_err(|error| error.to_string())?.success().then_some(()).ok_or_else(|| "the build failed".to_owned())
}

/// Builds all test programs and returns them.
pub(crate) fn build_tests() -> Result<Vec<Program>> {
    let words = ["test", "--workspace", "--tests", "--no-run", "--message-format", "json-render-diagnostics"];
    let output = cargo().args(words).stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("the tests do not compile".to_owned());
    }
    let programs: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::from_message).collect();
    if programs.is_empty() {
        return Err(format!("cargo names no test program of {}", workspace().display()));
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, is_test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/test/Cargo.toml","target":{{"kind":["{kind}"],"name":"abi"}},
                "profile":{{"test":{is_test}}},"executable":"/t/abi-1"}}"#
        )
    }

    #[test]
    fn test_programs_are_read_from_the_messages_of_cargo() {
        let abi = Program::from_message(&message("test", true)).unwrap();
        assert_eq!((abi.target.as_str(), abi.is_unit), ("abi", false));
        assert_eq!((abi.directory.as_path(), abi.executable.as_path()), (Path::new("/w/test"), Path::new("/t/abi-1")));
        assert!(Program::from_message(&message("lib", true)).unwrap().is_unit);
        assert_eq!(Program::from_message(&message("bin", false)), None);
        assert_eq!(Program::from_message(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
