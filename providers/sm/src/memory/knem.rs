//! KNEM: a kernel module whose device `/dev/knem` copies between processes (SM-17).
//!
//! The owner of memory declares it as a region and gets a cookie. Any process that knows the cookie can copy into or
//! out of the region. This provider declares each registration that peers may access, publishes the cookie in the table
//! of registrations, and destroys the region at the deregistration. The device grants access to every process with the
//! cookie, so this provider uses it only between processes of one user. The initiator checks the table of registrations
//! before each copy.
//!
//! The tests use a fake device, because the module is not part of the Linux kernel: this code never ran with the real
//! device. Call numbers and structures are those of the module's public interface, version 12 and later. Without
//! `/dev/knem` the only cost is one failed open.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use dapl::provider::Region;

use crate::memory::cma::{CopyError, Direction, LocalBytes, faulting_side};

/// Oldest interface version that has all calls used here. Call numbers include the sizes of structures. If a later
/// version has another structure, the calls fail.
const MIN_VERSION: u32 = 12;
const MAGIC: u32 = b'K' as u32;

/// Result of [`GET_INFO`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnemInfo {
    version: u32,
    features: u32,
    ignored_flags: u32,
    forced_flags: u32,
}

/// A range of this process's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnemSegment {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// Argument of [`CREATE_REGION`]; the driver writes `cookie`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreateRegion {
    pub(crate) segments: u64,
    pub(crate) count: u32,
    flags: u32,
    /// Access of other processes: `PROT_READ` and `PROT_WRITE` of `mmap`.
    pub(crate) protection: u32,
    pad: u32,
    pub(crate) cookie: u64,
}

/// Argument of [`INLINE_COPY`], a copy between segments of this process and a region; the driver writes `status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineCopy {
    pub(crate) segments: u64,
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

/// [`InlineCopy::status`] after a complete copy.
pub(crate) const SUCCESS: u32 = 1;
/// [`InlineCopy::status`] if memory of either process was not mapped.
pub(crate) const FAILED: u32 = 2;

/// The calls of the device. It is a trait because tests replace the device.
pub(crate) trait KnemCalls: Debug + Send + Sync {
    fn info(&self, info: &mut KnemInfo) -> io::Result<()>;
    fn create(&self, region: &mut CreateRegion) -> io::Result<()>;
    fn destroy(&self, cookie: u64) -> io::Result<()>;
    fn copy(&self, copy: &mut InlineCopy) -> io::Result<()>;
}

/// The open KNEM device.
#[derive(Debug)]
struct KnemDevice(File);

impl KnemDevice {
    fn call<T>(&self, number: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: `number` contains the size of `T`, so the driver accesses only `argument`, and memory to which
        // `argument` points. The driver checks that memory itself, as for any system call.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), number, std::ptr::from_mut(argument)) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

// The direction flags are those that the driver implements. The description of the public interface says the opposite.
const GET_INFO: libc::Ioctl = libc::_IOW::<KnemInfo>(MAGIC, 0x10);
const CREATE_REGION: libc::Ioctl = libc::_IOWR::<CreateRegion>(MAGIC, 0x21);
const DESTROY_REGION: libc::Ioctl = libc::_IOR::<u64>(MAGIC, 0x22);
const INLINE_COPY: libc::Ioctl = libc::_IOR::<InlineCopy>(MAGIC, 0x33);

impl KnemCalls for KnemDevice {
    fn info(&self, info: &mut KnemInfo) -> io::Result<()> {
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

/// The open KNEM device, whose version is supported, or a fake device of a test.
pub(crate) struct Knem(Box<dyn KnemCalls>);

impl Knem {
    /// Opens the device. `None`: there is no device, this process may not use it, or its version is too old or cannot
    /// be read.
    pub(crate) fn open() -> Option<Self> {
        #[cfg(test)]
        if let Some(device) = fake::installed() {
            return Knem::with_device(Box::new(device));
        }
        let device = OpenOptions::new().read(true).write(true).open("/dev/knem");
        match device {
            Ok(device) => Knem::with_device(Box::new(KnemDevice(device))),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::info!(
                        "cannot open /dev/knem: {error}; RDMA uses other copy methods; allow the user to open it, or \
                         set rma to a list without knem"
                    );
                }
                None
            }
        }
    }

    fn with_device(calls: Box<dyn KnemCalls>) -> Option<Self> {
        let mut info = KnemInfo::default();
        match calls.info(&mut info) {
            Ok(()) if info.version >= MIN_VERSION => Some(Knem(calls)),
            Ok(()) => {
                log::info!(
                    "/dev/knem has version {}, but {MIN_VERSION} or later is needed; RDMA uses other copy methods; update the module",
                    info.version
                );
                None
            }
            Err(error) => {
                log::info!(
                    "cannot read the version of /dev/knem: {error}; RDMA uses other copy methods (man 7 dapl_sm)"
                );
                None
            }
        }
    }

    /// Declares memory to the device, so that peers can copy. The device pins the memory. Returns the cookie, or 0 if
    /// the device fails, the region is empty, or peers may neither read nor write it.
    pub(crate) fn export(&self, region: Region, read: bool, write: bool) -> u64 {
        if region.length == 0 || !(read || write) {
            return 0;
        }
        let segment = KnemSegment { address: region.address, length: region.length };
        let bit = |granted, bit: i32| if granted { bit as u32 } else { 0 };
        let mut create = CreateRegion {
            segments: (&raw const segment) as u64,
            count: 1,
            protection: bit(read, libc::PROT_READ) | bit(write, libc::PROT_WRITE),
            ..CreateRegion::default()
        };
        match self.0.create(&mut create) {
            Ok(()) => create.cookie,
            Err(error) => {
                log::debug!(
                    "/dev/knem cannot create a region of {} bytes: {error}; RDMA to it uses other copy methods",
                    region.length
                );
                0
            }
        }
    }

    /// Destroys the region with this cookie.
    pub(crate) fn unexport(&self, cookie: u64) {
        if cookie != 0
            && let Err(error) = self.0.destroy(cookie)
        {
            log::debug!("/dev/knem cannot destroy the region with cookie {cookie:#x}: {error}");
        }
    }

    /// Copies between `local` and a region of a peer, in ascending order.
    ///
    /// # Safety
    ///
    /// This process may read the bytes of `local`, and may also write them if `direction` is `Read`. They may be
    /// unmapped; the copy then fails.
    pub(crate) unsafe fn copy(
        &self,
        direction: Direction,
        local: LocalBytes,
        exported: ExportedRegion,
        offset: u64,
    ) -> Result<(), CopyError> {
        let both = local.0.map(|Region { address, length }| KnemSegment { address, length });
        // The device rejects an empty segment.
        let segments = if both[0].length == 0 { &both[1..] } else { &both[..] };
        let mut copy = InlineCopy {
            segments: segments.as_ptr() as u64,
            count: segments.len() as u32,
            write: u32::from(direction == Direction::Write),
            cookie: exported.0,
            offset,
            ..InlineCopy::default()
        };
        match self.0.copy(&mut copy).map(|()| copy.status) {
            Ok(SUCCESS) => Ok(()),
            Ok(FAILED) => Err(faulting_side(direction, local)),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Err(faulting_side(direction, local)),
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
    fn knem_structures_match_the_device_interface() {
        assert_eq!((size_of::<KnemInfo>(), size_of::<KnemSegment>(), align_of::<KnemSegment>()), (16, 16, 8));
        assert_eq!(size_of::<CreateRegion>(), 32);
        assert_eq!(
            [
                offset_of!(CreateRegion, segments),
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
                offset_of!(InlineCopy, segments),
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
    fn knem_call_numbers_match_the_device_interface() {
        let numbers = [GET_INFO, CREATE_REGION, DESTROY_REGION, INLINE_COPY];
        assert_eq!(numbers, [0x4010_4B10, 0xC020_4B21, 0x8008_4B22, 0x8030_4B33]);
    }

    #[test]
    fn knem_driver_before_version_12_is_not_used() {
        let of = |version| fake::FakeKnem::new(version);
        assert!(Knem::with_device(Box::new(of(11))).is_none());
        assert!(Knem::with_device(Box::new(of(0))).is_none());
        assert!(Knem::with_device(Box::new(of(12))).is_some() && Knem::with_device(Box::new(of(13))).is_some());
    }

    #[test]
    fn knem_copies_in_both_directions_and_errors_are_distinguished() {
        let device = fake::FakeKnem::new(13);
        let knem = Knem::with_device(Box::new(device.clone())).unwrap();
        let (target, source) = (vec![0u8; 100], vec![7u8; 50]);
        let region = Region { address: target.as_ptr() as u64, length: 100 };
        assert_eq!(
            (knem.export(Region { length: 0, ..region }, true, true), knem.export(region, false, false)),
            (0, 0)
        );
        let cookie = knem.export(region, true, true);
        let exported = ExportedRegion::of(cookie).unwrap();
        let at = source.as_ptr() as u64;
        // SAFETY: the 50 bytes of `source` and the 100 bytes of `target` exist until the test ends, and no other thread
        // uses them.
        let copy = |direction, offset, len| unsafe { knem.copy(direction, LocalBytes::new(at, len), exported, offset) };
        assert_eq!(copy(Direction::Write, 10, 50), Ok(()));
        assert_eq!((&target[..10], &target[10..60], &target[60..]), (&[0; 10][..], &[7; 50][..], &[0; 40][..]));
        assert_eq!(copy(Direction::Read, 0, 1), Ok(()));
        assert_eq!(source[..2], [0, 7], "a copy of one byte");
        device.set_failure(fake::Failure::Copies(libc::EACCES));
        assert_eq!(copy(Direction::Write, 0, 1), Err(CopyError::Denied));
        device.set_failure(fake::Failure::Copies(libc::EFAULT));
        assert_eq!(copy(Direction::Write, 0, 1), Err(CopyError::RemoteMemory), "the local memory is mapped");
        device.set_failure(fake::Failure::Nothing);
        knem.unexport(cookie);
        assert_eq!(copy(Direction::Write, 0, 1), Err(CopyError::Denied), "the region was destroyed");
        assert!(ExportedRegion::of(0).is_none());
    }
}
