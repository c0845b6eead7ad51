//! What an administrator can set in a provider: a table of names, variables, values and meanings, and how what is given is
//! read by it, from `ia_params` and from the environment.
//!
//! `ia_params` are words: `name=value` for whatever the table names, which comes before the environment, and plain words for
//! the settings that the table says in their order. A bad value is reported with its name, text and range, and the default is
//! used; a name that is not in the table is reported too. A set-uid program ignores the environment. What a setting does is
//! the provider's business.
#![forbid(unsafe_code)]

use crate::debug::secure_variable;

/// One thing that can be set.
#[derive(Debug)]
pub struct Knob {
    /// In `ia_params`.
    pub name: &'static str,
    /// In the environment.
    pub variable: &'static str,
    /// What it can be set to.
    pub values: Values,
    /// For messages and documentation.
    pub meaning: &'static str,
}

/// What a knob can be set to.
#[derive(Debug)]
pub enum Values {
    /// Any text, with a default that is not text.
    Text,
    /// Words, of which the first is the default.
    OneOf(&'static [&'static str]),
    /// `auto`, the default, or some of these words in an order, with commas between.
    Order(&'static [&'static str]),
    /// A number.
    #[allow(missing_docs, reason = "the names say it")]
    Number { low: u64, high: u64, default: u64, unit: &'static str },
}

/// All that can be set in a provider.
#[derive(Debug)]
pub struct Table {
    /// For messages, such as `sm`.
    pub provider: &'static str,
    /// What its variables begin with, such as `DAPL_SM`.
    pub prefix: &'static str,
    /// The names that plain words of `ia_params` are for, in their order.
    pub plain: &'static [&'static str],
    /// The settings.
    pub knobs: &'static [Knob],
}

impl Knob {
    /// What a page about it must say: its values, and its meaning.
    pub fn facts(&self) -> Vec<String> {
        let quoted = |word: &&str| format!("`{word}`");
        let mut facts = match self.values {
            Values::Text => Vec::new(),
            Values::Order(words) => ["auto"].iter().chain(words).map(quoted).collect(),
            Values::OneOf(words) => words.iter().map(quoted).collect(),
            Values::Number { low, high, default, .. } => {
                vec![format!("{} to {} (default {})", grouped(low), grouped(high), grouped(default))]
            }
        };
        facts.push(self.meaning.to_owned());
        facts
    }
}

/// 3600000 as 3,600,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    parts.join(",")
}

impl Table {
    /// From `ia_params` and the environment.
    pub fn read(&'static self, params: &str) -> Given<'static> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        // In a set-uid program none can be read, so none is misspelt either.
        let names = names.filter(|name| secure_variable(name).is_some());
        self.unknown(names).for_each(|name| {
            let known = self.list(|knob| knob.variable);
            log::warn!("{name} is no variable of {}'s; these are: {known}", self.provider);
        });
        self.parse(params, &|name| secure_variable(name))
    }

    /// From `ia_params` and whatever says what a variable is.
    pub fn parse<'a>(&'static self, params: &str, variable: &'a dyn Fn(&str) -> Option<String>) -> Given<'a> {
        let mut words = Vec::new();
        let mut plain = self.plain.iter();
        for word in params.split_ascii_whitespace() {
            // A path is absolute, so what stands before its first = is no name.
            let pair = word.split_once('=').filter(|(name, _)| !name.contains('/'));
            match (pair, pair.and_then(|(name, _)| self.named(name))) {
                (Some((_, value)), Some(knob)) => words.push((knob.name, value.to_owned())),
                (Some((name, _)), None) => {
                    let known = self.list(|knob| knob.name);
                    log::warn!("ia_params: nothing is called \"{name}\"; these are: {known}");
                }
                (None, _) => match plain.next() {
                    Some(name) => words.push((name, word.to_owned())),
                    None => log::warn!("ia_params: \"{word}\" is one word too many; a setting is name=value"),
                },
            }
        }
        Given { table: self, words, variable }
    }

    /// Variables that look like ours and are none.
    pub fn unknown(&self, names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
        let is_ours = |name: &str| {
            let rest = name.strip_prefix(self.prefix);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        names.filter(move |name| is_ours(name) && self.knobs.iter().all(|knob| knob.variable != *name))
    }

    /// Asking for one that is not there is a mistake of the provider's.
    fn named(&self, name: &str) -> Option<&'static Knob> {
        self.knobs.iter().find(|knob| knob.name == name)
    }

    fn list(&self, name: impl Fn(&Knob) -> &str) -> String {
        self.knobs.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

/// What was given, by words of `ia_params` and by the environment.
pub struct Given<'a> {
    table: &'static Table,
    words: Vec<(&'static str, String)>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl std::fmt::Debug for Given<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Given").field("words", &self.words).finish_non_exhaustive()
    }
}

impl Given<'_> {
    /// The text of a setting, and where it stands.
    pub fn text(&self, name: &str) -> Option<(String, String)> {
        let variable = self.table.named(name)?.variable;
        let word = self.words.iter().rfind(|(known, _)| *known == name);
        match word {
            Some((_, text)) => Some((format!("ia_params, {name}"), text.clone())),
            None => (self.variable)(variable).map(|text| (variable.to_owned(), text)),
        }
    }

    /// A number within its range.
    pub fn number(&self, name: &str) -> u64 {
        let Some(Knob { values: Values::Number { low, high, default, unit }, meaning, .. }) = self.table.named(name)
        else {
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

    /// Some of the words in an order; `None` for `auto`.
    pub fn order(&self, name: &str) -> Option<Vec<&'static str>> {
        let Some(Knob { values: Values::Order(words), meaning, .. }) = self.table.named(name) else { return None };
        let (place, text) = self.text(name).filter(|(_, text)| text != "auto")?;
        let known = |word: &str| words.iter().find(|known| **known == word).copied();
        let order: Option<Vec<_>> = text.split(',').map(known).collect();
        let order = order.filter(|order| order.iter().enumerate().all(|(n, word)| !order[..n].contains(word)));
        if order.is_none() {
            let choice = words.join("\", \"");
            log::warn!(
                "{place}: \"{text}\" is not \"auto\" or an order of \"{choice}\" ({meaning}); using \"auto\", the default"
            );
        }
        order
    }

    /// One of its words.
    pub fn word(&self, name: &str) -> &'static str {
        let Some(Knob { values: Values::OneOf(words), meaning, .. }) = self.table.named(name) else { return "" };
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

    static TABLE: Table = Table {
        provider: "x",
        prefix: "DAPL_X",
        plain: &["dir", "count"],
        knobs: &[
            Knob { name: "dir", variable: "DAPL_X_DIR", values: Values::Text, meaning: "a place" },
            Knob {
                name: "count",
                variable: "DAPL_X_COUNT",
                values: Values::Number { low: 2, high: 9_000, default: 1_234, unit: " ms" },
                meaning: "a time",
            },
            Knob { name: "way", variable: "DAPL_X_WAY", values: Values::Order(&["a", "b", "c"]), meaning: "ways" },
            Knob { name: "mode", variable: "DAPL_X_MODE", values: Values::OneOf(&["on", "off"]), meaning: "a mode" },
        ],
    };

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn words_come_before_variables_and_the_last_word_counts() {
        let env = |name: &str| (name == "DAPL_X_COUNT").then(|| "77".to_owned());
        let read = |params| TABLE.parse(params, &env).number("count");
        assert_eq!((read(""), read("count=8"), read("count=8 count=9"), read("/dir 5")), (77, 8, 9, 5));
        let given = TABLE.parse("mode=off /a=b nonsense=1 6 too many", &none);
        assert_eq!((given.word("mode"), given.number("count")), ("off", 6));
        assert_eq!(given.text("dir"), Some(("ia_params, dir".to_owned(), "/a=b".to_owned())));
    }

    #[test]
    fn what_is_bad_or_absent_is_the_default() {
        let bad = TABLE.parse("count=9001 way=a,a mode=ON", &none);
        assert_eq!((bad.number("count"), bad.order("way"), bad.word("mode")), (1_234, None, "on"));
        let absent = TABLE.parse("", &none);
        assert_eq!((absent.number("count"), absent.order("way"), absent.word("mode")), (1_234, None, "on"));
        assert_eq!((absent.text("dir"), absent.number("nobody"), absent.word("nobody")), (None, 0, ""));
    }

    #[test]
    fn an_order_is_of_known_words_each_once() {
        let order = |text: &str| TABLE.parse(&format!("way={text}"), &none).order("way");
        assert_eq!((order("c,a"), order("b")), (Some(vec!["c", "a"]), Some(vec!["b"])));
        for bad in ["", ",", "a,", "auto,a", "A", "a,b,a", "auto"] {
            assert_eq!(order(bad), None, "{bad}");
        }
    }

    #[test]
    fn misspelt_variables_are_found_and_others_left_alone() {
        let names = ["DAPL_X_DIR", "DAPL_X_DIRECTORY", "DAPL_XY", "DAPL_X", "X"].map(String::from);
        assert_eq!(TABLE.unknown(names.into_iter()).collect::<Vec<_>>(), ["DAPL_X_DIRECTORY", "DAPL_X"]);
    }

    #[test]
    fn facts_are_values_and_meaning() {
        let facts: Vec<_> = TABLE.knobs.iter().map(|knob| knob.facts().join("; ")).collect();
        let all =
            ["a place", "2 to 9,000 (default 1,234); a time", "`auto`; `a`; `b`; `c`; ways", "`on`; `off`; a mode"];
        assert_eq!(facts, all);
    }
}
