//! Transfers posted on an endpoint. A transfer owns its buffers until it completes.

use std::ops::RangeBounds;

use dat_abi::*;

use crate::ep::Ep;
use crate::error::Result;
use crate::flight::{Op, OpId};
use crate::library::call;
use crate::memory::{Buffer, Remote};
use crate::segment::{PostError, Segment, buffers_and_triplets};

bitflags::bitflags! {
    /// Options of a request.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct PostFlags: u32 {
        /// No event if the request succeeds. The completion of a later request of the endpoint returns the buffers, in
        /// [`Completion::earlier`](crate::Completion::earlier).
        const SUPPRESS = DAT_COMPLETION_SUPPRESS_FLAG;
        /// For a send: generates a solicited event at the peer.
        const SOLICITED_WAIT = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
        /// The request starts when all earlier RDMA reads of the endpoint are complete.
        const FENCE = DAT_COMPLETION_BARRIER_FENCE_FLAG;
    }
}

/// Destination or source of an RDMA write or read: a window of the peer, and an offset in it.
type Target<'r> = (&'r Remote, u64);

impl Ep {
    /// Sends this part of the buffer as one message, into the oldest receive that the peer has posted.
    ///
    /// # Errors
    /// Those of `dat_ep_post_send`; [`Error::Argument`](crate::Error::Argument) for a range outside the buffer.
    pub fn send(&self, buffer: Buffer, range: impl RangeBounds<usize>) -> Result<OpId, PostError> {
        self.send_with(Segment::new(buffer, range)?, Vec::new(), PostFlags::empty())
    }

    /// Sends one message of several segments, with options.
    ///
    /// # Errors
    /// Those of `dat_ep_post_send`, for example for more segments than
    /// [`EpSpec::max_segments`](crate::EpSpec::max_segments).
    pub fn send_with(&self, first: Segment, more: Vec<Segment>, flags: PostFlags) -> Result<OpId, PostError> {
        self.post(Op::Send, (first, more), None, flags)
    }

    /// Posts this part of the buffer to receive a message. Allowed before the endpoint connects.
    ///
    /// # Errors
    /// Those of `dat_ep_post_recv`; [`Error::Argument`](crate::Error::Argument) for a range outside the buffer.
    pub fn recv(&self, buffer: Buffer, range: impl RangeBounds<usize>) -> Result<OpId, PostError> {
        self.recv_with(Segment::new(buffer, range)?, Vec::new())
    }

    /// Posts several segments to receive one message, which fills them in order.
    ///
    /// # Errors
    /// As for [`Self::recv`].
    pub fn recv_with(&self, first: Segment, more: Vec<Segment>) -> Result<OpId, PostError> {
        self.post(Op::Recv, (first, more), None, PostFlags::empty())
    }

    /// Writes this part of the buffer into the peer's window, starting at `offset`. The peer gets no event.
    ///
    /// # Errors
    /// Those of `dat_ep_post_rdma_write`; [`Error::Argument`](crate::Error::Argument) for a range outside the buffer or
    /// window.
    pub fn write(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        to: &Remote,
        offset: u64,
    ) -> Result<OpId, PostError> {
        self.write_with(Segment::new(buffer, range)?, Vec::new(), to, offset, PostFlags::empty())
    }

    /// Writes several segments into the peer's window, one after the other, with options.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn write_with(
        &self,
        first: Segment,
        more: Vec<Segment>,
        to: &Remote,
        offset: u64,
        flags: PostFlags,
    ) -> Result<OpId, PostError> {
        self.post(Op::Write, (first, more), Some((to, offset)), flags)
    }

    /// Reads from the peer's window, starting at `offset`, into this part of the buffer. The peer gets no event.
    ///
    /// # Errors
    /// Those of `dat_ep_post_rdma_read`; [`Error::Argument`](crate::Error::Argument) for a range outside the buffer or
    /// window.
    pub fn read(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        from: &Remote,
        offset: u64,
    ) -> Result<OpId, PostError> {
        self.read_with(Segment::new(buffer, range)?, Vec::new(), from, offset, PostFlags::empty())
    }

    /// Reads from the peer's window into several segments, filling them in order, with options.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_with(
        &self,
        first: Segment,
        more: Vec<Segment>,
        from: &Remote,
        offset: u64,
        flags: PostFlags,
    ) -> Result<OpId, PostError> {
        self.post(Op::Read, (first, more), Some((from, offset)), flags)
    }

    fn post(
        &self,
        op: Op,
        (first, more): (Segment, Vec<Segment>),
        target: Option<Target<'_>>,
        flags: PostFlags,
    ) -> Result<OpId, PostError> {
        let (buffers, mut segments) = buffers_and_triplets(first, more);
        // The lock is held from the assignment of the request number until the post has returned, so that the numbers
        // follow the order of the posts.
        self.inner.flight.lock().post(op, buffers, flags.contains(PostFlags::SUPPRESS), |cookie| {
            // SAFETY: the segments describe buffers that the transfer now owns.
            unsafe { self.call(op, &mut segments, target, flags, cookie) }
        })
    }

    /// # Safety
    /// The caller keeps the memory of the segments valid until the transfer completes.
    unsafe fn call(
        &self,
        op: Op,
        segments: &mut [DAT_LMR_TRIPLET],
        target: Option<Target<'_>>,
        flags: PostFlags,
        cookie: DAT_DTO_COOKIE,
    ) -> Result<()> {
        let functions = self.functions();
        let length = segments.iter().map(|segment| segment.segment_length as usize).sum();
        let (ep, flags) = (self.handle(), flags.bits());
        let (count, iov) = (DAT_COUNT::try_from(segments.len()).unwrap_or(DAT_COUNT::MAX), segments.as_mut_ptr());
        let remote = target.map(|(window, offset)| window.part(offset, length)).transpose()?;
        // SAFETY: the caller guarantees that the segments stay valid; the remote segment is only read, during the call.
        unsafe {
            match (op, &remote) {
                (Op::Recv, _) => call!(functions, dat_ep_post_recv(ep, count, iov, cookie, flags)),
                (Op::Write, Some(to)) => call!(functions, dat_ep_post_rdma_write(ep, count, iov, cookie, to, flags)),
                (Op::Read, Some(from)) => call!(functions, dat_ep_post_rdma_read(ep, count, iov, cookie, from, flags)),
                _ => call!(functions, dat_ep_post_send(ep, count, iov, cookie, flags)),
            }
        }
    }
}
