//! Event dispatchers: queues of events. A completion returns the buffers of its transfer.

use std::ptr;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dat_abi::*;

use crate::error::{Error, Result, kind};
use crate::flight::{Buffers, CompletedTransfer, Op, OpId};
use crate::ia::Ia;
use crate::library::call;
use crate::listener::ConnectionRequest;
use crate::memory::Buffer;
use crate::owned::{BindId, CnoInner, EpId, EvdId, EvdInner, IaInner, Object};

bitflags::bitflags! {
    /// Kinds of events (event streams) that a queue accepts.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Streams: u32 {
        /// Connection requests of peers.
        const REQUEST = DAT_EVD_CR_FLAG;
        /// Completions of transfers.
        const DTO = DAT_EVD_DTO_FLAG;
        /// Results of connecting and accepting, and ends of connections.
        const CONNECTION = DAT_EVD_CONNECTION_FLAG;
        /// Completions of binds of memory windows.
        const BIND = DAT_EVD_RMR_BIND_FLAG;
    }
}

/// An event that was dequeued from an [`Evd`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A transfer has completed.
    Completed(Completion),
    /// The connection is established.
    Established {
        /// The endpoint.
        ep: EpId,
        /// Private data that the peer passed when it accepted; empty on the side that accepted. Some transports pad it
        /// with zeros.
        private_data: Vec<u8>,
    },
    /// The connection has ended, or could not be established.
    Ended {
        /// The endpoint.
        ep: EpId,
        /// Why the connection ended or was not established.
        why: End,
    },
    /// A connection request of a peer, to be accepted or rejected.
    Request(ConnectionRequest),
    /// A bind or an unbind of a memory window is complete, or has failed.
    Bound {
        /// Id of the bind or unbind. Ids of different memory windows may be equal.
        id: BindId,
        /// The error, if the bind or unbind failed.
        result: std::result::Result<(), TransferError>,
    },
    /// Any other event, by its number (`enum dat_event_number`).
    Other(DAT_EVENT_NUMBER),
}

/// Reason why a connection ended or was not established.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum End {
    /// One side has disconnected, or the provider has found that the peer is lost.
    Disconnected,
    /// The connection broke: a transfer failed, or the peer is lost.
    Broken,
    /// The peer's program rejected the request, or ended before it answered.
    PeerRejected,
    /// No program listens on the qualifier, or the peer's provider rejected the request.
    Rejected,
    /// This side accepted a request, but the connection could not be completed.
    AcceptFailed,
    /// The peer did not answer within the time limit of the connect.
    TimedOut,
    /// The host of the peer cannot be reached, or did not answer within the time limit of the provider.
    Unreachable,
}

impl End {
    /// Converts an event number. Returns `None` if it is not that of an ended connection.
    fn from_number(number: DAT_EVENT_NUMBER) -> Option<Self> {
        Some(match number {
            DAT_CONNECTION_EVENT_DISCONNECTED => Self::Disconnected,
            DAT_CONNECTION_EVENT_BROKEN => Self::Broken,
            DAT_CONNECTION_EVENT_PEER_REJECTED => Self::PeerRejected,
            DAT_CONNECTION_EVENT_NON_PEER_REJECTED => Self::Rejected,
            DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR => Self::AcceptFailed,
            DAT_CONNECTION_EVENT_TIMED_OUT => Self::TimedOut,
            DAT_CONNECTION_EVENT_UNREACHABLE => Self::Unreachable,
            _ => return None,
        })
    }
}

/// A completed transfer and its buffers.
#[derive(Debug)]
pub struct Completion {
    /// Id of the transfer.
    pub id: OpId,
    /// The operation.
    pub op: Op,
    /// The endpoint.
    pub ep: EpId,
    /// First buffer of the transfer. A received message begins at the start of the posted range.
    pub buffer: Buffer,
    /// Further buffers of the transfer, in order.
    pub more: Vec<Buffer>,
    /// Requests with [`PostFlags::SUPPRESS`](crate::PostFlags::SUPPRESS) that were posted before this request. They are
    /// also complete.
    pub earlier: Vec<Finished>,
    /// Number of bytes transferred, or the error.
    pub result: std::result::Result<usize, TransferError>,
}

/// A completed request that was posted with [`PostFlags::SUPPRESS`](crate::PostFlags::SUPPRESS).
#[derive(Debug)]
pub struct Finished {
    /// Id of the suppressed request.
    pub id: OpId,
    /// The operation.
    pub op: Op,
    /// First buffer of the request.
    pub buffer: Buffer,
    /// Further buffers of the request, in order.
    pub more: Vec<Buffer>,
}

/// Reason why a transfer, bind or unbind failed (`enum dat_dto_completion_status`). A failure other than
/// [`Flushed`](Self::Flushed) also ends the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// `DAT_DTO_ERR_FLUSHED`.
    #[error("flushed: the connection ended before the transfer completed")]
    Flushed,
    /// `DAT_DTO_ERR_LOCAL_LENGTH`.
    #[error("the message is longer than the receive buffers, or than the maximum of the connection")]
    Length,
    /// `DAT_DTO_ERR_LOCAL_EP`.
    #[error("the endpoint failed; its connection has ended")]
    Endpoint,
    /// `DAT_DTO_ERR_LOCAL_PROTECTION`.
    #[error("the local memory is not registered for this access, or is in another protection zone than the endpoint")]
    Protection,
    /// `DAT_DTO_ERR_BAD_RESPONSE`.
    #[error("the peer sent an invalid response")]
    BadResponse,
    /// `DAT_DTO_ERR_REMOTE_ACCESS`.
    #[error("the memory of the peer is not registered for this access (see the log of the peer)")]
    RemoteAccess,
    /// `DAT_DTO_ERR_REMOTE_RESPONDER`.
    #[error("the peer failed to execute the request (see the log of the peer)")]
    RemoteResponder,
    /// `DAT_DTO_ERR_TRANSPORT`.
    #[error("the peer does not respond: it has ended, or the path to it is interrupted")]
    Transport,
    /// `DAT_DTO_ERR_RECEIVER_NOT_READY`.
    #[error("the peer has posted no receive for this message")]
    ReceiverNotReady,
    /// `DAT_DTO_ERR_PARTIAL_PACKET`.
    #[error("a part of the message is lost")]
    PartialPacket,
    /// `DAT_RMR_OPERATION_FAILED`, or a number that is no completion status of DAT 1.2.
    #[error("completion status {0:#x}, which DAT 1.2 does not define for transfers")]
    Other(u32),
}

impl TransferError {
    /// Converts a status. Returns `None` for success.
    fn from_status(status: DAT_DTO_COMPLETION_STATUS) -> Option<Self> {
        Some(match status {
            DAT_DTO_SUCCESS => return None,
            DAT_DTO_ERR_FLUSHED => Self::Flushed,
            DAT_DTO_ERR_LOCAL_LENGTH => Self::Length,
            DAT_DTO_ERR_LOCAL_EP => Self::Endpoint,
            DAT_DTO_ERR_LOCAL_PROTECTION => Self::Protection,
            DAT_DTO_ERR_BAD_RESPONSE => Self::BadResponse,
            DAT_DTO_ERR_REMOTE_ACCESS => Self::RemoteAccess,
            DAT_DTO_ERR_REMOTE_RESPONDER => Self::RemoteResponder,
            DAT_DTO_ERR_TRANSPORT => Self::Transport,
            DAT_DTO_ERR_RECEIVER_NOT_READY => Self::ReceiverNotReady,
            DAT_DTO_ERR_PARTIAL_PACKET => Self::PartialPacket,
            other => Self::Other(other),
        })
    }
}

/// A queue of events. One thread at a time may wait on it. While no thread waits, any number of threads may poll it.
pub struct Evd {
    pub(crate) inner: Arc<EvdInner>,
}

impl Ia {
    /// Creates a queue for at least `events` events of these streams.
    ///
    /// # Errors
    /// Those of `dat_evd_create`.
    pub fn evd(&self, events: u32, streams: Streams) -> Result<Evd> {
        Evd::new(&self.inner, events, streams, None)
    }
}

impl Evd {
    pub(crate) fn new(ia: &Arc<IaInner>, events: u32, streams: Streams, cno: Option<&Arc<CnoInner>>) -> Result<Self> {
        let length = DAT_COUNT::try_from(events)
            .map_err(|_| Error::Argument(format!("the number of events {events} exceeds the maximum of DAT_COUNT")))?;
        let mut handle = ptr::null_mut();
        let group = cno.map_or(ptr::null_mut(), |cno| cno.handle.0);
        // SAFETY: the result is written to a local variable; the group is null or alive.
        unsafe { call!(ia.functions, dat_evd_create(ia.handle.0, length, group, streams.bits(), &raw mut handle)) }?;
        Ok(Evd { inner: Arc::new(Object::new(ia, handle, ia.functions.dat_evd_free, cno.cloned())) })
    }

    /// Id of the queue in the result of [`Cno::wait`](crate::Cno::wait).
    pub fn id(&self) -> EvdId {
        EvdId(self.inner.handle.0 as usize)
    }

    /// Dequeues the oldest event, and waits for one if there is none. Returns `None` after `at_most`; with `at_most`
    /// `None`, waits without a limit.
    ///
    /// # Errors
    /// Those of `dat_evd_wait`, for example if another thread waits on this queue.
    pub fn wait(&self, at_most: impl Into<Option<Duration>>) -> Result<Option<Event>> {
        let until = at_most.into().and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let (mut event, mut more) = (none(), 0);
            // SAFETY: the results are written to local variables.
            let code = unsafe {
                let wait = self.inner.ia.functions.dat_evd_wait;
                wait(self.inner.handle.0, micros(left), 1, &raw mut event, &raw mut more)
            };
            match kind(code) {
                DAT_TIMEOUT_EXPIRED if left.is_none_or(|left| !left.is_zero() && left > LONGEST) => continue,
                DAT_TIMEOUT_EXPIRED => return Ok(None),
                DAT_INTERRUPTED_CALL => continue,
                _ => self.inner.ia.functions.check("dat_evd_wait", code)?,
            }
            if let Some(event) = self.read(&event) {
                return Ok(Some(event));
            }
        }
    }

    /// Dequeues the oldest event, if there is one. Does not wait.
    ///
    /// # Errors
    /// Those of `dat_evd_dequeue`.
    pub fn poll(&self) -> Result<Option<Event>> {
        loop {
            let mut event = none();
            // SAFETY: the result is written to a local variable.
            let code = unsafe { (self.inner.ia.functions.dat_evd_dequeue)(self.inner.handle.0, &raw mut event) };
            if kind(code) == DAT_QUEUE_EMPTY {
                return Ok(None);
            }
            self.inner.ia.functions.check("dat_evd_dequeue", code)?;
            if let Some(event) = self.read(&event) {
                return Ok(Some(event));
            }
        }
    }

    /// Converts a C event. Returns `None` if the endpoint of the event was dropped, or if the transfer is unknown.
    fn read(&self, event: &DAT_EVENT) -> Option<Event> {
        let data = event.event_data;
        match event.event_number {
            DAT_DTO_COMPLETION_EVENT => {
                // SAFETY: the event number selects this member.
                let data = unsafe { data.dto_completion_event_data };
                self.completion(data).map(Event::Completed)
            }
            DAT_CONNECTION_REQUEST_EVENT => {
                // SAFETY: the event number selects this member. Each event is dequeued once, so the new
                // `ConnectionRequest` is the only owner of the handle.
                let cr = unsafe { data.cr_arrival_event_data.cr_handle };
                Some(Event::Request(ConnectionRequest::new(&self.inner.ia, cr)))
            }
            DAT_RMR_BIND_COMPLETION_EVENT => {
                // SAFETY: the event number selects this member.
                let data = unsafe { data.rmr_completion_event_data };
                // SAFETY: all bind cookies of this crate are numbers.
                let id = BindId(unsafe { data.user_cookie.as_64 });
                Some(Event::Bound { id, result: TransferError::from_status(data.status).map_or(Ok(()), Err) })
            }
            DAT_CONNECTION_EVENT_ESTABLISHED => {
                // SAFETY: the event number selects this member.
                let data = unsafe { data.connect_event_data };
                // The reference keeps the endpoint alive while its private data are copied.
                let ep = self.inner.ia.ep(data.ep_handle)?;
                // SAFETY: `ep` keeps the private data of its connection alive.
                let private_data = unsafe { copied(data.private_data_size, data.private_data) };
                Some(Event::Established { ep: ep.id, private_data })
            }
            number => {
                let Some(why) = End::from_number(number) else { return Some(Event::Other(number)) };
                // SAFETY: the number of a connection event selects this member.
                let ep = self.inner.ia.ep(unsafe { data.connect_event_data.ep_handle })?;
                Some(Event::Ended { ep: ep.id, why })
            }
        }
    }

    fn completion(&self, data: DAT_DTO_COMPLETION_EVENT_DATA) -> Option<Completion> {
        let ep = self.inner.ia.ep(data.ep_handle)?;
        // SAFETY: all post cookies of this crate are numbers.
        let id = OpId(unsafe { data.user_cookie.as_64 });
        let flight = match &ep.srq {
            Some(srq) if id.0 & OpId::SHARED != 0 => &srq.flight,
            _ => &ep.flight,
        };
        let CompletedTransfer { op, buffers: Buffers { first, more }, earlier } = flight.lock().complete(id)?;
        let earlier = earlier.into_iter();
        let earlier =
            earlier.map(|(id, op, buffers)| Finished { id, op, buffer: buffers.first, more: buffers.more }).collect();
        let result = match TransferError::from_status(data.status) {
            None => Ok(data.transfered_length as usize),
            Some(error) => Err(error),
        };
        Some(Completion { id, op, ep: ep.id, buffer: first, more, earlier, result })
    }
}

/// Longest finite timeout of the C interface.
pub(crate) const LONGEST: Duration = Duration::from_micros((DAT_TIMEOUT_INFINITE - 1) as u64);

/// Converts a time limit to a C timeout, rounded up, so that a wait is not too short. A limit above [`LONGEST`] becomes
/// `LONGEST`.
pub(crate) fn micros(limit: Option<Duration>) -> DAT_TIMEOUT {
    let Some(limit) = limit else { return DAT_TIMEOUT_INFINITE };
    let whole = limit.min(LONGEST).as_nanos().div_ceil(1000);
    DAT_TIMEOUT::try_from(whole).unwrap_or(DAT_TIMEOUT_INFINITE - 1)
}

/// Copies bytes that a C function has returned. Empty for a null pointer.
///
/// # Safety
/// `data` is null, or points to `size` bytes that do not change during the call.
pub(crate) unsafe fn copied(size: DAT_COUNT, data: DAT_PVOID) -> Vec<u8> {
    match usize::try_from(size) {
        // SAFETY: the caller guarantees that `data` points at `size` bytes.
        Ok(size) if size > 0 && !data.is_null() => unsafe { slice::from_raw_parts(data.cast(), size) }.to_vec(),
        _ => Vec::new(),
    }
}

/// Creates a zeroed event for the library to fill.
fn none() -> DAT_EVENT {
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_to_microseconds_and_never_become_infinite() {
        assert_eq!(micros(None), DAT_TIMEOUT_INFINITE);
        assert_eq!(micros(Some(Duration::ZERO)), 0);
        assert_eq!(micros(Some(Duration::from_nanos(1))), 1);
        assert_eq!(micros(Some(Duration::from_micros(1500))), 1500);
        assert_eq!(micros(Some(Duration::MAX)), DAT_TIMEOUT_INFINITE - 1);
        assert_eq!(micros(Some(Duration::from_micros(u64::from(DAT_TIMEOUT_INFINITE)))), DAT_TIMEOUT_INFINITE - 1);
    }

    #[test]
    fn every_dto_status_maps_to_a_named_transfer_error() {
        assert_eq!(TransferError::from_status(DAT_DTO_SUCCESS), None);
        let all: Vec<_> = (1..=0xa).filter_map(TransferError::from_status).collect();
        assert_eq!(all.len(), 10);
        assert!(!all.iter().any(|error| matches!(error, TransferError::Other(_))));
        assert_eq!(TransferError::from_status(99), Some(TransferError::Other(99)));
    }

    #[test]
    fn null_pointer_or_negative_length_is_copied_as_empty() {
        let mut byte = 7_u8;
        // SAFETY: the pointer is null, or refers to one byte.
        unsafe {
            assert_eq!(copied(5, ptr::null_mut()), []);
            assert_eq!(copied(-1, (&raw mut byte).cast()), []);
            assert_eq!(copied(1, (&raw mut byte).cast()), [7]);
        }
    }
}
