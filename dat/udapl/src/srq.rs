//! Shared receive queues: receives for several endpoints.

use std::ops::RangeBounds;
use std::ptr;
use std::sync::Arc;

use dat_abi::*;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::flight::{Buffers, Op, OpId, OutstandingTransfers};
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
        let count = |what: &str, count: u32| {
            DAT_COUNT::try_from(count).map_err(|_| {
                Error::Argument(format!("the number of {what}, {count}, exceeds the maximum of DAT_COUNT"))
            })
        };
        let mut attributes = DAT_SRQ_ATTR {
            max_recv_dtos: count("receives", max_recvs)?,
            max_recv_iov: count("segments", max_segments)?,
            low_watermark: DAT_SRQ_LW_DEFAULT,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: attributes and result are local variables.
        let code = unsafe {
            let create = pz.ia.functions.dat_srq_create;
            create(pz.ia.handle.0, pz.handle.0, &raw mut attributes, &raw mut handle)
        };
        pz.ia.functions.check("dat_srq_create", code)?;
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
    /// Those of `dat_srq_post_recv`; [`Error::Argument`] for a range outside the buffer.
    pub fn recv(&self, buffer: crate::Buffer, range: impl RangeBounds<usize>) -> Result<OpId, PostError> {
        self.recv_with(Segment::new(buffer, range)?, Vec::new())
    }

    /// Posts several segments to receive one message, which fills them in order.
    ///
    /// # Errors
    /// As for [`Self::recv`].
    pub fn recv_with(&self, first: Segment, more: Vec<Segment>) -> Result<OpId, PostError> {
        let call = &self.inner.pz.ia.functions;
        let (buffers, mut segments) = buffers_and_triplets(first, more);
        let mut flight = self.inner.flight.lock();
        let id = flight.enter(Op::Recv, buffers, false);
        let count = DAT_COUNT::try_from(segments.len()).unwrap_or(DAT_COUNT::MAX);
        let cookie = DAT_CONTEXT { as_64: id.0 };
        // SAFETY: the segments describe buffers that the transfer now owns.
        let code = unsafe { (call.dat_srq_post_recv)(self.inner.handle.0, count, segments.as_mut_ptr(), cookie) };
        call.check("dat_srq_post_recv", code).map(|()| id).map_err(|error| {
            let Buffers { first, more } =
                flight.withdraw(id).expect("only a completion removes a receive, and this one was not posted");
            PostError { error, buffer: first, more }
        })
    }

    /// Returns the number of posted receives that no message has consumed yet.
    ///
    /// # Errors
    /// Those of `dat_srq_query`.
    pub fn available(&self) -> Result<u32> {
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
        let mut param: DAT_SRQ_PARAM = unsafe { std::mem::zeroed() };
        let call = &self.inner.pz.ia.functions;
        // SAFETY: the record is a complete local variable.
        let code = unsafe { (call.dat_srq_query)(self.inner.handle.0, DAT_SRQ_FIELD_ALL, &raw mut param) };
        call.check("dat_srq_query", code)?;
        Ok(u32::try_from(param.available_dto_count).unwrap_or(0))
    }
}
