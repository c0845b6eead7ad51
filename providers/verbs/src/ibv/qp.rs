//! Wrapper of a reliable connected (RC) queue pair of the device (`ibv_qp`), with its posts and binds.

use std::io;
use std::ptr;
use std::sync::Arc;

use dapl::provider::{Op, Region, Remote};
use ibverbs_sys::{
    ibv_context_ops, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_mr, ibv_mw_bind, ibv_mw_bind_info, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_send_wr, ibv_send_wr_atomic, ibv_sge, ibv_wr_opcode,
};

use super::srq::recv_wr;
use super::{Cq, Handle, Mr, Mw, Pd, Srq, check_result, destroys, missing_verb};

/// Parameters of a new queue pair.
#[derive(Clone)]
pub(crate) struct QpAttributes {
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    /// Requested sizes; the device may grant more. Those of the receive queue are ignored if `srq` is set.
    pub(crate) caps: ibv_qp_cap,
}

/// A send queue request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSendWr<'a> {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) segments: &'a [ibv_sge],
    /// `IBV_SEND_*`.
    pub(crate) flags: u32,
}

/// A request in the format of verbs. All posts to a send queue reuse it, because initializing it for each post would
/// cost as much as the rest of a post.
pub(crate) struct SendWrTemplate(ibv_send_wr);

// SAFETY: each post sets the pointers in the record, and they are dereferenced only during that post.
unsafe impl Send for SendWrTemplate {}

impl SendWrTemplate {
    pub(crate) fn new() -> Self {
        SendWrTemplate(ibv_send_wr::default())
    }
}

pub(crate) struct Qp {
    pub(super) handle: Handle<ibv_qp>,
    /// Queue pair number, which packets carry.
    pub(crate) number: u32,
    /// Maximum length of inline data that the device has granted.
    pub(crate) max_inline: u32,
    pub(crate) pd: Arc<Pd>,
    attributes: QpAttributes,
}

impl Qp {
    /// Creates a queue pair in RESET. A successful request has a completion only with `IBV_SEND_SIGNALED`.
    pub(crate) fn new(pd: &Arc<Pd>, attributes: QpAttributes) -> io::Result<Self> {
        let QpAttributes { send_cq, recv_cq, srq, caps } = &attributes;
        let mut cap = *caps;
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.handle.as_ptr(),
            recv_cq: recv_cq.handle.as_ptr(),
            srq: srq.as_ref().map_or(ptr::null_mut(), |srq| srq.handle.as_ptr()),
            cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the protection domain and the queues outlive the call, and `init` is initialised.
        let handle = Handle::check(unsafe { ibv_create_qp(pd.handle.as_ptr(), &mut init) })?;
        Ok(Qp {
            // SAFETY: `handle` was returned by `ibv_create_qp`.
            number: unsafe { (*handle.as_ptr()).qp_num },
            // The call has replaced the requested value by the granted one.
            max_inline: init.cap.max_inline_data,
            handle,
            pd: pd.clone(),
            attributes,
        })
    }

    /// Creates a queue pair in RESET with the same attributes as this one, but another number.
    pub(crate) fn recreate(&self) -> io::Result<Self> {
        Self::new(&self.pd, self.attributes.clone())
    }

    /// Changes the attributes that `mask` (`IBV_QP_*`) selects.
    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the queue pair exists, and `attributes` is initialised.
        check_result(unsafe { ibv_modify_qp(self.handle.as_ptr(), attributes, mask as i32) })
    }

    /// Posts a receive. Fails if the queue pair uses a shared receive queue.
    #[inline(always)]
    pub(crate) fn post_recv(&self, wr_id: u64, segments: &[ibv_sge]) -> io::Result<()> {
        let post = self.ops().post_recv.ok_or_else(missing_verb)?;
        let mut wr = recv_wr(wr_id, segments);
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists, and the request and its segments outlive the call.
        check_result(unsafe { post(self.handle.as_ptr(), &mut wr, &mut bad) })
    }

    /// Posts a request. With `IBV_SEND_INLINE` this call reads the local memory, and the caller has checked that the
    /// memory is registered. Without this flag, the device reads and checks the memory.
    #[inline(always)]
    pub(crate) fn post_send(&self, template: &mut SendWrTemplate, wr: &DeviceSendWr<'_>) -> io::Result<()> {
        let post = self.ops().post_send.ok_or_else(missing_verb)?;
        let request = &mut template.0;
        let (opcode, remote) = match wr.op {
            Op::Send { .. } => (ibv_wr_opcode::IBV_WR_SEND, None),
            Op::Write(remote) => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote)),
            Op::Read(remote) => (ibv_wr_opcode::IBV_WR_RDMA_READ, Some(remote)),
            extension => prepare(request, extension),
        };
        request.wr_id = wr.id;
        request.next = ptr::null_mut();
        request.sg_list = wr.segments.as_ptr().cast_mut();
        request.num_sge = wr.segments.len() as i32;
        request.opcode = opcode;
        request.send_flags = wr.flags;
        if let Some(remote) = remote {
            request.wr.rdma.remote_addr = remote.address;
            request.wr.rdma.rkey = remote.key;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair exists, and the request and its segments outlive the call.
        check_result(unsafe { post(self.handle.as_ptr(), request, &mut bad) })
    }

    /// Posts a bind of `mw` to a part of a region with `IBV_ACCESS_*` flags, or an unbind for `None`. Returns the new
    /// key of the window. If the bind fails later, the window cannot be used again.
    pub(crate) fn bind(&self, mw: &Mw, wr_id: u64, flags: u32, what: Option<(&Mr, Region, u32)>) -> io::Result<u32> {
        let bind = self.pd.context.ops().bind_mw.ok_or_else(missing_verb)?;
        let mut nothing = NoRegion::new(&mw.pd);
        let bind_info = match what {
            Some((mr, region, access)) => ibv_mw_bind_info {
                mr: mr.handle.as_ptr(),
                addr: region.address,
                length: region.length,
                mw_access_flags: access,
            },
            None => ibv_mw_bind_info { mr: &raw mut nothing.mr, addr: 0, length: 0, mw_access_flags: 0 },
        };
        let mut request = ibv_mw_bind { wr_id, send_flags: flags, bind_info };
        mw.with(|mw| {
            // SAFETY: queue pair, window and region exist, and the request outlives the call. `Mw::with` gives
            // exclusive access to the window.
            check_result(unsafe { bind(self.handle.as_ptr(), mw, &mut request) })?;
            // SAFETY: the window exists, and `Mw::with` gives exclusive access to it.
            Ok(unsafe { (*mw).rkey })
        })
    }

    /// Returns the function table of the device, as the inline functions of `verbs.h` access it.
    #[inline(always)]
    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the queue pair exists and points to its open context, whose function table does not change.
        unsafe { &(*(*self.handle.as_ptr()).context).ops }
    }
}

/// Sets the immediate data or the atomic operands in `request`. Returns the opcode, and for an RDMA write or read the
/// remote memory, which the caller sets in `request`.
#[cold]
fn prepare(request: &mut ibv_send_wr, op: Op) -> (ibv_wr_opcode::Type, Option<Remote>) {
    let (opcode, remote, compare_add, swap) = match op {
        // The caller refuses sends with invalidate.
        Op::Send { .. } | Op::SendInvalidate { .. } => return (ibv_wr_opcode::IBV_WR_SEND, None),
        Op::Write(remote) => return (ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(remote)),
        Op::Read(remote) => return (ibv_wr_opcode::IBV_WR_RDMA_READ, Some(remote)),
        Op::SendImmediate { data, .. } => {
            request.imm_data = data;
            return (ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, None);
        }
        Op::WriteImmediate { remote, data, .. } => {
            request.imm_data = data;
            return (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, Some(remote));
        }
        Op::FetchAdd { remote, add } => (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, remote, add, 0),
        Op::CompareSwap { remote, compare, swap } => (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, remote, compare, swap),
    };
    request.wr.atomic = ibv_send_wr_atomic { remote_addr: remote.address, compare_add, swap, rkey: remote.key };
    (opcode, None)
}

destroys! { Qp, ibv_destroy_qp, |qp| format!("queue pair {} of {}", qp.number, qp.pd.context.name()) }

/// A dummy region for an unbind. Verbs allow a null pointer there, but the drivers of rxe and mlx4 dereference it. Some
/// drivers embed `ibv_mr` in a larger record and read the fields behind it, so zeros follow the region.
#[repr(C)]
struct NoRegion {
    mr: ibv_mr,
    padding: [u64; 64],
}

impl NoRegion {
    fn new(pd: &Arc<Pd>) -> Self {
        let mr = ibv_mr { context: pd.context.handle.as_ptr(), pd: pd.handle.as_ptr(), ..Default::default() };
        NoRegion { mr, padding: [0; 64] }
    }
}
