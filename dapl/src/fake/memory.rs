//! Memory regions, shared registrations and memory windows of the fake provider, which accesses no registered memory.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::net::FakeNetwork;
use crate::error::{Error, Result};
use crate::provider::{Access, KeptObject, MemoryRegion, MemoryWindow, SharedCookie};

pub(crate) struct FakeMr {
    key: u32,
    remote: bool,
}

impl FakeMr {
    pub(super) fn new(net: &FakeNetwork, access: Access) -> Self {
        let key = net.keys.fetch_add(1, Ordering::SeqCst) + 1;
        FakeMr { key, remote: access.is_remote() }
    }
}

impl MemoryRegion for FakeMr {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        if self.remote { self.key | 1 << 31 } else { 0 }
    }
}

/// Membership of a process in the group of registrations with one shared-memory cookie.
pub(crate) struct FakeMember {
    net: Arc<FakeNetwork>,
    cookie: SharedCookie,
}

impl FakeMember {
    pub(super) fn join(net: &Arc<FakeNetwork>, cookie: &SharedCookie, length: u64) -> Result<Self> {
        let mut members = net.members.lock();
        let (known, count) = members.entry(*cookie).or_insert((length, 0));
        if *known != length {
            return Err(Error::InvalidParameter(4));
        }
        *count += 1;
        Ok(FakeMember { net: net.clone(), cookie: *cookie })
    }
}

impl Drop for FakeMember {
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

/// A memory window. It drops the kept object of a bind when a later bind or unbind completes or fails, or with the
/// window.
#[derive(Default)]
pub(crate) struct FakeMw(pub(super) Arc<Mutex<WindowState>>);

#[derive(Default)]
pub(super) struct WindowState {
    pub(super) bound: bool,
    /// Kept object of the current bind. `next` has those of the pending binds.
    kept: Option<KeptObject>,
    pub(super) next: VecDeque<Option<KeptObject>>,
}

impl WindowState {
    /// Completes the oldest pending bind. If `works` is true, the bind takes effect; otherwise it fails, and the window
    /// is unbound unless another bind is pending.
    pub(super) fn advance(&mut self, works: bool) {
        let next = self.next.pop_front().flatten();
        self.kept = if works { next } else { None };
        self.bound &= works || !self.next.is_empty();
    }
}

impl MemoryWindow for FakeMw {
    fn is_bound(&self) -> bool {
        self.0.lock().bound
    }
}

impl Drop for FakeMw {
    fn drop(&mut self) {
        *self.0.lock() = WindowState::default();
    }
}
