//! The device's queues behind a completion queue, and how much of each is spoken for.
//!
//! A device loses what completes beyond the room of its queue, so all that may complete has its room before it is posted.
//! There are as many queues as that takes. Nothing is polled or armed here.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Resource, Result};

use crate::ibv;

/// Room that a queue begins with.
const SMALL: u32 = 64;

/// What a queue of the device is made of.
pub(super) struct Maker {
    pub(super) context: Arc<ibv::Context>,
    pub(super) channel: Arc<ibv::Channel>,
    /// What its events are named by.
    pub(super) id: usize,
    /// The longest queue that the device makes.
    pub(super) longest: u32,
}

/// A queue of the device.
struct Hw {
    cq: Arc<ibv::Cq>,
    /// Room that queue pairs have asked for.
    reserved: u32,
}

/// Room for the receives of a shared queue, which is one for all queue pairs that take from it: what is complete and not
/// looked at has not given its place back.
struct Shared {
    /// The shared queue's id.
    srq: usize,
    cq: Arc<ibv::Cq>,
    count: u32,
    users: u32,
}

/// All of them.
#[derive(Default)]
pub(super) struct Rooms {
    hws: Vec<Hw>,
    shared: Vec<Shared>,
}

impl Maker {
    fn make(&self, room: u32) -> Result<Hw> {
        let made = ibv::Cq::new(&self.context, &self.channel, room, self.id);
        let cq = made.map_err(|error| {
            log::error!("{}: no completion queue with room for {room}: {error}", self.context.name());
            Error::Exhausted(Resource::Evd)
        })?;
        Ok(Hw { cq, reserved: 0 })
    }

    fn grow(&self, cq: &ibv::Cq, wanted: u32) -> bool {
        let room = wanted.checked_next_power_of_two().unwrap_or(self.longest).min(self.longest);
        let resized = || {
            cq.resize(room).inspect_err(|error| {
                // Another queue will do.
                log::debug!("{}: a completion queue cannot grow to {room}: {error}", self.context.name());
            })
        };
        room >= wanted && resized().is_ok() && cq.capacity() >= wanted
    }
}

impl Rooms {
    /// One small queue.
    pub(super) fn new(maker: &Maker) -> Result<Self> {
        let first = maker.make(SMALL.min(maker.longest))?;
        Ok(Rooms { hws: vec![first], shared: Vec::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.hws.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&ibv::Cq> {
        self.hws.get(at).map(|hw| &*hw.cq)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ibv::Cq> {
        self.hws.iter().map(|hw| &*hw.cq)
    }

    /// Finds or makes a queue with room for so many completions more.
    pub(super) fn reserve(&mut self, maker: &Maker, count: u32) -> Result<Arc<ibv::Cq>> {
        for hw in &mut self.hws {
            let wanted = hw.reserved.saturating_add(count);
            if wanted <= hw.cq.capacity() || maker.grow(&hw.cq, wanted) {
                hw.reserved = wanted;
                return Ok(hw.cq.clone());
            }
        }
        let room = count.max(SMALL).checked_next_power_of_two().unwrap_or(count);
        let mut hw = maker.make(room.min(maker.longest.max(count)))?;
        hw.reserved = count;
        let cq = hw.cq.clone();
        self.hws.push(hw);
        Ok(cq)
    }

    /// The same for a queue pair that takes from a shared queue of so many receives.
    pub(super) fn reserve_shared(&mut self, maker: &Maker, srq: usize, count: u32) -> Result<Arc<ibv::Cq>> {
        if let Some(room) = self.shared.iter_mut().find(|room| room.srq == srq) {
            room.users += 1;
            return Ok(room.cq.clone());
        }
        let cq = self.reserve(maker, count)?;
        self.shared.push(Shared { srq, cq: cq.clone(), count, users: 1 });
        Ok(cq)
    }

    /// The shared queue has so many receives now; its room is never made smaller.
    pub(super) fn widen_shared(&mut self, maker: &Maker, srq: usize, count: u32) -> Result<()> {
        let narrow = |room: &&mut Shared| room.srq == srq && room.count < count;
        let Some(room) = self.shared.iter_mut().find(narrow) else { return Ok(()) };
        let Some(hw) = self.hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, &room.cq)) else { return Ok(()) };
        let wanted = hw.reserved.saturating_add(count - room.count);
        if wanted > hw.cq.capacity() && !maker.grow(&hw.cq, wanted) {
            log::warn!("{}: no room for {wanted} completions in one queue of the device", maker.context.name());
            return Err(Error::Exhausted(Resource::Srq));
        }
        (hw.reserved, room.count) = (wanted, count);
        Ok(())
    }

    /// Gives room back; the queue stays.
    pub(super) fn release(&mut self, cq: &Arc<ibv::Cq>, count: u32) {
        if let Some(hw) = self.hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, cq)) {
            hw.reserved = hw.reserved.saturating_sub(count);
        }
    }

    /// A queue pair that took from a shared queue is gone.
    pub(super) fn release_shared(&mut self, srq: usize) {
        let Some(at) = self.shared.iter().position(|room| room.srq == srq) else { return };
        self.shared[at].users -= 1;
        if self.shared[at].users == 0 {
            let Shared { cq, count, .. } = self.shared.swap_remove(at);
            self.release(&cq, count);
        }
    }
}
