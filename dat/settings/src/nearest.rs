//! Proposes the known name that is most similar to a misspelt name, for messages only: a misspelt name is never
//! accepted.
#![forbid(unsafe_code)]

use crate::ALL;

/// Minimum similarity of a proposed name, from 0 to 1. It allows four edits in a name of 16 letters.
const LEAST: f64 = 0.75;

/// Finds the known variable most similar to `name`. Similarity is one minus the Damerau-Levenshtein distance divided by
/// the longer length. Returns `None` if no variable is similar enough.
pub fn nearest(name: &str) -> Option<&'static str> {
    let variables = ALL.iter().flat_map(|table| table.settings.iter().map(|setting| setting.variable));
    let variables = variables.filter(|variable| !variable.is_empty());
    let rated = variables.map(|variable| (variable, strsim::normalized_damerau_levenshtein(name, variable)));
    let (variable, similarity) = rated.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (similarity >= LEAST).then_some(variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_name_leads_to_the_intended_variable() {
        for (slip, meant) in [
            ("DAT_OVERIDE", "DAT_OVERRIDE"),
            ("DAPL_SM_RMAS", "DAPL_SM_RMA"),
            ("DAPL_USNIC_PROT", "DAPL_USNIC_PORT"),
            ("DAPL_DBG_TYPES", "DAPL_DBG_TYPE"),
            ("DAPL_ACK_RETRIES", "DAPL_ACK_RETRY"),
        ] {
            assert_eq!(nearest(slip), Some(meant));
        }
    }

    #[test]
    fn dissimilar_names_have_no_proposal() {
        for other in ["", "DAPL_", "DAT_HOME", "DAPL_SM_COLOUR_OF_THE_MACHINE", &"DAPL_".repeat(1000)] {
            assert_eq!(nearest(other), None, "{other}");
        }
    }
}
