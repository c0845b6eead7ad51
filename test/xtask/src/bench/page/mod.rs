//! A page with the results of the benches sm, usnic and verbs: providers compared with their peers, charts, tables,
//! commands.
//!
//! The page has neither external resources nor scripts; its content security policy forbids both. It is generated from
//! the benches' JSON files, so it can be regenerated without measuring. Failed measurements are named.
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
use crate::cli::Selection;

/// Default file name of the page.
const PAGE: &str = "report.html";

/// The provider of a bench, and the function that runs it.
type Bench = (&'static str, fn(&Selection) -> Result);

/// Runs the three benches one after the other, then writes the page.
pub(crate) fn all(quick: bool) -> Result {
    let benches: [Bench; 3] = [("sm", sm), ("usnic", usnic), ("verbs", |selection| verbs(false, selection))];
    let directory = target_directory().join(DIRECTORY);
    let failed = measure(&benches, quick, &directory);
    write(&directory, &directory.join(PAGE), &failed)?;
    match failed.iter().map(|failed| failed.provider).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        ref providers => Err(format!("bench: not everything was measured over {}", providers.join(", "))),
    }
}

/// Runs all benches. A failure does not stop the others. Returns the failed ones.
fn measure(benches: &[Bench], quick: bool, directory: &Path) -> Vec<Failed> {
    let mut failed = Vec::new();
    let selection = Selection { quick, ..Selection::default() };
    for (provider, bench) in benches {
        eprintln!("\nbench {provider}");
        let file = directory.join(format!("{provider}.json"));
        let written = || fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
        let before = written();
        // A failed compiler or program makes shared test code panic with its output; the other benches still run.
        let result = std::panic::catch_unwind(|| bench(&selection)).unwrap_or_else(|payload| {
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

/// Writes the page from the results in directory `from`.
pub(crate) fn report(from: Option<PathBuf>, output: Option<PathBuf>) -> Result {
    let from = from.unwrap_or_else(|| target_directory().join(DIRECTORY));
    let output = output.unwrap_or_else(|| from.join(PAGE));
    if !results::PROVIDERS.iter().any(|provider| from.join(format!("{provider}.json")).exists()) {
        return Err(format!("bench report: {} has no results; run cargo xtask bench", from.display()));
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
