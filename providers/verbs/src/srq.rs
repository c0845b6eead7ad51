//! Shared receive queues: the device's queue, and the cookies of its receives.
//!
//! A receive has a slot in a table, and the device carries the slot number, so a completion identifies its receive on
//! any connection. The number of available receives counts posted receives without a polled completion, so it may
//! include some that a connection has taken. The device notifies when few are left. When a watermark is set, or
//! completions are polled, this module checks whether few are left already. Only the engine calls the sink.
#![forbid(unsafe_code)]

use std::sync::{Arc, Weak};

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Segment, SharedReceiveQueue, SrqSink, SrqSpec};
use dapl::stats::watermark::LowWatermark;
use parking_lot::Mutex;

use crate::cq::CqCore;
use crate::device::Device;
use crate::engine::Reactor;
use crate::ibv;
use crate::memory::Pd;
use crate::qp::gather::gathered;
use crate::qp::work::Kept;
use crate::shared_device::{EventTarget, ObjectEvent};

/// Top bit of a receive's id, which distinguishes it for `work`; the rest is its slot.
const SHARED: u64 = 1 << 63;

/// A shared receive queue, held by the object layer.
pub struct Srq(pub(crate) Arc<SrqCore>);

/// The queue itself, shared with its queue pairs and the engine.
pub(crate) struct SrqCore {
    me: Weak<SrqCore>,
    id: usize,
    hw: Arc<ibv::Srq>,
    reactor: Arc<Reactor>,
    sink: Weak<dyn SrqSink>,
    places: Mutex<Places>,
    /// The completion queues of its receives.
    cqs: Mutex<Vec<Weak<CqCore>>>,
    /// Serialises changes of size and limit. Locked before `places`.
    changing: Mutex<()>,
}

impl Srq {
    /// Errors: `Exhausted(Srq)`.
    pub(crate) fn new(device: &Arc<Device>, pd: &Pd, spec: SrqSpec) -> Result<Self> {
        let id = device.opened.next_id();
        let hw = ibv::Srq::new(&pd.0, spec.max_recvs, spec.max_iov, id).map_err(|error| {
            log::error!(
                "{}: cannot create a shared receive queue of {} receives with {} segments: {error}",
                device.context.name(),
                spec.max_recvs,
                spec.max_iov
            );
            Error::Exhausted(Resource::Srq)
        })?;
        let places = Mutex::new(Places::new(spec.max_recvs, device.kept(spec.max_iov)));
        let core = Arc::new_cyclic(|me| SrqCore {
            me: Weak::clone(me),
            id,
            hw,
            reactor: device.reactor.clone(),
            sink: spec.sink,
            places,
            cqs: Mutex::default(),
            changing: Mutex::new(()),
        });
        device.opened.adopt_queue(id, core.me.clone());
        Ok(Srq(core))
    }
}

impl SrqCore {
    /// Adds a completion queue in which its receives complete.
    pub(crate) fn completes_on(&self, cq: &Arc<CqCore>) {
        let mut cqs = self.cqs.lock();
        cqs.retain(|known| known.strong_count() > 0);
        if !cqs.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq))) {
            cqs.push(Arc::downgrade(cq));
        }
    }

    /// Its id among the device's objects of this process.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    pub(crate) fn hw(&self) -> &Arc<ibv::Srq> {
        &self.hw
    }

    /// Capacity for receives.
    pub(crate) fn capacity(&self) -> u32 {
        self.places.lock().most
    }

    /// Completes the receive in this slot, once. Returns its cookie.
    pub(crate) fn complete(&self, place: u64) -> Option<u64> {
        let mut places = self.places.lock();
        let cookie = places.give_back(usize::try_from(place).ok()?)?;
        let is_low = places.look();
        drop(places);
        if is_low {
            self.notify_later();
        }
        Some(cookie)
    }

    /// The segments of a receive that is not complete yet, if they are kept.
    pub(crate) fn kept(&self, place: u64) -> Option<Vec<Segment>> {
        let place = u32::try_from(place).ok()?;
        self.places.lock().kept.get(place).map(<[Segment]>::to_vec)
    }

    /// Handles the device's report that few are left. Engine only.
    fn is_low(&self) {
        let changing = self.changing.lock();
        // An event of a limit that has been replaced does not concern the new one, which is still set in the device.
        let is_old = self.hw.attributes().is_ok_and(|attributes| attributes.srq_limit != 0);
        let is_wanted = !is_old && self.places.lock().unwatch();
        drop(changing);
        if is_wanted {
            self.notify();
        }
    }

    fn notify_later(&self) {
        let me = self.me.clone();
        self.reactor.soon(move || {
            if let Some(srq) = me.upgrade() {
                srq.notify();
            }
        });
    }

    fn notify(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.low();
        }
    }
}

impl EventTarget for SrqCore {
    fn handle(&self, event: ObjectEvent) {
        match event {
            ObjectEvent::Low => self.is_low(),
            ObjectEvent::Failed => {
                let cqs: Vec<_> = self.cqs.lock().iter().filter_map(Weak::upgrade).collect();
                cqs.iter().for_each(|cq| cq.fail_users_of_srq(self.id));
            }
            ObjectEvent::Completion | ObjectEvent::PeerIsThere => {}
        }
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, segments: &[Segment], cookie: u64) -> Result<()> {
        gathered(segments, |list, _| {
            let place = self.0.places.lock().take(cookie, segments).ok_or(Error::Exhausted(Resource::Memory))?;
            self.0.hw.post_recv(SHARED | place as u64, list).map_err(|error| {
                self.0.places.lock().give_back(place);
                match error.raw_os_error() {
                    Some(libc::ENOMEM | libc::EAGAIN) => Error::Exhausted(Resource::Memory),
                    _ => {
                        log::error!("the device refused a receive of a shared receive queue: {error}");
                        Error::Internal
                    }
                }
            })
        })
    }

    fn available(&self) -> u32 {
        // Takes completions that were not polled.
        let cqs: Vec<_> = self.0.cqs.lock().iter().filter_map(Weak::upgrade).collect();
        cqs.iter().for_each(|cq| cq.fetch());
        self.0.places.lock().taken
    }

    fn resize(&self, max_recvs: u32) -> Result<()> {
        let _changing = self.0.changing.lock();
        let capacity = self.0.hw.attributes().map_or(self.0.hw.capacity(), |attributes| attributes.max_wr);
        let cqs: Vec<_> = self.0.cqs.lock().iter().filter_map(Weak::upgrade).collect();
        cqs.iter().try_for_each(|cq| cq.widen_shared(self.0.id, max_recvs))?;
        // The device's queue is never made shorter, because that has no advantage.
        if max_recvs > capacity {
            self.0.hw.resize(max_recvs).map_err(|error| {
                log::warn!("a shared queue of {capacity} receives cannot become one of {max_recvs}: {error}");
                Error::Exhausted(Resource::Srq)
            })?;
        }
        self.0.places.lock().resize(max_recvs);
        Ok(())
    }

    fn watch(&self, limit: u32) -> Result<()> {
        let _changing = self.0.changing.lock();
        if let Err(error) = self.0.hw.limit(limit) {
            // The lack is then detected when completions are polled.
            log::debug!("a shared queue is not watched by the device: {error}");
        }
        if self.0.places.lock().watch(limit) {
            // The lack is reported now, and the device must not report it again.
            let _ = self.0.hw.limit(0);
            self.0.notify_later();
        }
        Ok(())
    }
}

/// The receives in a queue, by slot.
#[derive(Debug)]
struct Places {
    cookies: Vec<Option<u64>>,
    free: Vec<usize>,
    taken: u32,
    most: u32,
    low: LowWatermark,
    kept: Kept,
}

impl Places {
    /// Creates a table for `most` receives with `kept` segments of each.
    fn new(most: u32, kept: u32) -> Self {
        let capacity = most as usize;
        let (cookies, free) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Places {
            cookies,
            free,
            taken: 0,
            most,
            low: LowWatermark::default(),
            kept: Kept::with_capacity_for(most, kept),
        }
    }

    fn resize(&mut self, most: u32) {
        self.most = most;
        self.kept.grow(most);
    }

    /// Allocates a slot; `None` when all are in use.
    fn take(&mut self, cookie: u64, segments: &[Segment]) -> Option<usize> {
        if self.taken >= self.most {
            return None;
        }
        self.taken += 1;
        let place = self.free.pop().unwrap_or(self.cookies.len());
        match self.cookies.get_mut(place) {
            Some(free) => *free = Some(cookie),
            None => self.cookies.push(Some(cookie)),
        }
        self.kept.put(place as u32, segments);
        Some(place)
    }

    /// Frees a slot and returns its cookie.
    fn give_back(&mut self, place: usize) -> Option<u64> {
        let cookie = self.cookies.get_mut(place)?.take()?;
        self.free.push(place);
        self.taken -= 1;
        Some(cookie)
    }

    /// Sets the watermark; returns whether fewer than `limit` are left already.
    fn watch(&mut self, limit: u32) -> bool {
        self.low = LowWatermark::new(limit);
        self.look()
    }

    /// Whether few are left, detected for the first time.
    fn look(&mut self) -> bool {
        self.low.check(self.taken)
    }

    /// Clears the watermark; returns whether one was set.
    fn unwatch(&mut self) -> bool {
        std::mem::take(&mut self.low) != LowWatermark::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_comes_back_once() {
        let mut places = Places::new(2, 0);
        let [one, other] = [places.take(10, &[]).unwrap(), places.take(11, &[]).unwrap()];
        assert_eq!((places.take(12, &[]), places.taken), (None, 2));
        assert_eq!([places.give_back(one), places.give_back(one), places.give_back(99)], [Some(10), None, None]);
        assert_eq!(places.take(13, &[]), Some(one), "the place serves again");
        assert_eq!((places.give_back(other), places.give_back(one), places.taken), (Some(11), Some(13), 0));
    }

    #[test]
    fn capacity_can_grow_and_shrink() {
        let mut places = Places::new(1, 0);
        let first = places.take(1, &[]).unwrap();
        places.resize(2);
        assert!(places.take(2, &[]).is_some() && places.take(3, &[]).is_none());
        places.resize(1);
        assert_eq!(places.give_back(first), Some(1));
        assert_eq!(places.take(4, &[]), None, "one is left, and one may be");
    }

    #[test]
    fn low_watermark_is_reported_once() {
        let mut places = Places::new(4, 0);
        let taken: Vec<_> = (0..3).map(|cookie| places.take(cookie, &[]).unwrap()).collect();
        assert!(!places.watch(3));
        places.give_back(taken[0]);
        assert_eq!([places.look(), places.look()], [true, false]);
        assert!(places.watch(3), "few already");
        assert!(!places.unwatch(), "and reported already");
        assert!(!places.watch(2) && places.unwatch() && !places.unwatch());
        places.give_back(taken[1]);
        assert!(!places.look(), "the device was first");
        assert!(!places.watch(0));
    }
}
