//! Which candidates may serve an open: name, version and thread safety, each refusal with its own reason.
//!
//! `registry` asks with all it knows and loads what comes back, first to last. Pure: it loads nothing and counts nothing.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::conf::Key;

/// The oldest version served by a newer minor: 1.2 put fields into the middle of both attribute records, so a caller
/// compiled for 1.1 would have its memory overwritten.
const UPWARDS_FROM: (u32, u32) = (1, 2);

/// Why nothing is left: the first filter that emptied the set. `present` is what stood before that filter.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Nothing has this name.
    #[error("no interface adapter of this name")]
    Name,
    /// The name is there, for other major versions only.
    #[error("wanted version {wanted}, but this name has only {present}; a line for it is needed{}", libdat2(.only_newer))]
    Major {
        /// Version asked for.
        wanted: String,
        /// Versions of the candidates.
        present: String,
        /// All candidates are of a later major version.
        only_newer: bool,
    },
    /// The major version is there, this minor or a fitting later one is not.
    #[error("wanted version {wanted}, but this name has only {present}; a line for it is needed")]
    Minor {
        /// Version asked for.
        wanted: String,
        /// Versions of the candidates.
        present: String,
    },
    /// A thread-safe provider was asked for.
    #[error("a thread-safe provider was asked for, but the line says nonthreadsafe; change that flag to threadsafe")]
    ThreadSafety,
}

fn libdat2(only_newer: &bool) -> &'static str {
    if *only_newer { " (that line is for libdat2)" } else { "" }
}

/// The candidates to try, in order, or why there are none.
///
/// The order of the candidates is kept; only a caller that does not ask for thread safety gets those without it first.
pub fn choose<'a, T>(wanted: &Key, candidates: &'a [(Key, T)]) -> Result<Vec<&'a (Key, T)>, Refusal> {
    let mut left: Vec<_> = candidates.iter().filter(|(key, _)| key.name == wanted.name).collect();
    if left.is_empty() {
        return Err(Refusal::Name);
    }
    let (asked, present) = (format!("{}.{}", wanted.major, wanted.minor), versions(&left));
    let only_newer = left.iter().all(|(key, _)| key.major > wanted.major);
    left.retain(|(key, _)| key.major == wanted.major);
    if left.is_empty() {
        return Err(Refusal::Major { wanted: asked, present, only_newer });
    }
    let present = versions(&left);
    match best_minor(wanted, left.iter().map(|(key, _)| key.minor)) {
        Some(minor) => left.retain(|(key, _)| key.minor == minor),
        None => return Err(Refusal::Minor { wanted: asked, present }),
    }
    if wanted.thread_safe {
        left.retain(|(key, _)| key.thread_safe);
    } else {
        left.sort_by_key(|(key, _)| key.thread_safe); // stable: file order within each kind
    }
    if left.is_empty() { Err(Refusal::ThreadSafety) } else { Ok(left) }
}

/// The minor itself; else the smallest larger one, for callers that can stand it.
fn best_minor(wanted: &Key, minors: impl Iterator<Item = u32>) -> Option<u32> {
    let best = minors.filter(|minor| *minor >= wanted.minor).min()?;
    (best == wanted.minor || (wanted.major, wanted.minor) >= UPWARDS_FROM).then_some(best)
}

fn versions<T>(candidates: &[&(Key, T)]) -> String {
    let versions: BTreeSet<_> = candidates.iter().map(|(key, _)| (key.major, key.minor)).collect();
    let words: Vec<_> = versions.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    words.join(", ")
}
