//! The table of queue pairs whose work completes on a completion queue, protected by the completion queue's lock.
//!
//! A completion identifies its queue pair by a slot of this table, which the work request id contains. For a receive of
//! a shared receive queue, the id has no such slot; the number of the queue pair in the completion identifies it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use dapl::error::{Error, Resource, Result};
use ibverbs_sys::ibv_wc;

use super::pending::{PendingCompletions, PollBuffer};
use super::{CqCore, QueueSide};
use crate::memory::keys::KeyHasher;
use crate::qp::QpCore;
use crate::qp::work::WorkId;
use crate::shared_device::EventTarget;

impl CqCore {
    /// Fails the queue pairs of this completion queue that use the shared receive queue with this id.
    pub(crate) fn fail_users_of_srq(&self, id: usize) {
        self.users().iter().filter(|qp| qp.takes_from(id)).for_each(|qp| qp.fail());
    }

    fn users(&self) -> Vec<Arc<QpCore>> {
        self.lock().table.users()
    }
}

impl EventTarget for CqCore {
    fn failed(&self) {
        self.users().iter().for_each(|qp| qp.fail());
    }

    fn completed(&self) {
        self.handle_event();
    }
}

#[derive(Default)]
pub(crate) struct QpTable {
    slots: Vec<Option<(Arc<QpCore>, QueueSide)>>,
    /// Queue pairs with a shared receive queue, by queue pair number.
    numbers: HashMap<u32, Arc<QpCore>, BuildHasherDefault<KeyHasher>>,
}

impl QpTable {
    /// Adds the send queue or receive queue of a queue pair, and returns its slot. Errors: `Exhausted(Evd)` if all
    /// slots are in use.
    pub(crate) fn add_queue(&mut self, core: &Arc<QpCore>, side: QueueSide) -> Result<u32> {
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

    /// Removes the queues of a queue pair, and its number.
    pub(crate) fn remove(&mut self, qp: &QpCore) {
        let of_qp = |place: &&mut Option<(Arc<QpCore>, _)>| {
            place.as_ref().is_some_and(|(core, _)| std::ptr::eq(Arc::as_ptr(core), qp))
        };
        self.slots.iter_mut().filter(of_qp).for_each(|place| *place = None);
        self.remove_number(qp.number());
    }

    /// Adds a queue pair with a shared receive queue under its number.
    pub(crate) fn add_number(&mut self, number: u32, core: &Arc<QpCore>) {
        self.numbers.insert(number, core.clone());
    }

    pub(crate) fn remove_number(&mut self, number: u32) {
        self.numbers.remove(&number);
    }

    pub(super) fn is_used(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    pub(super) fn users(&self) -> Vec<Arc<QpCore>> {
        self.slots.iter().flatten().map(|(core, _)| core.clone()).collect()
    }

    /// Returns the queue pairs whose requests complete on the queue.
    pub(super) fn requesters(&self) -> Vec<Arc<QpCore>> {
        let requesters = self.slots.iter().flatten().filter(|(_, side)| *side == QueueSide::Request);
        requesters.map(|(core, _)| core.clone()).collect()
    }

    /// Whether events of failures suffice: only receives complete on the queue, and no watermark counts them. Requests
    /// need events of all completions, because not every device can report events of failed requests only.
    pub(super) fn wants_failures_only(&self) -> bool {
        self.slots.iter().flatten().all(|(core, side)| *side == QueueSide::Recv && !core.counts_recvs())
    }

    pub(super) fn counts_recvs(&self) -> bool {
        self.slots.iter().flatten().any(|(core, side)| *side == QueueSide::Recv && core.counts_recvs())
    }

    /// Finds the work of a device completion, and passes the consumer's completion to `out` or the software queue.
    #[inline(always)]
    pub(super) fn complete(&self, pending: &mut PendingCompletions, wc: &ibv_wc, out: &mut PollBuffer<'_>) {
        match WorkId::parse(wc.wr_id) {
            WorkId::Own(slot) => {
                let Some(Some((core, side))) = self.slots.get(slot as usize) else { return };
                match side {
                    QueueSide::Recv => {
                        let mark = pending.solicited_state();
                        core.complete_recv(wc, mark, |done| pending.deliver(out, done));
                    }
                    QueueSide::Request => core.complete_request(wc, |done| pending.deliver(out, done)),
                }
            }
            WorkId::Shared(place) => match self.numbers.get(&wc.qp_num) {
                Some(core) => {
                    core.complete_shared(place, wc, pending.solicited_state(), |done| pending.deliver(out, done))
                }
                None => log::debug!("dropping a completion of queue pair {:#x}, which was destroyed", wc.qp_num),
            },
        }
    }
}
