//! The way of an EP's connection events to its EVD: in the order of state changes, by one thread at a time, with no lock
//! of the EP held.
//!
//! Only this room uses it. Whoever changed the state calls `deliver` after unlocking; if somebody else is at it, that one
//! takes the new letters along. An event of a finished EP still goes out, to whatever is left of the EVD.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::state::Step;
use super::{Core, Ep};
use crate::error::Error;
use crate::evd::{ConnectionKind, Evd, Event, dapls_evd};
use crate::provider::{Provider, QueuePair};

/// Events on their way.
pub(super) struct Outbox<P: Provider> {
    letters: VecDeque<Letter<P>>,
    /// Somebody is posting.
    busy: bool,
}

struct Letter<P: Provider> {
    evd: Arc<Evd<P>>,
    event: Event,
    kind: ConnectionKind,
    attempt: u32,
}

impl<P: Provider> Outbox<P> {
    pub(super) fn new() -> Self {
        Outbox { letters: VecDeque::new(), busy: false }
    }
}

impl<P: Provider> Ep<P> {
    /// Queues an event for the connect EVD, if there is one. `data` is shown with it: present, though maybe empty, only
    /// with the active side's ESTABLISHED (endpoints 8.3, 13.12).
    pub(super) fn announce(&self, core: &mut Core<P>, notice: Option<ConnectionKind>, data: Option<&[u8]>) {
        let (Some(kind), Some(evd)) = (notice, &core.wiring.connect) else { return };
        let (data_size, data) = match data {
            None => (0, 0),
            Some(bytes) => {
                self.event_data.write(bytes);
                (bytes.len().min(crate::shown::PrivateData::SIZE) as u32, self.event_data.as_ptr() as usize)
            }
        };
        let event = Event::Connection { kind, ep: self.id.handle, data_size, data };
        let letter = Letter { evd: evd.arc().clone(), event, kind, attempt: core.attempt };
        core.outbox.letters.push_back(letter);
    }

    /// Posts what is queued, unless another thread does.
    pub(super) fn deliver(&self) {
        let mut core = self.core.lock();
        while !core.outbox.busy {
            let Some(letter) = core.outbox.letters.pop_front() else { return };
            core.outbox.busy = true;
            drop(core);
            let posted = dapls_evd::post(&letter.evd, letter.event);
            core = self.core.lock();
            core.outbox.busy = false;
            if let (Err(error), ConnectionKind::Established) = (posted, letter.kind) {
                self.established_lost(&mut core, letter.attempt, error);
            }
        }
    }

    /// Nobody will ever learn that this connection stands: it ends, without another event (endpoints 8.5).
    fn established_lost(&self, core: &mut Core<P>, attempt: u32, error: Error) {
        log::warn!("ep {:#x} is torn down, ESTABLISHED cannot be queued: {error}", self.id.handle);
        core.outbox.letters.retain(|letter| letter.attempt != attempt);
        if core.attempt != attempt || self.step(core, Step::EstablishedLost).is_err() {
            return;
        }
        if let Ok(qp) = self.desk().binding.qp() {
            qp.abort();
        }
    }
}
