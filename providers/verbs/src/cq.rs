//! Completion queues: the device's, and in front of it what was taken from there and what was completed without it.
//!
//! Who polls takes the device's completions and finds their work in the queues of the queue pairs. When nobody polls, the
//! device's queue stays armed and the engine looks, so that a failure is noticed all the same; while somebody polls, the
//! engine only asks now and then whether that is still so. The lock of this room is taken above those of a queue pair's
//! queues and below its link's. Nothing here calls a sink but the engine.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dapl::error::{Error, Resource, Result};
use dapl::provider::{Completion, CompletionQueue, CqSink};
use ibverbs_sys::ibv_wc;
use parking_lot::{Mutex, MutexGuard};

use crate::device::Device;
use crate::ibv;
use crate::keys::KeyHasher;
use crate::qp::Core;
use crate::reactor::{Reactor, Source};
use crate::work::WorkId;

/// Completions taken from the device at a time.
const BATCH: usize = 16;
/// Room that a queue begins with.
const SMALL: u32 = 64;
/// How often the engine asks whether somebody still polls.
const GUARD: Duration = Duration::from_millis(10);

/// A completion queue as dapl holds it.
pub struct Cq(pub(crate) Arc<CqCore>);

/// Which of a queue pair's queues.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    Recv,
    Request,
}

/// The queue itself, shared with its queue pairs and the engine.
pub(crate) struct CqCore {
    me: Weak<CqCore>,
    id: usize,
    context: Arc<ibv::Context>,
    channel: Arc<ibv::Channel>,
    reactor: Arc<Reactor>,
    /// The longest queue that the device makes.
    longest: u32,
    /// Who is told; a queue of completions that nobody wants has none.
    sink: Option<Weak<dyn CqSink>>,
    inner: Mutex<Inner>,
    polls: AtomicU32,
}

/// Whether a receive was solicited, as far as one knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) now: bool,
    /// If it is kept back, and the device's word comes before it goes out.
    pub(crate) later: bool,
}

/// A queue of the device.
struct Hw {
    cq: Arc<ibv::Cq>,
    /// Room that queue pairs have asked for.
    reserved: u32,
}

/// Room for the receives of a shared queue, which is one for all queue pairs that take from it: what is complete and not
/// looked at has not given its place back.
struct SharedRoom {
    /// The shared queue's id.
    srq: usize,
    hw: Arc<ibv::Cq>,
    count: u32,
    users: u32,
}

/// What the lock guards.
#[derive(Default)]
pub(crate) struct Inner {
    front: Front,
    table: Table,
    /// The device's queues: one, or as many as it takes to have room for all that may complete.
    hws: Vec<Hw>,
    shared: Vec<SharedRoom>,
    /// Which of them is looked at first.
    turn: usize,
    /// A queue pair may be given something to do: until then there is nothing to be told of, and what the consumer wants to
    /// be told of may yet become less.
    live: bool,
    /// The engine will ask whether anybody still polls, and how many polls it has seen.
    watched: bool,
    seen: u32,
}

/// What was taken from the device, or never was the device's.
#[derive(Default)]
struct Front {
    ready: VecDeque<Completion>,
    /// The consumer wants one call.
    wanted: bool,
    /// The device is to tell of what comes next.
    armed: bool,
    /// The consumer asked last to be called for solicited messages only.
    choosy: bool,
    /// A receive that completes now may be the one that a call was made for.
    solicited: bool,
}

/// Whose completions these are.
#[derive(Default)]
struct Table {
    slots: Vec<Option<(Arc<Core>, Side)>>,
    /// Those with a shared receive queue, by their number on the wire.
    numbers: HashMap<u32, Arc<Core>, BuildHasherDefault<KeyHasher>>,
}

impl CqCore {
    /// A queue. Without a sink its completions are dropped.
    pub(crate) fn new(device: &Arc<Device>, sink: Option<Weak<dyn CqSink>>) -> Result<Arc<Self>> {
        let id = device.opened.next_id();
        let cq = Arc::new_cyclic(|me| CqCore {
            me: Weak::clone(me),
            id,
            context: device.context.clone(),
            channel: device.channel.clone(),
            reactor: device.reactor.clone(),
            longest: device.max_cqe(),
            sink,
            inner: Mutex::default(),
            polls: AtomicU32::new(0),
        });
        let first = cq.make(SMALL.min(cq.longest))?;
        cq.inner.lock().hws.push(first);
        device.opened.adopt_cq(id, Arc::downgrade(&cq));
        Ok(cq)
    }

    fn make(&self, room: u32) -> Result<Hw> {
        let made = ibv::Cq::new(&self.context, &self.channel, room, self.id);
        let cq = made.map_err(|error| {
            log::error!("{}: no completion queue with room for {room}: {error}", self.context.name());
            Error::Exhausted(Resource::Evd)
        })?;
        Ok(Hw { cq, reserved: 0 })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// The queue pairs that complete here.
    pub(crate) fn users(&self) -> Vec<Arc<Core>> {
        self.inner.lock().table.slots.iter().flatten().map(|(core, _)| core.clone()).collect()
    }

    /// Nobody reads its completions.
    pub(crate) fn is_unread(&self) -> bool {
        self.sink.is_none()
    }

    /// Finds or makes a queue of the device with room for so many completions more.
    pub(crate) fn reserve(&self, count: u32) -> Result<Arc<ibv::Cq>> {
        self.reserve_in(&mut self.inner.lock(), count)
    }

    /// The same for a queue pair that takes from a shared queue of so many receives.
    pub(crate) fn reserve_shared(&self, srq: usize, count: u32) -> Result<Arc<ibv::Cq>> {
        let mut inner = self.inner.lock();
        if let Some(room) = inner.shared.iter_mut().find(|room| room.srq == srq) {
            room.users += 1;
            return Ok(room.hw.clone());
        }
        let hw = self.reserve_in(&mut inner, count)?;
        inner.shared.push(SharedRoom { srq, hw: hw.clone(), count, users: 1 });
        Ok(hw)
    }

    /// The shared queue has so many receives now; its room is never made smaller.
    pub(crate) fn widen_shared(&self, srq: usize, count: u32) -> Result<()> {
        let mut inner = self.inner.lock();
        let Inner { shared, hws, .. } = &mut *inner;
        let Some(room) = shared.iter_mut().find(|room| room.srq == srq && room.count < count) else { return Ok(()) };
        let Some(hw) = hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, &room.hw)) else { return Ok(()) };
        let wanted = hw.reserved.saturating_add(count - room.count);
        if wanted > hw.cq.capacity() && !self.grow(&hw.cq, wanted) {
            log::warn!("{}: no room for {wanted} completions in one queue of the device", self.context.name());
            return Err(Error::Exhausted(Resource::Srq));
        }
        (hw.reserved, room.count) = (wanted, count);
        Ok(())
    }

    fn reserve_in(&self, inner: &mut Inner, count: u32) -> Result<Arc<ibv::Cq>> {
        for hw in &mut inner.hws {
            let wanted = hw.reserved.saturating_add(count);
            if wanted <= hw.cq.capacity() || self.grow(&hw.cq, wanted) {
                hw.reserved = wanted;
                return Ok(hw.cq.clone());
            }
        }
        let mut hw =
            self.make(count.max(SMALL).checked_next_power_of_two().unwrap_or(count).min(self.longest.max(count)))?;
        hw.reserved = count;
        let cq = hw.cq.clone();
        if inner.front.armed {
            cq.arm(inner.front.choosy).map_err(|error| self.cannot_arm(&error))?;
        }
        inner.hws.push(hw);
        Ok(cq)
    }

    fn grow(&self, cq: &ibv::Cq, wanted: u32) -> bool {
        let room = wanted.checked_next_power_of_two().unwrap_or(self.longest).min(self.longest);
        let grown = room >= wanted
            && cq
                .resize(room)
                .inspect_err(|error| {
                    // Another queue will do.
                    log::debug!("{}: a completion queue cannot grow to {room}: {error}", self.context.name());
                })
                .is_ok();
        grown && cq.capacity() >= wanted
    }

    /// Gives room back; the queue stays.
    pub(crate) fn release(&self, cq: &Arc<ibv::Cq>, count: u32) {
        let mut inner = self.inner.lock();
        if let Some(hw) = inner.hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, cq)) {
            hw.reserved = hw.reserved.saturating_sub(count);
        }
    }

    /// A queue pair that took from a shared queue is gone.
    pub(crate) fn release_shared(&self, srq: usize) {
        let mut inner = self.inner.lock();
        let Some(at) = inner.shared.iter().position(|room| room.srq == srq) else { return };
        inner.shared[at].users -= 1;
        if inner.shared[at].users == 0 {
            let SharedRoom { hw: of, count, .. } = inner.shared.swap_remove(at);
            if let Some(hw) = inner.hws.iter_mut().find(|hw| Arc::ptr_eq(&hw.cq, &of)) {
                hw.reserved = hw.reserved.saturating_sub(count);
            }
        }
    }

    /// Looks after a queue that somebody depends on and nobody may poll.
    pub(crate) fn guard(&self) {
        self.watch(&mut self.inner.lock());
    }

    /// As [`Self::guard`], where receives are counted from now on: it may be armed for less.
    pub(crate) fn guard_count(&self) {
        let mut inner = self.inner.lock();
        if inner.front.armed && !inner.front.choosy && self.arm_device(&mut inner, false).is_err() {
            inner.front.armed = false;
        }
        self.watch(&mut inner);
    }

    fn watch(&self, inner: &mut Inner) {
        if !std::mem::replace(&mut inner.watched, true) {
            inner.seen = self.polls.load(Ordering::Relaxed);
            let me: Weak<dyn Source> = self.me.clone();
            self.reactor.after(GUARD, me, 0);
        }
    }

    /// A queue pair is about to be connected.
    pub(crate) fn enliven(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        if !std::mem::replace(&mut inner.live, true) && inner.front.wanted {
            let solicited = inner.front.choosy;
            self.arm_device(&mut inner, solicited)?;
        }
        Ok(())
    }

    /// A completion that the device knows nothing of.
    pub(crate) fn push(&self, completion: Completion) {
        self.inner.lock().push(self, completion);
    }

    /// Takes all that the device has.
    pub(crate) fn fetch(&self) {
        self.drain(&mut self.inner.lock());
    }

    fn drain(&self, inner: &mut Inner) {
        while self.take(inner, &mut Out { room: &mut [], filled: 0 }, BATCH).is_full {}
    }

    /// For who polls: what is there, then the device's. `expects`: while the device is armed to tell of a solicited message,
    /// this may be faster than its word.
    #[inline]
    fn fill(&self, inner: &mut Inner, out: &mut [Completion], expects: bool) -> usize {
        let before = inner.front.solicited;
        if expects && inner.front.armed {
            inner.front.may_be_solicited();
        }
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut out = Out { room: out, filled: 0 };
        if !inner.front.ready.is_empty() {
            inner.front.give(&mut out);
        }
        while out.left() > 0 {
            let most = out.left();
            if !self.take(inner, &mut out, most).is_full {
                break;
            }
        }
        let filled = out.filled;
        // Whoever was called for a solicited message has it among these.
        inner.front.solicited = before && filled == 0;
        filled
    }

    /// Takes up to `most` of the device's completions.
    #[inline]
    fn take(&self, inner: &mut Inner, out: &mut Out<'_>, most: usize) -> Taken {
        let Inner { front, table, hws, turn, .. } = inner;
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let most = most.min(BATCH);
        for _ in 0..hws.len() {
            let Some(hw) = hws.get(*turn) else { break };
            let taken = match hw.cq.poll_into(&mut batch[..most]) {
                Ok(taken) => taken,
                Err(error) => {
                    log::error!("{}: a completion queue cannot be polled: {error}", self.context.name());
                    &[]
                }
            };
            for wc in taken {
                table.complete(self, front, wc, out);
            }
            if taken.len() == most {
                return Taken { is_full: true };
            }
            // It is empty now; with others there may be more.
            if hws.len() > 1 {
                *turn = (*turn + 1) % hws.len();
                if !taken.is_empty() {
                    return Taken { is_full: true };
                }
            }
        }
        Taken { is_full: false }
    }

    /// The device has something, and the queue is not armed any more.
    pub(crate) fn has_event(&self) {
        let mut inner = self.inner.lock();
        inner.front.armed = false;
        inner.front.may_be_solicited();
        let is_wanted = std::mem::take(&mut inner.front.wanted);
        if inner.table.is_used() {
            self.watch(&mut inner);
        }
        drop(inner);
        if is_wanted {
            self.notify();
        }
    }

    fn notify(&self) {
        if let Some(sink) = self.sink.as_ref().and_then(Weak::upgrade) {
            sink.notify();
        }
    }

    fn arm_device(&self, inner: &mut Inner, solicited: bool) -> Result<()> {
        for hw in &inner.hws {
            hw.cq.arm(solicited).map_err(|error| self.cannot_arm(&error))?;
        }
        inner.front.armed = true;
        Ok(())
    }

    fn cannot_arm(&self, error: &std::io::Error) -> Error {
        log::error!("{}: a completion queue cannot be armed: {error}", self.context.name());
        Error::Internal
    }
}

/// Where completions go first: the room of who polls, none for others.
struct Out<'a> {
    room: &'a mut [Completion],
    filled: usize,
}

impl Out<'_> {
    fn left(&self) -> usize {
        self.room.len() - self.filled
    }
}

/// What a look at the device's queues came to.
struct Taken {
    /// There may be more.
    is_full: bool,
}

impl Inner {
    /// Gives a queue of a queue pair its place.
    pub(crate) fn enter(&mut self, core: &Arc<Core>, side: Side) -> Result<u32> {
        let slots = &mut self.table.slots;
        let entry = Some((core.clone(), side));
        let slot = match slots.iter().position(Option::is_none) {
            Some(free) => {
                slots[free] = entry;
                free
            }
            None if slots.len() < WorkId::SLOTS as usize => {
                slots.push(entry);
                slots.len() - 1
            }
            None => return Err(Error::Exhausted(Resource::Evd)),
        };
        Ok(slot as u32)
    }

    /// Takes it back.
    pub(crate) fn leave(&mut self, slot: u32) {
        if let Some(place) = self.table.slots.get_mut(slot as usize) {
            *place = None;
        }
    }

    /// One with a shared receive queue is known by its number.
    pub(crate) fn enter_number(&mut self, number: u32, core: &Arc<Core>) {
        self.table.numbers.insert(number, core.clone());
    }

    pub(crate) fn leave_number(&mut self, number: u32) {
        self.table.numbers.remove(&number);
    }

    /// Behind all that is there.
    pub(crate) fn push(&mut self, cq: &CqCore, completion: Completion) {
        self.front.push(cq, completion);
    }
}

impl Front {
    /// Whoever waits is told by the engine.
    #[inline(never)]
    fn push(&mut self, cq: &CqCore, completion: Completion) {
        if cq.is_unread() {
            return;
        }
        self.ready.push_back(completion);
        // A message that the device has yet to say is solicited ends no wait for such.
        let is_loud = !self.choosy || completion.is_loud();
        if is_loud
            && std::mem::take(&mut self.wanted)
            && let Some(cq) = cq.me.upgrade()
        {
            let reactor = cq.reactor.clone();
            reactor.soon(move || cq.notify());
        }
    }

    /// The device says that a solicited message has come, or a failure: it is among those here, or comes next.
    fn may_be_solicited(&mut self) {
        if self.choosy {
            self.solicited = true;
            self.ready.iter_mut().for_each(|done| done.solicited |= done.token.work.is_recv());
        }
    }

    /// Whether a receive that completes now was solicited.
    fn mark(&self) -> Mark {
        Mark { now: self.solicited, later: self.solicited || self.armed && self.choosy }
    }

    /// To the poller, if nothing goes before it.
    #[inline(always)]
    fn put(&mut self, cq: &CqCore, out: &mut Out<'_>, done: Completion) {
        match out.room.get_mut(out.filled) {
            Some(place) if self.ready.is_empty() => {
                *place = done;
                out.filled += 1;
            }
            _ => self.push(cq, done),
        }
    }

    /// What is there, to the poller.
    fn give(&mut self, out: &mut Out<'_>) {
        let count = out.left().min(self.ready.len());
        for (place, done) in out.room.iter_mut().zip(self.ready.drain(..count)) {
            *place = done;
        }
        out.filled = count;
    }
}

impl Table {
    fn is_used(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Of receives only the failures are news for us, unless somebody counts them. (Of requests not every device tells
    /// the failures alone.)
    fn wants_failures_only(&self) -> bool {
        self.slots.iter().flatten().all(|(core, side)| *side == Side::Recv && !core.counts_recvs())
    }

    fn counts_recvs(&self) -> bool {
        self.slots.iter().flatten().any(|(core, side)| *side == Side::Recv && core.counts_recvs())
    }

    #[inline(always)]
    fn complete(&self, cq: &CqCore, front: &mut Front, wc: &ibv_wc, out: &mut Out<'_>) {
        match WorkId::parse(wc.wr_id()) {
            WorkId::Own { slot, epoch, number } => {
                if let Some(Some((core, side))) = self.slots.get(slot as usize) {
                    let mark = front.mark();
                    core.complete(*side, epoch, number, wc, mark, |done| front.put(cq, out, done));
                }
            }
            WorkId::Shared(place) => match self.numbers.get(&wc.qp_num) {
                Some(core) => core.complete_shared(place, wc, front.mark(), |done| front.put(cq, out, done)),
                None => log::debug!("a receive of queue pair {}, which is gone", wc.qp_num),
            },
        }
    }
}

impl Source for CqCore {
    /// Does anybody still poll? If not, the failures among the completions are for us to find.
    fn expired(&self, _: u64) {
        let mut inner = self.inner.lock();
        inner.watched = false;
        if !inner.table.is_used() || !inner.live {
            return;
        }
        if self.polls.load(Ordering::Relaxed) != inner.seen {
            return self.watch(&mut inner);
        }
        // The consumer wants less than we do: we have to look for ourselves.
        let is_deaf = inner.front.choosy && inner.table.counts_recvs();
        if is_deaf {
            self.drain(&mut inner);
            return self.watch(&mut inner);
        }
        if !inner.front.armed {
            self.drain(&mut inner);
            // A queue that was armed for all could not be armed for less.
            let solicited = inner.front.choosy || inner.table.wants_failures_only();
            if self.arm_device(&mut inner, solicited).is_err() {
                return self.watch(&mut inner);
            }
            self.drain(&mut inner);
        }
        // From here on the device tells.
    }
}

impl CompletionQueue for Cq {
    const TELLS_SOLICITED: bool = false;

    fn poll(&self, out: &mut [Completion]) -> usize {
        let cq = &*self.0;
        let mut inner = cq.inner.lock();
        let expects = inner.front.wanted;
        cq.fill(&mut inner, out, expects)
    }

    fn ready(&self, out: &mut [Completion]) -> usize {
        // Completions of the device are there already; looking is all that a poll does.
        let cq = &*self.0;
        let mut inner = cq.inner.lock();
        cq.fill(&mut inner, out, true)
    }

    fn arm(&self, solicited: bool) -> Result<bool> {
        let cq = &*self.0;
        let mut inner = cq.inner.lock();
        if !inner.front.ready.is_empty() {
            return Ok(false);
        }
        inner.front.choosy = solicited;
        if !inner.live {
            inner.front.wanted = true;
            return Ok(true);
        }
        cq.arm_device(&mut inner, solicited)?;
        // What came before the device was armed brings no event, and nobody knows whether it was solicited.
        let before = std::mem::replace(&mut inner.front.solicited, solicited);
        cq.drain(&mut inner);
        inner.front.solicited = before;
        inner.front.wanted = inner.front.ready.is_empty();
        Ok(inner.front.wanted)
    }
}
