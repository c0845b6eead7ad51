//! The known name that is most like a misspelt one.
//!
//! For messages only: nothing is ever taken for the name that was meant.
#![forbid(unsafe_code)]

use crate::ALL;

/// Longest name that is compared; what is longer is no slip of a finger, and costs no more than this.
const LONGEST: usize = 64;

/// The variable most like `name`: by the fewest letters put in, left out or changed. None for a name of absurd length.
pub fn nearest(name: &str) -> Option<&'static str> {
    if name.len() > LONGEST {
        return None;
    }
    let variables = ALL.iter().flat_map(|table| table.knobs.iter().map(|knob| knob.variable));
    variables.min_by_key(|variable| distance(name.as_bytes(), variable.as_bytes()))
}

/// Levenshtein's distance, a row at a time.
fn distance(from: &[u8], to: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, byte) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(byte != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_fewest_changes() {
        for (from, to, changes) in
            [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("a", "a", 0)]
        {
            assert_eq!(distance(from.as_bytes(), to.as_bytes()), changes, "{from} {to}");
        }
    }

    #[test]
    fn a_slip_leads_to_the_name_that_was_meant() {
        for (slip, meant) in [
            ("DAT_OVERIDE", "DAT_OVERRIDE"),
            ("DAPL_SM_SILENT_MS", "DAPL_SM_SILENCE_MS"),
            ("DAPL_USNIC_PROT", "DAPL_USNIC_PORT"),
            ("DAPL_DBG_LEVL", "DAPL_DBG_LEVEL"),
            ("DAPL_ACK_RETRIES", "DAPL_ACK_RETRY"),
        ] {
            assert_eq!(nearest(slip), Some(meant));
        }
        assert_eq!(nearest(&"DAPL_".repeat(1000)), None);
        assert!(nearest("").is_some());
    }
}
