//! Looks up memory in `/proc/self/maps`: whether it is mapped, with which rights, whether it is shared, and which file
//! backs it.
//!
//! Reading `/proc/self/maps` takes time proportional to the number of mappings. The memory itself is not touched. If
//! the file cannot be read, [`lookup`] returns `Unknown` and [`backing_file`] returns `None`.
#![forbid(unsafe_code)]

use crate::provider::Region;

/// Rights that every page of a region must have.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PageRights {
    pub read: bool,
    pub write: bool,
    /// The mapping must be shared (`MAP_SHARED`), so that other processes can map the same memory.
    pub shared: bool,
}

/// Whether a region is mapped with the requested rights.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MappingLookup {
    /// Every page is mapped and has the rights.
    Permitted,
    /// Part of the region is not mapped.
    Unmapped,
    /// Every page is mapped, but some pages lack a right.
    Forbidden,
    /// `/proc/self/maps` cannot be read.
    Unknown,
}

/// Finds out whether all pages of a region are mapped with these rights.
pub fn lookup(region: Region, rights: PageRights) -> MappingLookup {
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => lookup_in(&maps, region, rights),
        Err(error) => {
            log::debug!("cannot read /proc/self/maps: {error}; memory rights are not checked");
            MappingLookup::Unknown
        }
    }
}

/// The file that backs a region of a shared mapping.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BackingFile {
    /// Device of the file system: major and minor.
    pub device: (u32, u32),
    /// Inode number; for a System V segment, its id.
    pub inode: u64,
    /// Offset of the region in the file.
    pub offset: u64,
    /// Path in /proc/self/maps, up to the first space.
    pub name: String,
}

/// Finds the file that backs a region, if the whole region is one contiguous part of one file, mapped as shared.
/// Returns `None` for an empty region.
pub fn backing_file(region: Region) -> Option<BackingFile> {
    backing_file_in(&std::fs::read_to_string("/proc/self/maps").ok()?, region)
}

/// Searches the text `maps`. A mapping whose parts have different rights or advice appears as several adjacent lines.
fn backing_file_in(maps: &str, region: Region) -> Option<BackingFile> {
    let end = region.address.checked_add(region.length)?;
    let mut found: Option<BackingFile> = None;
    let mut at = region.address;
    for line in maps.lines() {
        let Some((from, to, rights)) = mapping(line).filter(|(_, to, _)| *to > at) else { continue };
        if from > at || at >= end {
            break;
        }
        // A mapping without a file has inode 0, but so has the first System V segment of an IPC namespace. Only the
        // former has device 0:0.
        let mut piece = file(line).filter(|piece| rights.shared && piece.device != (0, 0))?;
        piece.offset = piece.offset.checked_add(at - from)?;
        match &found {
            None => found = Some(piece),
            Some(first) => {
                first.offset.checked_add(at - region.address).filter(|offset| *offset == piece.offset)?;
                if (first.device, first.inode) != (piece.device, piece.inode) {
                    return None;
                }
            }
        }
        at = to;
    }
    found.filter(|_| at >= end)
}

/// Parses device, inode, offset and path of the file in one line of `/proc/self/maps`.
fn file(line: &str) -> Option<BackingFile> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = words.next()?.parse().ok()?;
    Some(BackingFile { device, inode, offset, name: words.next().unwrap_or_default().to_owned() })
}

/// Checks a region against lines of the form `begin-end rights offset device inode path`, which are sorted by address;
/// rights are like `rw-s`.
fn lookup_in(maps: &str, region: Region, rights: PageRights) -> MappingLookup {
    let end = region.address.saturating_add(region.length);
    let (mut at, mut lacks) = (region.address, false);
    for (from, to, has) in maps.lines().filter_map(mapping) {
        if to <= at {
            continue;
        }
        if from > at || at >= end {
            break;
        }
        lacks |= (rights.read && !has.read) || (rights.write && !has.write) || (rights.shared && !has.shared);
        at = to;
    }
    match (at >= end, lacks) {
        (false, _) => MappingLookup::Unmapped,
        (true, true) => MappingLookup::Forbidden,
        (true, false) => MappingLookup::Permitted,
    }
}

fn mapping(line: &str) -> Option<(u64, u64, PageRights)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let rights = words.next()?.as_bytes();
    let has = |place: usize, letter| rights.get(place) == Some(&letter);
    Some((number(from)?, number(to)?, PageRights { read: has(0, b'r'), write: has(1, b'w'), shared: has(3, b's') }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:01 123 /usr/bin/program
2000-4000 rw-s 00000000 00:1b 7 /dev/shm/a name with - and s (deleted)
4000-5000 rw-s 00000000 00:01 9 /dev/zero (deleted)
6000-7000 ---p 00000000 00:00 0
7ffc0000-7ffe1000 rw-p 00000000 00:00 0 [stack]
";

    fn at(address: u64, length: u64, rights: PageRights) -> MappingLookup {
        lookup_in(MAPS, Region { address, length }, rights)
    }

    #[test]
    fn every_mapping_of_a_region_is_checked() {
        let shared = PageRights { shared: true, ..PageRights::default() };
        assert_eq!(
            [at(0x2000, 0x3000, shared), at(0x2fff, 1, shared), at(0x4fff, 1, shared)],
            [MappingLookup::Permitted; 3]
        );
        assert_eq!(
            [at(0x1fff, 2, shared), at(0x1000, 0x4000, shared), at(0x7ffd_0000, 8, shared)],
            [MappingLookup::Forbidden; 3]
        );
        let write = PageRights { write: true, ..PageRights::default() };
        assert_eq!([at(0x1000, 1, write), at(0x1fff, 2, write), at(0x6000, 1, write)], [MappingLookup::Forbidden; 3]);
        assert_eq!([at(0x2000, 0x3000, write), at(0x7ffc_0000, 0x21000, write)], [MappingLookup::Permitted; 2]);
        let read = PageRights { read: true, ..PageRights::default() };
        assert_eq!(
            (at(0x1000, 0x4000, read), at(0x6000, 0x1000, read)),
            (MappingLookup::Permitted, MappingLookup::Forbidden)
        );
    }

    #[test]
    fn unmapped_part_of_a_region_is_detected() {
        let any = PageRights::default();
        assert_eq!([at(0x5000, 8, any), at(0x4fff, 2, any), at(0, 8, any)], [MappingLookup::Unmapped; 3]);
        assert_eq!(lookup_in("nonsense\n\n", Region { address: 0, length: 1 }, any), MappingLookup::Unmapped);
    }

    #[test]
    fn backing_file_is_found_only_for_a_contiguous_range_of_one_file() {
        let maps = "\
1000-3000 rw-s 00002000 00:01 5 /memfd:a (deleted)
3000-4000 r--s 00004000 00:01 5 /memfd:a (deleted)
4000-5000 rw-s 00005000 00:01 6 /memfd:b (deleted)
5000-6000 rw-s 00000000 00:01 6 /memfd:b (deleted)
6000-7000 rw-p 00001000 00:01 6 /memfd:b (deleted)
8000-9000 rw-s 00000000 00:1f 32769 /SYSV00000000 (deleted)
9000-a000 rw-p 00000000 00:00 0
b000-c000 rw-s 00000000 00:1f 0 /SYSV00000000 (deleted)
c000-d000 rw-s 00000000 00:00 0
";
        let found = |address, length| {
            backing_file_in(maps, Region { address, length }).map(|found| (found.inode, found.offset, found.name))
        };
        assert_eq!(found(0x1010, 0x2ff0), Some((5, 0x2010, "/memfd:a".into())), "two adjacent lines");
        assert_eq!(found(0x8ff0, 16), Some((32769, 0xff0, "/SYSV00000000".into())));
        assert_eq!([found(0x3000, 0x1001), found(0x4000, 0x2000)], [None, None], "another file, another offset");
        assert_eq!([found(0x6000, 8), found(0x9000, 8)], [None, None], "private");
        assert_eq!([found(0x7ff0, 32), found(0x8000, 0x1001), found(0x8ff0, u64::MAX)], [None, None, None]);
        assert_eq!([found(0, 8), found(0x1000, 0)], [None, None]);
        assert_eq!(found(0xb000, 8), Some((0, 0, "/SYSV00000000".into())), "the first segment of a namespace");
        assert_eq!(found(0xc000, 8), None, "shared memory without a file");
        let device = backing_file_in(maps, Region { address: 0x8000, length: 1 }).map(|found| found.device);
        assert_eq!(device, Some((0, 0x1f)));
    }

    #[test]
    fn heap_memory_is_private_and_writable() {
        let private = Box::new([0u8; 64]);
        let region = Region { address: private.as_ptr() as u64, length: 64 };
        assert_eq!(lookup(region, PageRights { read: true, write: true, shared: false }), MappingLookup::Permitted);
        assert_eq!(lookup(region, PageRights { shared: true, ..PageRights::default() }), MappingLookup::Forbidden);
    }
}
