//! Handles of libdat that this crate owns. Each object frees its handle when its last reference is dropped, and holds
//! references to the objects that it was created on. An adapter has a table of its endpoints, because events name an
//! endpoint by its handle.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Weak};

use dat_abi::*;
use parking_lot::Mutex;

use crate::address::Address;
use crate::descriptor::DescriptorCalls;
use crate::error::is_success;
use crate::flight::OutstandingTransfers;
use crate::library::Functions;
use crate::limits::Limits;

/// A handle of libdat. Any thread may use it, because the provider is thread-safe.
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) DAT_HANDLE);

// SAFETY: a handle is an opaque value that is never dereferenced here; the library accepts it from any thread.
unsafe impl Send for Handle {}
// SAFETY: a handle is an opaque value that is never dereferenced here; the library accepts it from any thread.
unsafe impl Sync for Handle {}

pub(crate) struct IaInner {
    pub(crate) functions: Arc<Functions>,
    pub(crate) handle: Handle,
    pub(crate) limits: Limits,
    pub(crate) address: Option<Address>,
    pub(crate) provider: String,
    pub(crate) descriptors: Option<DescriptorCalls>,
    /// Privileges that memory needs to be the destination of an RDMA read.
    pub(crate) sink: DAT_MEM_PRIV_FLAGS,
    /// Endpoints by their handles.
    pub(crate) eps: Mutex<HashMap<usize, Weak<EpInner>>>,
}

impl IaInner {
    /// Returns the endpoint with this handle, if it was not dropped.
    pub(crate) fn ep(&self, handle: DAT_EP_HANDLE) -> Option<Arc<EpInner>> {
        self.eps.lock().get(&(handle as usize)).and_then(Weak::upgrade)
    }
}

impl Drop for IaInner {
    fn drop(&mut self) {
        // SAFETY: the last owner is being dropped, and all objects created on the adapter have been dropped.
        let _ = unsafe { (self.functions.dat_ia_close)(self.handle.0, DAT_CLOSE_ABRUPT_FLAG) };
    }
}

/// A protection zone. An endpoint, and its peer through this endpoint, can access only memory in the zone of the
/// endpoint.
#[derive(Clone)]
pub struct Pz {
    pub(crate) inner: Arc<PzInner>,
}

/// An object of libdat. Its handle is freed when it is dropped. Endpoints, shared receive queues and registrations have
/// types of their own, because their buffers are leaked if the handle cannot be freed.
pub(crate) struct Object<K = ()> {
    pub(crate) handle: Handle,
    pub(crate) ia: Arc<IaInner>,
    /// Frees the handle.
    free: unsafe extern "C" fn(DAT_HANDLE) -> DAT_RETURN,
    /// Other objects that must exist as long as this one.
    _kept: K,
}

/// A protection zone.
pub(crate) type PzInner = Object;
/// A group of event queues.
pub(crate) type CnoInner = Object;
/// An event queue, and its group.
pub(crate) type EvdInner = Object<Option<Arc<CnoInner>>>;

impl<K> Object<K> {
    /// Takes the ownership of a new handle, which `free` frees.
    pub(crate) fn new(
        ia: &Arc<IaInner>,
        handle: DAT_HANDLE,
        free: unsafe extern "C" fn(DAT_HANDLE) -> DAT_RETURN,
        kept: K,
    ) -> Self {
        Object { handle: Handle(handle), ia: Arc::clone(ia), free, _kept: kept }
    }
}

impl<K> Drop for Object<K> {
    fn drop(&mut self) {
        // SAFETY: the creator of the object has passed this function for the handle. The last owner is being dropped,
        // and objects that use this one hold references.
        let _ = unsafe { (self.free)(self.handle.0) };
    }
}

pub(crate) struct SrqInner {
    pub(crate) handle: Handle,
    pub(crate) pz: Arc<PzInner>,
    pub(crate) flight: Mutex<OutstandingTransfers>,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: the last owner is being dropped; endpoints that use the queue hold references.
        let code = unsafe { (self.pz.ia.functions.dat_srq_free)(self.handle.0) };
        if !is_success(code) {
            // The queue may still write to the buffers, so they are leaked.
            mem::forget(mem::replace(self.flight.get_mut(), OutstandingTransfers::shared()));
        }
    }
}

/// Id of an endpoint in events. Ids are unique in a process and never reused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EpId(pub(crate) u64);

/// Identifies an event queue in the result of [`Cno::wait`](crate::Cno::wait).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EvdId(pub(crate) usize);

/// Identifies a bind or unbind of an RMR in [`Event::Bound`](crate::Event::Bound).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct BindId(pub(crate) u64);

pub(crate) struct EpInner {
    pub(crate) id: EpId,
    pub(crate) handle: Handle,
    pub(crate) pz: Arc<PzInner>,
    /// The event queues. The references keep them alive as long as the endpoint.
    pub(crate) _queues: [Arc<EvdInner>; 3],
    /// The shared receive queue of the endpoint.
    pub(crate) srq: Option<Arc<SrqInner>>,
    pub(crate) flight: Mutex<OutstandingTransfers>,
}

impl Drop for EpInner {
    fn drop(&mut self) {
        self.pz.ia.eps.lock().remove(&(self.handle.0 as usize));
        // SAFETY: the last owner is being dropped. After the call, no transfer of this endpoint accesses memory.
        let code = unsafe { (self.pz.ia.functions.dat_ep_free)(self.handle.0) };
        if !is_success(code) {
            // The endpoint may still access the buffers, so they are leaked.
            mem::forget(mem::replace(self.flight.get_mut(), OutstandingTransfers::new()));
        }
    }
}
