//! What an administrator can set: one table of names, values and defaults, per IA (`ia_params`) and by environment.
//!
//! `ia_params` are words: first the base directory, then the number of the first end point, if wanted; and `name=value` for
//! whatever the table names, which comes before the environment. A bad value is reported with its name, text and range, and
//! the default is used; a name that is not in the table is reported too. A set-uid program ignores the environment.
//!
//! Not here, on purpose: who may connect, since the base directory is of one user and closed to others; huge pages, since no
//! area is as large as one.
#![forbid(unsafe_code)]

use std::time::Duration;

/// One thing that can be set.
struct Knob {
    name: &'static str,
    variable: &'static str,
    values: Values,
    meaning: &'static str,
}

/// What it can be set to.
enum Values {
    /// Any text, with a default that is not text.
    Text,
    /// Words, of which the first is the default.
    OneOf(&'static [&'static str]),
    Number {
        low: u64,
        high: u64,
        default: u64,
        unit: &'static str,
    },
}

const TABLE: [Knob; 7] = [
    Knob {
        name: "dir",
        variable: "DAPL_SM_DIR",
        values: Values::Text,
        meaning: "base directory in which processes meet",
    },
    Knob {
        name: "first_id",
        variable: "DAPL_SM_FIRST_ID",
        values: Values::Number { low: 1, high: 65_535, default: 1, unit: "" },
        meaning: "number of the first end point of a process",
    },
    Knob {
        name: "rma",
        variable: "DAPL_SM_RMA",
        values: Values::OneOf(&["auto", "mmap"]),
        meaning: "how RDMA moves bytes",
    },
    Knob {
        name: "cma",
        variable: "DAPL_SM_CMA",
        values: Values::OneOf(&["closed", "open"]),
        meaning: "whether the user's other processes may reach all memory of this one, where Yama forbids it",
    },
    Knob {
        name: "max_message",
        variable: "DAPL_SM_MAX_MESSAGE",
        values: Values::Number { low: 1 << 16, high: 1 << 31, default: 1 << 31, unit: " bytes" },
        meaning: "longest message or RDMA transfer",
    },
    Knob {
        name: "alive_ms",
        variable: "DAPL_SM_ALIVE_MS",
        values: Values::Number { low: 100, high: 3_600_000, default: 5_000, unit: " ms" },
        meaning: "time between signs of life, at most a quarter of `silence_ms`",
    },
    Knob {
        name: "silence_ms",
        variable: "DAPL_SM_SILENCE_MS",
        values: Values::Number { low: 1_000, high: 86_400_000, default: 60_000, unit: " ms" },
        meaning: "after so long without a sign of life a peer is dead",
    },
];

/// How RDMA moves bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RmaMethod {
    /// Cross-memory copy where it is seen to work, else shared buffers.
    Auto,
    /// Shared buffers always.
    Mmap,
}

/// The settings of one IA, as the table has them.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// `None`: one of this user's under `/dev/shm`.
    pub(crate) base: Option<String>,
    pub(crate) first_id: Option<u32>,
    pub(crate) rma: RmaMethod,
    /// Opened to the user's other processes.
    pub(crate) is_open: bool,
    pub(crate) max_message: u64,
    pub(crate) alive: Duration,
    pub(crate) silence: Duration,
}

impl Knobs {
    /// From `ia_params` and the environment.
    pub(crate) fn read(params: &str) -> Self {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        // In a set-uid program none can be read, so none is misspelt either.
        let names = names.filter(|name| dapl::debug::secure_variable(name).is_some());
        unknown(names).for_each(|name| {
            log::warn!("{name} is no variable of sm's; these are: {}", known(|knob| knob.variable));
        });
        Self::from(params, &dapl::debug::secure_variable)
    }

    fn from(params: &str, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let given = Given::parse(params, variable);
        let rma = if given.word("rma") == "mmap" { RmaMethod::Mmap } else { RmaMethod::Auto };
        let silence = Duration::from_millis(given.number("silence_ms"));
        Knobs {
            base: given.text("dir").map(|(_, text)| text),
            first_id: given.text("first_id").map(|_| given.number("first_id") as u32),
            rma,
            is_open: given.word("cma") == "open",
            max_message: given.number("max_message"),
            // Who is rarely heard would be taken for dead by a peer of the same settings.
            alive: Duration::from_millis(given.number("alive_ms")).min(silence / 4),
            silence,
        }
    }
}

impl Knob {
    /// Of this table; asking for another is a mistake of this room's.
    fn named(name: &str) -> Option<&'static Knob> {
        TABLE.iter().find(|knob| knob.name == name)
    }
}

/// All that can be set, for messages.
fn known(name: impl Fn(&Knob) -> &str) -> String {
    TABLE.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Variables that look like ours and are none.
fn unknown(names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let is_ours = |name: &str| name.split('_').take(2).eq(["DAPL", "SM"]);
    names.filter(move |name| is_ours(name) && TABLE.iter().all(|knob| knob.variable != *name))
}

/// What was given, by words of `ia_params` and by the environment.
struct Given<'a> {
    words: Vec<(&'static str, String)>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Given<'a> {
    fn parse(params: &str, variable: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let mut words = Vec::new();
        let mut plain = ["dir", "first_id"].into_iter();
        for word in params.split_ascii_whitespace() {
            // A path is absolute, so what stands before its first = is no name.
            let pair = word.split_once('=').filter(|(name, _)| !name.contains('/'));
            match (pair, pair.and_then(|(name, _)| Knob::named(name))) {
                (Some((_, value)), Some(knob)) => words.push((knob.name, value.to_owned())),
                (Some((name, _)), None) => {
                    log::warn!("ia_params: nothing is called \"{name}\"; these are: {}", known(|knob| knob.name));
                }
                (None, _) => match plain.next() {
                    Some(name) => words.push((name, word.to_owned())),
                    None => log::warn!("ia_params: \"{word}\" is one word too many; a setting is name=value"),
                },
            }
        }
        Given { words, variable }
    }

    /// The text of a setting, and where it stands.
    fn text(&self, name: &str) -> Option<(String, String)> {
        let variable = Knob::named(name)?.variable;
        let word = self.words.iter().rfind(|(known, _)| *known == name);
        match word {
            Some((_, text)) => Some((format!("ia_params, {name}"), text.clone())),
            None => (self.variable)(variable).map(|text| (variable.to_owned(), text)),
        }
    }

    fn number(&self, name: &str) -> u64 {
        let Some(Knob { values: Values::Number { low, high, default, unit }, meaning, .. }) = Knob::named(name) else {
            return 0;
        };
        let Some((place, text)) = self.text(name) else { return *default };
        text.parse().ok().filter(|value| (low..=high).contains(&value)).unwrap_or_else(|| {
            log::warn!(
                "{place}: \"{text}\" is not a number from {low} to {high} ({meaning}); using {default}{unit}, the default"
            );
            *default
        })
    }

    fn word(&self, name: &str) -> &'static str {
        let Some(Knob { values: Values::OneOf(words), meaning, .. }) = Knob::named(name) else { return "" };
        let Some((place, text)) = self.text(name) else { return words[0] };
        words.iter().find(|word| **word == text).unwrap_or_else(|| {
            let choice = words.join("\" or \"");
            log::warn!("{place}: \"{text}\" is not \"{choice}\" ({meaning}); using \"{}\", the default", words[0]);
            &words[0]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn parameters_come_before_the_environment() {
        let env = |name: &str| match name {
            "DAPL_SM_DIR" => Some("/env".to_string()),
            "DAPL_SM_RMA" => Some("mmap".to_string()),
            _ => None,
        };
        let read = |params| Knobs::from(params, &env);
        assert_eq!((read("").base.as_deref(), read("").rma), (Some("/env"), RmaMethod::Mmap));
        let both = read("/params 7 rma=auto");
        assert_eq!((both.base.as_deref(), both.first_id, both.rma), (Some("/params"), Some(7), RmaMethod::Auto));
        assert_eq!(read("rma=auto /a=b").base.as_deref(), Some("/a=b"), "words of both kinds, in any order");
        assert_eq!(read("dir=/named").base.as_deref(), Some("/named"));
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let knobs = Knobs::from("", &none);
        assert_eq!((knobs.base, knobs.first_id, knobs.rma, knobs.is_open), (None, None, RmaMethod::Auto, false));
        assert_eq!((knobs.max_message, knobs.alive.as_millis(), knobs.silence.as_millis()), (1 << 31, 5_000, 60_000));
    }

    #[test]
    fn bad_values_fall_back() {
        let bad = Knobs::from("", &|name| (name != "DAPL_SM_DIR").then(|| "12x".to_string()));
        assert_eq!((bad.rma, bad.is_open, bad.first_id), (RmaMethod::Auto, false, Some(1)));
        assert_eq!((bad.max_message, bad.alive.as_millis(), bad.silence.as_millis()), (1 << 31, 5_000, 60_000));
        let set = Knobs::from("cma=open max_message=65536 alive_ms=3600001 silence_ms=999 nonsense=1 a b c", &none);
        assert_eq!((set.is_open, set.max_message, set.alive.as_millis()), (true, 65_536, 5_000));
    }

    #[test]
    fn signs_of_life_come_sooner_than_death() {
        assert_eq!(Knobs::from("silence_ms=1000", &none).alive.as_millis(), 250);
        assert_eq!(Knobs::from("silence_ms=1000 alive_ms=100", &none).alive.as_millis(), 100);
    }

    #[test]
    fn misspelt_variables_are_found() {
        let names = ["DAPL_SM_DIR", "DAPL_SM_DIRECTORY", "DAPL_SMALL", "DAPL_SM_MAX_MESSAGE"].map(String::from);
        assert_eq!(unknown(names.into_iter()).collect::<Vec<_>>(), ["DAPL_SM_DIRECTORY"]);
    }

    /// 3600000 as 3,600,000.
    fn grouped(number: u64) -> String {
        let digits = number.to_string();
        let parts: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
        parts.join(",")
    }

    #[test]
    fn the_readme_tells_of_all() {
        let readme = include_str!("../../../README.md");
        for knob in TABLE {
            let begin = format!("| `{}` | sm: ", knob.variable);
            let row = readme.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row begins {begin:?}"));
            let facts = match knob.values {
                Values::Text => Vec::new(),
                Values::OneOf(words) => words.iter().map(|word| format!("`{word}`")).collect(),
                Values::Number { low, high, default, .. } => {
                    vec![format!("{} to {} (default {})", grouped(low), grouped(high), grouped(default))]
                }
            };
            facts.iter().chain([&knob.meaning.to_owned()]).for_each(|fact| {
                assert!(row.contains(fact.as_str()), "{fact:?} is not in {row:?}");
            });
        }
    }
}
