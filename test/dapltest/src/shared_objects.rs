//! Objects that the connections of a test share: a protection zone, event dispatchers, a CNO, and the server's
//! listener.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use dat_abi::*;

use crate::dat::raw::{self, CallResult};
use crate::dat::{Address, Cno, Ep, Evd, Event, Ia, Psp, Pz, WaitPolicy, connected, connection_word, drain};
use crate::failure::{Failure, Result};

/// Interval at which a listener that waits for a request checks whether none will follow.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// PZ, EVDs and CNO that the connections of a test share.
pub(crate) struct SharedObjects {
    pub(crate) recv: Evd,
    pub(crate) request: Evd,
    pub(crate) conn: Evd,
    /// Declared after the EVDs, so that the EVDs that notify it are dropped first.
    _cno: Option<Cno>,
    pub(crate) pz: Pz,
}

/// Required queue depths and lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) endpoints: usize,
    /// Receives posted on one endpoint at a time.
    pub(crate) receives: usize,
    pub(crate) requests: usize,
    pub(crate) segments: usize,
    /// Length in bytes of the longest message or RDMA.
    pub(crate) length: usize,
    /// Whether requests complete on the EVD of the receives.
    pub(crate) shares_evd: bool,
}

impl SharedObjects {
    /// Creates the objects for endpoints with these needs.
    pub(crate) fn new(ia: &Ia, needs: Needs, is_notified: bool) -> CallResult<Self> {
        let pz = ia.pz()?;
        let cno = if is_notified { Some(ia.cno()?) } else { None };
        let dtos = DAT_EVD_DTO_FLAG;
        let received = needs.receives + if needs.shares_evd { needs.requests } else { 0 };
        let recv = ia.evd_on(needs.endpoints * received + 1, dtos, cno.as_ref())?;
        let request = ia.evd_on(needs.endpoints * needs.requests + 1, dtos, cno.as_ref())?;
        let conn = ia.evd(2 * needs.endpoints + 2, DAT_EVD_CONNECTION_FLAG)?;
        Ok(SharedObjects { recv, request, conn, _cno: cno, pz })
    }

    /// Creates an endpoint on these objects.
    pub(crate) fn ep(&self, ia: &Ia, needs: Needs) -> CallResult<Ep> {
        let adapter = raw::ia_query(ia.handle())?;
        let count = |count: usize| DAT_COUNT::try_from(count).unwrap_or(DAT_COUNT::MAX);
        let reads = adapter.max_rdma_read_per_ep_out.min(adapter.max_rdma_read_per_ep_in).clamp(0, 4);
        let attr = DAT_EP_ATTR {
            service_type: DAT_SERVICE_TYPE_RC,
            max_message_size: needs.length as u64,
            max_rdma_size: needs.length as u64,
            qos: DAT_QOS_BEST_EFFORT,
            recv_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
            request_completion_flags: DAT_COMPLETION_DEFAULT_FLAG,
            max_recv_dtos: count(needs.receives),
            max_request_dtos: count(needs.requests),
            max_recv_iov: count(needs.segments),
            max_request_iov: count(needs.segments),
            max_rdma_read_in: reads,
            max_rdma_read_out: reads,
            srq_soft_hw: 0,
            max_rdma_read_iov: count(needs.segments).min(adapter.max_iov_segments_per_rdma_read),
            max_rdma_write_iov: count(needs.segments).min(adapter.max_iov_segments_per_rdma_write),
            ep_transport_specific_count: 0,
            ep_transport_specific: std::ptr::null_mut(),
            ep_provider_specific_count: 0,
            ep_provider_specific: std::ptr::null_mut(),
        };
        let request = if needs.shares_evd { &self.recv } else { &self.request };
        ia.ep(&self.pz, [&self.recv, request, &self.conn], Some(&attr))
    }

    /// Connects an endpoint, and waits until it is connected.
    pub(crate) fn connect(&self, ep: &Ep, to: Address, qual: u64, qos: DAT_QOS, wait_policy: WaitPolicy) -> Result {
        let microseconds = u32::try_from(wait_policy.limit.as_micros()).unwrap_or(DAT_TIMEOUT_INFINITE - 1);
        ep.connect(to, qual, microseconds, qos)?;
        connected(&self.conn, ep.handle(), wait_policy)
    }

    /// Describes the connection event that explains a failure, if one is queued. The event may arrive shortly after
    /// the completions.
    pub(crate) fn connection_failure(&self, wait_policy: WaitPolicy) -> String {
        match wait_policy.look(&self.conn) {
            Ok(Some(Event::Connection { number, .. })) => format!("; the connection: {}", connection_word(number)),
            _ => String::new(),
        }
    }

    /// Returns an error if a connection event is queued.
    pub(crate) fn is_quiet(&self) -> Result {
        match drain(&self.conn).first() {
            None => Ok(()),
            Some(event) => Failure::with_message(format!("unexpected event {event:?}")),
        }
    }
}

/// A listener that accepts the client's endpoints one after the other.
pub(crate) struct Listener {
    _psp: Psp,
    requests: Evd,
    pub(crate) qual: u64,
}

impl Listener {
    /// Listens on a free qualifier, with a queue for `width` requests.
    pub(crate) fn any(ia: &Ia, width: usize) -> CallResult<Self> {
        let requests = ia.evd(width + 1, DAT_EVD_CR_FLAG)?;
        let (psp, qual) = ia.psp_any(&requests)?;
        Ok(Listener { _psp: psp, requests, qual })
    }

    /// Accepts the next request, and waits until the endpoint is connected. Fails once `is_gone` returns true, which
    /// means that the client has disconnected.
    pub(crate) fn accept(
        &self,
        ep: &Ep,
        shared: &SharedObjects,
        wait_policy: WaitPolicy,
        is_gone: impl Fn() -> bool,
    ) -> Result {
        match self.accept_unless(ep, shared, wait_policy, || Ok(is_gone()))? {
            true => Ok(()),
            false => Failure::with_message("the client disconnected before all its endpoints had connected"),
        }
    }

    /// Same as `accept`, but returns false once `is_over` returns true, which means that no request will follow.
    pub(crate) fn accept_unless(
        &self,
        ep: &Ep,
        shared: &SharedObjects,
        wait_policy: WaitPolicy,
        mut is_over: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let deadline = Instant::now() + wait_policy.limit;
        let event = loop {
            if let Some(event) = (WaitPolicy { limit: CHECK_INTERVAL, ..wait_policy }).look(&self.requests)? {
                break event;
            }
            if is_over()? {
                return Ok(false);
            }
            if Instant::now() > deadline {
                let seconds = wait_policy.limit.as_secs();
                return Failure::with_message(format!(
                    "no connection request of the client arrived within {seconds} s"
                ));
            }
        };
        match event {
            Event::Request { cr, qual } if qual == self.qual => ep.accept(cr)?,
            event => {
                let qual = self.qual;
                return Failure::with_message(format!(
                    "the event {event:?} arrived; expected a connection request for port {qual}"
                ));
            }
        }
        connected(&shared.conn, ep.handle(), wait_policy).map(|()| true)
    }
}
