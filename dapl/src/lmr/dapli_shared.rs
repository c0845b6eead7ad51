//! Whether memory is shared with other processes, as the kernel's list of mappings says.
//!
//! Only LMRs of type SHARED_VIRTUAL ask. Judges what it can see: memory that is not mapped is the provider's to refuse, and
//! without a list of mappings nothing is refused.
#![forbid(unsafe_code)]

use crate::provider::Region;

/// No part of it is in a private mapping of this process.
pub(super) fn may_be_shared(region: Region) -> bool {
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => is_shared(&maps, region),
        Err(error) => {
            log::debug!("cannot tell whether memory is shared: /proc/self/maps: {error}");
            true
        }
    }
}

/// Lines are `begin-end rights offset device inode path`; the fourth of the rights is `s` or `p`.
fn is_shared(maps: &str, region: Region) -> bool {
    let end = region.address.saturating_add(region.length);
    maps.lines().filter_map(mapping).all(|(from, to, shared)| shared || to <= region.address || from >= end)
}

fn mapping(line: &str) -> Option<(u64, u64, bool)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, words.next()?.as_bytes().get(3) == Some(&b's')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:01 123 /usr/bin/program
2000-4000 rw-s 00000000 00:1b 7 /dev/shm/a name with - and s (deleted)
4000-5000 rw-s 00000000 00:01 9 /dev/zero (deleted)
7ffc0000-7ffe1000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn every_mapping_of_a_range_counts() {
        let at = |address, length| is_shared(MAPS, Region { address, length });
        assert!(at(0x2000, 0x3000) && at(0x2fff, 1) && at(0x4fff, 1));
        assert!(!at(0x1fff, 2) && !at(0x1000, 0x4000) && !at(0x7ffd0000, 8));
        assert!(at(0x5000, 8), "what is not there is refused elsewhere");
        assert!(at(u64::MAX, u64::MAX));
        assert!(is_shared("nonsense\n\n", Region { address: 0, length: 1 }));
    }

    #[test]
    fn a_box_is_not_shared() {
        let private = Box::new([0u8; 64]);
        assert!(!may_be_shared(Region { address: private.as_ptr() as u64, length: 64 }));
    }
}
