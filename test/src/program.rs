//! Checks whether a program is installed. Reports a test that is skipped because a requirement is missing, or fails
//! this test if `DAPL_TEST_REQUIRED` is set.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::{env, fs};

/// Whether the program is found in PATH.
pub fn is_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| {
        let file = fs::metadata(directory.join(name));
        file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

/// Environment variable that turns skipped tests into failures; `cargo xtask test --required` sets it.
pub const REQUIRED: &str = "DAPL_TEST_REQUIRED";

/// Reports that a test is skipped. If `REQUIRED` is set, fails the test instead.
#[track_caller]
pub fn skip(reason: &str) {
    assert!(env::var_os(REQUIRED).is_none(), "not tested: {reason}");
    println!("skipped: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executable_files_are_programs() {
        assert!(is_program("sh") && !is_program("no-such-program"));
    }
}
