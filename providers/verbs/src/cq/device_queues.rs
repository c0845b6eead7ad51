//! The completion queues of the device that a completion queue of the provider uses, and the capacity reserved in each.
//!
//! A device loses completions beyond the capacity of its completion queue, so each queue pair reserves capacity when it
//! is created. If no device queue can grow enough, another one is created.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Resource, Result};

use crate::ibv;

/// Minimum capacity of a device queue.
const MIN_CAPACITY: u32 = 64;

/// Parameters for creating a queue of the device.
pub(super) struct DeviceCqParams {
    pub(super) context: Arc<ibv::Context>,
    pub(super) channel: Arc<ibv::CompletionChannel>,
    /// Id in the events of the queues.
    pub(super) id: usize,
    /// Maximum capacity of a device queue.
    pub(super) max_capacity: u32,
}

struct DeviceCq {
    cq: Arc<ibv::Cq>,
    /// Number of completions for which queue pairs have reserved capacity.
    reserved: u32,
}

/// Capacity for the receives of a shared receive queue. It is reserved once for all queue pairs that use that queue.
/// Together they never need more, because a receive keeps its place in the shared receive queue until its completion is
/// polled.
struct SrqReservation {
    /// Id of the shared receive queue.
    srq: usize,
    cq: Arc<ibv::Cq>,
    count: u32,
    users: u32,
}

/// All device queues of a CQ.
#[derive(Default)]
pub(super) struct DeviceQueues {
    cqs: Vec<DeviceCq>,
    shared: Vec<SrqReservation>,
}

impl DeviceCqParams {
    fn make(&self, capacity: u32) -> Result<DeviceCq> {
        let made = ibv::Cq::new(&self.context, &self.channel, capacity, self.id);
        let cq = made.map_err(|error| {
            log::error!(
                "{0}: cannot create a completion queue of {capacity} entries: {error}; free EVDs, or use EPs and SRQs with fewer \
                 outstanding DTOs (ibv_devinfo -v -d {0} shows the limits)",
                self.context.name()
            );
            Error::Exhausted(Resource::Evd)
        })?;
        Ok(DeviceCq { cq, reserved: 0 })
    }

    /// Resizes a device queue to at least `wanted` completions. Returns whether that was possible.
    fn grow(&self, cq: &ibv::Cq, wanted: u32) -> bool {
        let capacity = wanted.checked_next_power_of_two().unwrap_or(self.max_capacity).min(self.max_capacity);
        let resized = || {
            cq.resize(capacity).inspect_err(|error| {
                // `reserve` creates another device queue instead; `grow_shared` logs a warning.
                log::debug!("{}: cannot grow a completion queue to {capacity} entries: {error}", self.context.name());
            })
        };
        capacity >= wanted && resized().is_ok() && cq.capacity() >= wanted
    }
}

impl DeviceQueues {
    /// Creates one device queue with the minimum capacity.
    pub(super) fn new(params: &DeviceCqParams) -> Result<Self> {
        let first = params.make(MIN_CAPACITY.min(params.max_capacity))?;
        Ok(DeviceQueues { cqs: vec![first], shared: Vec::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.cqs.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&ibv::Cq> {
        self.cqs.get(at).map(|hw| &*hw.cq)
    }

    /// Returns the device queue, if there is only one.
    #[inline(always)]
    pub(super) fn single_queue(&self) -> Option<&ibv::Cq> {
        if let [hw] = &*self.cqs { Some(&*hw.cq) } else { None }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ibv::Cq> {
        self.cqs.iter().map(|hw| &*hw.cq)
    }

    /// Reserves capacity for `count` completions: in an existing device queue, which may grow, or in a new one. `srq`: id
    /// of the shared receive queue whose receives complete there; only its first queue pair needs new capacity.
    pub(super) fn reserve(&mut self, params: &DeviceCqParams, srq: Option<usize>, count: u32) -> Result<Arc<ibv::Cq>> {
        if let Some(queue) = self.shared.iter_mut().find(|shared| Some(shared.srq) == srq) {
            queue.users += 1;
            return Ok(queue.cq.clone());
        }
        let cq = self.reserve_new(params, count)?;
        self.shared.extend(srq.map(|srq| SrqReservation { srq, cq: cq.clone(), count, users: 1 }));
        Ok(cq)
    }

    fn reserve_new(&mut self, params: &DeviceCqParams, count: u32) -> Result<Arc<ibv::Cq>> {
        for hw in &mut self.cqs {
            let wanted = hw.reserved.saturating_add(count);
            if wanted <= hw.cq.capacity() || params.grow(&hw.cq, wanted) {
                hw.reserved = wanted;
                return Ok(hw.cq.clone());
            }
        }
        let capacity = count.max(MIN_CAPACITY).checked_next_power_of_two().unwrap_or(count);
        let mut hw = params.make(capacity.min(params.max_capacity.max(count)))?;
        hw.reserved = count;
        let cq = hw.cq.clone();
        self.cqs.push(hw);
        Ok(cq)
    }

    /// Increases the reservation for a shared receive queue that was resized to `count` receives. Never reduces it.
    ///
    /// Errors: `Exhausted(Srq)` if the device queue cannot grow enough.
    pub(super) fn grow_shared(&mut self, params: &DeviceCqParams, srq: usize, count: u32) -> Result<()> {
        let is_too_small = |shared: &&mut SrqReservation| shared.srq == srq && shared.count < count;
        let Some(queue) = self.shared.iter_mut().find(is_too_small) else { return Ok(()) };
        let Some(hw) = self.cqs.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, &queue.cq)) else { return Ok(()) };
        let wanted = hw.reserved.saturating_add(count - queue.count);
        if wanted > hw.cq.capacity() && !params.grow(&hw.cq, wanted) {
            log::warn!(
                "{}: cannot grow a completion queue to {wanted} entries (the device allows {}); use fewer receives per shared \
                 receive queue",
                params.context.name(),
                params.max_capacity
            );
            return Err(Error::Exhausted(Resource::Srq));
        }
        (hw.reserved, queue.count) = (wanted, count);
        Ok(())
    }

    /// Releases the capacity that a queue pair has reserved by [`Self::reserve`]. That of a shared receive queue is
    /// released with its last queue pair. The device queue does not shrink.
    pub(super) fn release(&mut self, cq: &Arc<ibv::Cq>, srq: Option<usize>, mut count: u32) {
        if let Some(index) = self.shared.iter().position(|shared| Some(shared.srq) == srq) {
            self.shared[index].users -= 1;
            if self.shared[index].users > 0 {
                return;
            }
            count = self.shared.swap_remove(index).count;
        }
        if let Some(hw) = self.cqs.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, cq)) {
            hw.reserved = hw.reserved.saturating_sub(count);
        }
    }
}
