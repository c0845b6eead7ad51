//! Reads the settings that a provider's table lists, from `ia_params` and the environment.
//!
//! `ia_params` consists of tokens: `name=value` for any setting of the table, and plain values for the settings that
//! the table lists as positional. It takes precedence over the environment, which a set-uid program ignores.
//!
//! For a bad value, a warning gives the name, the text and the range, and the default applies. An unknown name also
//! causes a warning.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use dat_settings::nearest;
pub use dat_settings::{SM, Setting, SettingsTable, USNIC, VERBS, Values};

use dapl::runtime::logger::secure_variable;

/// Whether unknown environment variables were reported. They are the same for each IA of the process.
static UNKNOWN_REPORTED: AtomicBool = AtomicBool::new(false);

/// Reads the settings of an IA from its `ia_params` (`params`) and the environment. Logs unknown names, and the
/// settings that differ from their defaults.
pub fn read(table: &'static SettingsTable, params: &str) -> SettingValues<'static> {
    if !UNKNOWN_REPORTED.swap(true, Ordering::Relaxed) {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        // A set-uid program ignores its variables, so it does not report unknown ones.
        let names = names.filter(|name| secure_variable(name).is_some());
        table.unknown(names).for_each(|name| {
            let known = list(table, |setting| setting.variable);
            let nearest_name =
                nearest(&name).map_or(String::new(), |nearest_name| format!("nearest is {nearest_name}; "));
            log::warn!("unknown variable {name}; {nearest_name}known variables of {}: {known}", table.provider);
        });
    }
    let values = parse(table, params, &|name| secure_variable(name));
    let changed = values.changed();
    if !changed.is_empty() {
        log::info!("{}: settings other than the defaults: {}", table.provider, changed.join(", "));
    }
    values
}

/// Parses the `ia_params` of an IA. `variable` returns the value of an environment variable.
pub fn parse<'a>(
    table: &'static SettingsTable,
    params: &str,
    variable: &'a dyn Fn(&str) -> Option<String>,
) -> SettingValues<'a> {
    let (words, unknown) = table.split(params);
    for word in unknown {
        match word.split_once('=') {
            Some((name, _)) if !name.contains('/') => {
                let known = list(table, |setting| setting.name);
                log::warn!("ia_params: unknown setting \"{name}\" has no effect; known settings: {known}");
            }
            _ => log::warn!("ia_params: unexpected token \"{word}\" has no effect; a setting has the form name=value"),
        }
    }
    SettingValues { table, words, variable }
}

fn list(table: &SettingsTable, name: impl Fn(&Setting) -> &str) -> String {
    table.settings.iter().map(name).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The settings of an IA: the tokens of `ia_params`, and access to environment variables.
pub struct SettingValues<'a> {
    table: &'static SettingsTable,
    words: Vec<(&'static str, String)>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl SettingValues<'_> {
    /// Returns the origin of a setting (a name in `ia_params`, or a variable) and its text, or `None` if it is not set.
    pub fn text(&self, name: &str) -> Option<(String, String)> {
        let variable = self.table.named(name)?.variable;
        let word = self.words.iter().rfind(|(known, _)| *known == name);
        match word {
            Some((_, text)) => Some((format!("ia_params, {name}"), text.clone())),
            None => (self.variable)(variable).map(|text| (variable.to_owned(), text)),
        }
    }

    /// Returns the settings that differ from their default, as `name=text (origin)`.
    fn changed(&self) -> Vec<String> {
        let named = self.table.settings.iter().filter(|setting| !setting.name.is_empty());
        let given = named.filter_map(|setting| self.text(setting.name).map(|given| (setting, given)));
        given
            .filter(|(setting, (_, text))| match &setting.values {
                Values::Number { default, .. } => text.parse() != Ok(*default),
                Values::OneOf(words) => words.first() != Some(&text.as_str()),
                Values::Order(_) => text != "auto",
                Values::Text(_) | Values::Optional { .. } => true,
            })
            .map(|(setting, (origin, text))| match origin.starts_with("ia_params") {
                true => format!("{}={text} (ia_params)", setting.name),
                false => format!("{}={text} ({origin})", setting.name),
            })
            .collect()
    }

    /// Returns the value of a numeric setting. Returns the default if the setting is absent, is not a number, or is out
    /// of range.
    pub fn number(&self, name: &str) -> u64 {
        let Some(Setting { values: Values::Number { low, high, default, unit }, meaning, .. }) = self.table.named(name)
        else {
            return 0;
        };
        let Some((origin, text)) = self.text(name) else { return *default };
        text.parse().ok().filter(|value| (low..=high).contains(&value)).unwrap_or_else(|| {
            log::warn!(
                "{origin}: \"{text}\" is not a number from {low} to {high} ({meaning}); using {default}{unit}, the default"
            );
            *default
        })
    }

    /// Returns the words of a list setting in the given order. Returns `None` if it is absent, `auto` or a bad list.
    pub fn order(&self, name: &str) -> Option<Vec<&'static str>> {
        let Some(Setting { values: Values::Order(words), meaning, .. }) = self.table.named(name) else { return None };
        let (origin, text) = self.text(name).filter(|(_, text)| text != "auto")?;
        let known = |word: &str| words.iter().find(|known| **known == word).copied();
        let order: Option<Vec<_>> = text.split(',').map(known).collect();
        let order = order.filter(|order| order.iter().enumerate().all(|(n, word)| !order[..n].contains(word)));
        if order.is_none() {
            let choice = words.join("\", \"");
            log::warn!(
                "{origin}: \"{text}\" is not \"auto\" or an order of \"{choice}\" ({meaning}); using \"auto\", the default"
            );
        }
        order
    }

    /// Returns the chosen word of a setting, or its first word, the default, if the setting is absent or bad.
    pub fn word(&self, name: &str) -> &'static str {
        let Some(Setting { values: Values::OneOf(words), meaning, .. }) = self.table.named(name) else { return "" };
        let Some((origin, text)) = self.text(name) else { return words[0] };
        words.iter().find(|word| **word == text).unwrap_or_else(|| {
            let choice = words.join("\" or \"");
            log::warn!("{origin}: \"{text}\" is not \"{choice}\" ({meaning}); using \"{}\", the default", words[0]);
            &words[0]
        })
    }
}

#[cfg(test)]
mod tests {
    use dat_settings::NumberNotation;

    use super::*;

    static TABLE: SettingsTable = SettingsTable {
        provider: "x",
        prefix: "DAPL_X",
        plain: &["dir", "count"],
        notation: NumberNotation::Decimal,
        settings: &[
            Setting { name: "dir", variable: "DAPL_X_DIR", values: Values::Text(""), meaning: "a directory" },
            Setting {
                name: "count",
                variable: "DAPL_X_COUNT",
                values: Values::Number { low: 2, high: 9_000, default: 1_234, unit: " ms" },
                meaning: "a time",
            },
            Setting {
                name: "order",
                variable: "DAPL_X_ORDER",
                values: Values::Order(&["a", "b", "c"]),
                meaning: "an order",
            },
            Setting { name: "mode", variable: "DAPL_X_MODE", values: Values::OneOf(&["on", "off"]), meaning: "a mode" },
        ],
    };

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn ia_params_override_variables_and_the_last_of_repeated_words_is_used() {
        let env = |name: &str| (name == "DAPL_X_COUNT").then(|| "77".to_owned());
        let read = |params| parse(&TABLE, params, &env).number("count");
        assert_eq!((read(""), read("count=8"), read("count=8 count=9"), read("/dir 5")), (77, 8, 9, 5));
        let values = parse(&TABLE, "mode=off /a=b unknown=1 6 too many", &none);
        assert_eq!((values.word("mode"), values.number("count")), ("off", 6));
        assert_eq!(values.text("dir"), Some(("ia_params, dir".to_owned(), "/a=b".to_owned())));
    }

    #[test]
    fn bad_or_absent_settings_use_the_default() {
        let bad = parse(&TABLE, "count=9001 order=a,a mode=ON", &none);
        assert_eq!((bad.number("count"), bad.order("order"), bad.word("mode")), (1_234, None, "on"));
        let absent = parse(&TABLE, "", &none);
        assert_eq!((absent.number("count"), absent.order("order"), absent.word("mode")), (1_234, None, "on"));
        assert_eq!((absent.text("dir"), absent.number("absent"), absent.word("absent")), (None, 0, ""));
    }

    #[test]
    fn settings_other_than_the_defaults_are_listed_with_their_origin() {
        let env = |name: &str| (name == "DAPL_X_ORDER").then(|| "b,a".to_owned());
        let changed = parse(&TABLE, "/dir count=1234 mode=off", &env).changed();
        assert_eq!(changed, ["dir=/dir (ia_params)", "order=b,a (DAPL_X_ORDER)", "mode=off (ia_params)"]);
        assert!(parse(&TABLE, "count=1234 mode=on order=auto", &none).changed().is_empty());
    }

    #[test]
    fn order_setting_refuses_unknown_and_repeated_words() {
        let order = |text: &str| parse(&TABLE, &format!("order={text}"), &none).order("order");
        assert_eq!((order("c,a"), order("b")), (Some(vec!["c", "a"]), Some(vec!["b"])));
        for bad in ["", ",", "a,", "auto,a", "A", "a,b,a", "auto"] {
            assert_eq!(order(bad), None, "{bad}");
        }
    }
}
