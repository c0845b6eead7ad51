//! KNEM: a device that copies between processes, by declared regions (SM-17).
//!
//! The owner declares memory as a region and gets a cookie. Any process that knows the cookie can copy into or out of
//! the region. If peers may access a registration, its memory is declared as a region, its cookie is published in the
//! table of registrations, and the region is destroyed when the registration ends. The device grants access to every
//! process with the cookie, so it is used only between processes of one user. The table is checked before each copy.
//!
//! This code was not tested with a real device, because the module is not part of the kernel; the tests use a fake
//! device. Numbers and structures are those of the module's public interface, version 12 and later. Without `/dev/knem`
//! the only cost is one failed open.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use dapl::provider::Region;

use crate::memory::cma::{CopyError, Direction, faulting_side};

/// Oldest interface version with the calls that are used here. The numbers of the calls include the sizes of
/// structures, so a later version with other structures has other numbers.
const OLDEST: u32 = 12;
const MAGIC: u32 = b'K' as u32;

/// The driver's answer to the information request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Info {
    version: u32,
    features: u32,
    ignored_flags: u32,
    forced_flags: u32,
}

/// A piece of this process's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Creates a region from pieces; the driver writes its cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreateRegion {
    pub(crate) pieces: u64,
    pub(crate) count: u32,
    flags: u32,
    /// Protection flags of `mmap` that apply to other processes.
    pub(crate) protection: u32,
    pad: u32,
    pub(crate) cookie: u64,
}

/// Copies between pieces of this process and a region; the driver writes the status.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineCopy {
    pub(crate) pieces: u64,
    pub(crate) count: u32,
    /// 1: copy into the region; 0: copy out of it.
    pub(crate) write: u32,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    flags: u32,
    pub(crate) status: u32,
    status_index: u32,
    pad: u32,
}

/// Status of a completed copy.
pub(crate) const SUCCESS: u32 = 1;
/// Status of a copy that found unmapped memory.
pub(crate) const FAILED: u32 = 2;

/// The calls of the device.
pub(crate) trait Calls: Debug + Send + Sync {
    fn info(&self, info: &mut Info) -> io::Result<()>;
    fn create(&self, region: &mut CreateRegion) -> io::Result<()>;
    fn destroy(&self, cookie: u64) -> io::Result<()>;
    fn copy(&self, copy: &mut InlineCopy) -> io::Result<()>;
}

/// The open KNEM device.
#[derive(Debug)]
struct KnemDevice(File);

impl KnemDevice {
    fn call<T>(&self, number: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: the request number contains the size of `T`, which the driver reads and fills; memory to which it
        // points belongs to the caller and outlives the call, or is looked up by the driver.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), number, std::ptr::from_mut(argument)) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

// The request number has the direction flag that the driver implements, which is the opposite of the description in the
// public interface.
const GET_INFO: libc::Ioctl = libc::_IOW::<Info>(MAGIC, 0x10);
const CREATE_REGION: libc::Ioctl = libc::_IOWR::<CreateRegion>(MAGIC, 0x21);
const DESTROY_REGION: libc::Ioctl = libc::_IOR::<u64>(MAGIC, 0x22);
const INLINE_COPY: libc::Ioctl = libc::_IOR::<InlineCopy>(MAGIC, 0x33);

impl Calls for KnemDevice {
    fn info(&self, info: &mut Info) -> io::Result<()> {
        self.call(GET_INFO, info)
    }

    fn create(&self, region: &mut CreateRegion) -> io::Result<()> {
        self.call(CREATE_REGION, region)
    }

    fn destroy(&self, mut cookie: u64) -> io::Result<()> {
        self.call(DESTROY_REGION, &mut cookie)
    }

    fn copy(&self, copy: &mut InlineCopy) -> io::Result<()> {
        self.call(INLINE_COPY, copy)
    }
}

/// The open device, whose version is supported.
#[derive(Debug)]
pub(crate) struct Knem(Box<dyn Calls>);

impl Knem {
    /// Opens the device. `None`: there is no device, or this process may not use it.
    pub(crate) fn open() -> Option<Self> {
        #[cfg(test)]
        if let Some(double) = fake::installed() {
            return Knem::over(Box::new(double));
        }
        let device = OpenOptions::new().read(true).write(true).open("/dev/knem");
        match device {
            Ok(device) => Knem::over(Box::new(KnemDevice(device))),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::info!("cannot open /dev/knem: {error}; RDMA uses other copy methods");
                }
                None
            }
        }
    }

    fn over(calls: Box<dyn Calls>) -> Option<Self> {
        let mut info = Info::default();
        match calls.info(&mut info) {
            Ok(()) if info.version >= OLDEST => Some(Knem(calls)),
            Ok(()) => {
                log::info!(
                    "/dev/knem has version {}, {OLDEST} or later is needed; RDMA uses other copy methods",
                    info.version
                );
                None
            }
            Err(error) => {
                log::info!("cannot read the version of /dev/knem: {error}; RDMA uses other copy methods");
                None
            }
        }
    }

    /// Declares memory to peers. Returns the cookie, or 0 if the device refuses. The device pins the memory.
    pub(crate) fn export(&self, region: Region, read: bool, write: bool) -> u64 {
        if region.length == 0 || !(read || write) {
            return 0;
        }
        let piece = Piece { address: region.address, length: region.length };
        let bit = |granted, bit: i32| if granted { bit as u32 } else { 0 };
        let mut create = CreateRegion {
            pieces: (&raw const piece) as u64,
            count: 1,
            protection: bit(read, libc::PROT_READ) | bit(write, libc::PROT_WRITE),
            ..CreateRegion::default()
        };
        match self.0.create(&mut create) {
            Ok(()) => create.cookie,
            Err(error) => {
                log::debug!("KNEM refuses a region of {} bytes: {error}", region.length);
                0
            }
        }
    }

    /// Destroys the region with this cookie.
    pub(crate) fn unexport(&self, cookie: u64) {
        if cookie != 0
            && let Err(error) = self.0.destroy(cookie)
        {
            log::debug!("KNEM cannot destroy a region: {error}");
        }
    }

    /// Copies `len` bytes between `local` and a region of a peer, in ascending order.
    ///
    /// # Safety This call may read the mapped part of `len` bytes at `local`, and for `Read` write it.
    pub(crate) unsafe fn copy(
        &self,
        direction: Direction,
        local: u64,
        exported: ExportedRegion,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let (begin, last) = (len as u64 - 1, local + len as u64 - 1);
        let both = [Piece { address: local, length: begin }, Piece { address: last, length: 1 }];
        // The device refuses an empty piece.
        let pieces = if begin == 0 { &both[1..] } else { &both[..] };
        let mut copy = InlineCopy {
            pieces: pieces.as_ptr() as u64,
            count: pieces.len() as u32,
            write: u32::from(direction == Direction::Write),
            cookie: exported.0,
            offset,
            ..InlineCopy::default()
        };
        match self.0.copy(&mut copy).map(|()| copy.status) {
            Ok(SUCCESS) => Ok(()),
            Ok(FAILED) => Err(faulting_side(direction, local, len)),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Err(faulting_side(direction, local, len)),
            _ => Err(CopyError::Denied),
        }
    }
}

/// The cookie of a peer's region, from the peer's table of registrations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ExportedRegion(u64);

impl ExportedRegion {
    /// Returns `None` for cookie 0, which means that there is no region.
    pub(crate) fn of(cookie: u64) -> Option<Self> {
        (cookie != 0).then_some(ExportedRegion(cookie))
    }
}

#[cfg(test)]
#[path = "knem/fake.rs"]
pub(crate) mod fake;

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    #[test]
    fn structures_match_the_device_interface() {
        assert_eq!((size_of::<Info>(), size_of::<Piece>(), align_of::<Piece>()), (16, 16, 8));
        assert_eq!(size_of::<CreateRegion>(), 32);
        assert_eq!(
            [
                offset_of!(CreateRegion, pieces),
                offset_of!(CreateRegion, count),
                offset_of!(CreateRegion, flags),
                offset_of!(CreateRegion, protection),
                offset_of!(CreateRegion, cookie)
            ],
            [0, 8, 12, 16, 24]
        );
        assert_eq!(size_of::<InlineCopy>(), 48);
        assert_eq!(
            [
                offset_of!(InlineCopy, pieces),
                offset_of!(InlineCopy, count),
                offset_of!(InlineCopy, write),
                offset_of!(InlineCopy, cookie),
                offset_of!(InlineCopy, offset),
                offset_of!(InlineCopy, flags),
                offset_of!(InlineCopy, status),
                offset_of!(InlineCopy, status_index)
            ],
            [0, 8, 12, 16, 24, 32, 36, 40]
        );
    }

    #[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
    #[test]
    fn calls_have_the_numbers_of_the_interface() {
        let numbers = [GET_INFO, CREATE_REGION, DESTROY_REGION, INLINE_COPY];
        assert_eq!(numbers, [0x4010_4B10, 0xC020_4B21, 0x8008_4B22, 0x8030_4B33]);
    }

    #[test]
    fn a_driver_of_an_old_or_unknown_version_is_not_used() {
        let of = |version| fake::FakeKnem::new(version);
        assert!(Knem::over(Box::new(of(11))).is_none());
        assert!(Knem::over(Box::new(of(0))).is_none());
        assert!(Knem::over(Box::new(of(12))).is_some() && Knem::over(Box::new(of(13))).is_some());
    }

    #[test]
    fn copies_go_both_ways_and_refusals_differ() {
        let double = fake::FakeKnem::new(13);
        let knem = Knem::over(Box::new(double.clone())).unwrap();
        let (target, source) = (vec![0u8; 100], vec![7u8; 50]);
        let region = Region { address: target.as_ptr() as u64, length: 100 };
        assert_eq!(
            (knem.export(Region { length: 0, ..region }, true, true), knem.export(region, false, false)),
            (0, 0)
        );
        let cookie = knem.export(region, true, true);
        let exported = ExportedRegion::of(cookie).unwrap();
        let at = source.as_ptr() as u64;
        // SAFETY: the fifty bytes belong to this test, here and below.
        let copy = |direction, offset, len| unsafe { knem.copy(direction, at, exported, offset, len) };
        assert_eq!(copy(Direction::Write, 10, 50), Ok(()));
        assert_eq!((&target[..10], &target[10..60], &target[60..]), (&[0; 10][..], &[7; 50][..], &[0; 40][..]));
        assert_eq!(copy(Direction::Read, 0, 1), Ok(()));
        assert_eq!(source[..2], [0, 7], "one byte is a piece, too");
        double.refuses(fake::Refuses::Copies(libc::EACCES));
        assert_eq!(copy(Direction::Write, 0, 1), Err(CopyError::Denied));
        double.refuses(fake::Refuses::Copies(libc::EFAULT));
        assert_eq!(copy(Direction::Write, 0, 1), Err(CopyError::RemoteMemory), "what is here is well");
        double.refuses(fake::Refuses::Nothing);
        knem.unexport(cookie);
        assert_eq!(copy(Direction::Write, 0, 1), Err(CopyError::Denied), "no such region any more");
        assert!(ExportedRegion::of(0).is_none());
    }
}
