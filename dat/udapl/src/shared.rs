//! Memory that several processes share. It is sealed, so that no process can shrink it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::{Error, Result};

/// Memory that several processes can map and register under one name ([`Window::shared`](crate::Window::shared)): a
/// sealed file without a path (memfd_create(2)). Another process gets its descriptor over a local socket or by
/// inheritance.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    length: usize,
}

impl SharedMemory {
    /// Creates zeroed memory of `length` bytes, sealed against shrinking.
    ///
    /// # Errors
    /// [`Error::Argument`] with the operating system's error.
    pub fn create(length: usize) -> Result<Self> {
        let failed = |what: &str| Error::Argument(format!("shared memory: {what}: {}", io::Error::last_os_error()));
        // SAFETY: the name is NUL-terminated; the descriptor is new and has no other owner.
        let file = unsafe {
            match libc::memfd_create(c"udapl".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
                -1 => return Err(failed("memfd_create")),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        let size = libc::off_t::try_from(length).map_err(|_| {
            Error::Argument(format!("shared memory of {length} bytes exceeds the maximum length of a file"))
        })?;
        // SAFETY: the calls take an open descriptor and no pointers.
        let is_made = unsafe {
            libc::ftruncate(file.as_raw_fd(), size) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
        };
        if is_made { Ok(SharedMemory { file, length }) } else { Err(failed("ftruncate, F_SEAL_SHRINK")) }
    }

    /// Opens memory of another process by its descriptor.
    ///
    /// # Errors
    /// [`Error::Argument`] if the memory is not sealed against shrinking. Another process could shrink such memory, and
    /// an access beyond its end kills this process (SIGBUS).
    pub fn from_fd(file: OwnedFd) -> Result<Self> {
        // SAFETY: the call takes an open descriptor and no pointers.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(Error::Argument(
                "the descriptor of shared memory is not a memfd with F_SEAL_SHRINK; use SharedMemory::create".into(),
            ));
        }
        let file = std::fs::File::from(file);
        let size = file.metadata().map_err(|error| Error::Argument(format!("shared memory: {error}")))?.len();
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        Ok(SharedMemory { file: file.into(), length })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::MemoryBlock;

    #[test]
    fn second_mapping_of_shared_memory_shows_the_same_bytes() {
        let memory = SharedMemory::create(4096).unwrap();
        let other = SharedMemory::from_fd(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((memory.len(), other.len()), (4096, 4096));
        let (one, two) = (MemoryBlock::map(&memory, 4096).unwrap(), MemoryBlock::map(&other, 4096).unwrap());
        one.write(100, b"shared");
        let mut seen = [0; 6];
        two.read(100, &mut seen);
        assert_eq!(&seen, b"shared");
    }

    #[test]
    fn file_that_can_shrink_is_refused_as_shared_memory() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(SharedMemory::from_fd(file.into()), Err(Error::Argument(_))));
    }
}
