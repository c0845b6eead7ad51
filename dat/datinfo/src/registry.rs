//! The registry as read by a probe: entries, unused lines, errors in lines, unreadable files, and lines for the
//! adapters of this machine.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::child::{self, ChildExit};
use crate::options::{Api, Options};

/// An accepted line of dat.conf. Name, library and parameters are escaped as in C.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ReportedEntry {
    pub(crate) name: String,
    #[serde(rename = "api_version")]
    pub(crate) version: String,
    #[serde(rename = "thread_safety")]
    pub(crate) safety: String,
    /// The field lib_path; empty if libdat does not report it.
    pub(crate) library: String,
    #[serde(rename = "ia_params")]
    pub(crate) params: String,
    /// Position as `file:line`; empty if libdat does not report it.
    pub(crate) id: String,
    /// Path of the library's file; empty if the file does not exist; `None` if libdat does not report it.
    pub(crate) file: Option<String>,
}

/// An error in a line, or a remark about it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Diagnostic {
    /// Position as `file:line`.
    pub(crate) id: String,
    /// Column in bytes, counted from 1; `None` for errors that datinfo itself finds.
    pub(crate) column: Option<u64>,
    pub(crate) field: String,
    pub(crate) found: String,
    pub(crate) allowed: String,
    #[serde(rename = "dropped")]
    pub(crate) is_dropped: bool,
    /// Whether the adapter is missing, or has other settings than its line states, because of the error.
    #[serde(rename = "wrong")]
    pub(crate) is_wrong: bool,
}

/// A line of dat.conf that is not used: it is disabled (`nondefault`), is for kernel programs, or was dropped because
/// of an error. Another line may define the same name.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct UnusableName {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) why: String,
    pub(crate) remedy: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Registry {
    /// Whether libdat is this project's, recognized by its private hook (`dat_abi::hook`).
    pub(crate) is_ours: bool,
    pub(crate) version: Option<String>,
    pub(crate) origin: Option<String>,
    /// Path of the dat.conf to which entries are added; `None` if libdat does not report it.
    pub(crate) target: Option<String>,
    pub(crate) entries: Vec<ReportedEntry>,
    pub(crate) absent: Vec<UnusableName>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) unreadable: Vec<String>,
    pub(crate) discovered: Vec<String>,
    pub(crate) files: Vec<String>,
}

impl Registry {
    /// Reads the registry as programs see it, or as they would see it if `conf` were the only file.
    pub(crate) fn read(options: &Options, conf: Option<&Path>) -> Result<Self, String> {
        let outcome = child::probe(options, None, Api { major: 1, minor: None }, conf)?;
        let answer = outcome.answers.into_iter().next();
        match (answer, outcome.end) {
            (Some(answer), _) => match answer["error"].as_str() {
                Some(error) => Err(error.to_owned()),
                None => serde_json::from_value(answer).map_err(|error| format!("libdat could not be queried: {error}")),
            },
            (None, ChildExit::Hung(seconds)) => {
                Err(format!("libdat did not read the registry within {seconds} s (--timeout)"))
            }
            (None, ChildExit::Badly(how)) => Err(format!("libdat could not be queried: {how}\n{}", outcome.stderr)),
            (None, ChildExit::Well) => Err(format!("libdat could not be queried\n{}", outcome.stderr)),
        }
    }

    /// The entries in the order of the files, each name and version once. If the user requests names (`--ia`), only the
    /// entries of these names, and an empty entry for each name that is not listed.
    pub(crate) fn wanted(&self, options: &Options) -> Vec<ReportedEntry> {
        let mut seen = BTreeSet::new();
        let is_named = |entry: &&ReportedEntry| options.names.is_empty() || options.names.contains(&entry.name);
        let named = self.entries.iter().filter(is_named);
        let mut wanted: Vec<ReportedEntry> =
            named.filter(|entry| seen.insert((&entry.name, &entry.version))).cloned().collect();
        for name in &options.names {
            if wanted.iter().all(|known| known.name != *name) {
                wanted.push(ReportedEntry { name: name.clone(), ..ReportedEntry::default() });
            }
        }
        wanted
    }

    /// The entries of [`Self::wanted`] for the requested API version; all of them with `--all` or `--ia`. Also returns
    /// a line that names the omitted entries.
    pub(crate) fn openable(&self, options: &Options) -> (Vec<ReportedEntry>, Option<String>) {
        let takes_all = options.all || !options.names.is_empty();
        let is_other = |entry: &ReportedEntry| !takes_all && !entry.is_for(options.api);
        let (others, entries): (Vec<_>, Vec<_>) = self.wanted(options).into_iter().partition(is_other);
        (entries, others_line(&others, options.api))
    }
}

/// One line that names the entries for other versions; `None` if there are none.
fn others_line(others: &[ReportedEntry], api: Api) -> Option<String> {
    /// Maximum number of names printed.
    const MOST: usize = 3;
    let versions: BTreeSet<&str> = others.iter().map(|entry| entry.version.as_str()).collect();
    let versions: Vec<_> = versions.into_iter().collect();
    let mut names: Vec<_> = others.iter().take(MOST).map(|entry| entry.name.as_str()).collect();
    names.extend((others.len() > MOST).then_some("..."));
    let (versions, names) = (versions.join(", "), names.join(", "));
    let library = if api.major == 1 { "libdat.so.1" } else { "libdat2.so.2" };
    let line = || format!("lines for DAT {versions}, not for {library}: {} ({names})", others.len());
    (!others.is_empty()).then(line)
}

impl ReportedEntry {
    /// Whether the entry is for major version 1 of the API, which libdat.so.1 opens.
    pub(crate) fn is_version_1(&self) -> bool {
        self.version.starts_with("1.")
    }

    /// The API version as major and minor number. `None` for a requested name that is not listed.
    pub(crate) fn api(&self) -> Option<(u16, u16)> {
        let (major, minor) = self.version.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether the entry is for this version of the API.
    pub(crate) fn is_for(&self, api: Api) -> bool {
        self.api().is_some_and(|(major, minor)| api.includes(major, minor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, version: &str) -> ReportedEntry {
        ReportedEntry { name: name.to_owned(), version: version.to_owned(), ..ReportedEntry::default() }
    }

    #[test]
    fn entries_of_other_versions_are_named_in_one_line() {
        let api = Api { major: 1, minor: None };
        assert_eq!(others_line(&[], api), None);
        let others: Vec<_> = (0..62).map(|at| entry(&format!("n{at}"), if at == 9 { "2.1" } else { "2.0" })).collect();
        let line = others_line(&others, api).unwrap();
        assert_eq!(line, "lines for DAT 2.0, 2.1, not for libdat.so.1: 62 (n0, n1, n2, ...)");
        assert_eq!(others_line(&others[..1], api).unwrap(), "lines for DAT 2.0, not for libdat.so.1: 1 (n0)");
    }
}
