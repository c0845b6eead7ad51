//! Registered memory: keys with their rights, and copies between registrations.

use std::collections::BTreeMap;

use crate::memory::rights::{AccessRight, KeyEntry, LOCAL, word};
use crate::memory::user_copy::{self, MappingChecker, RegisteredRange};
use dapl::provider::{Access, Region, Remote, Segment, Status};

/// Maximum number of bytes copied at once, through a buffer of this size.
const CHUNK: usize = 64 << 10;

/// Registrations by key. The local and the remote key of a registration are the same.
#[derive(Default)]
pub(super) struct Registrations {
    entries: BTreeMap<u32, KeyEntry>,
    last_key: u32,
}

/// The side of a copy whose memory is no longer accessible.
pub(super) enum Inaccessible {
    Source,
    Target,
}

impl Registrations {
    /// Adds a registration and returns its key. A key is reused only after about 2^32 other keys.
    pub(super) fn add(&mut self, pd: u32, region: Region, access: Access) -> u32 {
        loop {
            self.last_key = self.last_key.wrapping_add(1).max(1);
            if let std::collections::btree_map::Entry::Vacant(entry) = self.entries.entry(self.last_key) {
                entry.insert(KeyEntry { region, word: word(access, pd, LOCAL) });
                return self.last_key;
            }
        }
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.entries.remove(&key);
    }

    /// Checks local segments, and returns their memory without empty segments. Errors: `LocalProtection`.
    pub(super) fn local(&self, pd: u32, segments: &[Segment], write: bool) -> Result<Vec<Region>, Status> {
        let used = segments.iter().filter(|segment| segment.length > 0);
        used.map(|segment| {
            let range = Region { address: segment.address, length: segment.length };
            self.find(pd, segment.key, range, AccessRight::local(write))
        })
        .collect()
    }

    /// Checks the remote memory of an RDMA operation, and returns it. Errors: `RemoteAccess`.
    pub(super) fn remote(&self, pd: u32, remote: Remote, length: u64, write: bool) -> Result<Vec<Region>, Status> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let range = Region { address: remote.address, length };
        Ok(vec![self.find(pd, remote.key, range, AccessRight::remote(write))?])
    }

    fn find(&self, pd: u32, key: u32, range: Region, right: AccessRight) -> Result<Region, Status> {
        let entry = self.entries.get(&key).filter(|entry| entry.allows(pd, range, right));
        entry.map(|_| range).ok_or(right.refusal())
    }
}

/// Copies `length` bytes between two lists of regions. The caller has checked that both have at least that length.
pub(super) fn copy(from: &[Region], to: &[Region], length: u64, checker: &MappingChecker) -> Result<(), Inaccessible> {
    let mut buffer = vec![0; CHUNK.min(length as usize)];
    let mut done = 0;
    while done < length {
        let (source, target) = (region_at(from, done), region_at(to, done));
        let bytes = source.length.min(target.length).min(length - done).min(CHUNK as u64) as usize;
        let registration = |region| move || RegisteredRange { region, checker };
        // SAFETY: the caller holds the lock of the registrations, so `source` stays registered during the copy. The
        // buffer has `bytes` bytes and is not registered.
        if !unsafe { user_copy::read(source.address, buffer.as_mut_ptr(), bytes, registration(source)) } {
            return Err(Inaccessible::Source);
        }
        // SAFETY: the caller holds the lock of the registrations, so `target` stays registered during the copy. The
        // buffer has `bytes` bytes and is not registered.
        if !unsafe { user_copy::write(buffer.as_ptr(), target.address, bytes, registration(target)) } {
            return Err(Inaccessible::Target);
        }
        done += bytes as u64;
    }
    Ok(())
}

/// Finds the region that contains byte `offset` of a list. Returns the part of this region that begins with the byte.
fn region_at(regions: &[Region], mut offset: u64) -> Region {
    for region in regions {
        if offset < region.length {
            return Region { address: region.address + offset, length: region.length - offset };
        }
        offset -= region.length;
    }
    unreachable!("the caller has checked the length of the list")
}
