//! Implements the provider interface of protection domains, registered memory and memory windows.
//!
//! A region is registered with the requested rights, and with the right to bind windows to it if the device has windows
//! and the memory allows it. Verbs do not permit remote write or atomic access without local write access. So a region
//! for which the consumer requests exactly this is registered twice: once for local segments, once for peers.
//!
//! [`SharedMw::begin`] calls a function that posts a bind, under the window's lock, and returns a [`PendingBind`]. The
//! caller keeps the `PendingBind` until the bind completes ([`PendingBind::completed`]). If it is dropped instead, the
//! bind counts as flushed. [`SharedMw::flush_unposted`] flushes a bind that is not posted to the device.
//!
//! Drivers change only eight bits of a window's key, and keep the old binding when a bind fails. So the device's window
//! is replaced after 255 binds, and after a bind that fails or is flushed.

pub(crate) mod binds;
pub(crate) mod keys;

use std::io;
use std::sync::Arc;

use dapl::error::{AccessKind as MissingRight, Error, Resource, Result};
use dapl::provider::{Access, Bind, MemoryRegion, MemoryWindow, Region};
use ibverbs_sys::ibv_access_flags as flags;
use parking_lot::Mutex;

use crate::memory::binds::WindowBinds;
use crate::memory::keys::{LocalKeys, PdId};
use crate::{ibv, refusal};

#[derive(Clone)]
pub struct Pd(pub(crate) Arc<ibv::Pd>);

impl Pd {
    pub(crate) fn new(context: &Arc<ibv::Context>) -> Result<Self> {
        ibv::Pd::new(context).map(Pd).map_err(|error| {
            log::error!(
                "{0}: cannot create a protection domain: {error}; free other PZs (ibv_devinfo -v -d {0} shows the limit max_pd)",
                context.name()
            );
            Error::Exhausted(Resource::ProtectionDomain)
        })
    }

    #[inline]
    pub(crate) fn id(&self) -> PdId {
        PdId(Arc::as_ptr(&self.0) as usize)
    }
}

/// Registered memory.
pub struct Mr {
    /// Registration for local segments, and for peers unless `remote` is set.
    local: ibv::Mr,
    /// Registration for peers, if their rights need a separate one.
    remote: Option<ibv::Mr>,
    access: Access,
    keys: Arc<LocalKeys>,
}

impl Mr {
    /// Registers memory, and adds its local key. `has_windows`: the device supports windows.
    ///
    /// Errors: those of [`refusal::registration`].
    pub(crate) fn new(
        pd: &Pd,
        region: Region,
        access: Access,
        has_windows: bool,
        keys: &Arc<LocalKeys>,
    ) -> Result<Self> {
        let local = register(pd, region, local_flags(access), has_windows)?;
        let needs_two = (access.remote_write || access.remote_atomic) && !access.local_write;
        let remote = needs_two.then(|| register(pd, region, remote_flags(access), false)).transpose()?;
        keys.add(local.lkey, pd.id(), region, access.local_write);
        Ok(Mr { local, remote, access, keys: keys.clone() })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Removed before `local` is dropped: afterwards the device may reuse the key.
        self.keys.remove(self.local.lkey);
    }
}

impl MemoryRegion for Mr {
    fn local_key(&self) -> u32 {
        self.local.lkey
    }

    fn remote_key(&self) -> u32 {
        let is_exported = self.access.is_remote();
        if is_exported { self.remote.as_ref().unwrap_or(&self.local).rkey } else { 0 }
    }
}

/// Registers memory. `wants_binds`: also with the right to bind windows to it, if the memory allows it.
fn register(pd: &Pd, region: Region, access: u32, wants_binds: bool) -> Result<ibv::Mr> {
    let binds = if wants_binds { flags::IBV_ACCESS_MW_BIND } else { 0 };
    let registered = match ibv::Mr::new(&pd.0, region, access | binds) {
        // The kernel requires write access for the right to bind windows, and read-only memory has none. So the memory
        // is registered without this right.
        Err(error) if wants_binds && error.raw_os_error() == Some(libc::EFAULT) && access & WRITES == 0 => {
            ibv::Mr::new(&pd.0, region, access)
        }
        registered => registered,
    };
    registered.map_err(|error| refusal::registration(pd.0.context.name(), region, &error))
}

const WRITES: u32 = flags::IBV_ACCESS_LOCAL_WRITE | flags::IBV_ACCESS_REMOTE_WRITE;

/// Returns the rights of the registration for local segments. They include the requested remote rights, but remote
/// write and atomic access only together with local write access, as verbs require.
fn local_flags(access: Access) -> u32 {
    if access.local_write {
        flags::IBV_ACCESS_LOCAL_WRITE | remote_rights(access)
    } else {
        remote_rights(Access { remote_write: false, remote_atomic: false, ..access })
    }
}

/// Returns the rights of the separate registration for peers.
fn remote_flags(access: Access) -> u32 {
    local_flags(Access { local_write: true, ..access })
}

/// The object layer's handle of a memory window.
pub struct Mw(pub(crate) Arc<SharedMw>);

impl Mw {
    /// Creates an unbound window. Errors: `ModelNotSupported` if the device has no windows; `Exhausted(MemoryRegion)`.
    pub(crate) fn new(pd: &Pd) -> Result<Self> {
        let mw = new_window(&pd.0)?;
        let binds = Mutex::new(WindowBinds::new(mw.rkey(), mw));
        Ok(Mw(Arc::new(SharedMw { pd: pd.0.clone(), binds })))
    }
}

fn new_window(pd: &Arc<ibv::Pd>) -> Result<ibv::Mw> {
    ibv::Mw::new(pd).map_err(|error| {
        if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            return Error::ModelNotSupported;
        }
        log::error!(
            "{0}: cannot create a memory window: {error}; free other RMRs (ibv_devinfo -v -d {0} shows the limit max_mw)",
            pd.context.name()
        );
        Error::Exhausted(Resource::MemoryRegion)
    })
}

impl MemoryWindow for Mw {
    fn is_bound(&self) -> bool {
        self.0.binds.lock().is_bound
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // Drops the device's windows, so binds in flight fail.
        let all = self.0.binds.lock().close();
        drop(all);
    }
}

/// The state of a window, shared by its handle and its binds in flight.
pub(crate) struct SharedMw {
    pd: Arc<ibv::Pd>,
    binds: Mutex<WindowBinds<ibv::Mw>>,
}

impl SharedMw {
    /// Posts a bind, or an unbind for `None`, by calling `post`. Returns the new key; 0 for an unbind.
    ///
    /// Errors: `Privileges` if no window can be bound to the memory; `Exhausted(Memory)` if the queue is full;
    /// `Internal`; those of [`Mw::new`] if a new window of the device is needed. After an error, the binding is the
    /// same as before.
    pub(crate) fn begin(
        self: &Arc<Self>,
        bind: Option<Bind<'_, Mr>>,
        post: impl FnOnce(&ibv::Mw, Option<(&ibv::Mr, Region, u32)>) -> io::Result<u32>,
    ) -> Result<(PendingBind, u32)> {
        if bind.as_ref().is_some_and(|bind| bind.mr.local.flags & flags::IBV_ACCESS_MW_BIND == 0) {
            log::debug!("cannot bind a window to read-only memory: the kernel does not allow it");
            return Err(Error::Privileges(MissingRight::Read));
        }
        let what = bind.as_ref().map(|bind| (&bind.mr.local, bind.region, remote_rights(bind.access)));
        let mut binds = self.binds.lock();
        let mw = match binds.current() {
            Some(mw) => mw.clone(),
            None => binds.set_window(new_window(&self.pd)?),
        };
        let key = post(&mw, what).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
            _ => {
                log::error!(
                    "{}: cannot post a bind: {error}; dat_rmr_bind fails with DAT_INTERNAL_ERROR",
                    self.pd.context.name()
                );
                Error::Internal
            }
        })?;
        let is_bind = bind.is_some();
        let number = binds.record_posted(mw, key, bind.map(|bind| bind.kept));
        Ok((PendingBind { window: self.clone(), number, is_done: false }, if is_bind { key } else { 0 }))
    }

    /// Flushes a bind or unbind that is not posted to the device, and unbinds the window. Returns a key that never
    /// grants access; 0 for an unbind.
    pub(crate) fn flush_unposted(&self, is_bind: bool) -> u32 {
        let (key, old) = self.binds.lock().record_flushed();
        drop(old);
        if is_bind { key } else { 0 }
    }
}

/// A bind in flight. Dropping it records that the bind was flushed.
pub(crate) struct PendingBind {
    window: Arc<SharedMw>,
    number: u64,
    /// Whether the bind has taken effect.
    is_done: bool,
}

impl PendingBind {
    /// Records that the bind is complete. `is_done`: it has taken effect.
    pub(crate) fn completed(mut self, is_done: bool) {
        self.is_done = is_done;
    }
}

impl Drop for PendingBind {
    fn drop(&mut self) {
        let old = self.window.binds.lock().complete(self.number, self.is_done);
        // Dropped without the lock, because the drop may end a registration or destroy a window of the device.
        drop(old);
    }
}

/// Returns the rights of peers, for a window or a registration.
fn remote_rights(access: Access) -> u32 {
    let bit = |granted, right| if granted { right } else { 0 };
    bit(access.remote_read, flags::IBV_ACCESS_REMOTE_READ)
        | bit(access.remote_write, flags::IBV_ACCESS_REMOTE_WRITE)
        | bit(access.remote_atomic, flags::IBV_ACCESS_REMOTE_ATOMIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_has_exactly_the_requested_rights() {
        let access = |local_write, remote_read, remote_write| Access {
            local_write,
            remote_read,
            remote_write,
            remote_atomic: false,
            zero_based: false,
        };
        let (local, write, read) =
            (flags::IBV_ACCESS_LOCAL_WRITE, flags::IBV_ACCESS_REMOTE_WRITE, flags::IBV_ACCESS_REMOTE_READ);
        assert_eq!(local_flags(access(false, false, false)), 0);
        assert_eq!(local_flags(access(true, false, false)), local);
        assert_eq!(local_flags(access(false, true, false)), read);
        assert_eq!(local_flags(access(true, true, true)), local | read | write);
        // Remote write access without local write access needs two registrations.
        assert_eq!(local_flags(access(false, true, true)), read);
        assert_eq!(remote_flags(access(false, true, true)), local | read | write);
        assert_eq!(remote_flags(access(false, false, true)), local | write);
        assert_eq!(remote_rights(access(true, true, false)), read);
        assert_eq!(remote_rights(access(false, false, true)), write);
        let atomic = Access { remote_atomic: true, ..Access::default() };
        assert_eq!((local_flags(atomic), remote_rights(atomic)), (0, flags::IBV_ACCESS_REMOTE_ATOMIC));
        assert_eq!(remote_flags(atomic), local | flags::IBV_ACCESS_REMOTE_ATOMIC);
        assert_eq!(
            local_flags(access(true, true, true)) & flags::IBV_ACCESS_REMOTE_ATOMIC,
            0,
            "remote read and write do not imply remote atomic"
        );
    }
}
