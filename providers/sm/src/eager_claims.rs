//! Claims of eager writes: decides whether the target or the initiator copies an RDMA write that is in the ring.
//!
//! The target claims each write before it copies the write. The initiator can reclaim all writes that the target has
//! not claimed, and then copies them itself. At least one of a concurrent claim and reclaim sees the other: each process
//! writes its word, a full barrier follows, then it reads the other's word. The initiator executes the barrier for both
//! processes, because reclaims are rare. After it has seen the target's word, it publishes its decision, and a target
//! that has seen the reclaim waits for this decision. This module does not copy, sleep or wake threads.
#![forbid(unsafe_code)]

use dapl::runtime::sync::Ordering;

use crate::engine::wake_flags::barrier;
use crate::memory::map::SharedMapping;

// All words contain indices of slots, counted since the start of the connection.

/// Offset of the word that the target writes: index of the last claimed slot, plus 1.
const CLAIMED_OFFSET: usize = 1408;
/// The initiator wants to reclaim the writes in the slots below the value of this word.
const RECLAIMED_OFFSET: usize = 1280;
/// First slot of the writes that the initiator has reclaimed.
const FIRST_OFFSET: usize = RECLAIMED_OFFSET + 8;
/// For the writes in the slots below this one, the initiator has decided which it has reclaimed.
const DECIDED_OFFSET: usize = RECLAIMED_OFFSET + 16;
/// The initiator has copied the reclaimed writes in the slots below this one.
const COPIED_OFFSET: usize = RECLAIMED_OFFSET + 24;

/// The process that copies a write, from the view of the target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Claim {
    /// The target must copy the write.
    Granted,
    /// The initiator has copied the write.
    Copied,
    /// The initiator has reclaimed the write, or has not decided yet. The target must try again.
    Pending,
}

/// The last reclaim of the initiator: the slots from `first` to before `end`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastReclaim {
    pub(crate) first: u64,
    pub(crate) end: u64,
}

/// Access to the words of claims, on the control pages of both processes.
pub(crate) struct EagerClaims<'a> {
    pub(crate) local: &'a SharedMapping,
    pub(crate) peer: &'a SharedMapping,
}

impl EagerClaims<'_> {
    /// Claims the write in this slot for the target.
    #[inline(always)]
    pub(crate) fn claim(&self, slot: u64) -> Claim {
        if !self.is_reclaimed(slot) {
            self.local.word(CLAIMED_OFFSET).store(slot + 1, Ordering::Relaxed);
            // Pairs with the barrier in `reclaim`, which the initiator executes on the CPU of this thread. Only the
            // compiler must not move the next load before the store.
            barrier::compiler_only();
            if !self.is_reclaimed(slot) {
                return Claim::Granted;
            }
        }
        self.decision(slot)
    }

    #[inline(always)]
    fn is_reclaimed(&self, slot: u64) -> bool {
        self.peer.word(RECLAIMED_OFFSET).load(Ordering::Acquire) > slot
    }

    /// Returns the initiator's decision on a write that it wants to reclaim.
    #[cold]
    fn decision(&self, slot: u64) -> Claim {
        // Acquire, for the Release stores in `reclaim` and `report_copied`.
        if self.peer.word(DECIDED_OFFSET).load(Ordering::Acquire) <= slot {
            Claim::Pending
        } else if slot < self.peer.word(FIRST_OFFSET).load(Ordering::Relaxed) {
            Claim::Granted
        } else if self.peer.word(COPIED_OFFSET).load(Ordering::Acquire) > slot {
            Claim::Copied
        } else {
            Claim::Pending
        }
    }

    /// Whether the peer has claimed the write in this slot.
    pub(crate) fn is_claimed_by_peer(&self, slot: u64) -> bool {
        self.peer.word(CLAIMED_OFFSET).load(Ordering::Relaxed) > slot
    }

    /// Whether a claim of the write in this slot would still be pending.
    pub(crate) fn is_pending(&self, slot: u64) -> bool {
        self.is_reclaimed(slot) && self.decision(slot) == Claim::Pending
    }

    /// Reclaims the writes in the slots below `end` that the target has not claimed. The initiator must copy those from
    /// the result's `first` on, after the target has responded to the earlier ones, and then call `report_copied`.
    /// `last`: the previous result. Returns `None` if the kernel refuses the barrier; nothing is then reclaimed.
    pub(crate) fn reclaim(&self, end: u64, last: LastReclaim) -> Option<LastReclaim> {
        self.local.word(RECLAIMED_OFFSET).store(end, Ordering::Relaxed);
        if !barrier::on_all_cpus() {
            self.local.word(RECLAIMED_OFFSET).store(last.end, Ordering::Release);
            return None;
        }
        let claimed = self.peer.word(CLAIMED_OFFSET).load(Ordering::Relaxed);
        // The target claims in order. So if it has claimed nothing after the last reclaim, the reclaimed slots continue
        // those of the last reclaim.
        let first = if claimed > last.end { claimed.min(end) } else { last.first };
        self.local.word(FIRST_OFFSET).store(first, Ordering::Relaxed);
        // Release, for the Acquire in `decision`: a target that sees the decision also sees `first`.
        self.local.word(DECIDED_OFFSET).store(end, Ordering::Release);
        Some(LastReclaim { first, end })
    }

    /// Reports that the initiator has copied the reclaimed writes in the slots below `slot`. It leaves the other ones to
    /// the target.
    pub(crate) fn report_copied(&self, slot: u64, last: LastReclaim) -> LastReclaim {
        // Release, for the Acquire in `decision`: the bytes were written before the target goes on to the next slot.
        self.local.word(COPIED_OFFSET).store(slot, Ordering::Release);
        if slot < last.end {
            self.local.word(DECIDED_OFFSET).store(slot, Ordering::Release);
            self.local.word(RECLAIMED_OFFSET).store(slot, Ordering::Release);
        }
        LastReclaim { end: slot, ..last }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn control_pages() -> (SharedMapping, SharedMapping) {
        let area = || SharedMapping::create("claims", 4096, true).unwrap().0;
        (area(), area())
    }

    #[test]
    fn each_write_is_left_to_one_process() {
        assert!(crate::engine::wake_flags::register_membarrier(), "the kernel has membarrier (Linux 4.16)");
        let (target_page, initiator_page) = control_pages();
        let target = EagerClaims { local: &target_page, peer: &initiator_page };
        let initiator = EagerClaims { local: &initiator_page, peer: &target_page };
        assert_eq!(target.claim(0), Claim::Granted);
        let last = initiator.reclaim(3, LastReclaim::default()).unwrap();
        assert_eq!((last.first, last.end), (1, 3), "the target has claimed slot 0");
        assert_eq!((target.claim(0), target.claim(1)), (Claim::Granted, Claim::Pending));
        assert!(target.is_pending(2) && !target.is_pending(3));
        let last = initiator.report_copied(3, last);
        assert_eq!((target.claim(1), target.claim(2)), (Claim::Copied, Claim::Copied));
        // The target has not gone on, so the next reclaim continues the last one.
        let last = initiator.reclaim(5, last).unwrap();
        assert_eq!((last.first, last.end), (1, 5));
        let last = initiator.report_copied(5, last);
        assert_eq!((target.claim(1), target.claim(4), target.claim(5)), (Claim::Copied, Claim::Copied, Claim::Granted));
        let last = initiator.reclaim(9, last).unwrap();
        assert_eq!((last.first, last.end), (6, 9));
        // The initiator can copy slots 6 and 7 only.
        let last = initiator.report_copied(8, last);
        assert_eq!((last.first, last.end), (6, 8));
        assert_eq!((target.claim(6), target.claim(7), target.claim(8)), (Claim::Copied, Claim::Copied, Claim::Granted));
    }

    #[test]
    fn claim_above_the_published_slots_reclaims_nothing() {
        assert!(crate::engine::wake_flags::register_membarrier(), "the kernel has membarrier (Linux 4.16)");
        let (target_page, initiator_page) = control_pages();
        let initiator = EagerClaims { local: &initiator_page, peer: &target_page };
        target_page.word(CLAIMED_OFFSET).store(u64::MAX, Ordering::Relaxed);
        let last = initiator.reclaim(4, LastReclaim::default()).unwrap();
        assert_eq!((last.first, last.end), (4, 4), "nothing is reclaimed");
    }
}

/// Loom model of a target and of an initiator that reclaims twice, and copies after the target has responded to the
/// earlier writes. It detects a write that both processes copy, a write that no process copies, writes in another
/// order, and a target that goes on before the initiator has copied a write.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use dapl::runtime::sync::access_check::AccessCheck;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    const SLOTS: usize = 2;

    /// The memory that the copies write: that of each slot, and a place to which all copies write.
    #[derive(Default)]
    struct Memory {
        slots: [AccessCheck; SLOTS],
        all: AccessCheck,
        /// Number of copies.
        copies: AtomicU64,
    }

    impl Memory {
        fn copy(&self, slot: u64) {
            self.slots[slot as usize].write();
            self.all.write();
            assert_eq!(self.copies.fetch_add(1, Ordering::Relaxed), slot, "the order of the copies");
        }
    }

    #[test]
    fn each_write_is_copied_once_and_in_order() {
        loom::model(|| {
            let (target, initiator) = (SharedMapping::fake(1536), SharedMapping::fake(1536));
            let memory = Arc::<Memory>::default();
            // Number of the first writes to which the target has responded.
            let responses = Arc::new(AtomicU64::new(0));
            let reading = {
                let (target, initiator) = (target.clone(), initiator.clone());
                let (memory, responses) = (memory.clone(), responses.clone());
                thread::spawn(move || {
                    let claims = EagerClaims { local: &target, peer: &initiator };
                    for slot in 0..SLOTS as u64 {
                        loop {
                            barrier::compiler_only();
                            match claims.claim(slot) {
                                Claim::Granted => {
                                    memory.copy(slot);
                                    responses.store(slot + 1, Ordering::Release);
                                    break;
                                }
                                Claim::Copied => break memory.slots[slot as usize].read(),
                                Claim::Pending => thread::yield_now(),
                            }
                        }
                    }
                    barrier::leave();
                })
            };
            let claims = EagerClaims { local: &initiator, peer: &target };
            let mut last = LastReclaim::default();
            for end in 1..=SLOTS as u64 {
                let begin = last.end;
                last = claims.reclaim(end, last).unwrap();
                if last.first > begin {
                    while responses.load(Ordering::Acquire) < last.first {
                        thread::yield_now();
                    }
                }
                (last.first.max(begin)..end).for_each(|slot| memory.copy(slot));
                last = claims.report_copied(end, last);
            }
            reading.join().unwrap();
            assert_eq!(memory.copies.load(Ordering::Relaxed), SLOTS as u64);
        });
    }
}
