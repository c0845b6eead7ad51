//! The coverage table: the observed return codes of each function and the observed events, each with the number of
//! cases and up to two case names. It also lists the codes and events that no case can provoke and, after a full run,
//! the codes and events of `expected` that no case observed. Requirements of `expected::of_2_0` are not listed.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::flight::Seen;
use crate::names::of_code;
use crate::{api, expected, kit};

/// Name of the file with the coverage table.
const FILE: &str = "coverage.md";
/// Maximum number of case names in a row.
const EXAMPLES: usize = 2;

/// Writes the table of a run to a file, and returns the path.
pub(crate) fn write(
    directory: &Path,
    provider: &str,
    seen: &BTreeMap<Seen, Vec<&str>>,
    is_whole: bool,
) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let path = directory.join(FILE);
    let extent = if is_whole { "all cases" } else { "some of the cases" };
    let mut text = format!("# Return codes and events of {provider} that the cases observed ({extent})\n");
    let _ = write!(text, "\n| function | return code | cases | for instance |\n|---|---|---|---|\n");
    for (what, names) in seen {
        if let Seen::ReturnCode(function, code) = what {
            let function = api::name(*function as usize);
            row(&mut text, &[function, &of_code(*code)], names);
        }
    }
    let _ = write!(text, "\n| event | cases | for instance |\n|---|---|---|\n");
    for (what, names) in seen.iter().filter(|(what, _)| !matches!(what, Seen::ReturnCode(..))) {
        row(&mut text, &[&name(*what)], names);
    }
    if is_whole {
        let _ = write!(text, "\n## Expected, and observed by no case\n\n");
        let unobserved = expected::unobserved(seen);
        unobserved.iter().for_each(|item| text += &format!("- {item}\n"));
        if unobserved.is_empty() {
            text += "Nothing.\n";
        }
    }
    let _ = write!(text, "\n## Not observable through the C ABI\n\n| where | what | why |\n|---|---|---|\n");
    for (place, what, why) in expected::UNREACHABLE {
        let _ = writeln!(text, "| {place} | {what} | {why} |");
    }
    fs::write(&path, text)?;
    Ok(path)
}

fn row(text: &mut String, cells: &[&str], names: &[&str]) {
    let examples = names[..names.len().min(EXAMPLES)].join(", ");
    let _ = writeln!(text, "| {} | {} | {examples} |", cells.join(" | "), names.len());
}

/// Prints the table of the last run. Fails if there is none.
pub(crate) fn show(directory: &Path) -> io::Result<bool> {
    let path = directory.join(FILE);
    let text = fs::read_to_string(&path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    print!("{text}");
    Ok(true)
}

fn name(what: Seen) -> String {
    match what {
        Seen::ReturnCode(..) => String::new(),
        Seen::Event(number) => kit::number_name(number),
        Seen::Dto(status) => format!("DTO: {}", kit::status_name(status)),
        Seen::Rmr(status) => format!("bind: {}", kit::status_name(status)),
        Seen::Async(number, reason) => format!("{}, reason {reason}", kit::number_name(number)),
    }
}
