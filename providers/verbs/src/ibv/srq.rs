//! A shared receive queue.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq, ibv_recv_wr,
    ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

use super::{Pd, absent, destroyed, done, made};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    srq: NonNull<ibv_srq>,
    /// Capacity as granted by the device.
    capacity: u32,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs allows any thread to use a queue, several at once.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue with capacity for at least `max_wr` receives of `max_sge` segments; its events come under `id`.
    pub(crate) fn new(pd: &Arc<Pd>, max_wr: u32, max_sge: u32, id: usize) -> io::Result<Arc<Self>> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: id as *mut c_void, attr };
        // SAFETY: the domain exists, and `attributes` is a whole record. The id is a number that libibverbs stores and
        // never follows.
        let srq = made(unsafe { ibv_create_srq(pd.as_ptr(), &mut attributes) })?;
        // The record now has the values granted by the device.
        Ok(Arc::new(Srq { srq, capacity: attributes.attr.max_wr, pd: pd.clone() }))
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[ibv_sge]) -> io::Result<()> {
        let post = self.pd.context().ops().post_srq_recv.ok_or_else(absent)?;
        let mut wr = recv_wr(wr_id, segments);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue exists; the request and its segments outlive the call and are not modified.
        done(unsafe { post(self.as_ptr(), &mut wr, &mut bad) })
    }

    /// Requests one `Limit` event when fewer than `limit` receives are available; 0 requests none.
    pub(crate) fn limit(&self, limit: u32) -> io::Result<()> {
        self.modify(ibv_srq_attr { srq_limit: limit, ..Default::default() }, IBV_SRQ_LIMIT)
    }

    /// Changes the capacity. Errors: not supported by the device, too large, or more is posted.
    pub(crate) fn resize(&self, max_wr: u32) -> io::Result<()> {
        self.modify(ibv_srq_attr { max_wr, ..Default::default() }, IBV_SRQ_MAX_WR)
    }

    /// Capacity and limit of the device; the limit is 0 after its event.
    pub(crate) fn attributes(&self) -> io::Result<ibv_srq_attr> {
        let mut attributes = ibv_srq_attr::default();
        // SAFETY: the queue exists, and `attributes` is a whole record.
        done(unsafe { ibv_query_srq(self.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    /// Capacity at creation.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    fn modify(&self, mut attributes: ibv_srq_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the queue exists, and `attributes` is a whole record.
        done(unsafe { ibv_modify_srq(self.as_ptr(), &mut attributes, mask as i32) })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: no queue pair uses it: each keeps an `Arc` of it. All events were acknowledged when they were read.
        let result = unsafe { ibv_destroy_srq(self.as_ptr()) };
        destroyed(&format!("{}: a shared receive queue", self.pd.context().name()), result);
    }
}

/// A receive request that borrows `segments`, which verbs only read.
pub(super) fn recv_wr(wr_id: u64, segments: &[ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: segments.as_ptr().cast_mut(), num_sge: segments.len() as i32 }
}
