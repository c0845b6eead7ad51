//! Shared receive queues: the shared receive queue of the device, and the cookies of its receives.
//!
//! Each posted receive has a slot in a table. Its work request id contains the slot, so a completion on any connection
//! identifies its receive. A receive counts as available until its completion is polled, although a connection may have
//! used it already.
//!
//! The device reports an event when the number of receives falls below the low watermark, but not if the number is
//! already below the watermark when it is set. So this module checks the watermark too, when it is set and when
//! completions are polled. Only engine threads call the sink: that of the IA, or that of another IA on the same device
//! which has read the device's event.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Segment, SharedReceiveQueue, SrqSink, SrqSpec};
use dapl::stats::watermark::LowWatermark;
use parking_lot::Mutex;

use crate::cq::CqCore;
use crate::device::Device;
use crate::engine::Engine;
use crate::ibv;
use crate::memory::Pd;
use crate::qp::gather::with_sges;
use crate::qp::work::{SavedSegments, WorkId};
use crate::shared_device::EventTarget;

/// The object layer's handle of a shared receive queue.
pub struct Srq(pub(crate) Arc<SrqCore>);

/// The state of a shared receive queue, shared by its handle, its queue pairs and the engine.
pub(crate) struct SrqCore {
    me: Weak<SrqCore>,
    /// Id that the device's events carry.
    pub(crate) id: usize,
    pub(crate) hw: Arc<ibv::Srq>,
    engine: Arc<Engine>,
    sink: Weak<dyn SrqSink>,
    slots: Mutex<RecvSlots>,
    /// The completion queues on which its receives complete.
    cqs: Mutex<Vec<Weak<CqCore>>>,
    /// Held during a resize, while the consumer sets a watermark, and while a limit event of the device is handled, so
    /// that these do not overlap. Locked before `slots`.
    changing: Mutex<()>,
}

impl Srq {
    /// Creates a shared receive queue. Errors: `Exhausted(Srq)`.
    pub(crate) fn new(device: &Arc<Device>, pd: &Pd, spec: SrqSpec) -> Result<Self> {
        let id = device.shared_device.next_id();
        let hw = ibv::Srq::new(&pd.0, spec.max_recvs, spec.max_iov, id).map_err(|error| {
            log::error!(
                "{0}: cannot create a shared receive queue of {1} receives with {2} segments: {error}; free other SRQs, or create \
                 it with fewer receives or segments (ibv_devinfo -v -d {0} shows the limits)",
                device.context.name(),
                spec.max_recvs,
                spec.max_iov
            );
            Error::Exhausted(Resource::Srq)
        })?;
        let slots = Mutex::new(RecvSlots::new(spec.max_recvs, device.saved_segment_count(spec.max_iov)));
        let core = Arc::new_cyclic(|me| SrqCore {
            me: Weak::clone(me),
            id,
            hw,
            engine: device.engine.clone(),
            sink: spec.sink,
            slots,
            cqs: Mutex::default(),
            changing: Mutex::new(()),
        });
        device.shared_device.add_queue(id, core.me.clone());
        Ok(Srq(core))
    }
}

impl SrqCore {
    /// Adds a completion queue on which receives of this queue complete.
    pub(crate) fn completes_on(&self, cq: &Arc<CqCore>) {
        let mut cqs = self.cqs.lock();
        cqs.retain(|known| known.strong_count() > 0);
        if !cqs.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq))) {
            cqs.push(Arc::downgrade(cq));
        }
    }

    /// Returns the maximum number of receives.
    pub(crate) fn capacity(&self) -> u32 {
        self.slots.lock().max
    }

    /// Frees the slot of a completed receive, and returns its cookie. `None` if the slot is not in use.
    pub(crate) fn complete(&self, slot: u64) -> Option<u64> {
        let mut slots = self.slots.lock();
        let cookie = slots.release(usize::try_from(slot).ok()?)?;
        let is_low = slots.check_low();
        drop(slots);
        if is_low {
            self.notify_later();
        }
        Some(cookie)
    }

    /// Returns the saved segments of a receive whose slot is not freed; `None` if segments are not saved.
    pub(crate) fn saved_segments(&self, slot: u64) -> Option<Vec<Segment>> {
        let slot = u32::try_from(slot).ok()?;
        self.slots.lock().kept.get(slot).map(<[Segment]>::to_vec)
    }

    fn notify_later(&self) {
        self.engine.call_on_engine(&self.me, Self::notify);
    }

    fn notify(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.low();
        }
    }
}

impl EventTarget for SrqCore {
    fn failed(&self) {
        let cqs: Vec<_> = self.cqs.lock().iter().filter_map(Weak::upgrade).collect();
        cqs.iter().for_each(|cq| cq.fail_users_of_srq(self.id));
    }

    fn fell_below_limit(&self) {
        let changing = self.changing.lock();
        // The device clears the limit when it reports the event. If a limit is set now, the event belongs to an earlier
        // limit and is ignored.
        let is_old = self.hw.attributes().is_ok_and(|attributes| attributes.srq_limit != 0);
        let is_wanted = !is_old && self.slots.lock().clear_watermark();
        drop(changing);
        if is_wanted {
            self.notify();
        }
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        with_sges(segments, |list, _| {
            let slot = self.0.slots.lock().allocate(cookie, segments).ok_or(Error::Exhausted(Resource::Memory))?;
            self.0.hw.post_recv(WorkId::shared(slot), list).map_err(|error| {
                self.0.slots.lock().release(slot);
                match error.raw_os_error() {
                    Some(libc::ENOMEM | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
                    _ => {
                        log::error!(
                            "{}: cannot post a receive of {} segments to a shared receive queue: {error}; the post fails with \
                             DAT_INTERNAL_ERROR",
                            self.0.hw.pd.context.name(),
                            segments.len()
                        );
                        Error::Internal
                    }
                }
            })
        })
    }

    fn available(&self) -> u32 {
        // Fetches the device's completions first: a completed receive counts as available until its completion is
        // fetched.
        let cqs: Vec<_> = self.0.cqs.lock().iter().filter_map(Weak::upgrade).collect();
        cqs.iter().for_each(|cq| cq.fetch());
        self.0.slots.lock().in_use
    }

    fn resize(&self, max_recvs: u32) -> Result<()> {
        let _changing = self.0.changing.lock();
        let capacity = self.0.hw.attributes().map_or(self.0.hw.capacity, |attributes| attributes.max_wr);
        let cqs: Vec<_> = self.0.cqs.lock().iter().filter_map(Weak::upgrade).collect();
        cqs.iter().try_for_each(|cq| cq.grow_shared(self.0.id, max_recvs))?;
        // The device's queue never shrinks; the table of slots limits the number of receives.
        if max_recvs > capacity {
            self.0.hw.resize(max_recvs).map_err(|error| {
                log::warn!(
                    "{}: cannot resize a shared receive queue from {capacity} to {max_recvs} receives: {error}; create it with \
                     that number",
                    self.0.hw.pd.context.name()
                );
                Error::Exhausted(Resource::Srq)
            })?;
        }
        self.0.slots.lock().resize(max_recvs);
        Ok(())
    }

    fn watch(&self, limit: u32) -> Result<()> {
        let _changing = self.0.changing.lock();
        if let Err(error) = self.0.hw.limit(limit) {
            // Without the device's event, the watermark is checked only when completions are polled.
            log::debug!(
                "{}: cannot set the limit of a shared receive queue to {limit}: {error}",
                self.0.hw.pd.context.name()
            );
        }
        if self.0.slots.lock().watch(limit) {
            // This call reports the low number, so the device must not report it again.
            let _ = self.0.hw.limit(0);
            self.0.notify_later();
        }
        Ok(())
    }
}

/// The posted receives by slot.
struct RecvSlots {
    cookies: Vec<Option<u64>>,
    free_slots: Vec<usize>,
    in_use: u32,
    max: u32,
    low: LowWatermark,
    kept: SavedSegments,
}

impl RecvSlots {
    /// Creates a table for `max` receives, with up to `saved` saved segments per receive.
    fn new(max: u32, saved: u32) -> Self {
        let capacity = max as usize;
        let (cookies, free_slots) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        RecvSlots {
            cookies,
            free_slots,
            in_use: 0,
            max,
            low: LowWatermark::default(),
            kept: SavedSegments::with_capacity_for(max, saved),
        }
    }

    fn resize(&mut self, max: u32) {
        self.max = max;
        self.kept.grow(max);
    }

    /// Allocates a slot. `None` if all slots are in use.
    fn allocate(&mut self, cookie: u64, segments: &[Segment]) -> Option<usize> {
        if self.in_use >= self.max {
            return None;
        }
        self.in_use += 1;
        let slot = self.free_slots.pop().unwrap_or(self.cookies.len());
        match self.cookies.get_mut(slot) {
            Some(entry) => *entry = Some(cookie),
            None => self.cookies.push(Some(cookie)),
        }
        self.kept.put(slot as u32, segments);
        Some(slot)
    }

    /// Frees a slot, and returns its cookie. `None` if the slot is not in use.
    fn release(&mut self, slot: usize) -> Option<u64> {
        let cookie = self.cookies.get_mut(slot)?.take()?;
        self.free_slots.push(slot);
        self.in_use -= 1;
        Some(cookie)
    }

    /// Sets the low watermark. Returns whether fewer than `limit` receives are posted now.
    fn watch(&mut self, limit: u32) -> bool {
        self.low = LowWatermark::new(limit);
        self.check_low()
    }

    /// Returns whether the number of posted receives is below the watermark. If so, clears the watermark, so that it
    /// is reported only once.
    fn check_low(&mut self) -> bool {
        self.low.check(self.in_use)
    }

    /// Clears the watermark. Returns whether one was set.
    fn clear_watermark(&mut self) -> bool {
        std::mem::take(&mut self.low) != LowWatermark::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slot_returns_its_cookie_once_and_is_reused() {
        let mut slots = RecvSlots::new(2, 0);
        let [one, other] = [slots.allocate(10, &[]).unwrap(), slots.allocate(11, &[]).unwrap()];
        assert_eq!((slots.allocate(12, &[]), slots.in_use), (None, 2));
        assert_eq!([slots.release(one), slots.release(one), slots.release(99)], [Some(10), None, None]);
        assert_eq!(slots.allocate(13, &[]), Some(one), "the freed slot is reused");
        assert_eq!((slots.release(other), slots.release(one), slots.in_use), (Some(11), Some(13), 0));
    }

    #[test]
    fn srq_capacity_can_grow_and_shrink() {
        let mut slots = RecvSlots::new(1, 0);
        let first = slots.allocate(1, &[]).unwrap();
        slots.resize(2);
        assert!(slots.allocate(2, &[]).is_some() && slots.allocate(3, &[]).is_none());
        slots.resize(1);
        assert_eq!(slots.release(first), Some(1));
        assert_eq!(slots.allocate(4, &[]), None, "one slot is in use, and the maximum is one");
    }

    #[test]
    fn low_watermark_is_reported_once() {
        let mut slots = RecvSlots::new(4, 0);
        let in_use: Vec<_> = (0..3).map(|cookie| slots.allocate(cookie, &[]).unwrap()).collect();
        assert!(!slots.watch(3));
        slots.release(in_use[0]);
        assert_eq!([slots.check_low(), slots.check_low()], [true, false]);
        assert!(slots.watch(3), "the number is already below the watermark");
        assert!(!slots.clear_watermark(), "the watermark was reported, so it is not set");
        assert!(!slots.watch(2) && slots.clear_watermark() && !slots.clear_watermark());
        slots.release(in_use[1]);
        assert!(!slots.check_low(), "the watermark was cleared");
        assert!(!slots.watch(0));
    }
}
