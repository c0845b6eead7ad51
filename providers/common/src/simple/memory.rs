//! Protection domains, registered memory and shared memory of an adapter.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dapl::error::{Error, Result};
use dapl::provider::{Access, MemoryRegion, Region, SharedCookie};

use super::per_process::PerProcess;
use super::registrations::Registrations;
use crate::base_dir::{BaseDir, BaseDirKind};
use crate::memory::user_copy::MappingChecker;
use crate::shared_names::{Membership, SharedNames};

/// The registrations of all adapters of this process. The adapters share one table, because the two queue pairs of a
/// transfer may belong to different adapters.
pub(super) static REGISTRATIONS: PerProcess<Registrations> = PerProcess::new();

/// Creates the memory objects of an adapter.
pub struct Memory {
    checker: Arc<MappingChecker>,
    names: SharedNames,
}

#[derive(Clone)]
pub struct Pd {
    pub(super) number: u32,
    /// Checks that registered memory is still mapped.
    pub(super) checker: Arc<MappingChecker>,
}

/// Registered memory. Dropping it waits for copies in progress, and ends the registration.
pub struct Mr {
    key: u32,
    has_remote_key: bool,
}

impl Memory {
    /// Prepares for the memory objects of an adapter. `directory` will contain the names of shared memory. The first
    /// `join` creates it.
    pub fn new(directory: &'static BaseDirKind) -> Self {
        let chosen = dapl::runtime::logger::secure_variable(directory.variable);
        Memory { checker: Arc::default(), names: SharedNames::new(BaseDir::new(directory, chosen.as_deref())) }
    }

    pub fn alloc_pd(&self) -> Pd {
        static LAST: AtomicU32 = AtomicU32::new(0);
        Pd { number: LAST.fetch_add(1, Ordering::Relaxed), checker: self.checker.clone() }
    }

    /// Registers memory. Errors: `InvalidParameter(3)` if it is not mapped, not readable, or not writable although
    /// `access` needs it.
    pub fn register(&self, pd: &Pd, region: Region, access: Access) -> Result<Mr> {
        if !self.checker.may_register(region, access.writes()) {
            return Err(Error::InvalidParameter(3));
        }
        let key = REGISTRATIONS.lock().add(pd.number, region, access);
        Ok(Mr { key, has_remote_key: access.is_remote() })
    }

    /// Joins the processes that share memory under a cookie. Errors: those of [`SharedNames::join`], for example
    /// `InvalidParameter(4)` if their memory has another length.
    pub fn join(&self, cookie: &SharedCookie, length: u64) -> Result<Membership> {
        self.names.join(cookie, length)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.names.remove_if_empty();
    }
}

impl MemoryRegion for Mr {
    fn local_key(&self) -> u32 {
        self.key
    }

    fn remote_key(&self) -> u32 {
        if self.has_remote_key { self.key } else { 0 }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        REGISTRATIONS.lock().remove(self.key);
    }
}
