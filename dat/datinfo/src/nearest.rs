//! Names that are similar to an unknown name, for messages only.
#![forbid(unsafe_code)]

/// Minimum similarity of a proposed name, from 0 to 1. It allows two edits in a name of five letters.
const LEAST: f64 = 0.6;
/// Maximum number of proposals.
const MOST: usize = 3;

/// Returns the most similar names, the best first. Similarity is one minus the Damerau-Levenshtein distance divided by
/// the longer length, ignoring case.
pub(crate) fn of<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_ascii_lowercase();
    let rate = |known: &str| strsim::normalized_damerau_levenshtein(&name, &known.to_ascii_lowercase());
    let mut rated: Vec<(f64, &str)> =
        known.map(|known| (rate(known), known)).filter(|(rate, _)| *rate >= LEAST).collect();
    rated.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(first.cmp(second)));
    rated.dedup();
    rated.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// Formats the proposed names for the end of a message; empty without names.
pub(crate) fn suffix(names: &[&str]) -> String {
    if names.is_empty() { String::new() } else { format!("; similar: {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_three_similar_names_are_proposed() {
        let known = ["sm0", "usnic0", "usnic1", "usnic2", "usnic3", "verbs0"];
        assert_eq!(of("USNIC", known.into_iter()), ["usnic0", "usnic1", "usnic2"]);
        assert_eq!(of("sm", known.into_iter()), ["sm0"]);
        assert_eq!((of("zzz", known.into_iter()).len(), suffix(&[])), (0, String::new()));
        assert_eq!(suffix(&["a", "b"]), "; similar: a, b");
    }
}
