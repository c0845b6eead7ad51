//! Index of the files' lines by name, and the remedies for refused opens.
//!
//! A successful open reads only the lines of its own name. The remedy for an unknown name needs a scan of all lines,
//! and of the dat.conf files that are not in use; the results are cached.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use dat_abi::*;

use super::{Registry, error};
use crate::conf::{Conf, Key, LineNumber};
use crate::loader::found;
use crate::matching::{self, NoMatch};
use crate::refused::{CauseAndRemedy, RefusedOpen};

/// Maximum number of names, and of lines of one name, in an error message.
const MAX_LISTED: usize = 8;
/// Maximum number of registrations that are searched for names to propose.
const MOST_REGISTRATIONS: usize = 64;

/// Lines of the files by name, and cached names for the remedies of refused opens.
pub(super) struct NameIndex {
    /// Indexes in [`Registry::entries`], in file order.
    records: BTreeMap<Vec<u8>, Vec<usize>>,
    /// Index in [`Conf::absent`] of the name's first unused line.
    absent: BTreeMap<Vec<u8>, usize>,
    /// Names in the dat.conf files that are not in use, and their lines. These files are read when a name is not found.
    elsewhere: Option<BTreeMap<Vec<u8>, LineNumber>>,
    /// Version and thread safety of the last open of an unknown name, and the names that can be opened with them.
    proposals: Option<((u32, u32, bool), Vec<String>)>,
}

impl NameIndex {
    pub(super) const fn new() -> Self {
        Self { records: BTreeMap::new(), absent: BTreeMap::new(), elsewhere: None, proposals: None }
    }

    pub(super) fn fill(&mut self, conf: &Conf) {
        for (at, record) in conf.records.iter().enumerate() {
            self.records.entry(record.key.name.clone()).or_default().push(at);
        }
        for (at, absent) in conf.absent.iter().enumerate() {
            self.absent.entry(absent.name.clone()).or_insert(at);
        }
    }

    /// Indexes in [`Registry::entries`] of the records with this name, in file order.
    pub(super) fn lines(&self, name: &[u8]) -> &[usize] {
        self.records.get(name).map_or(&[], Vec::as_slice)
    }
}

impl Registry {
    /// Returns the return code of a refusal, and its cause, place and remedy from the files.
    pub(super) fn explain(&mut self, wanted: &Key, refusal: &NoMatch) -> (DAT_RETURN, RefusedOpen) {
        let (kind, subtype) = match refusal {
            NoMatch::Name => ("name", DAT_NAME_NOT_REGISTERED),
            NoMatch::Major { .. } => ("major-version", DAT_MAJOR_NOT_FOUND),
            NoMatch::Minor { .. } => ("minor-version", DAT_MINOR_NOT_FOUND),
            NoMatch::ThreadSafety => ("thread-safety", DAT_THREAD_SAFETY_NOT_FOUND),
        };
        let (mut cause, mut place) = (CauseAndRemedy::new(refusal.to_string(), refusal.remedy()), String::new());
        let lines = self.index.lines(&wanted.name);
        let absent = self.index.absent.get(&wanted.name).copied();
        match (absent, lines) {
            (_, [_, ..]) => place = self.places(lines),
            (Some(at), []) => {
                let absent = self.files.as_ref().map(|files| &files.conf.absent[at]);
                if let Some(absent) = absent {
                    place = absent.place.to_string();
                    cause = CauseAndRemedy::new(format!("the line {}", absent.cause), absent.remedy);
                }
            }
            (None, []) if *refusal == NoMatch::Name => cause = self.unknown(wanted, &cause.cause),
            (None, []) => {}
        }
        (error(DAT_PROVIDER_NOT_FOUND, subtype), RefusedOpen { kind, name: wanted.name.clone(), place, cause })
    }

    fn places(&self, lines: &[usize]) -> String {
        let shown = lines.iter().take(MAX_LISTED).map(|at| self.entries[*at].record.place.to_string());
        let more = (lines.len() > MAX_LISTED).then(|| "...".to_owned());
        shown.chain(more).collect::<Vec<_>>().join(", ")
    }

    /// Cause and remedy for an unknown name. They state an unused dat.conf that contains the name, or the names that
    /// can be opened.
    fn unknown(&mut self, wanted: &Key, cause: &str) -> CauseAndRemedy {
        let Some(files) = &self.files else { return CauseAndRemedy::new(cause, "") };
        let cause = format!("{cause} in {}", files.origin);
        match self.index.elsewhere.get_or_insert_with(|| files.names_in_unread_files()).get(&wanted.name) {
            Some(place) => {
                let target = files.target.display();
                let cause =
                    format!("{cause}; {place} has it, but was not read: only the first dat.conf that exists counts");
                CauseAndRemedy::new(cause, format!("copy that line to {target}, or set DAT_OVERRIDE={}", place.file))
            }
            None => CauseAndRemedy::new(cause, self.usable_names_text(wanted)),
        }
    }

    /// Remedy for an unknown name: lists at most [`MAX_LISTED`] names that can be opened.
    fn usable_names_text(&mut self, wanted: &Key) -> String {
        let asked = (wanted.major, wanted.minor, wanted.thread_safe);
        if self.index.proposals.as_ref().is_none_or(|(of, _)| *of != asked) {
            self.index.proposals = Some((asked, self.openable(wanted)));
        }
        let mut names = self.index.proposals.as_ref().map_or(Vec::new(), |(_, names)| names.clone());
        let is_new = |name: &Vec<u8>| !self.index.records.contains_key(name);
        let own = self.registrations.keys().take(MOST_REGISTRATIONS).map(|key| &key.name);
        for name in own.filter(|name| is_new(name)).filter(|name| self.has_usable(name, wanted)) {
            let name = name.escape_ascii().to_string();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
        names.truncate(MAX_LISTED);
        match (names.is_empty(), self.entries.is_empty()) {
            (true, true) => "no name is known: add a line for it".to_owned(),
            (true, false) => "no other name can be opened either: add a line for it".to_owned(),
            _ => format!("add a line for it, or open one of these: {}{more}", names.join(", ")),
        }
    }

    /// Names that have a line for this version and whose library exists, in file order; at most [`MAX_LISTED`] + 1.
    fn openable(&self, wanted: &Key) -> Vec<String> {
        let (mut seen, mut names) = (BTreeSet::new(), Vec::new());
        let mut libraries: BTreeMap<&[u8], bool> = BTreeMap::new();
        let mut is_there =
            |library: &'static [u8]| *libraries.entry(library).or_insert_with(|| found::library(library).is_some());
        for name in self.entries.iter().map(|entry| &entry.record.key.name) {
            if names.len() > MAX_LISTED {
                break;
            }
            if !seen.insert(name) {
                continue;
            }
            let candidates = self.candidates(name);
            let order =
                matching::choose(&Key { name: name.clone(), ..wanted.clone() }, &candidates).unwrap_or_default();
            if order.iter().any(|(_, source)| source.is_none_or(|source| is_there(&source.entry.record.library))) {
                names.push(name.escape_ascii().to_string());
            }
        }
        names
    }

    /// Whether a name has a line or a registration for this version.
    fn has_usable(&self, name: &[u8], wanted: &Key) -> bool {
        let wanted = Key { name: name.to_vec(), ..wanted.clone() };
        matching::choose(&wanted, &self.candidates(name)).is_ok()
    }
}
