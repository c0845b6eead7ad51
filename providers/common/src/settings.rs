//! What an administrator has set in a provider: how what is given is read by a table of `dat_knobs`, from `ia_params` and
//! from the environment.
//!
//! `ia_params` are words: `name=value` for whatever the table names, which comes before the environment, and plain words for
//! the settings that the table says in their order. A bad value is reported with its name, text and range, and the default is
//! used; a name that is not in the table is reported too. A set-uid program ignores the environment. What a setting does is
//! the provider's business.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use dat_knobs::nearest;
pub use dat_knobs::{Knob, SM, Table, USNIC, VERBS, Values};

use dapl::runtime::logger::secure_variable;

/// Variables that nobody reads have been told; they are the same for every IA of the process.
static UNKNOWN_REPORTED: AtomicBool = AtomicBool::new(false);

/// From `ia_params` and the environment.
pub fn read(table: &'static Table, params: &str) -> SettingValues<'static> {
    if !UNKNOWN_REPORTED.swap(true, Ordering::Relaxed) {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        // In a set-uid program none can be read, so none is misspelt either.
        let names = names.filter(|name| secure_variable(name).is_some());
        table.unknown(names).for_each(|name| {
            let known = list(table, |knob| knob.variable);
            let meant = nearest(&name).map_or(String::new(), |meant| format!("nearest is {meant}; "));
            log::warn!("{name} is not a variable of {}; {meant}known variables: {known}", table.provider);
        });
    }
    parse(table, params, &|name| secure_variable(name))
}

/// From `ia_params` and whatever says what a variable is.
pub fn parse<'a>(
    table: &'static Table,
    params: &str,
    variable: &'a dyn Fn(&str) -> Option<String>,
) -> SettingValues<'a> {
    let (words, odd) = table.split(params);
    for word in odd {
        match word.split_once('=') {
            Some((name, _)) if !name.contains('/') => {
                let known = list(table, |knob| knob.name);
                log::warn!("ia_params: unknown setting \"{name}\"; known settings: {known}");
            }
            _ => log::warn!("ia_params: unexpected word \"{word}\"; a setting has the form name=value"),
        }
    }
    SettingValues { table, words, variable }
}

fn list(table: &Table, name: impl Fn(&Knob) -> &str) -> String {
    table.knobs.iter().map(name).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
}

/// What was given, by words of `ia_params` and by the environment.
pub struct SettingValues<'a> {
    table: &'static Table,
    words: Vec<(&'static str, String)>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl std::fmt::Debug for SettingValues<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SettingValues").field("words", &self.words).finish_non_exhaustive()
    }
}

impl SettingValues<'_> {
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
    use dat_knobs::Notation;

    use super::*;

    static TABLE: Table = Table {
        provider: "x",
        prefix: "DAPL_X",
        plain: &["dir", "count"],
        notation: Notation::Decimal,
        knobs: &[
            Knob { name: "dir", variable: "DAPL_X_DIR", values: Values::Text(""), meaning: "a place" },
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
        let read = |params| parse(&TABLE, params, &env).number("count");
        assert_eq!((read(""), read("count=8"), read("count=8 count=9"), read("/dir 5")), (77, 8, 9, 5));
        let given = parse(&TABLE, "mode=off /a=b nonsense=1 6 too many", &none);
        assert_eq!((given.word("mode"), given.number("count")), ("off", 6));
        assert_eq!(given.text("dir"), Some(("ia_params, dir".to_owned(), "/a=b".to_owned())));
    }

    #[test]
    fn what_is_bad_or_absent_is_the_default() {
        let bad = parse(&TABLE, "count=9001 way=a,a mode=ON", &none);
        assert_eq!((bad.number("count"), bad.order("way"), bad.word("mode")), (1_234, None, "on"));
        let absent = parse(&TABLE, "", &none);
        assert_eq!((absent.number("count"), absent.order("way"), absent.word("mode")), (1_234, None, "on"));
        assert_eq!((absent.text("dir"), absent.number("nobody"), absent.word("nobody")), (None, 0, ""));
    }

    #[test]
    fn an_order_is_of_known_words_each_once() {
        let order = |text: &str| parse(&TABLE, &format!("way={text}"), &none).order("way");
        assert_eq!((order("c,a"), order("b")), (Some(vec!["c", "a"]), Some(vec!["b"])));
        for bad in ["", ",", "a,", "auto,a", "A", "a,b,a", "auto"] {
            assert_eq!(order(bad), None, "{bad}");
        }
    }
}
