//! Selects the records that may serve an open, by name, version and thread safety, or returns why none may.
//!
//! `registry` passes the records and registrations of the name, and tries the selected ones in order. Pure: nothing is
//! loaded or counted here.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::conf::Key;

/// The oldest version whose programs may get a provider of a newer minor version. In 1.2 both records that
/// `dat_ia_query` writes have more fields than in 1.1, so the query of a program of 1.1 would write beyond its records.
const UPWARDS_FROM: (u32, u32) = (1, 2);

/// Reason why no record serves an open: the first filter that left no candidate. `present` describes the candidates
/// before that filter.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoMatch {
    /// No record and no registration has this name.
    #[error("no interface adapter of this name")]
    Name,
    /// The name exists for other major versions only.
    #[error("wanted version {wanted}, but this name has only {present}{}", .library)]
    Major {
        /// Requested version.
        wanted: String,
        /// Versions for which the name exists.
        present: String,
        /// The libdat that serves all candidates, in parentheses. Empty if the candidates need both, or if their major
        /// version is neither 1 nor 2.
        library: &'static str,
    },
    /// The name exists for this major version, but neither for this minor version nor for a suitable later one.
    #[error("wanted version {wanted}, but this name has only {present}")]
    Minor {
        /// Requested version.
        wanted: String,
        /// Versions of the candidates.
        present: String,
    },
    /// The program requests thread safety, and the provider is not thread-safe.
    #[error("a thread-safe provider was requested, but the line says nonthreadsafe")]
    ThreadSafety,
}

impl NoMatch {
    /// Remedy for the user; empty for an unknown name, whose remedy depends on the files (`registry/index`).
    pub fn remedy(&self) -> String {
        match self {
            Self::Name => String::new(),
            Self::Major { wanted, .. } | Self::Minor { wanted, .. } => format!("add a line for version {wanted}"),
            Self::ThreadSafety => "write threadsafe if its library is thread-safe".to_owned(),
        }
    }
}

fn library_of(majors: impl Iterator<Item = u32>) -> &'static str {
    let majors: BTreeSet<u32> = majors.collect();
    match (majors.first(), majors.len()) {
        (Some(1), 1) => " (for libdat.so.1)",
        (Some(2), 1) => " (for libdat2)",
        _ => "",
    }
}

/// Returns the candidates to try, in order, or the reason why there are none.
///
/// Candidates whose line has the requested thread safety come first, otherwise in the given order. A line with
/// `nonthreadsafe` is also a candidate for a thread-safe open, because only the loaded library shows whether it is
/// thread-safe. If the library is not, `registry` refuses with [`NoMatch::ThreadSafety`].
pub fn choose<'a, T>(wanted: &Key, candidates: &'a [(Key, T)]) -> Result<Vec<&'a (Key, T)>, NoMatch> {
    let mut left: Vec<_> = candidates.iter().filter(|(key, _)| key.name == wanted.name).collect();
    if left.is_empty() {
        return Err(NoMatch::Name);
    }
    let (asked, present) = (format!("{}.{}", wanted.major, wanted.minor), versions(&left));
    let library = library_of(left.iter().map(|(key, _)| key.major));
    left.retain(|(key, _)| key.major == wanted.major);
    if left.is_empty() {
        return Err(NoMatch::Major { wanted: asked, present, library });
    }
    let present = versions(&left);
    match best_minor(wanted, left.iter().map(|(key, _)| key.minor)) {
        Some(minor) => left.retain(|(key, _)| key.minor == minor),
        None => return Err(NoMatch::Minor { wanted: asked, present }),
    }
    left.sort_by_key(|(key, _)| key.thread_safe != wanted.thread_safe); // stable: file order within each kind
    Ok(left)
}

/// Returns the requested minor version, or else the next larger one, if programs of the requested version can use it.
fn best_minor(wanted: &Key, minors: impl Iterator<Item = u32>) -> Option<u32> {
    let best = minors.filter(|minor| *minor >= wanted.minor).min()?;
    (best == wanted.minor || (wanted.major, wanted.minor) >= UPWARDS_FROM).then_some(best)
}

fn versions<T>(candidates: &[&(Key, T)]) -> String {
    let versions: BTreeSet<_> = candidates.iter().map(|(key, _)| (key.major, key.minor)).collect();
    let words: Vec<_> = versions.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `"x 1.2 s"`: a name, a version, and `s` for thread-safe.
    fn key(text: &str) -> Key {
        let mut words = text.split(' ');
        let name = words.next().unwrap().as_bytes().to_vec();
        let (major, minor) = words.next().unwrap().split_once('.').unwrap();
        let (major, minor) = (major.parse().unwrap(), minor.parse().unwrap());
        Key { name, major, minor, thread_safe: words.next() == Some("s") }
    }

    /// Returns the positions of the selected candidates, or the refusal.
    fn chosen(wanted: &str, candidates: &[&str]) -> Result<Vec<usize>, NoMatch> {
        let candidates: Vec<_> = candidates.iter().enumerate().map(|(at, text)| (key(text), at)).collect();
        choose(&key(wanted), &candidates).map(|order| order.iter().map(|(_, at)| *at).collect())
    }

    #[test]
    fn each_filter_that_leaves_no_candidate_has_its_own_refusal() {
        let text = |candidates: &[&str], wanted| chosen(wanted, candidates).unwrap_err().to_string();
        assert_eq!(chosen("x 1.2", &[]), Err(NoMatch::Name));
        assert_eq!(chosen("x 1.2", &["X 1.2", "xx 1.2"]), Err(NoMatch::Name));
        assert_eq!(
            text(&["x 2.0", "x 2.1"], "x 1.2"),
            "wanted version 1.2, but this name has only 2.0, 2.1 (for libdat2)"
        );
        assert_eq!(text(&["x 1.2"], "x 2.0"), "wanted version 2.0, but this name has only 1.2 (for libdat.so.1)");
        assert_eq!(text(&["x 1.1"], "x 1.2"), "wanted version 1.2, but this name has only 1.1");
    }

    #[test]
    fn first_filter_that_leaves_no_candidate_decides_the_refusal() {
        assert!(matches!(chosen("x 1.2 s", &["x 2.0 s", "y 1.2 s"]), Err(NoMatch::Major { .. })));
        assert!(matches!(chosen("x 1.2 s", &["x 2.2 s", "x 1.0 s"]), Err(NoMatch::Minor { .. })));
    }

    #[test]
    fn exact_minor_version_or_the_next_larger_one_is_chosen() {
        assert_eq!(chosen("x 1.2", &["x 1.3", "x 1.2", "x 1.1"]), Ok(vec![1]));
        assert_eq!(chosen("x 1.2", &["x 1.9", "x 1.3", "x 1.4"]), Ok(vec![1]));
        assert_eq!(chosen("x 2.0", &["x 2.1"]), Ok(vec![0]));
    }

    #[test]
    fn callers_older_than_1_2_get_no_newer_minor() {
        assert!(matches!(chosen("x 1.1", &["x 1.2"]), Err(NoMatch::Minor { .. })));
        assert!(matches!(chosen("x 0.9", &["x 0.10"]), Err(NoMatch::Minor { .. })));
        assert_eq!(chosen("x 1.1", &["x 1.2", "x 1.1"]), Ok(vec![1]));
    }

    #[test]
    fn lines_with_the_requested_thread_safety_come_first() {
        assert_eq!(chosen("x 1.2", &["x 1.2 s", "x 1.2", "x 1.2 s", "x 1.2"]), Ok(vec![1, 3, 0, 2]));
        assert_eq!(chosen("x 1.2 s", &["x 1.2", "x 1.2 s", "x 1.2", "x 1.2 s"]), Ok(vec![1, 3, 0, 2]));
        assert_eq!(chosen("x 1.2 s", &["x 1.2", "x 1.3 s"]), Ok(vec![0]), "the version chooses first");
    }
}
