//! The way of an EP's connection events to its EVD: queued there with the EP's lock held, so that they come in the order of
//! state changes and whoever sees a new state finds its event; told to others when no lock is held.
//!
//! Only this room uses it. Whoever changed the state calls `deliver` after unlocking. An event of a finished EP still goes
//! out, to whatever is left of the EVD.
#![forbid(unsafe_code)]

use super::state::Step;
use super::{Core, Ep};
use crate::evd::dapls_evd::Untold;
use crate::evd::{Event, dapls_evd};
use crate::ia::{AsyncError, AsyncKind, dapls_ia};
use crate::provider::{Connection, ConnectionEvent, Provider};

/// What was queued and nobody has been told of: who waits is still to be woken, agents are to be called.
pub(super) struct Outbox<P: Provider> {
    untold: Vec<Untold<P>>,
    last_word: LastWord,
}

/// An EP that takes its receives out of an SRQ says once that a connection has ended and all it had taken is complete
/// (events-transfers-memory.md 10): only then can a consumer tell what is left.
#[derive(Clone, Copy, Eq, PartialEq)]
enum LastWord {
    Unsaid,
    /// The connection stands, or its last completions are still to come.
    Owed,
    Due,
}

impl<P: Provider> Outbox<P> {
    pub(super) fn new() -> Self {
        Outbox { untold: Vec::new(), last_word: LastWord::Unsaid }
    }

    /// The connection of an EP with an SRQ stands.
    pub(super) fn connection_began(&mut self) {
        self.last_word = LastWord::Owed;
    }

    /// All that the QP held is complete, and no connection any more.
    pub(super) fn connection_ended(&mut self) {
        if self.last_word == LastWord::Owed {
            self.last_word = LastWord::Due;
        }
    }

    /// The handle is gone: there is nothing to say of it.
    pub(super) fn ep_ended(&mut self) {
        self.last_word = LastWord::Unsaid;
    }

    pub(super) fn push(&mut self, untold: Untold<P>) {
        self.untold.push(untold);
    }
}

impl<P: Provider> Ep<P> {
    /// Queues an event in the connect EVD, if there is one. Completions before the end of a connection trigger their CNO before it
    /// does: the provider has put them into the CQ, but its notification may still be on its way. `data` is shown with it: present, though maybe empty, only
    /// with the active side's ESTABLISHED (spec/endpoints 8.3, 13.12).
    pub(super) fn announce(&self, core: &mut Core<P>, notice: Option<ConnectionEvent>, data: Option<&[u8]>) {
        let (Some(kind), Some(evd)) = (notice, &core.wiring.connect) else { return };
        let (data_size, data) = match data {
            None => (0, 0),
            Some(bytes) => {
                self.event_data.write(bytes);
                (
                    bytes.len().min(crate::runtime::consumer_memory::PrivateData::SIZE) as u32,
                    self.event_data.as_ptr() as usize,
                )
            }
        };
        if kind != ConnectionEvent::Established {
            let evds = [&core.wiring.recv, &core.wiring.request].into_iter().flatten();
            core.outbox.untold.extend(evds.filter_map(|evd| dapls_evd::catch_up(evd.arc())));
        }
        let untold = dapls_evd::enqueue(evd.arc(), Event::Connection { kind, ep: self.id.handle, data_size, data });
        let is_lost = untold.is_lost();
        core.outbox.untold.push(untold);
        if is_lost && kind == ConnectionEvent::Established {
            self.established_lost(core);
        }
    }

    /// Tells of what is queued.
    pub(super) fn deliver(&self) {
        let mut core = self.core.lock();
        let untold = std::mem::take(&mut core.outbox.untold);
        let is_due = core.outbox.last_word == LastWord::Due;
        if is_due {
            core.outbox.last_word = LastWord::Unsaid;
        }
        drop(core);
        untold.into_iter().for_each(Untold::tell);
        if is_due {
            let error = AsyncError { kind: AsyncKind::EpBroken, handle: self.id.handle, reason: 0 };
            dapls_ia::report(&self.ia, error);
        }
    }

    /// The connection that failures in its EVDs are of is over.
    pub(super) fn settle(&self, core: &mut Core<P>) {
        for evd in [&core.wiring.recv, &core.wiring.request].into_iter().flatten() {
            core.outbox.untold.push(dapls_evd::settle(evd.arc(), self.id.handle));
        }
    }

    /// Nobody will ever learn that this connection stands: it ends, without another event (spec/endpoints 8.5).
    fn established_lost(&self, core: &mut Core<P>) {
        log::warn!("ep {:#x} is torn down, ESTABLISHED cannot be queued", self.id.handle);
        if self.step(core, Step::EstablishedLost).is_err() {
            return;
        }
        if let Ok(qp) = self.desk().binding.qp() {
            qp.abort();
        }
        core.outbox.connection_ended();
    }
}
