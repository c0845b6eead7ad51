//! Open adapters and their protection zones, on which all other objects are created. Keeps a table of live endpoints, because
//! events name them.

use std::collections::HashMap;
use std::ffi::CStr;
use std::ptr;
use std::sync::{Arc, Weak};

use dat_abi::*;
use parking_lot::Mutex;

use crate::address::Address;
use crate::ep::{Ep, EpInner, EpSpec};
use crate::error::{Error, Result};
use crate::evd::{Evd, Streams};
use crate::library::{Functions, text};
use crate::listener::Listener;

/// Asynchronous errors that may wait at an adapter's own queue.
const ERRORS: DAT_COUNT = 16;

/// Limits of an adapter, from its attributes.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum length of a message, in bytes.
    pub max_message: u64,
    /// Maximum length of an RDMA read or write, in bytes.
    pub max_rdma: u64,
    /// Transfers posted at a time, of each direction of an endpoint.
    pub max_posted: u32,
    /// Maximum of outstanding RDMA reads that an endpoint issues.
    pub max_reads: u32,
    /// Maximum of outstanding RDMA reads that an endpoint responds to.
    pub max_reads_answered: u32,
    /// Events in a queue.
    pub max_events: u32,
    /// Private data of a connection, in bytes.
    pub max_private_data: usize,
}

/// An open interface adapter. It is closed when it and all that was made on it are gone.
pub struct Ia {
    inner: Arc<IaInner>,
}

pub(crate) struct IaInner {
    pub(crate) functions: Arc<Functions>,
    pub(crate) handle: Handle,
    pub(crate) limits: Limits,
    address: Option<Address>,
    provider: String,
    /// Privileges that the memory of an RDMA read's destination needs.
    pub(crate) sink: DAT_MEM_PRIV_FLAGS,
    /// Endpoints by their handles.
    eps: Mutex<HashMap<usize, Weak<EpInner>>>,
}

/// A handle of libdat, usable by any thread: a thread-safe provider was requested.
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) DAT_HANDLE);

// SAFETY: an opaque value that is never dereferenced here; the library accepts it from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Ia {
    pub(crate) fn open(functions: Arc<Functions>, name: &str, c_name: &CStr) -> Result<Self> {
        let (mut errors, mut handle) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the name is NUL-terminated and only read; the results are written to local variables.
        let code = unsafe {
            let name = c_name.as_ptr().cast_mut();
            let (major, minor) = (DAT_VERSION_MAJOR, DAT_VERSION_MINOR);
            (functions.dat_ia_openv)(name, ERRORS, &raw mut errors, &raw mut handle, major, minor, DAT_FALSE)
        };
        functions.check("dat_ia_openv", code)?;
        let mut inner = IaInner {
            functions,
            handle: Handle(handle),
            limits: Limits::NONE,
            address: None,
            provider: String::new(),
            sink: 0,
            eps: Mutex::default(),
        };
        inner.ask(name)?;
        Ok(Ia { inner: Arc::new(inner) })
    }

    /// Limits of the adapter.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Address for peers; `None` if it is not an IP address.
    pub fn address(&self) -> Option<Address> {
        self.inner.address
    }

    /// Name of its provider.
    pub fn provider(&self) -> &str {
        &self.inner.provider
    }

    /// A new protection zone.
    ///
    /// # Errors
    /// What `dat_pz_create` refuses.
    pub fn pz(&self) -> Result<Pz> {
        let ia = Arc::clone(&self.inner);
        let mut handle = ptr::null_mut();
        // SAFETY: the result is written to a local variable.
        let code = unsafe { (ia.functions.dat_pz_create)(ia.handle.0, &raw mut handle) };
        ia.functions.check("dat_pz_create", code)?;
        Ok(Pz { inner: Arc::new(PzInner { handle: Handle(handle), ia }) })
    }

    /// Creates a queue for at least `events` events of these streams.
    ///
    /// # Errors
    /// Those of `dat_evd_create`.
    pub fn evd(&self, events: u32, streams: Streams) -> Result<Evd> {
        Evd::new(&self.inner, events, streams)
    }

    /// Listens on this qualifier; requests arrive in `events`, which needs [`Streams::REQUEST`].
    ///
    /// # Errors
    /// Those of `dat_psp_create`, for example if the qualifier is in use.
    pub fn listen(&self, qualifier: u64, events: &Evd) -> Result<Listener> {
        Listener::new(&self.inner, Some(qualifier), events)
    }

    /// Listens on a free qualifier, which [`Listener::qualifier`] returns.
    ///
    /// # Errors
    /// Those of `dat_psp_create_any`.
    pub fn listen_any(&self, events: &Evd) -> Result<Listener> {
        Listener::new(&self.inner, None, events)
    }
}

impl Limits {
    const NONE: Limits = Limits {
        max_message: 0,
        max_rdma: 0,
        max_posted: 0,
        max_reads: 0,
        max_reads_answered: 0,
        max_events: 0,
        max_private_data: 0,
    };

    fn new(ia: &DAT_IA_ATTR, provider: &DAT_PROVIDER_ATTR) -> Self {
        let count = |count: DAT_COUNT| u32::try_from(count).unwrap_or(0);
        Limits {
            max_message: ia.max_message_size,
            max_rdma: ia.max_rdma_size,
            max_posted: count(ia.max_dto_per_ep),
            max_reads: count(ia.max_rdma_read_per_ep_out),
            max_reads_answered: count(ia.max_rdma_read_per_ep_in),
            max_events: count(ia.max_evd_qlen),
            max_private_data: count(provider.max_private_data_size) as usize,
        }
    }
}

impl IaInner {
    /// Queries the limits of the adapter, and whether its provider is thread-safe.
    fn ask(&mut self, name: &str) -> Result<()> {
        // SAFETY: numbers, characters and pointers; all zero is a value of each.
        let (mut ia, mut provider): (DAT_IA_ATTR, DAT_PROVIDER_ATTR) = unsafe { std::mem::zeroed() };
        // SAFETY: both records are local and complete; null for the asynchronous EVD.
        let code = unsafe {
            (self.functions.dat_ia_query)(
                self.handle.0,
                ptr::null_mut(),
                DAT_IA_FIELD_ALL,
                &raw mut ia,
                DAT_PROVIDER_FIELD_ALL,
                &raw mut provider,
            )
        };
        self.functions.check("dat_ia_query", code)?;
        if provider.is_thread_safe == DAT_FALSE {
            return Err(Error::ThreadSafety(name.into()));
        }
        if provider.lmr_sync_req != DAT_FALSE {
            return Err(Error::Argument(format!(
                "{name}: its provider wants dat_lmr_sync_*, which udapl does not call"
            )));
        }
        self.limits = Limits::new(&ia, &provider);
        self.provider = text(&provider.provider_name);
        self.sink = match provider.rdma_write_for_rdma_read_req {
            DAT_FALSE => DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
            _ => DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
        };
        // SAFETY: null or the adapter's own address, there while it is open.
        self.address = unsafe { Address::from_c(ia.ia_address_ptr) };
        Ok(())
    }

    pub(crate) fn enter(&self, ep: &Arc<EpInner>) {
        self.eps.lock().insert(ep.handle.0 as usize, Arc::downgrade(ep));
    }

    pub(crate) fn leave(&self, handle: Handle) {
        self.eps.lock().remove(&(handle.0 as usize));
    }

    /// The endpoint that an event names, if it is alive.
    pub(crate) fn ep(&self, handle: DAT_EP_HANDLE) -> Option<Arc<EpInner>> {
        self.eps.lock().get(&(handle as usize)).and_then(Weak::upgrade)
    }
}

impl Drop for IaInner {
    fn drop(&mut self) {
        // SAFETY: the last owner is being dropped, and so is everything created on it.
        let _ = unsafe { (self.functions.dat_ia_close)(self.handle.0, DAT_CLOSE_ABRUPT_FLAG) };
    }
}

/// A protection zone: endpoints work with memory of their own zone only.
#[derive(Clone)]
pub struct Pz {
    pub(crate) inner: Arc<PzInner>,
}

pub(crate) struct PzInner {
    pub(crate) handle: Handle,
    pub(crate) ia: Arc<IaInner>,
}

impl Pz {
    /// An endpoint that reports everything to one queue, which needs [`Streams::DTO`] and [`Streams::CONNECTION`].
    ///
    /// # Errors
    /// What `dat_ep_create` refuses.
    pub fn ep(&self, events: &Evd) -> Result<Ep> {
        self.ep_with(&EpSpec::new(events))
    }

    /// An endpoint as it is described.
    ///
    /// # Errors
    /// What `dat_ep_create` refuses.
    pub fn ep_with(&self, spec: &EpSpec<'_>) -> Result<Ep> {
        Ep::new(&self.inner, spec)
    }
}

impl Drop for PzInner {
    fn drop(&mut self) {
        // SAFETY: the last owner is being dropped; objects created in it hold references.
        let _ = unsafe { (self.ia.functions.dat_pz_free)(self.handle.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Request, Window};

    #[test]
    fn threads_may_share_everything() {
        fn shared<T: Send + Sync>() {}
        shared::<Ia>();
        shared::<Pz>();
        shared::<Evd>();
        shared::<Ep>();
        shared::<Listener>();
        shared::<Request>();
        shared::<Buffer>();
        shared::<Window>();
    }
}
