//! The double's regions, their shares, and windows. No byte of memory is ever touched.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::net::Net;
use crate::error::{Error, Result};
use crate::provider::{Access, Keep, MemoryRegion, MemoryWindow, SharedCookie};

/// Registered memory.
pub(crate) struct DoubleMr {
    key: u32,
    remote: bool,
}

impl DoubleMr {
    pub(super) fn new(net: &Net, access: Access) -> Self {
        let key = net.keys.fetch_add(1, Ordering::SeqCst) + 1;
        DoubleMr { key, remote: access.remote_read || access.remote_write }
    }
}

impl MemoryRegion for DoubleMr {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        if self.remote { self.key | 1 << 31 } else { 0 }
    }
}

/// One who shares memory.
pub(crate) struct DoubleMember {
    net: Arc<Net>,
    cookie: SharedCookie,
}

impl DoubleMember {
    pub(super) fn join(net: &Arc<Net>, cookie: &SharedCookie, length: u64) -> Result<Self> {
        let mut members = net.members.lock();
        let (known, count) = members.entry(*cookie).or_insert((length, 0));
        if *known != length {
            return Err(Error::InvalidParameter(4));
        }
        *count += 1;
        Ok(DoubleMember { net: net.clone(), cookie: *cookie })
    }
}

impl Drop for DoubleMember {
    fn drop(&mut self) {
        let mut members = self.net.members.lock();
        if let Some((_, count)) = members.get_mut(&self.cookie) {
            *count -= 1;
            if *count == 0 {
                members.remove(&self.cookie);
            }
        }
    }
}

/// A memory window. What it keeps it lets go when a later bind or unbind starts, or fails.
#[derive(Default)]
pub(crate) struct DoubleMw(pub(super) Arc<Mutex<Pane>>);

#[derive(Default)]
pub(super) struct Pane {
    pub(super) bound: bool,
    /// Of the binding in force, and of those that wait.
    keep: Option<Keep>,
    pub(super) next: VecDeque<Option<Keep>>,
}

impl Pane {
    /// The oldest that waits takes effect, or nothing is bound any more.
    pub(super) fn turn(&mut self, works: bool) {
        let next = self.next.pop_front().flatten();
        self.keep = if works { next } else { None };
        self.bound &= works || !self.next.is_empty();
    }
}

impl MemoryWindow for DoubleMw {
    fn is_bound(&self) -> bool {
        self.0.lock().bound
    }
}

impl Drop for DoubleMw {
    fn drop(&mut self) {
        *self.0.lock() = Pane::default();
    }
}
