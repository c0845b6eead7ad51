//! The project's vocabulary: words that no code, comment or document may use, with the standard term for each.
//!
//! A word is matched whole, in any case, and as a part of an identifier: `WishList` and `wish_list` both contain
//! `wish`.
#![forbid(unsafe_code)]

/// Word that may not be used, and its replacement.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("anybody", "name the subject"),
    ("believe", "check, trust"),
    ("believes", "checks, relies on"),
    ("bell", "engine queue; doorbell"),
    ("buried", "marked as dead; quarantined"),
    ("bury", "mark as dead; quarantine"),
    ("cage", "shared handles"),
    ("census", "half-open limiter"),
    ("choosy", "solicited only"),
    ("crowd", "shared-CPU backoff"),
    ("crumbs", "remaining files"),
    ("culprit", "the request that failed"),
    ("dawdle", "delay"),
    ("deaf", "arm failed"),
    ("desk", "post state"),
    ("disown", "corrupt a registration"),
    ("doom", "force a status"),
    ("doomed", "fails on post"),
    ("dreamer", "sleeping receiver"),
    ("eats", "consumes"),
    ("enliven", "arm for a connection"),
    ("everybody", "name the subject"),
    ("farewell", "exit handler"),
    ("ghost", "late packet"),
    ("goodbye", "reset"),
    ("grave", "quarantine"),
    ("greedy", "large; unlimited"),
    ("grip", "registration guard"),
    ("heard", "received"),
    ("hears", "receives"),
    ("heir", "new handler"),
    ("house", "workspace"),
    ("hungry", "unfinished"),
    ("innocent", "other"),
    ("judge", "check, validate"),
    ("judged", "checked, validated"),
    ("junk", "invalid data"),
    ("keepsake", "kept connection request"),
    ("knob", "setting"),
    ("knobs", "settings"),
    ("ledger", "counters"),
    ("lend", "export of a mapping"),
    ("lends", "exports a mapping"),
    ("lent", "exported"),
    ("liar", "malicious peer"),
    ("liars", "malicious peers"),
    ("loan", "import of a mapping"),
    ("monkey", "random caller"),
    ("monkeys", "random callers"),
    ("naps", "sleeps"),
    ("news", "connection event"),
    ("nobody", "name the subject"),
    ("owes", "must answer; pending"),
    ("rage", "write invalid data"),
    ("rages", "writes invalid data"),
    ("roomy", "with capacity"),
    ("rude", "closes without a disconnect"),
    ("rung", "signalled"),
    ("shy", "name the limit"),
    ("sleepy", "asleep"),
    ("somebody", "name the subject"),
    ("spoiled", "failed"),
    ("stairs", "layers"),
    ("stranger", "unmatched packet"),
    ("strangers", "unmatched packets"),
    ("swallow", "consume; drop"),
    ("swallows", "consumes; drops"),
    ("taker", "SRQ waiter"),
    ("takers", "SRQ waiters"),
    ("tally", "counters, statistics"),
    ("thief", "other reader"),
    ("told", "notified, reported"),
    ("torn", "re-fragmented"),
    ("untold", "pending"),
    ("whoever", "name the subject"),
    ("whomever", "name the subject"),
    ("wipe", "clear"),
    ("wiped", "cleared"),
    ("wish", "wake-up flag; access right; QP attributes"),
    ("wishes", "wake-up flags; access rights; QP attributes"),
];

/// Exceptions: file, word, and the reason for using the word there.
pub(crate) const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// The words of this text that may not be used, each with its line number from 1.
pub(crate) fn refused(text: &str) -> Vec<(usize, &'static str)> {
    let lines = text.lines().enumerate();
    lines
        .flat_map(|(number, line)| words(line).into_iter().filter_map(move |word| Some((number + 1, entry(&word)?))))
        .collect()
}

/// The standard term for a word that may not be used.
pub(crate) fn instead(word: &str) -> &'static str {
    REFUSED.iter().find(|(refused, _)| *refused == word).map_or("", |(_, instead)| *instead)
}

fn entry(word: &str) -> Option<&'static str> {
    REFUSED.iter().map(|(refused, _)| *refused).find(|refused| *refused == word)
}

/// The words of a line in lower case. Identifiers are split at underscores and at capitals.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for letter in line.chars() {
        if !letter.is_ascii_alphabetic() || letter.is_ascii_uppercase() && after_lower {
            words.push(String::new());
        }
        if letter.is_ascii_alphabetic() {
            words.last_mut().expect("`words` has at least one element").push(letter.to_ascii_lowercase());
        }
        after_lower = letter.is_ascii_lowercase();
    }
    words
}

#[test]
fn words_are_found_inside_identifiers() {
    let found = |text| refused(text).into_iter().map(|(_, word)| word).collect::<Vec<_>>();
    assert_eq!(found("Nobody waits"), ["nobody"]);
    assert_eq!(found("let wish_list = WishList::new();"), ["wish", "wish"]);
    assert_eq!(found("a doorbell, BELLS, newsletter"), [""; 0]);
    assert_eq!(refused("a\nuntold"), [(2, "untold")]);
}
