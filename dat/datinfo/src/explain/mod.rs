//! `datinfo explain`: the meanings of a number or a name in DAT 1.2 and DAT 2.0, as a system error, and as a setting.
//!
//! `table` contains the names of DAT, `system` the system errors; `number` finds the meanings of a number. Manual pages
//! supply the explanations of events, completion statuses and return codes, and `dat-settings` those of settings. No
//! library is loaded.
#![forbid(unsafe_code)]

mod number;
mod system;
pub(crate) mod table;

use std::fmt::Write;

use dat_settings::{Setting, VariableClass, look_up};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::options::Options;
use crate::words::wrapped;
use crate::{nearest, print_json, print_output};
use table::{ApiName, Value};

/// Manual pages whose items explain completion statuses, events, and the types of return codes.
const PAGES: [&str; 3] = [
    include_str!("../../../../docs/man/dat_dto_completion_status.7.md"),
    include_str!("../../../../docs/man/dat_event.7.md"),
    include_str!("../../../../docs/man/dat_strerror.3.md"),
];

/// Maximum length in bytes of an unknown word for which similar names are proposed. Messages show at most this many
/// characters of a word.
const LONGEST: usize = 64;
/// Minimum number of letters in an unknown word for which similar names are proposed.
const SHORTEST: usize = 4;

/// One meaning of a number or a name.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
struct Meaning {
    /// Group of the name: `return code`, `DAT_EVENT_NUMBER`, `errno`, ...
    kind: String,
    name: String,
    /// The number as text; empty for a name without a number.
    number: String,
    /// Versions of DAT with this meaning: `1.2`, `2.0` or both. Empty for system errors and settings.
    versions: Vec<&'static str>,
    /// Explanation; empty if the name is sufficient.
    meaning: String,
    /// Whether this is a less likely meaning of a number with several meanings.
    #[serde(skip)]
    is_minor: bool,
}

/// Adds a meaning in one version. If the other version has added the same name and number, adds only the version.
fn add_version(readings: &mut Vec<Meaning>, version: &'static str, meaning: Meaning) {
    match readings.iter_mut().find(|known| (&known.name, &known.number) == (&meaning.name, &meaning.number)) {
        Some(same) => same.versions.push(version),
        None => readings.push(Meaning { versions: vec![version], ..meaning }),
    }
}

/// Explains each word. Without `--json`, errors about unknown words are returned after the other words are explained;
/// with `--json`, the document contains the errors.
pub(crate) fn explain(options: &Options, words: &[String]) -> crate::Result {
    let results: Vec<(&String, Result<Vec<Meaning>, String>)> =
        words.iter().map(|word| (word, readings(trimmed(word)))).collect();
    if options.json {
        print_json(&results.iter().map(|(word, result)| document(word, result)).collect::<Json>());
        return Ok(results.iter().all(|(_, result)| result.is_ok()));
    }
    let texts = results.iter().filter_map(|(word, result)| Some(text(word, result.as_ref().ok()?)));
    print_output(&texts.collect::<Vec<_>>().join("\n"));
    let errors: Vec<String> = results.into_iter().filter_map(|(_, result)| result.err()).collect();
    if errors.is_empty() { Ok(true) } else { Err(errors.join("\ndatinfo: ")) }
}

/// Removes the blanks and punctuation that may surround a word in a log line.
fn trimmed(word: &str) -> &str {
    word.trim().trim_start_matches(['(', '[', '"']).trim_end_matches([',', ';', ':', '.', ')', ']', '"'])
}

fn readings(word: &str) -> Result<Vec<Meaning>, String> {
    if let Some(number) = number::parse(word) {
        let readings = number::readings(number);
        let none = || format!("{word} ({number:#x}) is neither a number of DAT 1.2 or 2.0 nor a system error");
        return if readings.is_empty() { Err(none()) } else { Ok(readings) };
    }
    let readings = named(word);
    if readings.is_empty() { Err(unknown(word)) } else { Ok(readings) }
}

/// Returns the meanings of a name. The prefix `DAT_` is optional, and case is ignored, except in names of settings in
/// `ia_params`.
fn named(word: &str) -> Vec<Meaning> {
    let is_it = |name: &str| {
        let short = name.strip_prefix("DAT_").unwrap_or(name);
        name.eq_ignore_ascii_case(word) || short.eq_ignore_ascii_case(word)
    };
    let mut readings: Vec<Meaning> = table::all().iter().filter(|name| is_it(name.name)).flat_map(of_name).collect();
    if let Some((name, number)) = system::by_name(word) {
        readings.push(system::reading(name, number));
    }
    if let VariableClass::Read(table, setting) = look_up(&word.to_ascii_uppercase()) {
        readings.push(of_setting(setting, format!("variable of {}", table.provider), setting.variable));
    }
    for table in dat_settings::ALL {
        let settings = table.settings.iter().filter(|setting| !word.is_empty() && setting.name == word);
        let kind = format!("setting of {} in ia_params", table.provider);
        readings.extend(settings.map(|setting| of_setting(setting, kind.clone(), setting.name)));
    }
    readings
}

fn of_setting(setting: &Setting, kind: String, name: &str) -> Meaning {
    let (allowed, default) = (setting.values.allowed(), setting.values.default());
    Meaning {
        kind,
        name: name.to_owned(),
        meaning: format!("{}; {allowed}; default: {default}", setting.meaning),
        ..Meaning::default()
    }
}

/// Returns one meaning if the name has the same number in both versions, otherwise one meaning per version.
fn of_name(name: &ApiName) -> Vec<Meaning> {
    let mut readings: Vec<Meaning> = Vec::new();
    for (value, version) in name.values.into_iter().zip(["1.2", "2.0"]) {
        let number = match value {
            Value::Absent => continue,
            Value::Present => String::new(),
            Value::Number(number) => format!("{number:#x}"),
        };
        let (kind, meaning) = (name.group.to_owned(), meaning(name));
        let reading = Meaning { kind, name: name.name.to_owned(), number, meaning, ..Meaning::default() };
        add_version(&mut readings, version, reading);
    }
    readings
}

/// The explanation of a name: a text for its group, the text of the manual pages, or both. Empty if there is neither.
fn meaning(name: &ApiName) -> String {
    match name.group {
        "function" => format!("see {}(3)", name.name),
        "DAT_RETURN_TYPE" => match name.number(0).or(name.number(1)) {
            Some(0) | None => "no error".to_owned(),
            Some(number) => {
                let code = format!("with the error bit {:#x}, plus a subtype", number | number::CLASS_ERROR);
                [described(name.name), code].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
            }
        },
        "DAT_RETURN_SUBTYPE" => "the low 16 bits of a return code".to_owned(),
        _ => described(name.name),
    }
}

/// Finds the text about a name in the manual pages: an item `- NAME: text`, over one or more lines.
fn described(name: &str) -> String {
    let begin = format!("- `{name}`: ");
    let found = PAGES.iter().find_map(|page| page.split_once(&begin)).map(|(_, rest)| rest);
    let lines = found.into_iter().flat_map(|rest| {
        let rest = rest.lines().enumerate();
        rest.take_while(|(at, line)| *at == 0 || line.starts_with("  ")).map(|(_, line)| line.trim())
    });
    lines.collect::<Vec<_>>().join(" ").replace('`', "")
}

fn unknown(word: &str) -> String {
    let names = table::all().iter().map(|name| name.name);
    let settings = dat_settings::ALL.iter().flat_map(|table| table.settings);
    let variables = settings.flat_map(|setting| [setting.variable, setting.name]).filter(|name| !name.is_empty());
    let known: Vec<&str> = names.chain(system::names()).chain(variables).collect();
    let is_name = word.len() <= LONGEST && word.bytes().filter(u8::is_ascii_alphabetic).count() >= SHORTEST;
    let mut similar = Vec::new();
    if is_name && !word.starts_with(|first: char| first.is_ascii_digit()) {
        similar = nearest::of(word, known.iter().copied());
        if similar.is_empty() {
            // The user may have omitted the prefix DAT_.
            similar = nearest::of(&format!("DAT_{word}"), known.iter().copied());
        }
    }
    let hint = if similar.is_empty() { "; numbers are written as in C: 0x4005, 16389, -110" } else { "" };
    let (shown, dots) = match word.char_indices().nth(LONGEST) {
        Some((end, _)) => (&word[..end], "..."),
        None => (word, ""),
    };
    format!("\"{}{dots}\" is not a name of DAT{hint}{}", shown.escape_debug(), nearest::suffix(&similar))
}

fn text(word: &str, readings: &[Meaning]) -> String {
    let (minor, major): (Vec<_>, Vec<_>) = readings.iter().partition(|reading| reading.is_minor);
    let mut text = format!("{word}\n");
    for Meaning { kind, name, number, versions, meaning, .. } in major {
        let mut line = name.clone();
        if !number.is_empty() {
            let _ = write!(line, " = {number}");
        }
        let _ = write!(line, " ({kind}{})", if versions.is_empty() { String::new() } else { of_versions(versions) });
        text += &wrapped(&line, 2);
        if !meaning.is_empty() {
            text += &wrapped(meaning, 6);
        }
    }
    if !minor.is_empty() {
        let name = |reading: &&Meaning| match reading.versions.as_slice() {
            [one] => format!("{} (only {one})", reading.name),
            _ => reading.name.clone(),
        };
        text += &wrapped(&format!("also: {}", minor.iter().map(name).collect::<Vec<_>>().join(", ")), 2);
    }
    text
}

fn of_versions(versions: &[&str]) -> String {
    format!(", DAT {}{}", versions.join(" and "), if versions.len() == 1 { " only" } else { "" })
}

fn document(word: &str, result: &Result<Vec<Meaning>, String>) -> Json {
    match result {
        Err(error) => json!({"asked": word, "error": error}),
        Ok(readings) => json!({"asked": word, "readings": readings}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(word: &str) -> String {
        text(word, &readings(word).unwrap()).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn explain_shows_name_number_versions_and_meaning() {
        let event = explained("0x4005");
        assert!(
            event.starts_with("0x4005 DAT_CONNECTION_EVENT_DISCONNECTED = 0x4005 (DAT_EVENT_NUMBER, DAT 1.2 and 2.0) ")
        );
        let status = explained("dto_err_transport");
        let expected = "DAT_DTO_ERR_TRANSPORT = 0x8 (DAT_DTO_COMPLETION_STATUS, DAT 1.2 and 2.0) over verbs: the peer";
        assert!(status.contains(expected), "{status}");
        let code = explained("0x800a0063");
        assert!(code.contains("an error: no usable line of dat.conf has this name"), "{code}");
        let status = explained("DAT_DTO_ERR_LOCAL_PROTECTION");
        assert!(status.ends_with("a segment of a receive or RDMA read lacks the local write privilege."), "{status}");
        assert!(explained("DAT_DTO_ERR_LOCAL_MM_ERROR").contains("(DAT_DTO_COMPLETION_STATUS, DAT 2.0 only)"));
        assert!(explained("dat_ep_connect").contains("see dat_ep_connect(3)"));
        assert!(explained("ETIMEDOUT").contains("ETIMEDOUT = 110 (errno) Connection timed out"));
        assert!(explained("dapl_spin_us").contains("DAPL_SPIN_US (variable of "));
        assert!(
            explained("listener_wait_ms")
                .contains("listener_wait_ms (setting of usnic in ia_params) how long a connect")
        );
        assert!(explained("-110").starts_with("-110 ETIMEDOUT = 110 (errno) Connection timed out"));
        assert_eq!(readings(trimmed("(DAT_DTO_ERR_REMOTE_ACCESS):")), readings("DAT_DTO_ERR_REMOTE_ACCESS"));
        assert!(explained("DAT_NOT_IMPLEMENTED").contains("0xffff0000 (DAT_RETURN_TYPE, DAT 1.2 only)"));
    }

    #[test]
    fn similar_names_are_proposed_for_an_unknown_name() {
        assert!(unknown("DTO_ERR_TRANSPRT").contains("similar: DAT_DTO_ERR_TRANSPORT"));
        assert!(unknown("DAT_CONNECTION_EVENT_TIMEOUT").contains("similar: DAT_CONNECTION_EVENT_TIMED_OUT"));
        assert!(unknown("zzzzzz").contains("numbers are written as in C"));
        for nonsense in ["", "-", "0x", "1e3", "+5", "a b", &"A".repeat(5000)] {
            let error = unknown(nonsense);
            assert!(
                error.ends_with("is not a name of DAT; numbers are written as in C: 0x4005, 16389, -110"),
                "{error}"
            );
            assert!(error.len() < 160, "{error}");
        }
        assert!(readings("0x123456789").is_err_and(|error| error.contains("is neither a number of DAT")));
    }

    #[test]
    fn every_event_and_dto_status_of_1_2_has_a_meaning() {
        let events =
            table::all().iter().filter(|name| matches!(name.group, "DAT_EVENT_NUMBER" | "DAT_DTO_COMPLETION_STATUS"));
        let mute: Vec<_> = events
            .filter(|name| name.number(0).is_some() && described(name.name).is_empty())
            .map(|name| name.name)
            .collect();
        assert!(mute.is_empty(), "{mute:?}");
    }
}
