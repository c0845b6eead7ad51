//! Creates, resets and frees an EP and its queue pair, and flushes the receives of an unconnected EP at a disconnect.
//! Also sets its receive watermarks, and registers its receives and requests with its EVDs.
//!
//! Objects are dropped after the locks are released. The QP is dropped before the EVDs and the PZ, since its last
//! completions go to the EVDs.
#![forbid(unsafe_code)]

use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::attributes::{Attributes, HighWatermarks, PostLimits, QpSize};
use super::dapli_outbox::PendingEvents;
use super::dapls_ep::EpTransferSink;
use super::post_lock::PostLock;
use super::state::{EpState, EpStep};
use super::{Communicator, ControlState, Ep, EpObjects, PostState};
use crate::error::{Error, Handle, Resource, Result, State};
use crate::evd::{Evd, NotifyMode, dapls_evd};
use crate::ia::{CloseRank, Ia};
use crate::provider::{
    Connection, ConnectionEvent, Outstanding, Provider, QpSpec, QueuePair, SharedRecvs, Token, Work,
};
use crate::runtime::consumer_memory::{PrivateData, SocketAddress};
use crate::runtime::handle::{self, ObjectId};
use crate::stats::counters::{EpCounts, IaSums, Posts};
use crate::stats::trace::TracedEp;

impl<P: Provider> Ep<P> {
    /// Creates an EP with a live handle in its IA. If the EP has a PZ, its QP is created too, so that receives can be
    /// posted before it is connected.
    pub(super) fn create(
        ia: &Arc<Ia<P>>,
        state: EpState,
        objects: EpObjects<P>,
        attributes: Attributes,
    ) -> Result<Arc<Self>> {
        let made = handle::create(ia.table(), |id| {
            let qp = build(ia, id, &objects, &attributes, attributes.marks(objects.attached()))?;
            Ok(Ep::new(id, ia.clone(), state, qp, objects, attributes))
        })?;
        let evds = made.object().core.lock().objects.dto_evds();
        evds.iter().flatten().for_each(|evd| dapls_evd::rearm_for_streams(evd));
        let ep = made.object().clone();
        if let Some(trace) = &ep.trace {
            let subject: Arc<dyn TracedEp> = ep.clone();
            trace.begin(Arc::downgrade(&subject));
        }
        ia.publish(made, CloseRank::Ep);
        Ok(ep)
    }

    fn new(
        id: ObjectId,
        ia: Arc<Ia<P>>,
        state: EpState,
        qp: Option<P::Qp>,
        objects: EpObjects<P>,
        attributes: Attributes,
    ) -> Self {
        let limits = attributes.post_limits(objects.attached(), ia.limits());
        configure(id, &objects, &limits);
        let trace = ia.tracing.trace(id.handle);
        let limits = limits.traced(trace.is_some());
        Ep {
            id,
            ia,
            mirror: AtomicU8::new(state as u8),
            trace,
            post_state: PostLock::new(id, PostState { qp, limits, posts: Posts::default() }),
            core: Mutex::new(ControlState {
                state,
                attempt: 0,
                marks: attributes.marks(objects.attached()),
                objects,
                attributes,
                remote: None,
                communicator: Communicator::default(),
                timeout: None,
                kept_cr: None,
                outbox: PendingEvents::new(),
                counts: EpCounts::default(),
                freed: false,
            }),
            event_data: PrivateData::default(),
            remote_address: SocketAddress::default(),
            listing: OnceLock::new(),
        }
    }

    /// `dat_ep_reset`: flushes the posted work of a disconnected EP, which becomes unconnected; if this fails, the EP
    /// stays disconnected. On an unconnected EP it has no effect: posted receives stay.
    pub(super) fn reset(&self) -> Result<()> {
        let mut core = self.open()?;
        core.state.after(EpStep::Reset)?;
        if core.state == EpState::Unconnected {
            return Ok(()); // posted receives stay
        }
        // The write lock excludes posts. So a post sees either the disconnected EP with its old work, or the
        // unconnected EP without work.
        let post_state = self.post_state.write();
        let report = self.report_unfinished("is reset", &post_state);
        if let Some(qp) = &post_state.qp {
            qp.reset()?;
        }
        self.step(&mut core, EpStep::Reset)?;
        drop(post_state);
        core.counts.resets += 1;
        self.mark_failures_reported(&mut core);
        core.outbox.connection_ended();
        core.remote = None;
        self.remote_address.write(&[]);
        let kept_cr = core.kept_cr.take();
        drop(core);
        drop(kept_cr);
        report.log();
        self.deliver();
        Ok(())
    }

    /// Handles `dat_ep_disconnect` on an unconnected EP: flushes posted receives, because no other call returns them,
    /// and queues DISCONNECTED. Fails if no receive is posted (spec/endpoints 5.6, note 5).
    pub(super) fn flush_unconnected(&self, core: &mut ControlState<P>) -> Result<()> {
        let post_state = self.post_state();
        match &post_state.qp {
            Some(qp) if qp.outstanding().recvs > 0 => qp.flush_recvs(),
            _ => return Err(Error::InvalidState(State::EpUnconnected)),
        }
        drop(post_state);
        self.queue_event(core, Some(ConnectionEvent::Disconnected), None);
        Ok(())
    }

    /// Numbers of outstanding requests and receives; zero if the EP has no QP.
    pub(super) fn outstanding(&self) -> Outstanding {
        self.post_state().qp().map(|qp| qp.outstanding()).unwrap_or_default()
    }

    /// `dat_ep_set_watermark`, allowed in any state. A watermark that is already exceeded takes effect at once. The
    /// provider counts receives and compares them with the watermarks. The EP stores the watermarks too, for a QP that
    /// later replaces the current one.
    pub(super) fn watch(&self, marks: HighWatermarks) -> Result<()> {
        let mut core = self.open()?;
        if let Ok(qp) = self.post_state().qp() {
            qp.watch_recvs(marks.soft, marks.hard)?;
        }
        core.marks = marks; // a report of the provider waits for this lock
        if core.objects.srq.is_some() {
            core.attributes.set_watermarks(marks);
        }
        Ok(())
    }

    /// Frees the EP by the transition `step`, which is refused in states that do not allow it. Queued events are still
    /// delivered.
    pub(super) fn destroy(&self, step: EpStep) -> Result<()> {
        let mut core = self.open()?;
        core.state.after(step)?;
        handle::free(self.id, Handle::Ep)?;
        let report = self.report_unfinished("is freed", &self.post_state());
        self.end(&mut core, step)?;
        self.mark_failures_reported(&mut core);
        core.outbox.ep_ended();
        self.save_completion_counts(&mut core, &EpObjects::none());
        self.ia.add_final_counts(&IaSums { eps: self.counts(&core), ..IaSums::default() });
        core.freed = true;
        if let Some(trace) = &self.trace {
            trace.end();
        }
        let kept_cr = core.kept_cr.take();
        remove_streams(&core.objects, &core.attributes.post_limits(core.objects.attached(), self.ia.limits()));
        let objects = std::mem::replace(&mut core.objects, EpObjects::none());
        let qp = self.post_state.write().qp.take();
        drop(core);
        drop(qp);
        drop(objects);
        drop(kept_cr);
        report.log();
        self.ia.remove_child(self);
        self.deliver();
        Ok(())
    }
}

/// Creates the QP for these objects and attributes, if there is a PZ.
pub(super) fn build<P: Provider>(
    ia: &Ia<P>,
    id: ObjectId,
    objects: &EpObjects<P>,
    attributes: &Attributes,
    marks: HighWatermarks,
) -> Result<Option<P::Qp>> {
    let Some(pz) = &objects.pz else { return Ok(None) };
    let shared = objects.srq.as_ref().map(|srq| SharedRecvs {
        srq: srq.queue.clone(),
        token: Token {
            ep: id.handle,
            work: Work::SharedRecv,
            object: srq.id.handle,
            // If the EP notifies for solicited messages only, its receives are posted UNSIGNALLED, so that a completion
            // notifies only if the send was solicited, or if the receive failed or was flushed.
            unsignalled: attributes.post_limits(objects.attached(), ia.limits()).recv_solicited,
            post: ia.tracing.shared_post(),
            ..Token::default()
        },
    });
    let QpSize { max_recvs, max_requests, max_recv_iov, max_request_iov, max_reads_in, max_reads_out } =
        attributes.shape(objects.attached(), ia.limits());
    let spec = QpSpec {
        ep: id,
        shared,
        recv_cq: objects.recv.as_ref().and_then(|evd| evd.cq()),
        request_cq: objects.request.as_ref().and_then(|evd| evd.cq()),
        max_recvs,
        max_requests,
        max_recv_iov,
        max_request_iov,
        max_reads_in,
        max_reads_out,
    };
    match ia.provider.create_qp(&pz.pd, spec) {
        Ok(qp) => {
            if marks != HighWatermarks::default() {
                qp.watch_recvs(marks.soft, marks.hard)?;
            }
            Ok(Some(qp))
        }
        Err(error @ Error::Exhausted(_)) => Err(error),
        Err(error) => {
            log::error!(
                "cannot create a queue pair for {max_recvs} receives and {max_requests} requests: {error}; create the EP with \
                 smaller attributes (dat_ia_query returns the limits)"
            );
            Err(Error::Exhausted(Resource::Ep))
        }
    }
}

/// Sets the EP up as a user of its EVDs: they report failed work and dequeued SRQ receives to the module `ep`, count
/// the completions of this EP, and notify as this EP requests.
pub(super) fn configure<P: Provider>(ep: ObjectId, objects: &EpObjects<P>, limits: &PostLimits) {
    for (evd, mode) in streams(objects, limits) {
        evd.report_transfers_to(EpTransferSink::<P>::SINK);
        dapls_evd::start_counting(evd, ep.handle);
        evd.add_stream(mode);
    }
}

/// Removes the EP's receives and requests from its EVDs, to which [`configure`] has added them.
pub(super) fn remove_streams<P: Provider>(objects: &EpObjects<P>, limits: &PostLimits) {
    streams(objects, limits).for_each(|(evd, mode)| evd.remove_stream(mode));
}

/// The EVDs of receives and requests, and which completions notify.
fn streams<'a, P: Provider>(
    objects: &'a EpObjects<P>,
    limits: &PostLimits,
) -> impl Iterator<Item = (&'a Evd<P>, NotifyMode)> + use<'a, P> {
    let mode = |solicited: bool, unsignalled: bool| match (solicited, unsignalled) {
        (true, _) => NotifyMode::Solicited,
        (false, true) => NotifyMode::Notify,
        (false, false) => NotifyMode::Threshold,
    };
    let modes = [mode(limits.recv_solicited, limits.recv_unsignalled), mode(false, limits.request_unsignalled)];
    let evds = [&objects.recv, &objects.request];
    evds.into_iter().zip(modes).filter_map(|(evd, mode)| Some((&**evd.as_ref()?, mode)))
}
