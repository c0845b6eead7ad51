//! Finds the file or System V segment behind a registration of shared memory, so that it can be exported to peers that
//! request a mapping.
//!
//! The search is done once, when the memory is registered. Only memory that peers can access without SIGBUS is
//! exported: a memfd that is sealed against shrinking and still open in this process, or a System V segment. Memory
//! with huge pages is not exported. Peers are processes of the same user, which could open the file through /proc, so
//! an export grants no new access.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use dapl::provider::Region;
use dapl::runtime::mappings::{self, BackingFile};
use parking_lot::Mutex;

use crate::memory::mapped::{has_fixed_length, memory_device, segment_size};

/// A registered region, and the memfd or System V segment that contains it.
#[derive(Clone, Debug)]
pub(crate) struct RegionBacking {
    pub(crate) region: Region,
    /// Offset in bytes of the region in `store`.
    pub(crate) offset: u64,
    pub(crate) store: BackingStore,
}

#[derive(Clone, Debug)]
pub(crate) enum BackingStore {
    OpenMemfd(Arc<OpenMemfd>),
    /// The System V segment with this id.
    Segment(i32),
}

/// A memfd that was opened again for export.
#[derive(Debug)]
pub(crate) struct OpenMemfd {
    pub(crate) file: File,
    inode: u64,
    writable: bool,
}

/// The registrations of an IA that can be exported, by key.
#[derive(Debug, Default)]
pub(crate) struct ExportedRegions(Mutex<HashMap<u32, RegionBacking>>);

impl ExportedRegions {
    /// Finds the memfd or System V segment of a region. `None`: there is none that peers could map for reading and, if
    /// `write` is set, for writing.
    pub(crate) fn find(&self, region: Region, write: bool) -> Option<RegionBacking> {
        let behind = mappings::backing_file(region)?;
        if Some(behind.device) != memory_device() {
            return None; // Other files are not exported, because any process with access could truncate them.
        }
        let store = if behind.name.starts_with("/SYSV") {
            let id = i32::try_from(behind.inode).ok()?;
            segment_size(id).filter(|size| behind.offset.checked_add(region.length).is_some_and(|end| end <= *size))?;
            BackingStore::Segment(id)
        } else {
            let memory = self.find_open(behind.inode, write).or_else(|| open(&behind, write))?;
            has_fixed_length(&memory.file, behind.offset, region.length, write)
                .then_some(BackingStore::OpenMemfd(memory))?
        };
        Some(RegionBacking { region, offset: behind.offset, store })
    }

    /// Returns the memfd if another registration has already opened it for the same access, so that these registrations
    /// share one descriptor.
    fn find_open(&self, inode: u64, writable: bool) -> Option<Arc<OpenMemfd>> {
        self.0.lock().values().find_map(|backing| match &backing.store {
            BackingStore::OpenMemfd(memory) if (memory.inode, memory.writable) == (inode, writable) => {
                Some(memory.clone())
            }
            _ => None,
        })
    }

    /// Permits peers to request a mapping of the registration with this key.
    pub(crate) fn export(&self, key: u32, backing: RegionBacking) {
        self.0.lock().insert(key, backing);
    }

    pub(crate) fn get(&self, key: u32) -> Option<RegionBacking> {
        self.0.lock().get(&key).cloned()
    }

    /// Removes an export when its registration ends.
    pub(crate) fn unexport(&self, key: u32) {
        let removed = self.0.lock().remove(&key);
        drop(removed); // Closes the file, if this is its last registration, without the lock.
    }
}

/// Opens a memfd again, through a descriptor of this process. Other files are not opened, because closing another file
/// would release the program's POSIX record locks on it.
fn open(behind: &BackingFile, write: bool) -> Option<Arc<OpenMemfd>> {
    let is_it = |path: &Path| {
        let named =
            std::fs::read_link(path).is_ok_and(|name| name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"));
        named && std::fs::metadata(path).is_ok_and(|found| is_file(&found, behind))
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").ok()?;
    let path = descriptors.flatten().map(|entry| entry.path()).find(|path| is_it(path))?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path).ok()?;
    // Another thread may have closed the descriptor after the search, and opened another file with the same number.
    let is_still = file.metadata().is_ok_and(|found| is_file(&found, behind));
    is_still.then(|| Arc::new(OpenMemfd { file, inode: behind.inode, writable: write }))
}

fn is_file(found: &std::fs::Metadata, behind: &BackingFile) -> bool {
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    found.ino() == behind.inode && device == behind.device
}
