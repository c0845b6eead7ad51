//! Wake-up flags on the control page of a process. The process sets a flag before it sleeps. After publishing, its peer
//! checks the flags and sends a FIFO word if one is set.
//!
//! The sleeper sets a flag, polls once more, and sleeps. The publisher publishes, and then reads the flag. A full
//! barrier separates the two steps of each process, so the publisher sees the flag or the sleeper sees the publication.
//! A flag word contains an epoch and the flags; a publisher sends one FIFO word per epoch. This module neither sends
//! FIFO words nor sleeps: its callers do.
#![forbid(unsafe_code)]

use dapl::runtime::sync::{AtomicU64, Ordering, fence};
use rustix::thread::MembarrierCommand;

/// Flag: the peer must send a wake-up after it has published a request, staged bytes or the result of a copy job, or has
/// reclaimed or copied eager writes.
pub(crate) const WAKE_ON_REQUESTS: u64 = 1;
/// Flag: the peer must send a wake-up after it has consumed a request of this process, or has written a response.
pub(crate) const WAKE_ON_PROGRESS: u64 = 2;
/// Number of bits below the epoch in a flag word.
const EPOCH_SHIFT: u32 = 2;
/// Flag word after [`WakeFlags::preset`]: both flags, in epoch 1.
const PRESET: u64 = 1 << EPOCH_SHIFT | WAKE_ON_REQUESTS | WAKE_ON_PROGRESS;

/// Registers this process, so that other processes can execute a barrier on its CPUs (`membarrier`). Returns false if
/// the kernel does not support this.
pub(crate) fn register_membarrier() -> bool {
    rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// State of the wake-up flags that this process stores in private memory.
#[derive(Debug, Default)]
pub(crate) struct WakeFlags {
    /// Number of times that the local flags were set. The peer sends one word per epoch.
    epoch: AtomicU64,
    /// The last epoch of the peer's flags for which this process sent a FIFO word.
    notified: AtomicU64,
}

impl WakeFlags {
    /// Sets the flags in `want`, and clears any other. The caller must poll once more before it sleeps. With
    /// `membarrier`, this call executes the barrier for both processes, so that the peer publishes without a fence.
    pub(crate) fn set(&self, flags: &AtomicU64, want: u64, membarrier: bool) {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        flags.store(epoch << EPOCH_SHIFT | want, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`: either the peer sees the flag, or this process sees the data that the
        // peer published. With `membarrier`, this barrier replaces the fence in `must_wake`.
        if !membarrier || !barrier::on_all_cpus() {
            fence(Ordering::SeqCst);
        }
    }

    /// Sets both flags in a new area that the peer cannot see yet. The first sleep then needs no barrier.
    pub(crate) fn preset(&self, flags: &AtomicU64) {
        self.epoch.store(1, Ordering::Relaxed);
        flags.store(PRESET, Ordering::Relaxed);
    }

    /// Whether the flags are unchanged since `preset`. If so, and if neither process has published anything, the caller
    /// may sleep at once: the peer sends a FIFO word when it first publishes.
    pub(crate) fn is_preset(flags: &AtomicU64) -> bool {
        flags.load(Ordering::Relaxed) == PRESET
    }

    /// Clears both flags. Called when a thread starts to poll, so that the peer sends no wake-ups.
    pub(crate) fn clear(&self, flags: &AtomicU64) {
        flags.store(self.epoch.load(Ordering::Relaxed) << EPOCH_SHIFT, Ordering::Relaxed);
    }

    /// Whether all flags in `want` are set.
    pub(crate) fn are_set(flags: &AtomicU64, want: u64) -> bool {
        flags.load(Ordering::Relaxed) & want == want
    }

    /// Whether the caller, which has just published, must send a FIFO word: one of the peer's flags in `want` is set,
    /// and no word was sent in its epoch.
    #[inline(always)]
    pub(crate) fn must_wake(&self, flags: &AtomicU64, want: u64, membarrier: bool) -> bool {
        // Pairs with the barrier in `set`. With `membarrier`, the CPU needs no fence, but the compiler must not move
        // the load before the publication.
        if membarrier {
            barrier::compiler_only();
        } else {
            fence(Ordering::SeqCst);
        }
        let word = flags.load(Ordering::Relaxed);
        word & want != 0 && self.is_first_of_epoch(word >> EPOCH_SHIFT)
    }

    #[cold]
    fn is_first_of_epoch(&self, epoch: u64) -> bool {
        self.notified.swap(epoch, Ordering::Relaxed) != epoch
    }
}

/// The two halves of an asymmetric barrier: a rare one that interrupts other CPUs, and a frequent one that only orders
/// the instructions of the compiler.
#[cfg(not(loom))]
pub(crate) mod barrier {
    use super::*;

    /// Executes a full barrier on every CPU that runs a registered process. Returns false if the kernel refuses it. The
    /// registration in `register_membarrier` has succeeded, so the kernel refuses it only if a system call filter was
    /// installed afterwards, or if it has no memory.
    pub(crate) fn on_all_cpus() -> bool {
        rustix::thread::membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    #[inline(always)]
    pub(crate) fn compiler_only() {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
pub(crate) use interleavings::kernel as barrier;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn polling_process_gets_no_wake_up_and_sleeping_process_gets_one() {
        for membarrier in [false, true] {
            let (line, sleeper, publisher) = (AtomicU64::new(0), WakeFlags::default(), WakeFlags::default());
            let sends = |want| publisher.must_wake(&line, want, membarrier);
            assert!(!sends(WAKE_ON_REQUESTS), "no flag is set");
            sleeper.set(&line, WAKE_ON_REQUESTS, membarrier);
            assert!(!sends(WAKE_ON_PROGRESS), "only the other flag is set");
            assert!(sends(WAKE_ON_REQUESTS));
            assert!(!sends(WAKE_ON_REQUESTS), "one word is sent per epoch");
            sleeper.set(&line, WAKE_ON_REQUESTS | WAKE_ON_PROGRESS, membarrier);
            assert!(sends(WAKE_ON_PROGRESS), "the flag was set in a new epoch");
            sleeper.set(&line, WAKE_ON_REQUESTS, membarrier);
            sleeper.clear(&line);
            assert!(!sends(WAKE_ON_REQUESTS), "the sleeper polls again");
        }
    }

    #[test]
    fn preset_wake_flags_cause_one_wake_up_until_they_are_set_again() {
        let (line, sleeper, publisher) = (AtomicU64::new(0), WakeFlags::default(), WakeFlags::default());
        sleeper.preset(&line);
        assert!(WakeFlags::is_preset(&line) && WakeFlags::are_set(&line, WAKE_ON_REQUESTS | WAKE_ON_PROGRESS));
        assert!(
            publisher.must_wake(&line, WAKE_ON_REQUESTS, true) && !publisher.must_wake(&line, WAKE_ON_PROGRESS, true)
        );
        assert!(WakeFlags::is_preset(&line), "the publisher does not change the sleeper's flags");
        sleeper.set(&line, WAKE_ON_REQUESTS, true);
        assert!(!WakeFlags::is_preset(&line) && publisher.must_wake(&line, WAKE_ON_REQUESTS, true), "the next epoch");
        sleeper.preset(&line);
        sleeper.clear(&line);
        assert!(!WakeFlags::is_preset(&line));
    }
}

/// Loom models of a ring, the flags, and a sleeper that is woken only by its peer. Loom reports a lost wake-up as a
/// deadlock.
///
/// With `membarrier` the publisher has no fence: the kernel interrupts it between any two of its steps. Loom has no
/// barrier for other threads, so in the model the publisher executes the interrupt itself, at each relevant point:
/// before publishing, between publishing and the check of the flag, and after the check. The model does not check that
/// `membarrier` works as documented, nor that the compiler keeps the order.
#[cfg(all(test, loom))]
pub(crate) mod interleavings {
    use std::sync::Arc;

    use loom::sync::Condvar;
    use loom::thread;

    use super::*;
    use crate::memory::map::SharedMapping;
    use crate::proto::message::{Header, MessageKind};
    use crate::qp::ring::{Peeked, Reader, SlotFields, Writer};
    use dapl::runtime::sync::Mutex;

    const MESSAGES: u64 = 2;

    /// Model of `membarrier`, and of the CPU that it interrupts.
    pub(crate) mod kernel {
        use super::*;

        loom::lazy_static! {
            static ref SENT: AtomicU64 = AtomicU64::new(0);
            static ref TAKEN: AtomicU64 = AtomicU64::new(0);
        }
        /// Value of `TAKEN` after the publisher's thread has ended: a barrier does not wait for it, because a context
        /// switch is a barrier too.
        const GONE: u64 = u64::MAX;

        pub(crate) fn on_all_cpus() -> bool {
            fence(Ordering::SeqCst);
            let sent = SENT.fetch_add(1, Ordering::AcqRel) + 1;
            while TAKEN.load(Ordering::Acquire) < sent {
                thread::yield_now();
            }
            fence(Ordering::SeqCst);
            true
        }

        /// Executes a requested barrier, between two steps of the publisher.
        pub(crate) fn compiler_only() {
            let sent = SENT.load(Ordering::Acquire);
            if sent > TAKEN.load(Ordering::Relaxed) {
                fence(Ordering::SeqCst);
                TAKEN.store(sent, Ordering::Release);
            }
        }

        pub(crate) fn leave() {
            fence(Ordering::SeqCst);
            TAKEN.store(GONE, Ordering::Release);
        }
    }

    /// Model of the FIFO of a process.
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

    fn no_wake_up_is_lost(membarrier: bool, is_preset: bool) {
        let (area, line) = (Arc::new(SharedMapping::fake(256)), SharedMapping::fake(8));
        let (mut writer, mut reader) = (Writer::new(area.clone(), 0, 2), Reader::new(area, 0, 2));
        let (fifo, wake_flags) = (Arc::new(Fifo::default()), WakeFlags::default());
        if is_preset {
            wake_flags.preset(line.word(0));
        }
        let publisher = {
            let (line, fifo) = (line.clone(), fifo.clone());
            thread::spawn(move || {
                let wake_flags = WakeFlags::default();
                for n in 0..MESSAGES {
                    barrier::compiler_only();
                    writer.push(
                        Header::plain(MessageKind::Send, 8),
                        &SlotFields { total: Some(n), ..SlotFields::default() },
                    );
                    if wake_flags.must_wake(line.word(0), WAKE_ON_REQUESTS, membarrier) {
                        fifo.wake();
                    }
                    barrier::compiler_only();
                }
                kernel::leave();
            })
        };
        while reader.consumed() < MESSAGES {
            if reader.peek() == Peeked::Empty {
                // Same condition as in `QpCore::set_wake_flags`: preset flags suffice until the reader has consumed an
                // entry.
                if reader.consumed() > 0 || !WakeFlags::is_preset(line.word(0)) {
                    wake_flags.set(line.word(0), WAKE_ON_REQUESTS, membarrier);
                }
                if reader.peek() == Peeked::Empty {
                    fifo.sleep();
                }
            } else {
                assert_eq!(reader.fields().total, Some(reader.consumed()));
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
