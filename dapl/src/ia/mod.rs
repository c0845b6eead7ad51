//! Interface adapters (IAs): an IA holds the opened provider, and the list of all objects created in the IA.
//!
//! Other modules reach the provider, its limits and the consumer's IA handle through the IA. The IA references its
//! objects weakly; a close of the IA closes them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dat_abi::{
    DAT_ASYNC_ERROR_EP_BROKEN, DAT_ASYNC_ERROR_EVD_OVERFLOW, DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
    DAT_IA_ADDRESS_PTR, DAT_IA_HANDLE, DAT_PROVIDER,
};
use dat_counters::text::Text;
use parking_lot::Mutex;

use crate::error::{Error, Handle, Result, State};
use crate::libdat;
use crate::names::{RegisteredName, Version};
use crate::provider::{Limits, Provider};
use crate::runtime::consumer_memory::SocketAddress;
use crate::runtime::handle::{HandleHasher, Kind, Object, ObjectId, UnpublishedObject, UseCounted, UseGuard};
use crate::stats::counters::IaSums;
use crate::stats::publication;
use crate::stats::trace;

pub mod dapl_ia;
mod dapli_counts;
pub mod dapls_ia;
mod query;
#[cfg(test)]
mod tests;

use dapli_counts::IaCounts;

pub struct Ia<P: Provider> {
    /// Identifies the IA. The field `handle` is the internal handle, not the IA number that the consumer uses.
    pub(crate) id: ObjectId,
    registration: &'static RegisteredName,
    pub(crate) provider: P,
    address: Box<SocketAddress>,
    named_attributes: Vec<(String, String)>,
    /// The provider attributes of `dapl_descriptor`; set by the first query.
    descriptor_attributes: OnceLock<[(String, String); 2]>,
    counts: IaCounts,
    /// Trace settings for the EPs of this IA.
    pub(crate) tracing: trace::TraceSettings,
    /// The IA number that libdat has assigned; 0 until `consumer_handle` has found it.
    number: AtomicUsize,
    async_evd: Mutex<AsyncEvd>,
    children: Mutex<Children>,
}

/// Hash function of tables whose keys the provider and this library choose.
type FastHash = BuildHasherDefault<HandleHasher>;

/// LMRs or RMRs by context.
type Contexts = HashMap<u32, ObjectId, FastHash>;

/// Removes a context, unless it now belongs to another object.
fn remove_if(contexts: &mut Contexts, context: u32, of: ObjectId) {
    if let Entry::Occupied(found) = contexts.entry(context)
        && *found.get() == of
    {
        found.remove();
    }
}

/// Where the asynchronous errors of an IA are reported (spec/registry 4.3).
pub enum AsyncEvd {
    /// The EVD created with the IA, and freed with it.
    Own(Arc<dyn AsyncErrorSink>),
    /// An EVD that the consumer has passed to the open.
    Borrowed(UseGuard<dyn AsyncErrorSink>),
    /// The consumer passed no async EVD: all async EVDs of this library receive the errors.
    OutOfScope,
    /// The IA is being opened or closed: errors are dropped.
    Absent,
}

/// The async EVD of an IA. The trait does not name the provider's type, because one list of async EVDs serves all IAs
/// of the library.
pub trait AsyncErrorSink: UseCounted + Send + Sync {
    /// Identifies the EVD.
    fn id(&self) -> ObjectId;
    /// Queues an error. If the EVD is full, logs that the error was lost.
    fn report(&self, error: AsyncError);
}

/// An asynchronous error: it belongs to no work request.
#[derive(Clone, Copy, Debug)]
pub struct AsyncError {
    pub kind: AsyncKind,
    /// Handle of the object that has the error.
    pub handle: usize,
    /// The reason code of the specification, numbered per kind of object.
    pub reason: i32,
}

/// Kinds of asynchronous errors that this library reports, with their event numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum AsyncKind {
    EvdOverflow = DAT_ASYNC_ERROR_EVD_OVERFLOW as u16,
    EpBroken = DAT_ASYNC_ERROR_EP_BROKEN as u16,
    ProviderInternal = DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR as u16,
}

/// An object created in an IA.
pub trait Child: Send + Sync {
    /// Closes the object abruptly and invalidates its handle. A second call has no effect.
    fn close(&self);
    /// Whether a graceful close of the IA is refused while this object exists.
    fn counts_as_open(&self) -> bool {
        true
    }
    /// The contexts by which the IA finds an LMR.
    fn contexts(&self) -> Option<LmrContexts> {
        None
    }
    /// Adds the counters of this object to the sums of the IA.
    fn add_counts(&self, _sums: &mut IaSums) {}
    /// Writes this object's own counters to the text for the counters socket.
    fn describe(&self, _text: &mut Text) {}
}

/// Identifies an object among the children of its IA, until the object is freed. It is the object's address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChildKey(usize);

#[cfg(test)]
impl ChildKey {
    /// A key of no object.
    pub const NONE: ChildKey = ChildKey(0);
}

/// The order in which an abrupt close of the IA closes its objects (spec/registry 6.3).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CloseRank {
    Ep,
    Rmr,
    Lmr,
    Srq,
    Rsp,
    Psp,
    Cr,
    Pz,
    Evd,
    Cno,
    AsyncEvd,
}

#[derive(Default)]
struct Children {
    closing: bool,
    /// Objects by their address. While the `Weak` exists, the memory is not reused, so no other object has the same
    /// address.
    known: HashMap<usize, (CloseRank, Weak<dyn Child>), FastHash>,
    /// LMRs by local context.
    contexts: Contexts,
    /// LMRs and bound RMRs by remote context.
    remote_contexts: Contexts,
}

/// The contexts of an LMR.
#[derive(Clone, Copy, Debug)]
pub struct LmrContexts {
    pub of: ObjectId,
    pub local: u32,
    /// 0 means none.
    pub remote: u32,
}

impl<P: Provider> Ia<P> {
    /// The IA name in the registry.
    pub fn name(&self) -> &str {
        &self.registration.name
    }

    pub fn limits(&self) -> &Limits {
        self.provider.limits()
    }

    /// Maximum number of bytes of private data in a connect, for the version of DAT that the IA was opened with.
    pub fn private_data_connect(&self) -> usize {
        let limits = self.limits();
        match self.registration.version {
            Version::V1 => limits.private_data_connect_1_2,
            Version::V2 => limits.private_data_connect,
        }
    }

    /// Provider table for the handles of this IA and its objects.
    pub fn table(&self) -> *const DAT_PROVIDER {
        self.registration.table
    }

    /// The handle that the consumer uses: the IA number assigned by libdat, or the internal handle until a number is
    /// assigned.
    pub fn consumer_handle(&self) -> DAT_IA_HANDLE {
        let known = self.number.load(Ordering::Relaxed);
        if known != 0 {
            return known as DAT_IA_HANDLE;
        }
        let own = self.id.handle as DAT_IA_HANDLE;
        let Some(number) = libdat::ia_number(self.registration.version, own) else { return own };
        self.number.store(number as usize, Ordering::Relaxed);
        number
    }

    /// The IA address that peers connect to; the pointer is valid for the life of the IA.
    pub fn address_ptr(&self) -> DAT_IA_ADDRESS_PTR {
        self.address.as_ptr().cast()
    }

    /// Whether this EVD was created with the IA as its async EVD.
    pub(crate) fn owns_async_evd(&self, id: ObjectId) -> bool {
        matches!(&*self.async_evd.lock(), AsyncEvd::Own(evd) if evd.id() == id)
    }

    /// Makes the handle of a new object live, and adds the object. Returns the handle.
    pub fn publish<C: Object + Child>(&self, object: UnpublishedObject<C>, rank: CloseRank) -> *mut c_void {
        let child = object.object().clone();
        let handle = object.publish();
        self.add_child(&child, rank);
        handle
    }

    /// Adds an object with a live handle. If the IA is being closed, closes the object.
    pub fn add_child<C: Child + 'static>(&self, child: &Arc<C>, rank: CloseRank) -> ChildKey {
        if matches!(rank, CloseRank::Ep | CloseRank::Srq | CloseRank::Rsp | CloseRank::Psp) {
            publication::start(); // without any of these objects, a process has no transfers to show
        }
        let mut children = self.children.lock();
        let address = Arc::as_ptr(child) as usize;
        if children.closing {
            drop(children);
            child.close();
        } else {
            children.known.insert(address, (rank, Arc::<C>::downgrade(child)));
            if let Some(LmrContexts { of, local, remote }) = child.contexts() {
                children.contexts.insert(local, of);
                if remote != 0 {
                    children.remote_contexts.insert(remote, of);
                }
            }
        }
        ChildKey(address)
    }

    /// Closes a connection request, unless the close of the IA has closed it.
    pub fn close_request(&self, key: ChildKey) {
        let children = self.children.lock();
        let known = children.known.get(&key.0).filter(|(rank, _)| *rank == CloseRank::Cr);
        let child = known.and_then(|(_, child)| child.upgrade());
        drop(children);
        if let Some(child) = child {
            child.close();
        }
    }

    /// Removes an object that was freed.
    pub fn remove_child<C: Child>(&self, child: &C) {
        let address = std::ptr::from_ref(child) as usize;
        let mut children = self.children.lock();
        let removed = children.known.remove(&address);
        if let Some(LmrContexts { of, local, remote }) = child.contexts() {
            remove_if(&mut children.contexts, local, of);
            remove_if(&mut children.remote_contexts, remote, of);
        }
        drop(children);
        // Dropped after the lock is released, because this can be the last reference to the object.
        drop(removed);
    }

    /// Records the remote context of a bound RMR.
    pub fn add_remote_context(&self, context: u32, of: ObjectId) {
        self.children.lock().remote_contexts.insert(context, of);
    }

    /// Removes a remote context, unless it now belongs to another object.
    pub fn remove_remote_context(&self, context: u32, of: ObjectId) {
        remove_if(&mut self.children.lock().remote_contexts, context, of);
    }

    /// The LMR or RMR with this remote context in this IA. It may have been freed since it was recorded.
    pub fn remote_context(&self, context: u32) -> Option<ObjectId> {
        self.children.lock().remote_contexts.get(&context).copied()
    }

    /// The LMR with this local context. It may have been freed since it was recorded.
    pub fn context(&self, context: u32) -> Option<ObjectId> {
        self.children.lock().contexts.get(&context).copied()
    }

    /// Begins a close: no object can be added afterwards. Returns the objects in the order in which they must be
    /// closed.
    ///
    /// Errors: `InvalidHandle` if another thread has begun to close the IA; `InvalidState(IaInUse)` if a graceful close
    /// finds an object or a user of the async EVD. An error changes nothing.
    fn begin_close(&self, graceful: bool) -> Result<Vec<Weak<dyn Child>>> {
        let mut children = self.children.lock();
        if children.closing {
            return Err(Error::InvalidHandle(Handle::Ia));
        }
        if graceful {
            let open = |child: &Weak<dyn Child>| child.upgrade().is_some_and(|child| child.counts_as_open());
            let in_use = matches!(&*self.async_evd.lock(), AsyncEvd::Own(evd) if evd.uses().count() > 0);
            if in_use || children.known.values().any(|(_, child)| open(child)) {
                return Err(Error::InvalidState(State::IaInUse));
            }
        }
        children.closing = true;
        let mut known: Vec<_> = std::mem::take(&mut children.known).into_values().collect();
        drop(children);
        known.sort_by_key(|(rank, _)| *rank);
        Ok(known.into_iter().map(|(_, child)| child).collect())
    }
}

impl<P: Provider> Object for Ia<P> {
    const KIND: Kind = Kind::Ia;
}
