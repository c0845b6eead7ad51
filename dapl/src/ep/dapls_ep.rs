//! EP operations for other modules: events from the provider and from EVDs, the EP's part in service points and
//! connection requests, and its communicator (DAT 2.0). Any thread may call them.
//!
//! A connection event of an earlier attempt has no effect. An event that the EP's state does not allow is not reported,
//! but the end of the connection may still make the event EP_BROKEN due (`dapli_outbox`).
#![forbid(unsafe_code)]

use std::any::Any;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;

use super::attributes::{AttachedQueues, Attributes};
use super::state::{EpState, EpStep};
use super::{Communicator, Ep, EpObjects, EpPeer};
use crate::error::{Error, Handle, Result};
use crate::evd::{Evd, TransferSink, dapls_evd};
use crate::ia::{AsyncError, AsyncKind, Ia, dapls_ia};
use crate::provider::{ConnRequest, ConnectionEvent, PeerAddress, Provider};
use crate::runtime::consumer_memory;
use crate::runtime::handle::from_handle;
use crate::srq::{Srq, dapls_srq};
use crate::stats::trace::TraceReport;

/// Handles a connection event that the provider reports for the attempt with number `attempt`: changes the state, and
/// queues the event of the transition for the consumer.
pub(crate) fn connection_event<P: Provider>(ep: &Ep<P>, attempt: u32, event: ConnectionEvent, private_data: &[u8]) {
    let mut core = ep.core.lock();
    let is_active = core.state == EpState::ActivePending;
    if core.freed || core.attempt != attempt {
        return;
    }
    let report = if event == ConnectionEvent::Broken { ep.report_broken(&core) } else { TraceReport::default() };
    let stepped = ep.step(&mut core, EpStep::Event(event));
    if event != ConnectionEvent::Established {
        core.outbox.connection_ended(); // even if a failed completion has already ended the connection
    }
    if let Ok(notice) = stepped {
        log::debug!("ep {:#x} is {} after {event:?}", ep.id.handle, core.state.dat_name());
        // An event of the passive side never carries private data, because programs recognise the active side by the
        // data (spec/endpoints 13.12).
        let has_data = match event {
            ConnectionEvent::Established => is_active,
            ConnectionEvent::PeerRejected => is_active && !private_data.is_empty(),
            _ => false,
        };
        ep.queue_event(&mut core, notice, has_data.then_some(private_data));
    }
    drop(core);
    report.log();
    ep.deliver();
}

/// Reports an asynchronous error because the soft watermark was exceeded, and removes the watermark. The reason code of
/// the error is specific to EPs (spec/events 14.1).
pub(crate) fn many_recvs<P: Provider>(ep: &Ep<P>) {
    const SOFT_HIGH_WATERMARK: i32 = 2;
    ep.core.lock().marks.soft = None;
    let error = AsyncError { kind: AsyncKind::ProviderInternal, handle: ep.id.handle, reason: SOFT_HIGH_WATERMARK };
    dapls_ia::report(&ep.ia, error);
}

/// Handles the reports of EVDs about failed work and dequeued SRQ receives.
pub(super) struct EpTransferSink<P>(PhantomData<fn() -> P>);

impl<P: Provider> EpTransferSink<P> {
    pub(super) const SINK: &'static dyn TransferSink<P> = &EpTransferSink(PhantomData);
}

impl<P: Provider> TransferSink<P> for EpTransferSink<P> {
    fn reaped(&self, srq: usize) {
        if let Ok(srq) = from_handle::<Srq<P>>(srq as *mut _, Handle::Srq) {
            dapls_srq::reaped(&srq);
        }
    }

    fn failed(&self, evd: &Evd<P>, ep: usize) -> bool {
        let found = from_handle::<Ep<P>>(ep as *mut _, Handle::Ep);
        found.inspect(|ep| fail(ep, evd)).is_ok()
    }
}

/// Handles failed work whose completion a consumer is about to dequeue from `evd`. The provider also ends the
/// connection, and reports that from its own thread. Outside a graceful disconnect, the first of the two reports
/// changes the EP's state and queues the event; the second does neither (spec/endpoints 8.4). EP_BROKEN becomes due
/// only with the provider's report or a reset.
fn fail<P: Provider>(ep: &Ep<P>, evd: &Evd<P>) {
    let mut core = ep.core.lock();
    // A reset marks failures as reported, also under the EP's lock. So an unreported failure belongs to the current
    // attempt.
    let is_unreported = dapls_evd::take_failure(evd, ep.id.handle);
    let report = if is_unreported { ep.report_broken(&core) } else { TraceReport::default() };
    // During a graceful disconnect, the end of the connection is reported as the consumer's own disconnect
    // (spec/endpoints 4.2).
    if is_unreported
        && core.state != EpState::DisconnectPending
        && let Ok(notice) = ep.step(&mut core, EpStep::Event(ConnectionEvent::Broken))
    {
        log::debug!("ep {:#x} is {} after a failed transfer", ep.id.handle, core.state.dat_name());
        ep.queue_event(&mut core, notice, None);
    }
    drop(core);
    report.log();
    ep.deliver();
}

/// A connection request, for the EP that accepts it.
pub(crate) struct AcceptedRequest<'a> {
    /// Whether the service point has provided the EP for this request. Otherwise the consumer has chosen the EP.
    pub(crate) is_provided: bool,
    pub(crate) peer: SocketAddr,
    pub(crate) private_data: &'a [u8],
    /// Keeps the CR in memory as long as the consumer may read its private data.
    pub(crate) kept_cr: Arc<dyn Any + Send + Sync>,
}

/// `dat_cr_accept`, from its sixth check on (spec/endpoints 7.3). After all checks have passed, calls `take`, which
/// consumes the request. The request stays consumed even if the accept then fails.
pub(crate) fn accept<P: Provider>(
    ep: &Ep<P>,
    acceptance: AcceptedRequest<'_>,
    take: impl FnOnce() -> Result<P::Request>,
) -> Result<()> {
    let step = if acceptance.is_provided { EpStep::AcceptOwn } else { EpStep::Accept };
    let mut core = ep.open()?;
    core.state.after(step)?;
    if core.objects.pz.is_none() || !core.objects.has_live_connect_evd() || !core.objects.is_alive() {
        return Err(Error::InvalidHandle(Handle::Ep));
    }
    let request = take()?;

    let conn = ep.next_attempt(&mut core);
    ep.step(&mut core, step)?;
    ep.remote_address.write(&consumer_memory::socket_address(acceptance.peer));
    let AcceptedRequest { peer, private_data, kept_cr, .. } = acceptance;
    let accepted = ep.post_state().qp().and_then(|qp| request.accept(qp, private_data, conn));
    if let Err(error) = accepted {
        ep.step(&mut core, EpStep::AcceptRefused)?;
        ep.remote_address.write(&[]);
        log::warn!(
            "ep {:#x}: cannot accept the connection request of {peer}: {error}; dat_cr_accept returns an error",
            ep.id.handle
        );
        return Err(error);
    }
    core.remote = Some(EpPeer { address: PeerAddress::Ip(peer.ip()), qual: u64::from(peer.port()) });
    core.kept_cr = Some(kept_cr);
    Ok(())
}

pub(crate) fn communicator<P: Provider>(ep: &Ep<P>) -> Communicator {
    ep.core.lock().communicator
}

/// Checks whether [`set_communicator`] would succeed.
///
/// Errors: `InvalidState` if the EP's state does not allow a change; `CommNotSupported`.
pub(crate) fn check_communicator<P: Provider>(ep: &Ep<P>, communicator: Communicator) -> Result<()> {
    ep.open()?.state.lets_modify()?;
    communicator.check()
}

/// Sets the communicator for the next connection.
pub(crate) fn set_communicator<P: Provider>(ep: &Ep<P>, communicator: Communicator) -> Result<()> {
    communicator.check()?;
    let mut core = ep.open()?;
    core.state.lets_modify()?;
    core.communicator = communicator;
    Ok(())
}

/// Records that a connection request has arrived at the EP's RSP.
pub(crate) fn request<P: Provider>(ep: &Ep<P>, peer: SocketAddr) -> Result<()> {
    advance(ep, EpStep::Request)?;
    ep.remote_address.write(&consumer_memory::socket_address(peer));
    Ok(())
}

/// Ends the connection request that the EP belongs to, by [`EpStep::RequestLost`] or [`EpStep::Decline`].
pub(crate) fn end_request<P: Provider>(ep: &Ep<P>, step: EpStep) {
    if advance(ep, step).is_ok() {
        ep.remote_address.write(&[]);
    }
}

/// Creates an EP for a connection request at a PSP with `DAT_PSP_PROVIDER_FLAG`. The EP has default attributes, no PZ
/// and no EVD; its state is `TentativePending`.
pub(crate) fn create_tentative<P: Provider>(ia: &Arc<Ia<P>>, peer: SocketAddr) -> Result<Arc<Ep<P>>> {
    let attributes = Attributes::default_for(AttachedQueues::default(), ia.limits());
    let ep = Ep::create(ia, EpState::TentativePending, EpObjects::none(), attributes)?;
    ep.remote_address.write(&consumer_memory::socket_address(peer));
    Ok(ep)
}

/// Closes an EP in any state and invalidates its handle. A second call has no effect.
pub(crate) fn close<P: Provider>(ep: &Ep<P>) {
    let _ = ep.destroy(EpStep::Close);
}

/// Makes a state transition without an event.
pub(crate) fn advance<P: Provider>(ep: &Ep<P>, step: EpStep) -> Result<()> {
    let mut core = ep.open()?;
    ep.step(&mut core, step).map(drop)
}
