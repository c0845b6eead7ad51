//! One page with everything that the benches have measured: all providers beside their peers, charts, tables, commands.
//!
//! The page stands alone: no script, nothing from elsewhere, and it says so to the browser. It is made of the JSON that each
//! bench leaves, so it can be made again without measuring. What failed or was not measured is named on it.
#![forbid(unsafe_code)]

mod charts;
mod html;
mod results;

use std::fs;
use std::path::{Path, PathBuf};

use dapl_test::stage::target_directory;

use self::results::Failed;
use super::report::DIRECTORY;
use super::{sm, usnic, verbs};
use crate::Result;

/// The name of the page, if nobody gives it another.
const PAGE: &str = "report.html";

/// The provider of a bench, and how it is run.
type Bench = (&'static str, fn(&[&str]) -> Result);

/// Runs the three benches, one after the other, then makes the page; `--quick`: a little of each.
pub(crate) fn all(arguments: &[&str]) -> Result {
    match arguments {
        [] | ["--quick"] => {}
        _ => return Err(format!("bench: {} is not understood; see cargo xtask --help", arguments.join(" "))),
    }
    let benches: [Bench; 3] = [("sm", sm), ("usnic", usnic), ("verbs", verbs)];
    let directory = target_directory().join(DIRECTORY);
    let failed = measure(&benches, arguments, &directory);
    write(&directory, &directory.join(PAGE), &failed)?;
    match failed.iter().map(|failed| failed.provider).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        ref providers => Err(format!("bench: not everything was measured over {}", providers.join(", "))),
    }
}

/// Runs all of them, whatever comes of the first.
fn measure(benches: &[Bench], arguments: &[&str], directory: &Path) -> Vec<Failed> {
    let mut failed = Vec::new();
    for (provider, bench) in benches {
        eprintln!("\nbench {provider}");
        let file = directory.join(format!("{provider}.json"));
        let written = || fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
        let before = written();
        // What the suites share panics with what a compiler or a program said; the others are measured all the same.
        let result = std::panic::catch_unwind(|| bench(arguments)).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            Err(text.or(payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
        });
        if let Err(reason) = result {
            eprintln!("xtask: bench {provider}: {reason}");
            failed.push(Failed { provider, reason, has_written: written() != before });
        }
    }
    failed
}

/// Makes the page of what there is: `--from DIRECTORY`, `--output FILE`.
pub(crate) fn report(arguments: &[&str]) -> Result {
    let (mut from, mut output) = (None, None);
    let mut rest = arguments;
    loop {
        match rest {
            [] => break,
            ["--from", directory, more @ ..] => (from, rest) = (Some(PathBuf::from(directory)), more),
            ["--output", file, more @ ..] => (output, rest) = (Some(PathBuf::from(file)), more),
            _ => return Err(format!("bench report: {} is not understood; see cargo xtask --help", rest.join(" "))),
        }
    }
    let from = from.unwrap_or_else(|| target_directory().join(DIRECTORY));
    let output = output.unwrap_or_else(|| from.join(PAGE));
    if !results::PROVIDERS.iter().any(|provider| from.join(format!("{provider}.json")).exists()) {
        return Err(format!("bench report: {} has no results; cargo xtask bench measures", from.display()));
    }
    write(&from, &output, &[])
}

fn write(from: &Path, output: &Path, failed: &[Failed]) -> Result {
    let page = html::page(&results::of_files(from, failed));
    let written = output.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(output, page));
    written.map_err(|error| format!("{}: {error}", output.display()))?;
    println!("written to {}", output.display());
    Ok(())
}

#[cfg(test)]
mod tests;
