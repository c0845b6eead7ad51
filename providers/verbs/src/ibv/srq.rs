//! Wrapper of a shared receive queue of the device (`ibv_srq`).

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq, ibv_recv_wr,
    ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

use super::{Handle, Pd, check_result, destroys, missing_verb};

pub(crate) struct Srq {
    pub(super) handle: Handle<ibv_srq>,
    /// Capacity that the device granted at creation; at least the requested one.
    pub(crate) capacity: u32,
    pub(crate) pd: Arc<Pd>,
}

impl Srq {
    /// Creates a queue for at least `max_wr` receives of `max_sge` segments. Its events carry `id`.
    pub(crate) fn new(pd: &Arc<Pd>, max_wr: u32, max_sge: u32, id: usize) -> io::Result<Arc<Self>> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut attributes = ibv_srq_init_attr { srq_context: id as *mut c_void, attr };
        // SAFETY: the protection domain exists, and `attributes` is initialised. libibverbs stores `id` and never
        // dereferences it.
        let handle = Handle::check(unsafe { ibv_create_srq(pd.handle.as_ptr(), &mut attributes) })?;
        // The call has replaced the requested values by the granted ones.
        Ok(Arc::new(Srq { handle, capacity: attributes.attr.max_wr, pd: pd.clone() }))
    }

    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[ibv_sge]) -> io::Result<()> {
        let post = self.pd.context.ops().post_srq_recv.ok_or_else(missing_verb)?;
        let mut wr = recv_wr(wr_id, segments);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue exists. `wr` and `segments` outlive the call, which copies them.
        check_result(unsafe { post(self.handle.as_ptr(), &mut wr, &mut bad) })
    }

    /// Requests one `Limit` event when fewer than `limit` receives are available; 0 requests none.
    pub(crate) fn limit(&self, limit: u32) -> io::Result<()> {
        self.modify(ibv_srq_attr { srq_limit: limit, ..Default::default() }, IBV_SRQ_LIMIT)
    }

    /// Changes the capacity. Errors: the device does not support resizing, `max_wr` is too large, or more receives are
    /// posted.
    pub(crate) fn resize(&self, max_wr: u32) -> io::Result<()> {
        self.modify(ibv_srq_attr { max_wr, ..Default::default() }, IBV_SRQ_MAX_WR)
    }

    /// Queries capacity and limit. The limit is 0 after its event has occurred.
    pub(crate) fn attributes(&self) -> io::Result<ibv_srq_attr> {
        let mut attributes = ibv_srq_attr::default();
        // SAFETY: the queue exists, and `attributes` is initialised.
        check_result(unsafe { ibv_query_srq(self.handle.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    fn modify(&self, mut attributes: ibv_srq_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the queue exists, and `attributes` is initialised.
        check_result(unsafe { ibv_modify_srq(self.handle.as_ptr(), &mut attributes, mask as i32) })
    }
}

destroys! { Srq, ibv_destroy_srq, |srq| format!("shared receive queue of {}", srq.pd.context.name()) }

/// Builds a receive request. It contains a pointer to `segments`, which must outlive the post.
pub(super) fn recv_wr(wr_id: u64, segments: &[ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: segments.as_ptr().cast_mut(), num_sge: segments.len() as i32 }
}
