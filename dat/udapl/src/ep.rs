//! Endpoints: one end of a connection. Transfers are in module `post`.

use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dat_abi::*;
use parking_lot::Mutex;

use crate::address::Address;
use crate::error::{Error, Result, count};
use crate::evd::{Evd, micros};
use crate::flight::OutstandingTransfers;
use crate::ia::{Attribute, named};
use crate::library::call;
use crate::owned::{EpId, EpInner, Handle, Pz, PzInner};
use crate::srq::Srq;

/// Maximum number of posted receives of an endpoint without a shared receive queue, if none is given.
const MAX_RECVS: DAT_COUNT = 16;

/// Attributes for [`Pz::ep_with`](crate::Pz::ep_with): event queues, limits on transfers, and a shared receive queue.
#[derive(Clone)]
pub struct EpSpec<'e> {
    /// Queue for completions of receives; it needs [`Streams::DTO`](crate::Streams::DTO).
    pub recv: &'e Evd,
    /// Queue for completions of sends, RDMA reads, RDMA writes and binds; it needs
    /// [`Streams::DTO`](crate::Streams::DTO), for binds also [`Streams::BIND`](crate::Streams::BIND).
    pub request: &'e Evd,
    /// Queue for connection events; it needs [`Streams::CONNECTION`](crate::Streams::CONNECTION).
    pub connect: &'e Evd,
    /// Maximum number of posted receives. `None`: 16. With a shared receive queue it is the hard high watermark: the
    /// connection ends if more receives that the endpoint has taken from the queue are outstanding. `None`: no limit.
    pub max_recvs: Option<u32>,
    /// Maximum number of posted sends, reads and writes.
    pub max_requests: u32,
    /// Maximum number of outstanding RDMA reads that the endpoint issues. `None`: the adapter's maximum.
    pub max_reads: Option<u32>,
    /// Maximum number of outstanding RDMA reads that the endpoint serves. `None`: the adapter's maximum.
    pub max_reads_answered: Option<u32>,
    /// Maximum number of buffers per transfer, for [`Ep::send_with`] and similar calls; limited to the adapter's
    /// maximum.
    pub max_segments: u32,
    /// Shared receive queue of the endpoint. [`Ep::recv`] is refused on an endpoint with a shared receive queue.
    pub srq: Option<&'e Srq>,
}

impl<'e> EpSpec<'e> {
    /// Attributes with one queue for all events, 16 requests, 4 buffers per transfer, and 16 receives. If `srq` is set
    /// afterwards, the number of receives is not limited.
    pub fn new(events: &'e Evd) -> Self {
        EpSpec {
            recv: events,
            request: events,
            connect: events,
            max_recvs: None,
            max_requests: 16,
            max_reads: None,
            max_reads_answered: None,
            max_segments: 4,
            srq: None,
        }
    }
}

/// State of an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// The endpoint can connect, or accept a request.
    Unconnected,
    /// A connection is being established, by either side.
    Connecting,
    /// Transfers are possible.
    Connected,
    /// A graceful disconnect waits for the requests that were posted before it.
    Disconnecting,
    /// The connection has ended; [`Ep::reset`] makes the endpoint [`Unconnected`](State::Unconnected).
    Disconnected,
}

/// Addresses and limits of an endpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct EpInfo {
    /// Local address, if it is an IP address.
    pub local: Option<Address>,
    /// The peer's address, if it is an IP address. `None` before a connect or an accept.
    pub remote: Option<Address>,
    /// Maximum number of posted receives; with a shared receive queue the hard high watermark, as
    /// [`EpSpec::max_recvs`]. `None`: no limit.
    pub max_recvs: Option<u32>,
    /// Maximum number of posted sends, reads and writes.
    pub max_requests: u32,
    /// Maximum number of buffers per transfer.
    pub max_segments: u32,
}

/// One end of a connection. Dropping it disconnects abruptly, and drops the buffers of its transfers.
pub struct Ep {
    pub(crate) inner: Arc<EpInner>,
}

impl Pz {
    /// Creates an endpoint that reports all events to one queue, which needs [`DTO`](crate::Streams::DTO) and
    /// [`CONNECTION`](crate::Streams::CONNECTION).
    ///
    /// # Errors
    /// Those of `dat_ep_create`.
    pub fn ep(&self, events: &Evd) -> Result<Ep> {
        self.ep_with(&EpSpec::new(events))
    }

    /// Creates an endpoint with these attributes.
    ///
    /// # Errors
    /// Those of `dat_ep_create`, or of `dat_ep_create_with_srq` with a shared receive queue; [`Error::Argument`] for a
    /// number that exceeds the maximum of `DAT_COUNT`.
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
        let (recv, request, connect) = (recv.handle.0, request.handle.0, connect.handle.0);
        let srq = spec.srq.map(|srq| Arc::clone(&srq.inner));
        let (functions, attributes) = (&ia.functions, &raw const attributes);
        let (ia_handle, pz_handle, out) = (ia.handle.0, pz.handle.0, &raw mut handle);
        // SAFETY: the attributes are valid and only read; the result is written to a local variable.
        unsafe {
            match &srq {
                None => {
                    call!(functions, dat_ep_create(ia_handle, pz_handle, recv, request, connect, attributes, out))
                }
                Some(srq) => {
                    let srq = srq.handle.0;
                    call!(
                        functions,
                        dat_ep_create_with_srq(ia_handle, pz_handle, recv, request, connect, srq, attributes, out)
                    )
                }
            }
        }?;
        let id = EpId(NEXT.fetch_add(1, Ordering::Relaxed));
        let flight = Mutex::new(OutstandingTransfers::new());
        let inner =
            Arc::new(EpInner { id, handle: Handle(handle), pz: Arc::clone(pz), _queues: queues.clone(), srq, flight });
        ia.eps.lock().insert(handle as usize, Arc::downgrade(&inner));
        Ok(Ep { inner })
    }

    /// Id by which events name the endpoint.
    pub fn id(&self) -> EpId {
        self.inner.id
    }

    /// Returns the state of the endpoint.
    ///
    /// # Errors
    /// Those of `dat_ep_get_status`.
    pub fn state(&self) -> Result<State> {
        let mut state = DAT_EP_STATE_UNCONNECTED;
        // SAFETY: the result is written to a local variable; null for results that are not needed.
        unsafe {
            call!(self.functions(), dat_ep_get_status(self.handle(), &raw mut state, ptr::null_mut(), ptr::null_mut()))
        }?;
        Ok(match state {
            DAT_EP_STATE_UNCONNECTED | DAT_EP_STATE_UNCONFIGURED_UNCONNECTED => State::Unconnected,
            DAT_EP_STATE_CONNECTED => State::Connected,
            DAT_EP_STATE_DISCONNECT_PENDING => State::Disconnecting,
            DAT_EP_STATE_DISCONNECTED => State::Disconnected,
            _ => State::Connecting,
        })
    }

    /// Returns the addresses, and the limits of the endpoint as the provider has set them.
    ///
    /// # Errors
    /// Those of `dat_ep_query`.
    pub fn info(&self) -> Result<EpInfo> {
        let param = self.query()?;
        let count = |count: DAT_COUNT| u32::try_from(count).unwrap_or(0);
        // SAFETY: both pointers are null or refer to addresses of the adapter and the endpoint. `self` keeps both
        // objects until the addresses are copied.
        let (local, remote) =
            unsafe { (Address::from_c(param.local_ia_address_ptr), Address::from_c(param.remote_ia_address_ptr)) };
        Ok(EpInfo {
            local,
            remote,
            max_recvs: u32::try_from(param.ep_attr.max_recv_dtos).ok(),
            max_requests: count(param.ep_attr.max_request_dtos),
            max_segments: count(param.ep_attr.max_request_iov),
        })
    }

    /// Returns the counters of the endpoint, such as messages and bytes. The set of counters depends on the provider.
    ///
    /// # Errors
    /// Those of `dat_ep_query`.
    pub fn counters(&self) -> Result<Vec<Attribute>> {
        let attributes = self.query()?.ep_attr;
        // SAFETY: the list was returned by the query above, and the provider keeps it until the next query.
        Ok(unsafe { named(attributes.ep_provider_specific_count, attributes.ep_provider_specific) })
    }

    fn query(&self) -> Result<DAT_EP_PARAM> {
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
        let mut param: DAT_EP_PARAM = unsafe { mem::zeroed() };
        // SAFETY: the record is a complete local variable.
        unsafe { call!(self.functions(), dat_ep_query(self.handle(), DAT_EP_FIELD_ALL, &raw mut param)) }?;
        Ok(param)
    }

    /// Number of posted transfers whose completions were not dequeued yet. A request with
    /// [`PostFlags::SUPPRESS`](crate::PostFlags::SUPPRESS) counts until a later completion returns it.
    pub fn posted(&self) -> usize {
        self.inner.flight.lock().len()
    }

    /// Sends a connection request with private data to the listener on this qualifier. An event reports the result.
    /// Without a time limit, the attempt may never end.
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
        let (to, within) = (to.to_c(), micros(within.into()));
        let (qos, flags) = (DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG);
        let (functions, ep, data) = (self.functions(), self.handle(), data.cast_mut().cast());
        // SAFETY: the address and the data are only read, during the call.
        unsafe { call!(functions, dat_ep_connect(ep, to.as_ptr(), qualifier, within, size, data, qos, flags)) }
    }

    /// Ends the connection when all posted requests are complete. Posted receives are then flushed. Both sides receive
    /// an event.
    ///
    /// # Errors
    /// Those of `dat_ep_disconnect`.
    pub fn disconnect(&self) -> Result<()> {
        self.end(DAT_CLOSE_GRACEFUL_FLAG)
    }

    /// Ends the connection abruptly: posted transfers complete as flushed.
    ///
    /// # Errors
    /// Those of `dat_ep_disconnect`.
    pub fn abort(&self) -> Result<()> {
        self.end(DAT_CLOSE_ABRUPT_FLAG)
    }

    fn end(&self, how: DAT_CLOSE_FLAGS) -> Result<()> {
        // SAFETY: the call has no pointer arguments, and `self` keeps the object alive.
        unsafe { call!(self.functions(), dat_ep_disconnect(self.handle(), how)) }
    }

    /// Returns a disconnected endpoint to the unconnected state, so that it can connect again.
    ///
    /// # Errors
    /// Those of `dat_ep_reset`.
    pub fn reset(&self) -> Result<()> {
        // SAFETY: the call has no pointer arguments, and `self` keeps the object alive.
        unsafe { call!(self.functions(), dat_ep_reset(self.handle())) }
    }

    pub(crate) fn handle(&self) -> DAT_EP_HANDLE {
        self.inner.handle.0
    }

    pub(crate) fn functions(&self) -> &crate::library::Functions {
        &self.inner.pz.ia.functions
    }
}

/// Returns length and pointer of private data for C.
pub(crate) fn private(data: &[u8]) -> Result<(DAT_COUNT, *const u8)> {
    let size = DAT_COUNT::try_from(data.len());
    let size = size.map_err(|_| {
        Error::Argument(format!("private data of {} bytes exceeds the maximum of DAT_COUNT", data.len()))
    })?;
    Ok((size, if data.is_empty() { ptr::null() } else { data.as_ptr() }))
}

fn attributes(pz: &PzInner, spec: &EpSpec<'_>) -> Result<DAT_EP_ATTR> {
    let limits = &pz.ia.limits;
    let segments = count("segments", spec.max_segments.clamp(1, limits.max_segments.max(1)))?;
    Ok(DAT_EP_ATTR {
        service_type: DAT_SERVICE_TYPE_RC,
        max_message_size: limits.max_message,
        max_rdma_size: limits.max_rdma,
        qos: DAT_QOS_BEST_EFFORT,
        recv_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
        request_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
        max_recv_dtos: match spec.max_recvs {
            Some(max) => count("receives", max)?,
            None if spec.srq.is_some() => DAT_HW_DEFAULT,
            None => MAX_RECVS,
        },
        max_request_dtos: count("requests", spec.max_requests)?,
        max_recv_iov: segments,
        max_request_iov: segments,
        max_rdma_read_in: count("reads", spec.max_reads_answered.unwrap_or(limits.max_reads_answered))?,
        max_rdma_read_out: count("reads", spec.max_reads.unwrap_or(limits.max_reads))?,
        srq_soft_hw: 0,
        max_rdma_read_iov: segments,
        max_rdma_write_iov: segments,
        ep_transport_specific_count: 0,
        ep_transport_specific: ptr::null_mut(),
        ep_provider_specific_count: 0,
        ep_provider_specific: ptr::null_mut(),
    })
}
