//! A fake KNEM device for tests: regions and copies within this process, and a record of the requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CreateRegion, FAILED, InlineCopy, KnemCalls, KnemInfo, KnemSegment, SUCCESS};

/// Calls of the fake device that fail, and the error code that they return.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Failure {
    #[default]
    Nothing,
    Regions(i32),
    Copies(i32),
}

/// A call of the device, as the fake device records it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DeviceCall {
    Create { address: u64, length: u64, protection: u32, cookie: u64 },
    Destroy { cookie: u64 },
    Copy { write: bool, cookie: u64, offset: u64, length: u64 },
}

#[derive(Debug, Default)]
struct FakeDeviceState {
    version: u32,
    failure: Failure,
    regions: HashMap<u64, KnemSegment>,
    calls: Vec<DeviceCall>,
    next: u64,
}

/// A fake device. Clones refer to the same device.
#[derive(Clone, Debug)]
pub(crate) struct FakeKnem(Arc<Mutex<FakeDeviceState>>);

thread_local! {
    static INSTALLED: RefCell<Option<FakeKnem>> = const { RefCell::new(None) };
}

/// Returns the fake device of this thread, if one is installed.
pub(super) fn installed() -> Option<FakeKnem> {
    INSTALLED.with_borrow(Clone::clone)
}

impl FakeKnem {
    pub(crate) fn new(version: u32) -> Self {
        FakeKnem(Arc::new(Mutex::new(FakeDeviceState { version, next: 0x100, ..FakeDeviceState::default() })))
    }

    /// Calls `run` with this device installed on this thread.
    pub(crate) fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        INSTALLED.set(Some(self.clone()));
        let done = run();
        INSTALLED.set(None);
        done
    }

    pub(crate) fn set_failure(&self, failure: Failure) {
        self.0.lock().failure = failure;
    }

    /// Returns the calls that were recorded since the last `take_calls`.
    pub(crate) fn take_calls(&self) -> Vec<DeviceCall> {
        std::mem::take(&mut self.0.lock().calls)
    }

    /// Number of regions.
    pub(crate) fn regions(&self) -> usize {
        self.0.lock().regions.len()
    }
}

fn segments(address: u64, count: u32) -> Vec<KnemSegment> {
    // SAFETY: `address` is that of an array of `count` segments in the caller's frame, as in a call of the real device.
    unsafe { std::slice::from_raw_parts(address as *const KnemSegment, count as usize) }.to_vec()
}

fn error(code: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(code))
}

impl KnemCalls for FakeKnem {
    fn info(&self, info: &mut KnemInfo) -> io::Result<()> {
        info.version = self.0.lock().version;
        if info.version == 0 { error(libc::ENOTTY) } else { Ok(()) }
    }

    fn create(&self, region: &mut CreateRegion) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Failure::Regions(code) = state.failure {
            return error(code);
        }
        let [segment] = segments(region.segments, region.count)[..] else { return error(libc::EINVAL) };
        state.next += 1;
        region.cookie = state.next;
        state.regions.insert(region.cookie, segment);
        let (KnemSegment { address, length }, CreateRegion { protection, cookie, .. }) = (segment, *region);
        state.calls.push(DeviceCall::Create { address, length, protection, cookie });
        Ok(())
    }

    fn destroy(&self, cookie: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.calls.push(DeviceCall::Destroy { cookie });
        if state.regions.remove(&cookie).is_some() { Ok(()) } else { error(libc::EINVAL) }
    }

    fn copy(&self, copy: &mut InlineCopy) -> io::Result<()> {
        let mut state = self.0.lock();
        if let Failure::Copies(code) = state.failure {
            return error(code);
        }
        let Some(region) = state.regions.get(&copy.cookie).copied() else { return error(libc::EINVAL) };
        let segments = segments(copy.segments, copy.count);
        let (cookie, length) = (copy.cookie, segments.iter().map(|segment| segment.length).sum());
        state.calls.push(DeviceCall::Copy { write: copy.write != 0, cookie, offset: copy.offset, length });
        if copy.offset + length > region.length {
            copy.status = FAILED;
            return Ok(());
        }
        let mut there = region.address + copy.offset;
        for KnemSegment { address: here, length } in segments {
            let (from, to) = if copy.write != 0 { (here, there) } else { (there, here) };
            // SAFETY: `here` is memory of the caller, which exists during the call. `there` is inside the region, as
            // was checked above, and the tests keep a region's memory until they destroy the region.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, length as usize) };
            there += length;
        }
        copy.status = SUCCESS;
        Ok(())
    }
}
