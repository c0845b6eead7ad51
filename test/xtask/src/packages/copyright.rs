//! Generates the copyright file: the licences of this project and of all crates that are linked into its libraries.
#![forbid(unsafe_code)]

use std::process::Command;

use dapl_test::stage::{PROVIDERS, workspace};

use super::{SOURCE, read};
use crate::Result;
use crate::quiet::run_quietly;

/// Licences of this project and of all linked crates.
pub(super) fn text() -> Result<String> {
    let mit = read("LICENSE-MIT")?;
    let holder = mit.lines().find_map(|line| line.strip_prefix("Copyright ")).unwrap_or("the dapl-rs authors");
    let indented = |text: &str| -> String {
        text.lines().map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") }).collect()
    };
    let terms = mit.split_once("\n\nPermission").map(|(_, rest)| format!("Permission{rest}")).unwrap_or(mit.clone());
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: {SOURCE}\nComment:\n \
         Linked into the libraries are these packages of crates.io, each under the\n licence that stands behind it:\n{}\n\
         Files: *\nCopyright: {holder}\nLicense: Expat or Apache-2.0\n\nLicense: Expat\n{}\nLicense: Apache-2.0\n On Debian \
         systems the text of this licence is in\n /usr/share/common-licenses/Apache-2.0.\n",
        indented(&crates()?),
        indented(&terms)
    ))
}

/// Lists the third-party crates that the libraries contain, with their licences.
fn crates() -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none"]);
    cargo.args(["--format", "{p} ({l})", "-p", "dat"]);
    for provider in PROVIDERS {
        cargo.args(["-p", provider]);
    }
    let output = run_quietly(&mut cargo)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty() && !line.contains("(/"))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    Ok(lines.join("\n"))
}
