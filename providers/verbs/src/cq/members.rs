//! The queue pairs that complete on a completion queue, by slot, and those with a shared queue also by number.
//! Protected by the completion queue's lock.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use ibverbs_sys::ibv_wc;

use super::pending::{Out, PendingCompletions};
use super::{CqCore, LockedCq, Side};
use crate::memory::keys::KeyHasher;
use crate::qp::QpCore;
use crate::qp::work::WorkId;
use crate::shared_device::{EventTarget, ObjectEvent};

impl LockedCq<'_> {
    /// Adds a queue of a queue pair, and returns its slot.
    pub(crate) fn enter(&mut self, core: &Arc<QpCore>, side: Side) -> Result<u32> {
        self.table.enter(core, side)
    }

    /// Frees a slot.
    pub(crate) fn leave(&mut self, slot: u32) {
        self.table.leave(slot);
    }

    /// Maps the number of a queue pair with a shared receive queue to the queue pair.
    pub(crate) fn enter_number(&mut self, number: u32, core: &Arc<QpCore>) {
        self.table.enter_number(number, core);
    }

    pub(crate) fn leave_number(&mut self, number: u32) {
        self.table.leave_number(number);
    }
}

impl CqCore {
    /// Fails the queue pairs that take their receives from this shared queue.
    pub(crate) fn fail_users_of_srq(&self, id: usize) {
        self.users().iter().filter(|qp| qp.takes_from(id)).for_each(|qp| qp.device_failed());
    }

    fn users(&self) -> Vec<Arc<QpCore>> {
        self.lock().table.users()
    }
}

impl EventTarget for CqCore {
    fn handle(&self, event: ObjectEvent) {
        match event {
            ObjectEvent::Completion => self.has_event(),
            ObjectEvent::Failed => self.users().iter().for_each(|qp| qp.device_failed()),
            ObjectEvent::Low | ObjectEvent::PeerIsThere => {}
        }
    }
}

#[derive(Default)]
pub(super) struct QpTable {
    slots: Vec<Option<(Arc<QpCore>, Side)>>,
    /// Queue pairs with a shared receive queue, by their number on the wire.
    numbers: HashMap<u32, Arc<QpCore>, BuildHasherDefault<KeyHasher>>,
}

impl QpTable {
    /// Adds a queue of a queue pair, and returns its slot.
    pub(super) fn enter(&mut self, core: &Arc<QpCore>, side: Side) -> Result<u32> {
        let entry = Some((core.clone(), side));
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(free) => {
                self.slots[free] = entry;
                free
            }
            None if self.slots.len() < WorkId::SLOTS as usize => {
                self.slots.push(entry);
                self.slots.len() - 1
            }
            None => return Err(Error::Exhausted(Resource::Evd)),
        };
        Ok(slot as u32)
    }

    /// Frees a slot.
    pub(super) fn leave(&mut self, slot: u32) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = None;
        }
    }

    /// Maps the number of a queue pair with a shared receive queue to the queue pair.
    pub(super) fn enter_number(&mut self, number: u32, core: &Arc<QpCore>) {
        self.numbers.insert(number, core.clone());
    }

    pub(super) fn leave_number(&mut self, number: u32) {
        self.numbers.remove(&number);
    }

    pub(super) fn is_used(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    pub(super) fn users(&self) -> Vec<Arc<QpCore>> {
        self.slots.iter().flatten().map(|(core, _)| core.clone()).collect()
    }

    /// Whether only failed receives must be reported, because no watermark counts receives. (Not every device can
    /// notify of failed requests only.)
    pub(super) fn wants_failures_only(&self) -> bool {
        self.slots.iter().flatten().all(|(core, side)| *side == Side::Recv && !core.counts_recvs())
    }

    pub(super) fn counts_recvs(&self) -> bool {
        self.slots.iter().flatten().any(|(core, side)| *side == Side::Recv && core.counts_recvs())
    }

    /// Finds the work of a completion, and returns the completion for the consumer.
    #[inline(always)]
    pub(super) fn complete(&self, front: &mut PendingCompletions, wc: &ibv_wc, out: &mut Out<'_>) {
        match WorkId::parse(wc.wr_id) {
            WorkId::Own { slot, .. } => {
                let Some(Some((core, side))) = self.slots.get(slot as usize) else { return };
                match side {
                    Side::Recv => {
                        let mark = front.mark();
                        core.complete_recv(wc, mark, |done| front.put(out, done));
                    }
                    Side::Request => core.complete_request(wc, |done| front.put(out, done)),
                }
            }
            WorkId::Shared(place) => match self.numbers.get(&wc.qp_num) {
                Some(core) => core.complete_shared(place, wc, front.mark(), |done| front.put(out, done)),
                None => log::debug!("a receive of queue pair {}, which is gone", wc.qp_num),
            },
        }
    }
}
