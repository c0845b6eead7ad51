//! Parses the sizes and durations of a performance test, such as `64,4K,1M`, `1..1M` and `10s`.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::operation::MAX_BYTES;

/// Maximum number of sizes in one test run.
const MAX_SIZES: usize = 256;
/// Maximum duration: a longer one is probably a mistake.
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
const MIN_TIME: Duration = Duration::from_millis(1);

/// When a measurement ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Extent {
    /// After this many operations.
    Operations(u32),
    /// When an operation completes after this time, no further operation starts. The measurement ends when those in
    /// flight have completed.
    Time(Duration),
}

impl Extent {
    /// Fails if the number of operations is 0, or the time is not from 1 ms to 24 h. Also applied to a peer's values.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Extent::Operations(0) => Err("-i 0: at least 1 iteration is needed".to_owned()),
            Extent::Operations(_) => Ok(()),
            Extent::Time(time) if (MIN_TIME..=MAX_TIME).contains(&time) => Ok(()),
            Extent::Time(time) => Err(format!("--duration {time:?}: a duration is 1ms to 24h")),
        }
    }
}

impl std::fmt::Display for Extent {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Extent::Operations(count) => write!(out, "{count} times"),
            Extent::Time(time) => write!(out, "for {time:?}"),
        }
    }
}

/// Parses sizes in bytes: a comma-separated list of sizes and ranges. A range such as `1..1M` contains its first size,
/// each doubling of this size below the last size, and its last size.
pub(crate) fn sizes(text: &str) -> Result<Vec<u32>, String> {
    let wrong = |reason: String| format!("--sizes {text}: {reason}");
    let mut found = Vec::new();
    for item in text.split(',') {
        match item.split_once("..") {
            None => found.push(size(item).map_err(wrong)?),
            Some((first, last)) => {
                let (low, high) = (size(first).map_err(wrong)?, size(last).map_err(wrong)?);
                if low > high {
                    return Err(wrong(format!("the range is reversed, {low} bytes are more than {high}")));
                }
                found.extend(
                    std::iter::successors(Some(low), |size| size.checked_mul(2)).take_while(|size| *size < high),
                );
                found.push(high);
            }
        }
    }
    if found.len() > MAX_SIZES {
        return Err(wrong(format!("{} sizes are more than {MAX_SIZES}", found.len())));
    }
    Ok(found)
}

/// Parses one size: digits, and K, M or G for powers of 1024.
fn size(text: &str) -> Result<u32, String> {
    let (digits, unit) = split(text);
    let factor = match unit.to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err(format!("\"{text}\" is not a size; write digits, optionally followed by K, M or G")),
    };
    let number: u64 = match digits.parse() {
        Ok(number) => number,
        Err(_) if digits.is_empty() => {
            return Err(format!("\"{text}\" is not a size; write digits, optionally followed by K, M or G"));
        }
        Err(_) => u64::MAX,
    };
    match number.checked_mul(factor).and_then(|bytes| u32::try_from(bytes).ok()) {
        Some(bytes) if (1..=MAX_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err(format!("the size {text} is outside of 1 to {MAX_BYTES} bytes (1G)")),
    }
}

/// Parses a duration: digits with the unit ms, s, m or h. Without a unit: seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split(text);
    let wrong = || format!("--duration {text}: a duration is 1ms to 24h, in ms, s, m or h, such as 10s");
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let time = number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(wrong)?;
    if (MIN_TIME..=MAX_TIME).contains(&time) { Ok(time) } else { Err(wrong()) }
}

/// Splits a text into its leading digits and the rest.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_range_doubles_and_ends_with_its_last_size() {
        let all = sizes("1..1M").unwrap();
        assert_eq!((all.len(), all[0], all[20]), (21, 1, 1 << 20));
        assert!(all.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{all:?}");
        assert_eq!(sizes("3..20").unwrap(), [3, 6, 12, 20]);
        assert_eq!(sizes("8..8").unwrap(), [8]);
        assert_eq!(sizes("512M..1G").unwrap(), [512 << 20, 1 << 30]);
    }

    #[test]
    fn list_of_sizes_keeps_its_order() {
        assert_eq!(sizes("4k,64,1..4,1M").unwrap(), [4096, 64, 1, 2, 4, 1 << 20]);
    }

    #[test]
    fn invalid_sizes_are_refused_with_the_reason() {
        for (text, reason) in [
            ("0", "is outside of 1 to"),
            ("0..8", "is outside of 1 to"),
            ("2G", "the size 2G is outside of 1 to 1073741824 bytes (1G)"),
            ("1..4294967296", "is outside of 1 to"),
            ("99999999999999999999999", "is outside of 1 to"),
            ("1M..1", "the range is reversed, 1048576 bytes are more than 1"),
            ("", "\"\" is not a size"),
            ("8,,16", "\"\" is not a size"),
            ("1..", "\"\" is not a size"),
            ("..8", "\"\" is not a size"),
            ("1...8", "\".8\" is not a size"),
            ("8x", "\"8x\" is not a size"),
            ("-8", "\"-8\" is not a size"),
            ("1.5K", "\"1.5K\" is not a size"),
            (&"1..1G,".repeat(9)[..53], "279 sizes are more than 256"),
        ] {
            let refused = sizes(text).unwrap_err();
            assert!(refused.starts_with("--sizes ") && refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn durations_are_parsed_with_their_units() {
        let read = ["10s", "10", "500ms", "2m", "24h"].map(|text| duration(text).unwrap().as_millis());
        assert_eq!(read, [10_000, 10_000, 500, 120_000, 86_400_000]);
        for text in ["0", "0s", "0ms", "25h", "", "s", "1.5s", "-1s", "10 s", "1d", "99999999999999999999s"] {
            let refused = duration(text).unwrap_err();
            assert!(refused.starts_with("--duration ") && refused.contains("1ms to 24h"), "{text}: {refused}");
        }
    }

    #[test]
    fn test_extent_of_zero_or_above_the_maximum_time_is_refused() {
        for (extent, option) in [
            (Extent::Operations(0), "-i "),
            (Extent::Time(Duration::ZERO), "--duration "),
            (Extent::Time(MAX_TIME + MIN_TIME), "--duration "),
        ] {
            let refused = extent.check().unwrap_err();
            assert!(refused.starts_with(option), "{extent:?}: {refused}");
        }
        assert_eq!(Extent::Time(Duration::from_secs(10)).to_string(), "for 10s");
    }
}
