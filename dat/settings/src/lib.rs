//! Settings of libdat and its providers: names, values, defaults and explanations, in one place.
//!
//! libdat uses these tables to parse its settings and to find misspelt variables, sm and usnic to parse theirs
//! (`dapl_software::settings`), and tools to print all of them. Pure data and lookups: this crate does not read the
//! environment.
#![forbid(unsafe_code)]

mod common;
pub mod log_line;
mod nearest;
pub mod page;
mod sm;
mod usnic;
mod verbs;

pub use common::{DAPL, LIBDAT};
pub use nearest::nearest;
pub use sm::SM;
pub use usnic::USNIC;
pub use verbs::VERBS;

/// All tables: libdat, the object layer, each provider.
pub const ALL: [&SettingsTable; 5] = [&LIBDAT, &DAPL, &SM, &USNIC, &VERBS];

/// A variable that is read when the libraries are built. It has no effect on a running program.
pub const BUILD_TIME: &str = "DAPL_SYSCONFDIR";

/// Variables without effect that the C implementation or earlier versions of this project read, each with its
/// replacement. libdat warns if one of them is set.
const NO_EFFECT: [(&str, &str); 13] = [
    ("DAPL_CM_ARP_RETRY_COUNT", "DAPL_CM_ARP_TIMEOUT_MS, the time of each of 15 tries"),
    ("DAPL_CM_ROUTE_RETRY_COUNT", "DAPL_CM_ROUTE_TIMEOUT_MS, the time of each of 15 tries"),
    ("DAPL_CM_TOS", "DAPL_TCLASS, over cm=socket, cm=socket2 and cm=none"),
    ("DAPL_DBG_IO_TRC_OVERDUE", "DAPL_DBG_IO_TRC; a request is overdue after 10 s"),
    ("DAPL_DBG_LEVEL", "DAPL_DBG_TYPE"),
    ("DAPL_SCM_NETDEV", "a network device or an address as the first word of ia_params"),
    ("DAPL_SM_DIR", "DAPL_DIR"),
    ("DAPL_USNIC_ADDRESS", "an interface or an address as the first word of ia_params"),
    ("DAPL_USNIC_DIR", "DAPL_DIR"),
    ("DAPL_USNIC_RECEIVE_BUFFER", "DAPL_USNIC_BUFFER"),
    ("DAPL_USNIC_SEND_BUFFER", "DAPL_USNIC_BUFFER"),
    ("DAPL_VERBS_DIR", "DAPL_DIR"),
    ("DAPL_WR_MAX", "the attributes max_recv_dtos and max_request_dtos of dat_ep_create"),
];

/// Variables that only other implementations read. libdat neither uses them nor warns about them.
const ELSEWHERE: &str = "DAT_CONF DAPL_DBG_SYS_MEM DAPL_LOOPBACK DAPL_MAX_CM_RESPONSE_TIME DAPL_MAX_CM_RETRIES \
    DAPL_NETWORK_NODES DAPL_NETWORK_PPN DAPL_NETWORK_PROCESS_NUM DAPL_NETWORK_TRESHOLD \
    DAPL_UCM_RETRY DAPL_UCM_REP_TIME DAPL_UCM_RTU_TIME DAPL_UCM_WAIT_TIME DAPL_UCM_TIMER DAPL_UCM_DREQ_RETRY \
    DAPL_UCM_DREP_TIME DAPL_UCM_QP_SIZE DAPL_UCM_CQ_SIZE DAPL_UCM_TX_BURST DAPL_UCM_ENTRY_BITS DAPL_UCM_ARRAY_BITS \
    DAPL_MCM_WR_MAX DAPL_MCM_MSG_MAX DAPL_MCM_MFO DAPL_MCM_ALWAYS_PROXY DAPL_MCM_PORT_ID";

/// Prefixes of variables for the project's own tests.
const SUITES: &str = "DAPL_TEST_ DAPL_SIM_ DAPL_FUZZ_ DAPL_FAULTY";

/// A setting of libdat or of a provider: its names, values and meaning.
#[derive(Debug)]
pub struct Setting {
    /// Name in `ia_params`; empty if the setting can be set by the environment only.
    pub name: &'static str,
    /// Environment variable; empty if the setting can be set in `ia_params` only.
    pub variable: &'static str,
    /// Kind, range and default of the value.
    pub values: Values,
    /// Meaning in words, for messages and documentation.
    pub meaning: &'static str,
}

/// Kind, range and default of a setting's value.
#[derive(Debug)]
pub enum Values {
    /// Any text. The string describes the default in words.
    Text(&'static str),
    /// One of these words; the first is the default.
    OneOf(&'static [&'static str]),
    /// `auto` (the default), or some of these words in order of preference, separated by commas.
    Order(&'static [&'static str]),
    /// A number from `low` to `high`, with this default and unit.
    Number { low: u64, high: u64, default: u64, unit: &'static str },
    /// A number without a fixed default; `unset` describes the default in words.
    Optional { low: u64, high: u64, unset: &'static str, unit: &'static str },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NumberNotation {
    /// Decimal digits.
    Decimal,
    /// As in C: 0x10, 020, 16; surrounding blanks are ignored, and an empty text selects the default.
    C,
}

/// The settings of libdat, of the object layer, or of one provider.
#[derive(Debug)]
pub struct SettingsTable {
    /// Name of the provider, such as `sm`; `libdat`, or `dapl` for the object layer.
    pub provider: &'static str,
    /// Prefix of the table's variables, such as `DAPL_SM`; variables that several tables share do not have it.
    /// [`Self::unknown`] finds misspelt variables by it.
    pub prefix: &'static str,
    /// Names of the settings that words of `ia_params` without `=` set, in the order of these words.
    pub plain: &'static [&'static str],
    /// Notation of numbers in the settings' values.
    pub notation: NumberNotation,
    pub settings: &'static [Setting],
}

/// Classification of a variable's name.
#[derive(Clone, Copy, Debug)]
pub enum VariableClass {
    /// A library reads this variable.
    Read(&'static SettingsTable, &'static Setting),
    /// The variable is not for this project's libraries: other programs, other implementations, tests or builds read
    /// it. libdat does not warn about it.
    NotForLibraries,
    /// The variable has no effect here; the text names its replacement.
    NoEffect(&'static str),
    /// An unknown name with the prefix `DAPL_SM` or `DAPL_USNIC`. The provider sm or usnic warns about the variable
    /// once, when it reads its settings.
    ProviderPrefix(&'static SettingsTable),
    /// Another unknown name that begins with `DAT_` or `DAPL_`. libdat warns about the variable.
    Unknown,
}

/// Classifies a variable by its name.
pub fn look_up(name: &str) -> VariableClass {
    let is_ours = matches!(name.split_once('_'), Some(("DAT" | "DAPL", _)));
    let of_suites = SUITES.split(' ').any(|start| name.starts_with(start));
    if !is_ours || of_suites || name == BUILD_TIME || ELSEWHERE.split(' ').any(|known| known == name) {
        return VariableClass::NotForLibraries;
    }
    for table in ALL {
        if let Some(setting) = table.settings.iter().find(|setting| setting.variable == name) {
            return VariableClass::Read(table, setting);
        }
    }
    if let Some((_, instead)) = NO_EFFECT.iter().find(|(known, _)| *known == name) {
        return VariableClass::NoEffect(instead);
    }
    match [&SM, &USNIC].into_iter().find(|table| table.covers(name)) {
        Some(table) => VariableClass::ProviderPrefix(table),
        None => VariableClass::Unknown,
    }
}

impl SettingsTable {
    /// Variables with this table's prefix that are neither in the table nor known as [`VariableClass::NoEffect`].
    pub fn unknown(&self, names: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
        let is_unread = |name: &str| !matches!(look_up(name), VariableClass::NoEffect(_));
        names.filter(move |name| {
            self.covers(name) && is_unread(name) && self.settings.iter().all(|setting| setting.variable != *name)
        })
    }

    /// Finds the setting of this name in `ia_params`.
    pub fn named(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| !name.is_empty() && setting.name == name)
    }

    /// Splits `ia_params` into settings, in order, and words that are not settings: those with an unknown name before
    /// `=`, and surplus words without `=`.
    pub fn split(&self, params: &str) -> (Vec<(&'static str, String)>, Vec<String>) {
        let (mut words, mut odd) = (Vec::new(), Vec::new());
        let mut plain = self.plain.iter();
        for word in params.split_ascii_whitespace() {
            // A path is absolute, so text that has a slash before the first `=` is a path, not a setting.
            let pair = word.split_once('=').filter(|(name, _)| !name.contains('/'));
            match pair {
                Some((name, value)) => match self.named(name) {
                    Some(setting) => words.push((setting.name, value.to_owned())),
                    None => odd.push(word.to_owned()),
                },
                None => match plain.next() {
                    Some(name) => words.push((name, word.to_owned())),
                    None => odd.push(word.to_owned()),
                },
            }
        }
        (words, odd)
    }

    /// Parses a text into the value in effect. The error names the permitted values.
    pub fn value(&self, setting: &Setting, text: &str) -> Result<String, String> {
        let text = if self.notation == NumberNotation::C { text.trim() } else { text };
        if self.notation == NumberNotation::C && text.is_empty() {
            return Ok(setting.values.default());
        }
        match &setting.values {
            Values::Text(_) => Some(text.to_owned()),
            Values::OneOf(words) => words.contains(&text).then(|| text.to_owned()),
            Values::Order(words) => is_order(words, text).then(|| text.to_owned()),
            Values::Number { low, high, .. } | Values::Optional { low, high, .. } => {
                self.number(text).filter(|value| (low..=high).contains(&value)).map(|value| value.to_string())
            }
        }
        .ok_or_else(|| setting.values.allowed())
    }

    fn number(&self, text: &str) -> Option<u64> {
        match self.notation {
            NumberNotation::Decimal => text.parse().ok(),
            NumberNotation::C => c_number(text),
        }
    }

    fn covers(&self, name: &str) -> bool {
        let rest = name.strip_prefix(self.prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

/// Parses a number in C's notations.
fn c_number(text: &str) -> Option<u64> {
    let digits = |text: &str, radix| {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        plain.then(|| u64::from_str_radix(text, radix).ok()).flatten()
    };
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None if text.len() > 1 && text.starts_with('0') => digits(&text[1..], 8),
        None => digits(text, 10),
    }
}

/// Whether the text is `auto`, or a list of known words without repetition, separated by commas.
fn is_order(words: &[&str], text: &str) -> bool {
    let order: Vec<_> = text.split(',').collect();
    text == "auto" || order.iter().enumerate().all(|(at, word)| words.contains(word) && !order[..at].contains(word))
}

impl Values {
    /// Kind of the value, in one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Values::Text(_) => "text",
            Values::OneOf(_) => "word",
            Values::Order(_) => "order",
            Values::Number { .. } | Values::Optional { .. } => "number",
        }
    }

    /// The default value, or the default in words.
    pub fn default(&self) -> String {
        match self {
            Values::Text(unset) => (*unset).to_owned(),
            Values::OneOf(words) => words[0].to_owned(),
            Values::Order(_) => "auto".to_owned(),
            Values::Number { default, .. } => default.to_string(),
            Values::Optional { unset, .. } => (*unset).to_owned(),
        }
    }

    /// Unit of a number, such as `ms`; empty for numbers without a unit and for other kinds.
    pub fn unit(&self) -> &'static str {
        match self {
            Values::Number { unit, .. } | Values::Optional { unit, .. } => unit.trim_start(),
            _ => "",
        }
    }

    /// The permitted values, for messages.
    pub fn allowed(&self) -> String {
        match self {
            Values::Text(_) => "any text".to_owned(),
            Values::OneOf(words) => words.join(" or "),
            Values::Order(words) => format!("auto, or one or more of {} in order of preference", words.join(",")),
            Values::Number { low, high, .. } | Values::Optional { low, high, .. } => {
                format!("a number from {low} to {high}")
            }
        }
    }
}

impl Setting {
    /// Texts that the documentation of the setting must contain: its values and its meaning.
    pub fn documented_texts(&self) -> Vec<String> {
        let quoted = |word: &&str| format!("`{word}`");
        let mut texts = match self.values {
            Values::Text(_) => Vec::new(),
            Values::Order(words) => ["auto"].iter().chain(words).map(quoted).collect(),
            Values::OneOf(words) => words.iter().map(quoted).collect(),
            Values::Number { low, high, default, .. } => {
                vec![format!("{} to {} (default {})", grouped(low), grouped(high), grouped(default))]
            }
            Values::Optional { low, high, .. } => vec![format!("{} to {}", grouped(low), grouped(high))],
        };
        texts.push(self.meaning.to_owned());
        texts
    }
}

/// Formats a number with thousands separators: 3600000 as 3,600,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    parts.join(",")
}

const fn number(low: u64, high: u64, default: u64, unit: &'static str) -> Values {
    Values::Number { low, high, default, unit }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    static TABLE: SettingsTable = SettingsTable {
        provider: "x",
        prefix: "DAPL_X",
        plain: &[],
        notation: NumberNotation::Decimal,
        settings: &[
            Setting { name: "dir", variable: "DAPL_X_DIR", values: Values::Text("home"), meaning: "a place" },
            Setting {
                name: "count",
                variable: "DAPL_X_COUNT",
                values: number(2, 9_000, 1_234, " ms"),
                meaning: "a time",
            },
            Setting { name: "way", variable: "DAPL_X_WAY", values: Values::Order(&["a", "b", "c"]), meaning: "ways" },
            Setting { name: "mode", variable: "DAPL_X_MODE", values: Values::OneOf(&["on", "off"]), meaning: "a mode" },
        ],
    };

    fn value(name: &str, text: &str) -> Result<String, String> {
        TABLE.value(TABLE.named(name).unwrap(), text)
    }

    #[test]
    fn misspelt_variables_are_found_and_others_left_alone() {
        let names = ["DAPL_X_DIR", "DAPL_X_DIRECTORY", "DAPL_XY", "DAPL_X", "X"].map(String::from);
        assert_eq!(TABLE.unknown(names.into_iter()).collect::<Vec<_>>(), ["DAPL_X_DIRECTORY", "DAPL_X"]);
    }

    #[test]
    fn documentation_of_a_setting_has_values_default_and_meaning() {
        let texts: Vec<_> = TABLE.settings.iter().map(|setting| setting.documented_texts().join("; ")).collect();
        let all =
            ["a place", "2 to 9,000 (default 1,234); a time", "`auto`; `a`; `b`; `c`; ways", "`on`; `off`; a mode"];
        assert_eq!(texts, all);
    }

    #[test]
    fn setting_values_are_checked_by_kind_and_range() {
        for (name, good) in [("count", "2"), ("count", "9000"), ("way", "c,a"), ("way", "auto"), ("mode", "off")] {
            assert_eq!(value(name, good).as_deref(), Ok(good));
        }
        for (name, bad) in
            [("count", "1"), ("count", "0x10"), ("count", ""), ("way", "a,a"), ("way", ""), ("mode", "ON")]
        {
            assert!(value(name, bad).is_err(), "{name}={bad}");
        }
        assert_eq!(value("count", "9001"), Err("a number from 2 to 9000".to_owned()));
    }

    #[test]
    fn c_notation_accepts_hexadecimal_and_octal() {
        let mask = &LIBDAT.settings[1];
        assert_eq!(
            (LIBDAT.value(mask, " 0x10 ").as_deref(), LIBDAT.value(mask, "010").as_deref()),
            (Ok("16"), Ok("8"))
        );
        assert_eq!(LIBDAT.value(mask, "").as_deref(), Ok("1"), "empty is unset");
        for bad in ["-1", "+1", "0x", "08", "all", "4294967296"] {
            assert!(LIBDAT.value(mask, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_variable_name_occurs_once_per_table_and_is_found() {
        let mut names = BTreeSet::new();
        for table in ALL {
            let mut own = BTreeSet::new();
            for setting in table.settings.iter().filter(|setting| !setting.variable.is_empty()) {
                assert!(own.insert(setting.variable), "{} twice", setting.variable);
                let is_found = matches!(look_up(setting.variable), VariableClass::Read(_, found) if found.variable == setting.variable);
                assert!(is_found, "{}", setting.variable);
            }
            if table.provider != "libdat" {
                names.append(&mut own);
            }
        }
        assert!(names.len() <= 35, "more settings than an administrator looks through: {}", names.len());
        assert!(
            matches!(look_up("DAPL_UCM_RETRY"), VariableClass::NotForLibraries)
                && matches!(look_up("PATH"), VariableClass::NotForLibraries)
        );
        assert!(matches!(look_up("DAPL_SM_DIRECTORY"), VariableClass::ProviderPrefix(table) if table.provider == "sm"));
        for (name, word) in
            [("DAPL_WR_MAX", "max_recv_dtos"), ("DAPL_SM_DIR", "DAPL_DIR"), ("DAPL_CM_TOS", "DAPL_TCLASS")]
        {
            assert!(matches!(look_up(name), VariableClass::NoEffect(instead) if instead.contains(word)), "{name}");
        }
        assert_eq!(SM.unknown(["DAPL_SM_DIR".to_owned()].into_iter()).count(), 0, "reported with what to use instead");
        for unknown in ["DAT_OVERIDE", "DAPL_", "DAPL_SMALL", "DAT_DBG_TYPES", "DAPL_ACK_RETRIES"] {
            assert!(matches!(look_up(unknown), VariableClass::Unknown), "{unknown}");
        }
    }
}
