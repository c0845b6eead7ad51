//! The names of DAT with their values in both versions of the API, from `names.txt`.
//!
//! Each line of that file is a group (an enumeration, or `macro`, `function`, `type`), a name, and its value in DAT 1.2
//! and in DAT 2.0: a number, `yes` for a name without a number, `-` for a name that this version lacks. A test compares
//! the file with the ABI.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

static TEXT: &str = include_str!("names.txt");

/// The definition of a name in a version of the API.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Value {
    /// The version does not define the name.
    Absent,
    /// Defined without a number: a function or a type.
    Present,
    Number(u64),
}

/// A name of the API, its group, and its definition in each version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiName {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    /// The values in DAT 1.2 and in DAT 2.0.
    pub(crate) values: [Value; 2],
}

impl ApiName {
    /// The number of the name, if it has one, in DAT 1.2 (`version` 0) or in DAT 2.0 (1).
    pub(crate) fn number(&self, version: usize) -> Option<u64> {
        match self.values[version] {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }
}

/// All names, in the order of the file.
pub(crate) fn all() -> &'static [ApiName] {
    static ALL: OnceLock<Vec<ApiName>> = OnceLock::new();
    ALL.get_or_init(|| TEXT.lines().filter_map(name).collect())
}

fn name(line: &'static str) -> Option<ApiName> {
    let mut words = line.split(' ');
    let (group, name) = (words.next()?, words.next()?);
    Some(ApiName { group, name, values: [value(words.next()?)?, value(words.next()?)?] })
}

fn value(text: &str) -> Option<Value> {
    match text {
        "-" => Some(Value::Absent),
        "yes" => Some(Value::Present),
        number => u64::from_str_radix(number.strip_prefix("0x")?, 16).ok().map(Value::Number),
    }
}

/// Name of a value of an enumeration in DAT 1.2; the number in hexadecimal if the value has no name.
pub(crate) fn name_of(group: &str, value: u64) -> String {
    let found = all().iter().find(|name| name.group == group && name.number(0) == Some(value));
    found.map_or_else(|| format!("{value:#x}"), |found| found.name.to_owned())
}

/// Names of the bits of a mask in DAT 1.2; the whole mask in hexadecimal if any bit has no name.
pub(crate) fn names_of(group: &str, mask: u64) -> String {
    names_in(group, mask, 0).unwrap_or_else(|| format!("{mask:#x}"))
}

/// Names the bits of a mask in DAT 1.2 (`version` 0) or in DAT 2.0 (1); `None` if a bit has no name.
pub(crate) fn names_in(group: &str, mask: u64, version: usize) -> Option<String> {
    let numbers =
        || all().iter().filter(|name| name.group == group).filter_map(|name| Some((name.number(version)?, name)));
    if mask == 0 {
        return numbers().find(|(number, _)| *number == 0).map(|(_, name)| name.name.to_owned());
    }
    let bits: Vec<_> = numbers().filter(|(number, _)| number.is_power_of_two() && mask & number != 0).collect();
    let known = bits.iter().fold(0, |known, (number, _)| known | number);
    (known == mask).then(|| bits.iter().map(|(_, name)| name.name).collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_explain_table_parses() {
        assert_eq!(all().len(), TEXT.lines().count());
        assert!(all().iter().all(|name| name.values != [Value::Absent; 2]));
    }

    #[test]
    fn explain_table_has_exactly_the_constants_of_the_abi() {
        for (version, file) in ["dat-1.2.json", "dat-2.0.json"].into_iter().enumerate() {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/abi").join(file);
            let abi: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let mut count = 0;
            for group in abi["enums"].as_array().unwrap() {
                for constant in group["constants"].as_array().unwrap() {
                    let (name, value) = (constant["name"].as_str().unwrap(), constant["value"].as_i64().unwrap());
                    let known = all().iter().find(|known| known.group == group["typedef"] && known.name == name);
                    assert_eq!(known.and_then(|known| known.number(version)), Some(value as u64), "{file}: {name}");
                    count += 1;
                }
            }
            assert!(count > 250, "{count}");
            let mine = all().iter().filter(|name| name.group.starts_with("DAT_") && name.number(version).is_some());
            assert_eq!(mine.count(), count, "{file}: a constant that the ABI does not have");
        }
    }

    #[test]
    fn values_and_bit_masks_are_shown_by_name_or_as_a_number() {
        assert_eq!(name_of("DAT_IOV_OWNERSHIP", 1), "DAT_IOV_PROVIDER_NOMOD");
        assert_eq!(name_of("DAT_IOV_OWNERSHIP", 9), "0x9");
        assert_eq!(names_of("DAT_QOS", 0), "DAT_QOS_BEST_EFFORT");
        assert_eq!(names_of("DAT_QOS", 5), "DAT_QOS_HIGH_THROUGHPUT | DAT_QOS_ECONOMY");
        assert_eq!(names_of("DAT_QOS", 0x105), "0x105");
    }
}
