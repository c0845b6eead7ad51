//! Endpoints: one end of a connection, and the transfers posted on it. A transfer has its buffer until it completes.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dat_abi::*;
use parking_lot::Mutex;

use crate::address::Address;
use crate::error::{Error, Result};
use crate::evd::{Evd, micros};
use crate::flight::{Flight, Op, OpId};
use crate::memory::{Buffer, Remote};
use crate::owned::{EpId, EpInner, Handle, Pz, PzInner};

/// Attributes of a new endpoint: its event queues and the lengths of its work queues.
#[derive(Clone)]
pub struct EpSpec<'e> {
    /// Queue for completions of receives: one with [`Streams::DTO`](crate::Streams::DTO).
    pub recv: &'e Evd,
    /// Queue for completions of sends, RDMA reads and RDMA writes: one with [`Streams::DTO`](crate::Streams::DTO).
    pub request: &'e Evd,
    /// Queue for connection events: one with [`Streams::CONNECTION`](crate::Streams::CONNECTION).
    pub connect: &'e Evd,
    /// Receives.
    pub max_recvs: u32,
    /// Sends, reads and writes.
    pub max_requests: u32,
    /// Maximum of outstanding RDMA reads that it issues. `None`: the adapter's maximum.
    pub max_reads: Option<u32>,
    /// Maximum of outstanding RDMA reads that it responds to. `None`: the adapter's maximum.
    pub max_reads_answered: Option<u32>,
}

impl<'e> EpSpec<'e> {
    /// One queue for all events, and 16 transfers in each direction.
    pub fn new(events: &'e Evd) -> Self {
        EpSpec {
            recv: events,
            request: events,
            connect: events,
            max_recvs: 16,
            max_requests: 16,
            max_reads: None,
            max_reads_answered: None,
        }
    }
}

/// State of an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// May connect, or be given to a request.
    Unconnected,
    /// A connection is being established, by either side.
    Connecting,
    /// Transfers are possible.
    Connected,
    /// The connection ends when the transfers before that are done.
    Disconnecting,
    /// Over; [`Ep::reset`] makes it [`Unconnected`](State::Unconnected).
    Disconnected,
}

/// A transfer that was not posted, and its buffer.
pub struct PostError {
    /// The error.
    pub error: Error,
    /// The buffer, unchanged.
    pub buffer: Buffer,
}

impl fmt::Debug for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// One end of a connection. Dropped, it disconnects at once, and takes what its transfers worked with along.
pub struct Ep {
    inner: Arc<EpInner>,
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

impl Ep {
    fn new(pz: &Arc<PzInner>, spec: &EpSpec<'_>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let ia = &pz.ia;
        let attributes = attributes(pz, spec)?;
        let queues = [spec.recv, spec.request, spec.connect].map(|queue| Arc::clone(&queue.inner));
        let [recv, request, connect] = &queues;
        let mut handle = ptr::null_mut();
        // SAFETY: the attributes are valid and only read; the result is written to a local variable.
        let code = unsafe {
            let queues = (recv.handle.0, request.handle.0, connect.handle.0);
            let attributes = &raw const attributes;
            let create = ia.functions.dat_ep_create;
            create(ia.handle.0, pz.handle.0, queues.0, queues.1, queues.2, attributes, &raw mut handle)
        };
        ia.functions.check("dat_ep_create", code)?;
        let id = EpId(NEXT.fetch_add(1, Ordering::Relaxed));
        let flight = Mutex::new(Flight::new());
        let inner =
            Arc::new(EpInner { id, handle: Handle(handle), pz: Arc::clone(pz), _queues: queues.clone(), flight });
        ia.enter(&inner);
        Ok(Ep { inner })
    }

    /// Its id in events.
    pub fn id(&self) -> EpId {
        self.inner.id
    }

    /// State of the endpoint.
    ///
    /// # Errors
    /// Those of `dat_ep_get_status`.
    pub fn state(&self) -> Result<State> {
        let mut state = DAT_EP_STATE_UNCONNECTED;
        // SAFETY: the result is written to a local variable; null for results that are not needed.
        let code = unsafe {
            (self.functions().dat_ep_get_status)(self.handle(), &raw mut state, ptr::null_mut(), ptr::null_mut())
        };
        self.functions().check("dat_ep_get_status", code)?;
        Ok(match state {
            DAT_EP_STATE_UNCONNECTED | DAT_EP_STATE_UNCONFIGURED_UNCONNECTED => State::Unconnected,
            DAT_EP_STATE_CONNECTED => State::Connected,
            DAT_EP_STATE_DISCONNECT_PENDING => State::Disconnecting,
            DAT_EP_STATE_DISCONNECTED => State::Disconnected,
            _ => State::Connecting,
        })
    }

    /// Number of posted transfers whose completions have not been taken.
    pub fn posted(&self) -> usize {
        self.inner.flight.lock().len()
    }

    /// Sends a connection request with private data to the listener on this qualifier. The result is an event. Without a time
    /// limit it may never come.
    ///
    /// # Errors
    /// Those of `dat_ep_connect`.
    pub fn connect(
        &self,
        to: Address,
        qualifier: u64,
        within: impl Into<Option<Duration>>,
        private_data: &[u8],
    ) -> Result<()> {
        let (size, data) = private(private_data)?;
        let to = to.to_c();
        // SAFETY: the address and the data are only read, during the call.
        let code = unsafe {
            let within = micros(within.into());
            let (qos, flags) = (DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
            (self.functions().dat_ep_connect)(
                self.handle(),
                to.as_ptr(),
                qualifier,
                within,
                size,
                data.cast_mut().cast(),
                qos,
                flags,
            )
        };
        self.functions().check("dat_ep_connect", code)
    }

    /// Ends the connection when all posted transfers are complete. Both sides get an event.
    ///
    /// # Errors
    /// Those of `dat_ep_disconnect`.
    pub fn disconnect(&self) -> Result<()> {
        self.end(DAT_CLOSE_GRACEFUL_FLAG)
    }

    /// Ends the connection now: what is posted completes as flushed.
    ///
    /// # Errors
    /// What `dat_ep_disconnect` refuses.
    pub fn abort(&self) -> Result<()> {
        self.end(DAT_CLOSE_ABRUPT_FLAG)
    }

    fn end(&self, how: DAT_CLOSE_FLAGS) -> Result<()> {
        // SAFETY: plain values.
        let code = unsafe { (self.functions().dat_ep_disconnect)(self.handle(), how) };
        self.functions().check("dat_ep_disconnect", code)
    }

    /// After the end of a connection: it may connect again.
    ///
    /// # Errors
    /// What `dat_ep_reset` refuses.
    pub fn reset(&self) -> Result<()> {
        // SAFETY: plain values.
        let code = unsafe { (self.functions().dat_ep_reset)(self.handle()) };
        self.functions().check("dat_ep_reset", code)
    }

    /// Sends this part of the buffer as one message, into the oldest receive that the peer has posted.
    ///
    /// # Errors
    /// What `dat_ep_post_send` refuses; [`Error::Argument`] if the range is not inside.
    pub fn send(&self, buffer: Buffer, range: impl RangeBounds<usize>) -> Result<OpId, PostError> {
        let post = self.functions().dat_ep_post_send;
        self.post(Op::Send, buffer, range, |ep, count, iov, cookie| {
            // SAFETY: `count` segments of a buffer that now belongs to the transfer.
            Ok(unsafe { post(ep, count, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG) })
        })
    }

    /// Takes a message into this part of the buffer: before it connects too.
    ///
    /// # Errors
    /// What `dat_ep_post_recv` refuses; [`Error::Argument`] if the range is not inside.
    pub fn recv(&self, buffer: Buffer, range: impl RangeBounds<usize>) -> Result<OpId, PostError> {
        let post = self.functions().dat_ep_post_recv;
        self.post(Op::Recv, buffer, range, |ep, count, iov, cookie| {
            // SAFETY: `count` segments of a buffer that now belongs to the transfer.
            Ok(unsafe { post(ep, count, iov, cookie, DAT_COMPLETION_DEFAULT_FLAG) })
        })
    }

    /// Writes this part of the buffer into the peer's window, starting at `offset`. The peer gets no event.
    ///
    /// # Errors
    /// Those of `dat_ep_post_rdma_write`; [`Error::Argument`] for a range outside the buffer or window.
    pub fn write(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        to: &Remote,
        offset: u64,
    ) -> Result<OpId, PostError> {
        let post = self.functions().dat_ep_post_rdma_write;
        self.post(Op::Write, buffer, range, |ep, count, iov, cookie| {
            let target = to.part(offset, length_of(count, iov))?;
            // SAFETY: as for a send; the target is only read.
            Ok(unsafe { post(ep, count, iov, cookie, &raw const target, DAT_COMPLETION_DEFAULT_FLAG) })
        })
    }

    /// Fetches this part of the buffer from the peer's window, from `offset` on. The peer takes no part.
    ///
    /// # Errors
    /// What `dat_ep_post_rdma_read` refuses; [`Error::Argument`] if a range is not inside.
    pub fn read(
        &self,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        from: &Remote,
        offset: u64,
    ) -> Result<OpId, PostError> {
        let post = self.functions().dat_ep_post_rdma_read;
        self.post(Op::Read, buffer, range, |ep, count, iov, cookie| {
            let source = from.part(offset, length_of(count, iov))?;
            // SAFETY: as for a receive; the source is only read.
            Ok(unsafe { post(ep, count, iov, cookie, &raw const source, DAT_COMPLETION_DEFAULT_FLAG) })
        })
    }

    fn post(
        &self,
        op: Op,
        buffer: Buffer,
        range: impl RangeBounds<usize>,
        call: impl FnOnce(DAT_EP_HANDLE, DAT_COUNT, *mut DAT_LMR_TRIPLET, DAT_DTO_COOKIE) -> Result<DAT_RETURN>,
    ) -> Result<OpId, PostError> {
        let (start, length) = match part(range, buffer.len()) {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let mut segment = buffer.0.segment(start, length);
        // First it is kept: the completion may be taken before the call returns.
        let id = self.inner.flight.lock().enter(op, buffer);
        let count = DAT_COUNT::from(length > 0);
        let posted = call(self.handle(), count, &raw mut segment, DAT_CONTEXT { as_64: id.0 })
            .and_then(|code| self.functions().check(op.call(), code));
        posted.map(|()| id).map_err(|error| {
            let held = self.inner.flight.lock().leave(id);
            let (_, buffer) = held.expect("what was not posted does not complete");
            PostError { error, buffer }
        })
    }

    pub(crate) fn handle(&self) -> DAT_EP_HANDLE {
        self.inner.handle.0
    }

    fn functions(&self) -> &crate::library::Functions {
        &self.inner.pz.ia.functions
    }
}

impl Op {
    fn call(self) -> &'static str {
        match self {
            Op::Send => "dat_ep_post_send",
            Op::Recv => "dat_ep_post_recv",
            Op::Write => "dat_ep_post_rdma_write",
            Op::Read => "dat_ep_post_rdma_read",
        }
    }
}

/// Length and pointer of private data for C.
pub(crate) fn private(data: &[u8]) -> Result<(DAT_COUNT, *const u8)> {
    let size = DAT_COUNT::try_from(data.len());
    let size = size.map_err(|_| Error::Argument(format!("{} bytes of private data are too many", data.len())))?;
    Ok((size, if data.is_empty() { ptr::null() } else { data.as_ptr() }))
}

/// Start and length of a range within `all` bytes.
fn part(range: impl RangeBounds<usize>, all: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(all),
    };
    let part = start.zip(end).filter(|(start, end)| start <= end && *end <= all);
    let (start, end) = part.ok_or_else(|| {
        let (start, end) = (range.start_bound(), range.end_bound());
        Error::Argument(format!("{start:?} to {end:?} is not inside a buffer of {all} bytes"))
    })?;
    Ok((start, end - start))
}

/// The bytes of what was made just above: one segment, or none.
fn length_of(count: DAT_COUNT, iov: *const DAT_LMR_TRIPLET) -> usize {
    // SAFETY: `post` passes a segment of its own.
    if count == 0 { 0 } else { unsafe { (*iov).segment_length as usize } }
}

fn attributes(pz: &PzInner, spec: &EpSpec<'_>) -> Result<DAT_EP_ATTR> {
    let limits = &pz.ia.limits;
    let count = |what: &str, count: u32| {
        DAT_COUNT::try_from(count).map_err(|_| Error::Argument(format!("{count} {what} are more than DAT can count")))
    };
    Ok(DAT_EP_ATTR {
        service_type: DAT_SERVICE_TYPE_RC,
        max_message_size: limits.max_message,
        max_rdma_size: limits.max_rdma,
        qos: DAT_QOS_BEST_EFFORT,
        recv_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
        request_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
        max_recv_dtos: count("receives", spec.max_recvs)?,
        max_request_dtos: count("requests", spec.max_requests)?,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_rdma_read_in: count("reads", spec.max_reads_answered.unwrap_or(limits.max_reads_answered))?,
        max_rdma_read_out: count("reads", spec.max_reads.unwrap_or(limits.max_reads))?,
        srq_soft_hw: 0,
        max_rdma_read_iov: 1,
        max_rdma_write_iov: 1,
        ep_transport_specific_count: 0,
        ep_transport_specific: ptr::null_mut(),
        ep_provider_specific_count: 0,
        ep_provider_specific: ptr::null_mut(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parts_or_errors() {
        assert_eq!(part(.., 10).unwrap(), (0, 10));
        assert_eq!(part(3..7, 10).unwrap(), (3, 4));
        assert_eq!(part(3..=9, 10).unwrap(), (3, 7));
        assert_eq!(part(10.., 10).unwrap(), (10, 0));
        assert_eq!(part((Bound::Excluded(2), Bound::Unbounded), 10).unwrap(), (3, 7));
        assert!(part(3..11, 10).is_err());
        assert!(part(11.., 10).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may hand over")]
        {
            assert!(part(7..3, 10).is_err());
        }
        assert!(part(0..=usize::MAX, 10).is_err(), "ends do not wrap");
        assert!(part((Bound::Excluded(usize::MAX), Bound::Unbounded), 10).is_err());
    }
}
