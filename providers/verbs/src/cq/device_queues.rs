//! The device's queues behind a completion queue, and the reserved capacity of each.
//!
//! A device loses completions beyond the capacity of its queue, so capacity is reserved before work is posted.
//! Further queues are created when needed. Nothing is polled or armed here.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Resource, Result};

use crate::ibv;

/// Initial capacity of a queue.
const SMALL: u32 = 64;

/// Parameters for creating a queue of the device.
pub(super) struct Maker {
    pub(super) context: Arc<ibv::Context>,
    pub(super) channel: Arc<ibv::Channel>,
    /// Id in its events.
    pub(super) id: usize,
    /// The maximum capacity of a queue of the device.
    pub(super) longest: u32,
}

/// A queue of the device.
struct Hw {
    cq: Arc<ibv::Cq>,
    /// Capacity reserved by queue pairs.
    reserved: u32,
}

/// Capacity for the receives of a shared queue, reserved once for all queue pairs that use it: a receive that has completed,
/// but was not polled, still occupies the shared queue.
struct Shared {
    /// The shared queue's id.
    srq: usize,
    cq: Arc<ibv::Cq>,
    count: u32,
    users: u32,
}

/// All device queues of a CQ.
#[derive(Default)]
pub(super) struct DeviceQueues {
    hws: Vec<Hw>,
    shared: Vec<Shared>,
}

impl Maker {
    fn make(&self, capacity: u32) -> Result<Hw> {
        let made = ibv::Cq::new(&self.context, &self.channel, capacity, self.id);
        let cq = made.map_err(|error| {
            log::error!("{}: cannot create a completion queue of {capacity} entries: {error}", self.context.name());
            Error::Exhausted(Resource::Evd)
        })?;
        Ok(Hw { cq, reserved: 0 })
    }

    fn grow(&self, cq: &ibv::Cq, wanted: u32) -> bool {
        let capacity = wanted.checked_next_power_of_two().unwrap_or(self.longest).min(self.longest);
        let resized = || {
            cq.resize(capacity).inspect_err(|error| {
                // The device has no space in this queue, so another queue is created.
                log::debug!("{}: a completion queue cannot grow to {capacity}: {error}", self.context.name());
            })
        };
        capacity >= wanted && resized().is_ok() && cq.capacity() >= wanted
    }
}

impl DeviceQueues {
    /// Creates one small queue.
    pub(super) fn new(maker: &Maker) -> Result<Self> {
        let first = maker.make(SMALL.min(maker.longest))?;
        Ok(DeviceQueues { hws: vec![first], shared: Vec::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.hws.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&ibv::Cq> {
        self.hws.get(at).map(|hw| &*hw.cq)
    }

    /// The queue, if there is only one.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<&ibv::Cq> {
        if let [hw] = &*self.hws { Some(&*hw.cq) } else { None }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ibv::Cq> {
        self.hws.iter().map(|hw| &*hw.cq)
    }

    /// Finds or creates a queue with capacity for `count` more completions.
    pub(super) fn reserve(&mut self, maker: &Maker, count: u32) -> Result<Arc<ibv::Cq>> {
        for hw in &mut self.hws {
            let wanted = hw.reserved.saturating_add(count);
            if wanted <= hw.cq.capacity() || maker.grow(&hw.cq, wanted) {
                hw.reserved = wanted;
                return Ok(hw.cq.clone());
            }
        }
        let capacity = count.max(SMALL).checked_next_power_of_two().unwrap_or(count);
        let mut hw = maker.make(capacity.min(maker.longest.max(count)))?;
        hw.reserved = count;
        let cq = hw.cq.clone();
        self.hws.push(hw);
        Ok(cq)
    }

    /// Same as `reserve`, for a queue pair that uses a shared queue with `count` receives.
    pub(super) fn reserve_shared(&mut self, maker: &Maker, srq: usize, count: u32) -> Result<Arc<ibv::Cq>> {
        if let Some(queue) = self.shared.iter_mut().find(|shared| shared.srq == srq) {
            queue.users += 1;
            return Ok(queue.cq.clone());
        }
        let cq = self.reserve(maker, count)?;
        self.shared.push(Shared { srq, cq: cq.clone(), count, users: 1 });
        Ok(cq)
    }

    /// Reserves for a shared queue that was resized to `count` receives; the capacity never shrinks.
    pub(super) fn widen_shared(&mut self, maker: &Maker, srq: usize, count: u32) -> Result<()> {
        let narrow = |shared: &&mut Shared| shared.srq == srq && shared.count < count;
        let Some(queue) = self.shared.iter_mut().find(narrow) else { return Ok(()) };
        let Some(hw) = self.hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, &queue.cq)) else { return Ok(()) };
        let wanted = hw.reserved.saturating_add(count - queue.count);
        if wanted > hw.cq.capacity() && !maker.grow(&hw.cq, wanted) {
            log::warn!(
                "{}: the device has no completion queue of {wanted} entries; use fewer receives per shared queue",
                maker.context.name()
            );
            return Err(Error::Exhausted(Resource::Srq));
        }
        (hw.reserved, queue.count) = (wanted, count);
        Ok(())
    }

    /// Releases capacity; the queue remains.
    pub(super) fn release(&mut self, cq: &Arc<ibv::Cq>, count: u32) {
        if let Some(hw) = self.hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, cq)) {
            hw.reserved = hw.reserved.saturating_sub(count);
        }
    }

    /// Releases the use of a shared queue by a queue pair that was dropped.
    pub(super) fn release_shared(&mut self, srq: usize) {
        let Some(at) = self.shared.iter().position(|shared| shared.srq == srq) else { return };
        self.shared[at].users -= 1;
        if self.shared[at].users == 0 {
            let Shared { cq, count, .. } = self.shared.swap_remove(at);
            self.release(&cq, count);
        }
    }
}
