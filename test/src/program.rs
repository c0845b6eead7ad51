//! Checks whether a program is installed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executable_files_are_programs() {
        assert!(is_program("sh") && !is_program("no-such-program"));
    }
}
