//! Wrappers of protection domains, memory regions and memory windows of the device (`ibv_pd`, `ibv_mr`, `ibv_mw`).

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;

use dapl::provider::Region;
use ibverbs_sys::{IBV_MW_TYPE_1, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_mr, ibv_mw, ibv_pd, ibv_reg_mr};
use parking_lot::Mutex;

use super::{Context, Handle, check_destroy, destroys, missing_verb};

pub(crate) struct Pd {
    pub(super) handle: Handle<ibv_pd>,
    pub(crate) context: Arc<Context>,
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: `context` is open until it is dropped.
        let handle = Handle::check(unsafe { ibv_alloc_pd(context.handle.as_ptr()) })?;
        Ok(Arc::new(Pd { handle, context: context.clone() }))
    }
}

destroys! { Pd, ibv_dealloc_pd, |pd| format!("protection domain of {}", pd.context.name()) }

pub(crate) struct Mr {
    pub(super) handle: Handle<ibv_mr>,
    /// Key for local segments.
    pub(crate) lkey: u32,
    /// Key for RDMA operations of peers.
    pub(crate) rkey: u32,
    /// `IBV_ACCESS_*` flags of the registration.
    pub(crate) flags: u32,
    pd: Arc<Pd>,
}

impl Mr {
    /// Registers `region` with `IBV_ACCESS_*` flags. Errors: the kernel's, such as `EFAULT` for memory that is not
    /// mapped or not writable.
    pub(crate) fn new(pd: &Arc<Pd>, region: Region, flags: u32) -> io::Result<Self> {
        let length = usize::try_from(region.length).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the protection domain exists. The call does not access the memory; the kernel checks that it is
        // mapped.
        let handle = Handle::check(unsafe {
            ibv_reg_mr(pd.handle.as_ptr(), region.address as *mut c_void, length, flags as c_int)
        })?;
        // SAFETY: `handle` was returned by `ibv_reg_mr`.
        let (lkey, rkey) = unsafe { ((*handle.as_ptr()).lkey, (*handle.as_ptr()).rkey) };
        Ok(Mr { handle, lkey, rkey, flags, pd: pd.clone() })
    }
}

destroys! { Mr, ibv_dereg_mr, |mr| format!("memory region of {}", mr.pd.context.name()) }

/// A memory window of type 1, which `Qp::bind` binds.
pub(crate) struct Mw {
    /// The lock protects the key in the window, which binds read and write.
    mw: Mutex<Handle<ibv_mw>>,
    pub(super) pd: Arc<Pd>,
}

impl Mw {
    /// Creates an unbound window. Errors: `EOPNOTSUPP` if the device has no memory windows.
    pub(crate) fn new(pd: &Arc<Pd>) -> io::Result<Self> {
        let alloc = pd.context.ops().alloc_mw.ok_or_else(missing_verb)?;
        // SAFETY: the protection domain exists until `pd` is dropped.
        let mw = Handle::check(unsafe { alloc(pd.handle.as_ptr(), IBV_MW_TYPE_1) })?;
        Ok(Mw { mw: Mutex::new(mw), pd: pd.clone() })
    }

    /// Returns the window's key after all posted binds. Drivers increment the low eight bits even for a bind that fails
    /// later. Some drivers compare this key with the device's key. So a window whose bind has failed cannot be used
    /// again.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the window exists, and the lock excludes binds.
        self.with(|mw| unsafe { (*mw).rkey })
    }

    /// Calls `body` with exclusive access to the window.
    pub(super) fn with<T>(&self, body: impl FnOnce(*mut ibv_mw) -> T) -> T {
        let mw = self.mw.lock();
        body(mw.as_ptr())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let Some(dealloc) = self.pd.context.ops().dealloc_mw else { return };
        // SAFETY: `self` is the only owner, and is dropped here. The device fails later transfers with this key.
        let result = unsafe { dealloc(self.mw.get_mut().as_ptr()) };
        check_destroy(&format!("memory window of {}", self.pd.context.name()), result);
    }
}
