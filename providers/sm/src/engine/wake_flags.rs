//! Wake-up flags on the control line of a process. The process sets a flag before it sleeps. After publishing, its peer
//! checks the flags and sends a FIFO word if one is set.
//!
//! The sleeper sets a flag, polls once more, and sleeps. The publisher publishes, and then reads the flag. A full
//! barrier separates the two steps of each process, so the publisher sees the flag or the sleeper sees the publication.
//! A flag word contains an epoch and the flags; a publisher sends one FIFO word per epoch. The callers send and sleep.
#![forbid(unsafe_code)]

use dapl::runtime::sync::{AtomicU64, Ordering, fence};
use rustix::thread::MembarrierCommand;

/// Flag: the peer must send a wake-up after publishing a request or ending the connection.
pub(crate) const WANT_REQUESTS: u64 = 1;
/// Flag: the peer must send a wake-up after taking or answering a local request.
pub(crate) const WANT_PROGRESS: u64 = 2;
/// Number of bits below the epoch in a flag word.
const EPOCH_SHIFT: u32 = 2;
/// Both flags in the first epoch, as [`WakeFlags::preset`] sets them.
const PRESET: u64 = 1 << EPOCH_SHIFT | WANT_REQUESTS | WANT_PROGRESS;

/// Registers this process for barriers of other processes; returns false if the kernel does not support them.
pub(crate) fn offer_barrier() -> bool {
    rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// Local state of the flags of both processes.
#[derive(Debug, Default)]
pub(crate) struct WakeFlags {
    /// Number of times that the local flags were set. The peer sends one word per epoch.
    epoch: AtomicU64,
    /// The last epoch of the peer for which a FIFO word was sent.
    answered: AtomicU64,
}

impl WakeFlags {
    /// Sets a flag. The caller polls once more before it sleeps. `light`: this process executes the barrier for both
    /// processes.
    pub(crate) fn set(&self, own: &AtomicU64, want: u64, light: bool) {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        own.store(epoch << EPOCH_SHIFT | want, Ordering::Relaxed);
        // The barrier for the matching fence in `answers`: either the peer sees the flag, or this process sees the data
        // that the peer published. With `light`, this barrier replaces the fence in `answers`.
        if light {
            barrier::everywhere();
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Sets all flags before the peer can see them, so that the first sleep needs no barrier.
    pub(crate) fn preset(&self, own: &AtomicU64) {
        self.epoch.store(1, Ordering::Relaxed);
        own.store(PRESET, Ordering::Relaxed);
    }

    /// Whether the flags are unchanged since `preset`. Then the caller may sleep without setting a flag if neither
    /// process has published anything, because the peer sends a FIFO word with its first publication.
    pub(crate) fn is_preset(own: &AtomicU64) -> bool {
        own.load(Ordering::Relaxed) == PRESET
    }

    /// Clears the flags because a thread polls.
    pub(crate) fn withdraw(&self, own: &AtomicU64) {
        own.store(self.epoch.load(Ordering::Relaxed) << EPOCH_SHIFT, Ordering::Relaxed);
    }

    /// Whether this flag is set.
    pub(crate) fn wants(own: &AtomicU64, want: u64) -> bool {
        own.load(Ordering::Relaxed) & want == want
    }

    /// Called after publishing. Returns whether the peer sleeps, so that the caller must send a FIFO word.
    #[inline(always)]
    pub(crate) fn answers(&self, flags: &AtomicU64, want: u64, light: bool) -> bool {
        // The fence for the matching barrier in `set`. With `light`, only the compiler's order is needed here.
        if light {
            barrier::compiler();
        } else {
            fence(Ordering::SeqCst);
        }
        let word = flags.load(Ordering::Relaxed);
        word & want != 0 && self.is_first_answer(word >> EPOCH_SHIFT)
    }

    #[cold]
    fn is_first_answer(&self, epoch: u64) -> bool {
        self.answered.swap(epoch, Ordering::Relaxed) != epoch
    }
}

#[cfg(not(loom))]
mod barrier {
    use super::*;

    /// Executes a full barrier on every CPU that runs a registered process.
    pub(super) fn everywhere() {
        // The call succeeded when this process registered. It fails only if a system call filter was installed since
        // then; a local fence is the best substitute.
        if rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_err() {
            fence(Ordering::SeqCst);
        }
    }

    #[inline]
    pub(super) fn compiler() {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
use interleavings::kernel as barrier;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn polling_side_gets_no_wake_up_and_sleeping_side_one() {
        for light in [false, true] {
            let (line, sleeper, publisher) = (AtomicU64::new(0), WakeFlags::default(), WakeFlags::default());
            let sends = |want| publisher.answers(&line, want, light);
            assert!(!sends(WANT_REQUESTS), "no side has set the flag");
            sleeper.set(&line, WANT_REQUESTS, light);
            assert!(!sends(WANT_PROGRESS), "not for that");
            assert!(sends(WANT_REQUESTS));
            assert!(!sends(WANT_REQUESTS), "one word is enough");
            sleeper.set(&line, WANT_REQUESTS | WANT_PROGRESS, light);
            assert!(sends(WANT_PROGRESS), "asleep again");
            sleeper.set(&line, WANT_REQUESTS, light);
            sleeper.withdraw(&line);
            assert!(!sends(WANT_REQUESTS), "it polls again");
        }
    }

    #[test]
    fn preset_flags_get_one_wake_up_and_hold_until_they_change() {
        let (line, sleeper, publisher) = (AtomicU64::new(0), WakeFlags::default(), WakeFlags::default());
        sleeper.preset(&line);
        assert!(WakeFlags::is_preset(&line) && WakeFlags::wants(&line, WANT_REQUESTS | WANT_PROGRESS));
        assert!(publisher.answers(&line, WANT_REQUESTS, true) && !publisher.answers(&line, WANT_PROGRESS, true));
        assert!(WakeFlags::is_preset(&line), "the publisher writes nothing here");
        sleeper.set(&line, WANT_REQUESTS, true);
        assert!(!WakeFlags::is_preset(&line) && publisher.answers(&line, WANT_REQUESTS, true), "the next epoch");
        sleeper.preset(&line);
        sleeper.withdraw(&line);
        assert!(!WakeFlags::is_preset(&line));
    }
}

/// Loom models of a ring, the flags, and a sleeper that is woken only by its peer. Loom reports a lost wake-up as a
/// deadlock.
///
/// In light mode the publisher has no fence: the kernel interrupts it between any two of its steps. Loom has no barrier
/// for other threads, so in the model the publisher executes the interrupt itself, at each relevant point: before
/// publishing, between publishing and the check of the flag, and after the check. Not covered by the model: that
/// `membarrier` works as documented, and that the compiler keeps the order.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use loom::sync::Condvar;
    use loom::thread;

    use super::*;
    use crate::memory::map::Map;
    use crate::proto::message::{Header, Kind};
    use crate::qp::ring::{Next, Reader, RingLayout, SlotFields, Writer};
    use dapl::runtime::sync::Mutex;

    const PLACE: RingLayout = RingLayout { offset: 0, slots: 2 };
    const MESSAGES: u64 = 2;

    /// Models `membarrier` and the CPU that it interrupts.
    pub(super) mod kernel {
        use super::*;

        loom::lazy_static! {
            static ref SENT: AtomicU64 = AtomicU64::new(0);
            static ref TAKEN: AtomicU64 = AtomicU64::new(0);
        }
        /// Value that means the publisher is not running any more. A context switch is a barrier too.
        const GONE: u64 = u64::MAX;

        pub(in super::super) fn everywhere() {
            fence(Ordering::SeqCst);
            let sent = SENT.fetch_add(1, Ordering::AcqRel) + 1;
            while TAKEN.load(Ordering::Acquire) < sent {
                thread::yield_now();
            }
            fence(Ordering::SeqCst);
        }

        /// Interrupt point between two steps of the publisher.
        pub(in super::super) fn compiler() {
            let sent = SENT.load(Ordering::Acquire);
            if sent > TAKEN.load(Ordering::Relaxed) {
                fence(Ordering::SeqCst);
                TAKEN.store(sent, Ordering::Release);
            }
        }

        pub(in super::super) fn leave() {
            fence(Ordering::SeqCst);
            TAKEN.store(GONE, Ordering::Release);
        }
    }

    /// Models the FIFO.
    #[derive(Default)]
    struct Fifo {
        words: Mutex<usize>,
        more: Condvar,
    }

    impl Fifo {
        fn wake(&self) {
            *self.words.lock() += 1;
            self.more.notify_one();
        }

        fn sleep(&self) {
            let mut words = self.words.lock();
            while *words == 0 {
                words = self.more.wait(words).unwrap();
            }
            *words = 0;
        }
    }

    fn no_wake_up_is_lost(light: bool, is_preset: bool) {
        let (area, line) = (Arc::new(Map::fake(256)), Map::fake(8));
        let (mut writer, mut reader) = (Writer::new(area.clone(), PLACE), Reader::new(area, PLACE));
        let (fifo, wake_flags) = (Arc::new(Fifo::default()), WakeFlags::default());
        if is_preset {
            wake_flags.preset(line.word(0));
        }
        let publisher = {
            let (line, fifo) = (line.clone(), fifo.clone());
            thread::spawn(move || {
                let wake_flags = WakeFlags::default();
                for n in 0..MESSAGES {
                    barrier::compiler();
                    writer.push(Header::plain(Kind::Send, 8), &SlotFields { total: Some(n), ..SlotFields::default() });
                    if wake_flags.answers(line.word(0), WANT_REQUESTS, light) {
                        fifo.wake();
                    }
                    barrier::compiler();
                }
                kernel::leave();
            })
        };
        while reader.taken() < MESSAGES {
            if reader.peek() == Next::Empty {
                // As in `QpCore::arm`: the reader has taken nothing, and the ring is empty.
                if reader.taken() > 0 || !WakeFlags::is_preset(line.word(0)) {
                    wake_flags.set(line.word(0), WANT_REQUESTS, light);
                }
                if reader.peek() == Next::Empty {
                    fifo.sleep();
                }
            } else {
                assert_eq!(reader.fields().total, Some(reader.taken()));
                reader.advance();
            }
        }
        publisher.join().unwrap();
    }

    #[test]
    fn no_wake_up_is_lost_with_fences() {
        loom::model(|| no_wake_up_is_lost(false, false));
    }

    #[test]
    fn no_wake_up_is_lost_with_preset_flags() {
        loom::model(|| no_wake_up_is_lost(false, true));
        loom::model(|| no_wake_up_is_lost(true, true));
    }

    #[test]
    fn no_wake_up_is_lost_with_membarrier() {
        loom::model(|| no_wake_up_is_lost(true, false));
    }
}
