//! The meanings of a number: as a return code, a value of an enumeration, a combination of flags, a system error.
#![forbid(unsafe_code)]

use super::table::{self, ApiName};
use super::{Meaning, add_version, described, meaning, of_name, system};

/// Bits of a `DAT_RETURN` (`dat_error.h`).
pub(super) const CLASS_ERROR: u64 = 0x8000_0000;
const CLASS_WARNING: u64 = 0x4000_0000;
const TYPE_MASK: u64 = 0x3fff_0000;
const SUBTYPE_MASK: u64 = 0xffff;

/// Enumerations whose meanings are listed before those of all others, because logs often contain their values as plain
/// numbers.
const FIRST: [&str; 4] = ["DAT_EVENT_NUMBER", "DAT_DTO_COMPLETION_STATUS", "DAT_IB_EVENT_NUMBER", "DAT_EP_STATE"];

/// Parses a decimal or hexadecimal number. It may be negative, as `%d` prints a `DAT_RETURN`.
pub(super) fn parse(word: &str) -> Option<u64> {
    let (is_negative, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) if hexadecimal.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(hexadecimal, 16).ok()?
        }
        _ if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        _ => return None,
    };
    match is_negative {
        true => Some(u64::from(u32::try_from(number).ok()?.wrapping_neg())),
        false => Some(number),
    }
}

pub(super) fn readings(number: u64) -> Vec<Meaning> {
    let mut readings = return_codes(number);
    let names = || table::all().iter().filter(|name| is_value(name, number));
    readings.extend(
        FIRST
            .iter()
            .flat_map(|first| names().filter(|name| name.group == *first))
            .flat_map(|name| of_name(name).into_iter().filter(|reading| reading.number == format!("{number:#x}"))),
    );
    let errno = if number > 0x8000_0000 { (number as u32).wrapping_neg() } else { number as u32 };
    if number <= u64::from(u32::MAX)
        && let Some(name) = system::by_number(errno)
    {
        // A negative number such as -110 is more likely a system error than a return code, so that meaning comes first.
        let at = if number > 0x8000_0000 { 0 } else { readings.len() };
        readings.insert(at, system::reading(name, errno));
    }
    readings.extend(combined(number));
    let others = names().filter(|name| !FIRST.contains(&name.group));
    readings.extend(others.map(|name| Meaning {
        kind: name.group.to_owned(),
        name: name.name.to_owned(),
        number: format!("{number:#x}"),
        versions: versions(|version| name.number(version) == Some(number)),
        meaning: meaning(name),
        is_minor: true,
    }));
    readings
}

/// Whether a name has this value in any version. Excludes types of return codes, which `return_codes` explains.
fn is_value(name: &ApiName, number: u64) -> bool {
    name.group != "DAT_RETURN_TYPE" && (0..2).any(|version| name.number(version) == Some(number))
}

fn versions(has: impl Fn(usize) -> bool) -> Vec<&'static str> {
    [(0, "1.2"), (1, "2.0")].into_iter().filter(|(version, _)| has(*version)).map(|(_, name)| name).collect()
}

/// The meanings of a number as a return code: one if both versions agree, otherwise one per version.
fn return_codes(number: u64) -> Vec<Meaning> {
    let mut readings: Vec<Meaning> = Vec::new();
    for (version, name) in ["1.2", "2.0"].into_iter().enumerate() {
        let Some((words, meaning)) = return_code(number, version) else { continue };
        let (kind, number) = ("return code".to_owned(), format!("{number:#x}"));
        add_version(&mut readings, name, Meaning { kind, name: words, number, meaning, ..Meaning::default() });
    }
    readings
}

fn return_code(number: u64, version: usize) -> Option<(String, String)> {
    if number > u64::from(u32::MAX) {
        return None;
    }
    let (kind, subtype) = (number & TYPE_MASK, number & SUBTYPE_MASK);
    if number == 0 {
        return Some(("DAT_SUCCESS".to_owned(), String::new()));
    }
    let find = |group: &str, wanted: u64, mask: u64| {
        let mut names = table::all().iter().filter(|name| name.group == group);
        names.find(|name| name.number(version).is_some_and(|number| number & mask == wanted)).map(|name| name.name)
    };
    let kind = find("DAT_RETURN_TYPE", kind, TYPE_MASK).filter(|_| kind != 0)?;
    let class = match number & (CLASS_ERROR | CLASS_WARNING) {
        CLASS_ERROR => "an error",
        CLASS_WARNING => "a warning",
        0 => "the type without its class bit 0x80000000",
        _ => "an error",
    };
    let about = described(kind);
    let meaning = if about.is_empty() { class.to_owned() } else { format!("{class}: {about}") };
    let subtype = match subtype {
        0 => return Some((kind.to_owned(), meaning)),
        subtype => find("DAT_RETURN_SUBTYPE", subtype, SUBTYPE_MASK)
            .map_or(format!("unknown subtype {subtype:#x}"), str::to_owned),
    };
    Some((format!("{kind} {subtype}"), meaning))
}

/// The meanings of a number as a combination of flags.
fn combined(number: u64) -> Vec<Meaning> {
    let mut readings = Vec::new();
    if number.count_ones() < 2 {
        return readings;
    }
    let mut groups: Vec<&str> = table::all().iter().map(|name| name.group).collect();
    groups.dedup();
    let is_flags = |group: &&str| group.ends_with("_FLAGS") || *group == "DAT_QOS" || *group == "DAT_EVD_STATE";
    for group in groups.into_iter().filter(is_flags) {
        let names = [0, 1].map(|version| table::names_in(group, number, version));
        let Some(name) = names[0].clone().or_else(|| names[1].clone()) else { continue };
        readings.push(Meaning {
            kind: group.to_owned(),
            versions: versions(|version| names[version].as_ref() == Some(&name)),
            number: format!("{number:#x}"),
            meaning: described(&name),
            name,
            is_minor: true,
        });
    }
    readings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(number: u64) -> Vec<(String, Vec<&'static str>)> {
        readings(number).into_iter().map(|reading| (reading.name, reading.versions)).collect()
    }

    #[test]
    fn explain_parses_numbers_in_c_notation() {
        assert_eq!(["0x4005", "16389", "0X4005", "0"].map(parse), [Some(0x4005), Some(0x4005), Some(0x4005), Some(0)]);
        assert_eq!((parse("-2146828288"), parse("-110")), (Some(0x800a_0000), Some(0xffff_ff92)));
        assert_eq!(["", "-", "0x", "x", "1.2", "0xg", "99999999999999999999", "+1"].map(parse), [None; 8]);
    }

    #[test]
    fn return_codes_are_named_by_type_and_subtype_in_each_version() {
        let both = vec!["1.2", "2.0"];
        assert_eq!(found(0x800a_0000)[0], ("DAT_PROVIDER_NOT_FOUND".to_owned(), both));
        assert_eq!(return_code(0x800a_0063, 0).unwrap().0, "DAT_PROVIDER_NOT_FOUND DAT_MAJOR_NOT_FOUND");
        assert_eq!(return_code(0x8016_0000, 0), None);
        assert_eq!(return_code(0x8016_0000, 1).unwrap().0, "DAT_PORT_IN_USE");
        assert_eq!(return_code(0xffff_0000, 0).unwrap().0, "DAT_NOT_IMPLEMENTED");
        assert_eq!(return_code(0x8003_7fff, 0).unwrap().0, "DAT_INSUFFICIENT_RESOURCES unknown subtype 0x7fff");
    }

    #[test]
    fn negative_number_is_explained_as_errno() {
        assert!(found(parse("-110").unwrap()).contains(&("ETIMEDOUT".to_owned(), vec![])));
    }

    #[test]
    fn a_combination_of_flags_is_named_by_each_flag() {
        let name = "DAT_COMPLETION_SUPPRESS_FLAG | DAT_COMPLETION_SOLICITED_WAIT_FLAG".to_owned();
        assert!(found(3).contains(&(name, vec!["1.2", "2.0"])), "{:?}", found(3));
    }

    #[test]
    fn every_number_of_the_table_is_explained() {
        for name in table::all() {
            for number in (0..2).filter_map(|version| name.number(version)) {
                assert!(!readings(number).is_empty(), "{name:?}");
            }
        }
    }
}
