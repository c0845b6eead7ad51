//! The functional test: one case after the other, each with calls and their expected results. Needs no server: cases
//! that need a peer connect two endpoints of this process.
//!
//! The conformance suite covers far more; this test needs only a libdat and an adapter.
#![forbid(unsafe_code)]

mod connecting;
mod events;
mod memory;
mod objects;
mod pair;

use serde_json::json;

use crate::common::Common;
use crate::dat::raw::{CallResult, Refusal};
use crate::failure::{Failure, Result};
use crate::report::Report;
use crate::stop;
use dat_abi::*;

/// A case: name and function.
type Case = (&'static str, fn(&Common) -> Result);

/// Groups of cases, by name.
const GROUPS: [(&str, &[Case]); 8] = [
    ("hwconn", objects::ADAPTER),
    ("pz", objects::ZONE),
    ("endpoint", objects::ENDPOINT),
    ("queryinfo", objects::QUERIES),
    ("event", events::CASES),
    ("mem", memory::CASES),
    ("connmgt", connecting::CASES),
    ("dataxfer", pair::CASES),
];

/// A selected group, or a selected case of a group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Choice {
    group: &'static str,
    number: Option<usize>,
}

impl Choice {
    /// Parses a group such as `pz`, or a case such as `pz:2`.
    pub(crate) fn parse(word: &str) -> std::result::Result<Self, String> {
        let (name, number) = word.split_once(':').map_or((word, None), |(name, number)| (name, Some(number)));
        let wrong = || format!("unknown case {word}; list the cases: dapltest -T F --list");
        let (group, cases) = GROUPS.iter().find(|(group, _)| *group == name).ok_or_else(wrong)?;
        let number = number.map(|number| number.parse().map_err(|_| wrong())).transpose()?;
        match number {
            Some(number) if number == 0 || number > cases.len() => Err(wrong()),
            number => Ok(Choice { group, number }),
        }
    }

    fn has(&self, group: &str, number: usize) -> bool {
        self.group == group && self.number.is_none_or(|wanted| wanted == number)
    }
}

/// Prints the cases (`-T F --list`).
pub(crate) fn list() {
    for (group, cases) in GROUPS {
        for (at, (name, _)) in cases.iter().enumerate() {
            println!("{group}:{:<3} {name}", at + 1);
        }
    }
}

/// Runs the selected cases (`-T F`).
pub(crate) fn run(common: &Common, choices: &[Choice], is_verbose: bool) -> Result<Report> {
    let mut report = Report::new("functional", common);
    let (mut passed, mut results) = (0, Vec::new());
    for (group, cases) in GROUPS {
        for (at, (name, case)) in cases.iter().enumerate() {
            if !choices.is_empty() && !choices.iter().any(|choice| choice.has(group, at + 1)) {
                continue;
            }
            stop::check()?;
            let title = format!("{group}:{} {name}", at + 1);
            if common.debug > 0 {
                eprintln!("dapltest: {title}");
            }
            let error = match case(common) {
                Ok(()) => None,
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => Some(failure.to_string()),
            };
            let is_good = error.is_none();
            results.push(json!({"case": title, "ok": is_good, "error": error}));
            match error {
                None => passed += 1,
                Some(reason) => report.fail(format!("{title}: {reason}")),
            }
            if is_verbose {
                report.line(format!("{title}: {}", if is_good { "ok" } else { "FAILED" }));
            }
        }
    }
    report.line(format!("functional test on {}: {passed} of {} cases passed", common.device, results.len()));
    report.put("passed", json!(passed));
    report.put("cases", json!(results));
    Ok(report)
}

/// Checks that a call was refused with this type, and with this subtype unless it is `DAT_NO_SUBTYPE`.
fn refused<T: std::fmt::Debug>(answer: CallResult<T>, kind: DAT_RETURN_TYPE, subtype: DAT_RETURN_SUBTYPE) -> Result {
    let wanted = DAT_CLASS_ERROR | kind | subtype;
    match answer {
        Err(refusal) if refusal.kind() == kind && [refusal.subtype(), DAT_NO_SUBTYPE].contains(&subtype) => Ok(()),
        Err(Refusal { call, code }) => {
            let (found, wanted) = (crate::dat::raw::words(code), crate::dat::raw::words(wanted));
            Failure::with_message(format!("{call} returned {found}, expected {wanted}"))
        }
        Ok(value) => Failure::with_message(format!(
            "a call succeeded and returned {value:?}, expected {}",
            crate::dat::raw::words(wanted)
        )),
    }
}

/// Fails with the reason `otherwise` unless the condition holds.
fn ensure(is_so: bool, otherwise: &str) -> Result {
    if is_so { Ok(()) } else { Failure::with_message(otherwise) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functional_cases_are_chosen_by_group_or_number() {
        assert_eq!(Choice::parse("pz"), Ok(Choice { group: "pz", number: None }));
        let one = Choice::parse("mem:2").unwrap();
        assert!(one.has("mem", 2) && !one.has("mem", 1) && !one.has("pz", 2));
        for word in ["", "pzz", "pz:", "pz:0", "pz:999", "pz:x", "pz:1:2"] {
            assert!(Choice::parse(word).is_err(), "{word}");
        }
    }

    #[test]
    fn no_functional_case_name_occurs_twice() {
        let names: Vec<&str> = GROUPS.iter().flat_map(|(_, cases)| cases.iter().map(|(name, _)| *name)).collect();
        assert!(names.len() >= 40, "{}", names.len());
        let unique: std::collections::BTreeSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }
}
