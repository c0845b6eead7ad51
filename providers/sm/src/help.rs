//! Sender-assisted copy: the receiver of a long message asks the sender to write a part of it, so that two CPUs copy.
//!
//! The receiver writes a job to its own control line and copies another part. Then it withdraws the job. If the sender
//! has not claimed the job by then, the receiver copies that part too. A concurrent claim and withdrawal always see
//! each other: each process writes its word, executes a full barrier, then reads the other's word. The result of a
//! claimed job is always reported. This module does not copy, sleep or wake threads.
#![forbid(unsafe_code)]

use dapl::runtime::sync::{Ordering, fence};

use crate::memory::map::Map;

/// Offsets of the words that the receiver of the message writes: the ticket (0: no job), and the job.
const TICKET: usize = 768;
const JOB: usize = TICKET + 8;
/// Offsets of the words that the sender of the message writes: the ticket that it claimed last, and the result.
const CLAIM: usize = 896;
const OUTCOME: usize = CLAIM + 8;

/// A part of a message that the sender is asked to write.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Job {
    /// Slot number of the message: the number of requests that were taken, including this one.
    pub(crate) slot: u64,
    /// Offset and length in bytes of the part in the message.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Key and address of the destination in the receiver's registered memory.
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) address: u64,
}

impl Job {
    const WORDS: usize = 5;

    fn encode(&self) -> [u64; Self::WORDS] {
        let Job { slot, offset, length, key, pd, address } = *self;
        [slot, offset, u64::from(key) << 32 | u64::from(length), u64::from(pd), address]
    }

    fn decode([slot, offset, key_and_length, pd, address]: [u64; Self::WORDS]) -> Self {
        let (length, key) = (key_and_length as u32, (key_and_length >> 32) as u32);
        Job { slot, offset, length, key, pd: pd as u32, address }
    }
}

/// The local control line, and the peer's control line.
#[derive(Debug)]
pub(crate) struct Help<'a> {
    pub(crate) own: &'a Map,
    pub(crate) peer: &'a Map,
}

impl Help<'_> {
    /// Publishes a job. `ticket` is not 0 and is never reused.
    pub(crate) fn ask(&self, ticket: u64, job: &Job) {
        for (n, word) in job.encode().into_iter().enumerate() {
            self.own.word(JOB + n * 8).store(word, Ordering::Relaxed);
        }
        // Release, for the Acquire in `look`: the job is written before its ticket.
        self.own.word(TICKET).store(ticket, Ordering::Release);
    }

    /// Withdraws the job. Returns true if the helper has claimed it. In this case the caller must wait for the result.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        self.own.word(TICKET).store(0, Ordering::Relaxed);
        // Full barrier, as in `claim`: either the helper sees that the ticket is gone, or this process sees the claim.
        fence(Ordering::SeqCst);
        self.peer.word(CLAIM).load(Ordering::Relaxed) == ticket
    }

    /// Returns the result of a claimed job, when it was reported.
    pub(crate) fn outcome(&self, ticket: u64) -> Option<bool> {
        // Acquire, for the Release in `report`: the bytes are written before the result.
        let word = self.peer.word(OUTCOME).load(Ordering::Acquire);
        (word >> 1 == ticket).then_some(word & 1 == 1)
    }

    /// Returns the published job, if its ticket differs from `last`. The content of the job is valid only after a
    /// claim.
    pub(crate) fn look(&self, last: u64) -> Option<(u64, Job)> {
        let ticket = self.peer.word(TICKET).load(Ordering::Acquire);
        // A ticket that does not fit in the result word is invalid.
        if ticket == 0 || ticket == last || ticket >> 62 != 0 {
            return None;
        }
        let words = std::array::from_fn(|n| self.peer.word(JOB + n * 8).load(Ordering::Relaxed));
        Some((ticket, Job::decode(words)))
    }

    /// Claims the job. Returns false if the job was withdrawn. The helper must report a result in both cases.
    pub(crate) fn claim(&self, ticket: u64) -> bool {
        self.own.word(CLAIM).store(ticket, Ordering::Relaxed);
        // Full barrier, as in `withdraw`. The job was read before this point. If the ticket is still present, the job
        // belongs to this ticket, because the receiver writes the next job only after it has withdrawn this one.
        fence(Ordering::SeqCst);
        self.peer.word(TICKET).load(Ordering::Relaxed) == ticket
    }

    /// Reports the result of a claimed job: whether it was done.
    pub(crate) fn report(&self, ticket: u64, done: bool) {
        self.own.word(OUTCOME).store(ticket << 1 | u64::from(done), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn areas() -> (Map, Map) {
        let area = || Map::create("help", 4096, true).unwrap().0;
        (area(), area())
    }

    #[test]
    fn a_job_is_done_by_one_of_both() {
        let (asker, helper) = areas();
        let (asks, helps) = (Help { own: &asker, peer: &helper }, Help { own: &helper, peer: &asker });
        assert_eq!(helps.look(0), None, "fresh memory is no job");
        let job = Job { slot: 7, offset: 1 << 40, length: 5, key: u32::MAX, pd: 3, address: u64::MAX };
        asks.ask(1, &job);
        assert_eq!((helps.look(0), helps.look(1)), (Some((1, job)), None));
        assert!(!asks.withdraw(1) && !helps.claim(1), "too late");
        helps.report(1, false);
        asks.ask(2, &job);
        assert_eq!(asks.outcome(2), None);
        assert!(helps.claim(2) && asks.withdraw(2));
        helps.report(2, true);
        assert_eq!((asks.outcome(2), asks.outcome(1)), (Some(true), None));
        asks.ask(1 << 62, &job);
        assert_eq!(helps.look(2), None, "no valid peer uses such a ticket");
    }
}

/// Loom models. They detect a part that both processes write, a part that is used before it is written, and a part that
/// neither process writes.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use dapl::runtime::sync::access_check::AccessCheck;
    use loom::thread;

    use super::*;

    #[test]
    fn each_job_is_done_once_and_before_it_is_used() {
        loom::model(|| {
            let (asker, helper) = (Map::fake(1024), Map::fake(1024));
            let parts = Arc::<[AccessCheck; 2]>::default();
            let helping = {
                let (asker, helper, parts) = (asker.clone(), helper.clone(), parts.clone());
                thread::spawn(move || {
                    let help = Help { own: &helper, peer: &asker };
                    let mut last = 0;
                    for _ in 0..2 {
                        let Some((ticket, job)) = help.look(last) else { continue };
                        last = ticket;
                        let claimed = help.claim(ticket);
                        if claimed {
                            assert_eq!(job.slot, ticket, "half of another job");
                            parts[ticket as usize - 1].write();
                        }
                        help.report(ticket, claimed);
                    }
                })
            };
            let help = Help { own: &asker, peer: &helper };
            for ticket in 1..=2 {
                help.ask(ticket, &Job { slot: ticket, ..Job::default() });
                let mut done = false;
                if help.withdraw(ticket) {
                    done = loop {
                        match help.outcome(ticket) {
                            Some(done) => break done,
                            None => thread::yield_now(),
                        }
                    };
                }
                let part = &parts[ticket as usize - 1];
                if !done {
                    part.write();
                }
                part.read();
            }
            helping.join().unwrap();
        });
    }
}
