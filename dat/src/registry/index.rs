//! Lines of the files by name, and what a refusal says of them: an open looks at the lines of its own name only.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use dat_abi::*;

use super::{Registry, error};
use crate::conf::{Conf, Key};
use crate::matching::Refusal;
use crate::refused::{Kind, Refused, Why};

/// Names, and lines of one name, that a refusal lists.
const MOST: usize = 8;

/// Positions of lines, by name.
pub(super) struct Index {
    records: BTreeMap<Vec<u8>, Vec<usize>>,
    absent: BTreeMap<Vec<u8>, usize>,
    /// The first names that are known, one more than are shown.
    first: Vec<String>,
}

impl Index {
    pub(super) const fn new() -> Self {
        Self { records: BTreeMap::new(), absent: BTreeMap::new(), first: Vec::new() }
    }

    pub(super) fn fill(&mut self, conf: &Conf) {
        for (at, record) in conf.records.iter().enumerate() {
            let lines = self.records.entry(record.key.name.clone()).or_default();
            if lines.is_empty() && self.first.len() <= MOST {
                self.first.push(record.key.name.escape_ascii().to_string());
            }
            lines.push(at);
        }
        for (at, absent) in conf.absent.iter().enumerate() {
            self.absent.entry(absent.name.clone()).or_insert(at);
        }
    }

    /// The records of a name, in file order.
    pub(super) fn lines(&self, name: &[u8]) -> &[usize] {
        self.records.get(name).map_or(&[], Vec::as_slice)
    }
}

impl Registry {
    /// The refusal's code, and the reason with what the files know about the name.
    pub(super) fn explain(&mut self, wanted: &Key, refusal: &Refusal) -> (DAT_RETURN, Refused) {
        let (kind, subtype) = match refusal {
            Refusal::Name => (Kind::Name, DAT_NAME_NOT_REGISTERED),
            Refusal::Major { .. } => (Kind::Major, DAT_MAJOR_NOT_FOUND),
            Refusal::Minor { .. } => (Kind::Minor, DAT_MINOR_NOT_FOUND),
            Refusal::ThreadSafety => (Kind::ThreadSafety, DAT_THREAD_SAFETY_NOT_FOUND),
        };
        let (mut why, mut place) = (Why::new(refusal.to_string(), refusal.remedy()), String::new());
        let lines = self.index.lines(&wanted.name);
        let absent = self.index.absent.get(&wanted.name).copied();
        match (absent, lines) {
            (_, [_, ..]) => place = self.places(lines),
            (Some(at), []) => {
                let absent = self.files.as_ref().map(|files| &files.conf.absent[at]);
                if let Some(absent) = absent {
                    place = absent.place.to_string();
                    why = Why::new(format!("the line {}", absent.why), absent.remedy);
                }
            }
            (None, []) if *refusal == Refusal::Name => why = self.unknown(&why.cause),
            (None, []) => {}
        }
        (error(DAT_PROVIDER_NOT_FOUND, subtype), Refused { kind, name: wanted.name.clone(), place, why })
    }

    fn places(&self, lines: &[usize]) -> String {
        let shown = lines.iter().take(MOST).map(|at| self.entries[*at].record.place.to_string());
        let more = (lines.len() > MOST).then(|| "...".to_owned());
        shown.chain(more).collect::<Vec<_>>().join(", ")
    }

    /// Why a name that no line has is refused, and names that are known, cut to a line.
    fn unknown(&self, cause: &str) -> Why {
        let Some(files) = &self.files else { return Why::new(cause, "") };
        let is_new = |key: &&Key| !self.index.records.contains_key(&key.name);
        let own = self.registrations.keys().filter(is_new).take(MOST).map(|key| key.name.escape_ascii().to_string());
        let mut names: Vec<_> = self.index.first.iter().cloned().chain(own).collect();
        let more = if names.len() > MOST { ", ..." } else { "" };
        names.truncate(MOST);
        let remedy = match names.is_empty() {
            true => "no name is known: add a line for it".to_owned(),
            false => format!("add a line for it, or open one of these: {}{more}", names.join(", ")),
        };
        Why::new(format!("{cause} in {}", files.origin), remedy)
    }
}
