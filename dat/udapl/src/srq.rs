//! Shared receive queues: receives for several endpoints.

use std::ops::RangeBounds;
use std::ptr;
use std::sync::Arc;

use dat_abi::*;
use parking_lot::Mutex;

use crate::error::{Result, count};
use crate::flight::{Op, OpId, OutstandingTransfers};
use crate::library::call;
use crate::owned::{Handle, Pz, SrqInner};
use crate::segment::{PostError, Segment, buffers_and_triplets};

/// A queue of receives for several endpoints ([`EpSpec::srq`](crate::EpSpec::srq)). A completion names the endpoint
/// that received the message. If that endpoint is dropped before the completion is dequeued, the buffer stays allocated
/// until the shared receive queue is dropped.
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

impl Pz {
    /// Creates a shared receive queue for at most `max_recvs` receives of at most `max_segments` buffers.
    ///
    /// # Errors
    /// Those of `dat_srq_create`, for example if the adapter does not support shared receive queues.
    pub fn srq(&self, max_recvs: u32, max_segments: u32) -> Result<Srq> {
        let pz = Arc::clone(&self.inner);
        let mut attributes = DAT_SRQ_ATTR {
            max_recv_dtos: count("receives", max_recvs)?,
            max_recv_iov: count("segments", max_segments)?,
            low_watermark: DAT_SRQ_LW_DEFAULT,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: attributes and result are local variables.
        unsafe {
            call!(pz.ia.functions, dat_srq_create(pz.ia.handle.0, pz.handle.0, &raw mut attributes, &raw mut handle))
        }?;
        Ok(Srq {
            inner: Arc::new(SrqInner {
                handle: Handle(handle),
                pz,
                flight: Mutex::new(OutstandingTransfers::shared()),
            }),
        })
    }
}

impl Srq {
    /// Posts this part of the buffer to receive a message to any endpoint that uses this queue.
    ///
    /// # Errors
    /// Those of `dat_srq_post_recv`; [`Error::Argument`](crate::Error::Argument) for a range outside the buffer.
    pub fn recv(&self, buffer: crate::Buffer, range: impl RangeBounds<usize>) -> Result<OpId, PostError> {
        self.recv_with(Segment::new(buffer, range)?, Vec::new())
    }

    /// Posts several segments to receive one message, which fills them in order.
    ///
    /// # Errors
    /// As for [`Self::recv`].
    pub fn recv_with(&self, first: Segment, more: Vec<Segment>) -> Result<OpId, PostError> {
        let (functions, srq) = (&self.inner.pz.ia.functions, self.inner.handle.0);
        let (buffers, mut segments) = buffers_and_triplets(first, more);
        let count = DAT_COUNT::try_from(segments.len()).unwrap_or(DAT_COUNT::MAX);
        let iov = segments.as_mut_ptr();
        self.inner.flight.lock().post(Op::Recv, buffers, false, |cookie| {
            // SAFETY: the segments describe buffers that the transfer now owns.
            unsafe { call!(functions, dat_srq_post_recv(srq, count, iov, cookie)) }
        })
    }

    /// Returns the number of posted receives that no message has consumed yet.
    ///
    /// # Errors
    /// Those of `dat_srq_query`.
    pub fn available(&self) -> Result<u32> {
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
        let mut param: DAT_SRQ_PARAM = unsafe { std::mem::zeroed() };
        let functions = &self.inner.pz.ia.functions;
        // SAFETY: the record is a complete local variable.
        unsafe { call!(functions, dat_srq_query(self.inner.handle.0, DAT_SRQ_FIELD_ALL, &raw mut param)) }?;
        Ok(u32::try_from(param.available_dto_count).unwrap_or(0))
    }
}
