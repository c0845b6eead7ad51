//! Copy delegation: the receiver of a long message delegates the copy of a part to the sender, so that two CPUs copy.
//!
//! The receiver publishes a job on its control page and copies another part. Then it withdraws the job. If the sender
//! has not claimed the job by then, the receiver copies that part too. At least one of a concurrent claim and withdrawal
//! sees the other: each process writes its word, executes a full barrier, then reads the other process's word. The
//! sender reports a result after every claim, also if the job was withdrawn. This module does not copy, sleep or wake
//! threads.
#![forbid(unsafe_code)]

use dapl::runtime::sync::{Ordering, fence};

use crate::memory::map::SharedMapping;

/// Offsets of the words that the receiver of the message writes: the ticket (0: no job), and the job.
const TICKET_OFFSET: usize = 768;
const JOB_OFFSET: usize = TICKET_OFFSET + 8;
/// Offsets of the words that the sender of the message writes: the ticket that it claimed last, and the result.
const CLAIM_OFFSET: usize = 896;
const OUTCOME_OFFSET: usize = CLAIM_OFFSET + 8;

/// A part of a message that the sender copies to the receiver's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CopyJob {
    /// Slot number of the message: the number of requests that the receiver has processed, including this one.
    pub(crate) slot: u64,
    /// Offset and length in bytes of the part in the message.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Key, protection domain and address of the destination in the receiver's registered memory.
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) address: u64,
}

impl CopyJob {
    const WORDS: usize = 5;

    fn encode(&self) -> [u64; Self::WORDS] {
        let CopyJob { slot, offset, length, key, pd, address } = *self;
        [slot, offset, u64::from(key) << 32 | u64::from(length), u64::from(pd), address]
    }

    fn decode([slot, offset, key_and_length, pd, address]: [u64; Self::WORDS]) -> Self {
        let (length, key) = (key_and_length as u32, (key_and_length >> 32) as u32);
        CopyJob { slot, offset, length, key, pd: pd as u32, address }
    }
}

/// Access to the words of copy jobs, on the control pages of both processes.
pub(crate) struct CopyDelegation<'a> {
    pub(crate) local: &'a SharedMapping,
    pub(crate) peer: &'a SharedMapping,
}

impl CopyDelegation<'_> {
    /// Publishes a job. `ticket` is not 0 and is never reused.
    pub(crate) fn publish(&self, ticket: u64, job: &CopyJob) {
        for (n, word) in job.encode().into_iter().enumerate() {
            self.local.word(JOB_OFFSET + n * 8).store(word, Ordering::Relaxed);
        }
        // Release, for the Acquire in `published_job`: a sender that sees the ticket also sees the job.
        self.local.word(TICKET_OFFSET).store(ticket, Ordering::Release);
    }

    /// Withdraws the job. Returns true if the sender has claimed it. In this case the caller must wait for the result.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        self.local.word(TICKET_OFFSET).store(0, Ordering::Relaxed);
        // Full barrier, as in `claim`: either the sender sees the withdrawal, or this process sees the claim.
        fence(Ordering::SeqCst);
        self.peer.word(CLAIM_OFFSET).load(Ordering::Relaxed) == ticket
    }

    /// Returns whether the sender has written the part of a claimed job. `None`: the sender has not reported yet.
    pub(crate) fn outcome(&self, ticket: u64) -> Option<bool> {
        // Acquire, for the Release in `report`: the sender has written the bytes before it reports the result.
        let word = self.peer.word(OUTCOME_OFFSET).load(Ordering::Acquire);
        (word >> 1 == ticket).then_some(word & 1 == 1)
    }

    /// Returns the job that the receiver has published, with its ticket. `None`: there is no job, its ticket is `last`,
    /// or the ticket is invalid. The caller must claim the job before it uses the content, because the receiver may
    /// overwrite an unclaimed job.
    pub(crate) fn published_job(&self, last: u64) -> Option<(u64, CopyJob)> {
        let ticket = self.peer.word(TICKET_OFFSET).load(Ordering::Acquire);
        // The result word contains the ticket shifted by one bit, so a ticket of more than 62 bits is invalid.
        if ticket == 0 || ticket == last || ticket >> 62 != 0 {
            return None;
        }
        let words = std::array::from_fn(|n| self.peer.word(JOB_OFFSET + n * 8).load(Ordering::Relaxed));
        Some((ticket, CopyJob::decode(words)))
    }

    /// Claims the job. Returns false if the receiver has withdrawn it. The sender must report a result in both cases,
    /// because the receiver may have seen the claim.
    pub(crate) fn claim(&self, ticket: u64) -> bool {
        self.local.word(CLAIM_OFFSET).store(ticket, Ordering::Relaxed);
        // Full barrier, as in `withdraw`. If the ticket is still published, the job that was read before belongs to it,
        // because the receiver withdraws a job before it writes the next one.
        fence(Ordering::SeqCst);
        self.peer.word(TICKET_OFFSET).load(Ordering::Relaxed) == ticket
    }

    /// Reports whether this process has written the part of a claimed job.
    pub(crate) fn report(&self, ticket: u64, done: bool) {
        self.local.word(OUTCOME_OFFSET).store(ticket << 1 | u64::from(done), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn control_lines() -> (SharedMapping, SharedMapping) {
        let area = || SharedMapping::create("delegation", 4096, true).unwrap().0;
        (area(), area())
    }

    #[test]
    fn copy_job_is_either_claimed_or_withdrawn() {
        let (receiver, sender) = control_lines();
        let (of_receiver, of_sender) =
            (CopyDelegation { local: &receiver, peer: &sender }, CopyDelegation { local: &sender, peer: &receiver });
        assert_eq!(of_sender.published_job(0), None, "zeroed memory contains no job");
        let job = CopyJob { slot: 7, offset: 1 << 40, length: 5, key: u32::MAX, pd: 3, address: u64::MAX };
        of_receiver.publish(1, &job);
        assert_eq!((of_sender.published_job(0), of_sender.published_job(1)), (Some((1, job)), None));
        assert!(!of_receiver.withdraw(1) && !of_sender.claim(1), "a withdrawn job cannot be claimed");
        of_sender.report(1, false);
        of_receiver.publish(2, &job);
        assert_eq!(of_receiver.outcome(2), None);
        assert!(of_sender.claim(2) && of_receiver.withdraw(2));
        of_sender.report(2, true);
        assert_eq!((of_receiver.outcome(2), of_receiver.outcome(1)), (Some(true), None));
        of_receiver.publish(1 << 62, &job);
        assert_eq!(of_sender.published_job(2), None, "a ticket of more than 62 bits is invalid");
    }
}

/// Loom model of a receiver and a sender. It detects a part that both processes write, a part that the receiver reads
/// before it is written, and a part that neither process writes.
#[cfg(all(test, loom))]
mod interleavings {
    use std::sync::Arc;

    use dapl::runtime::sync::access_check::AccessCheck;
    use loom::thread;

    use super::*;

    #[test]
    fn each_part_is_written_once_before_the_receiver_reads_it() {
        loom::model(|| {
            let (receiver, sender) = (SharedMapping::fake(1024), SharedMapping::fake(1024));
            let parts = Arc::<[AccessCheck; 2]>::default();
            let sending = {
                let (receiver, sender, parts) = (receiver.clone(), sender.clone(), parts.clone());
                thread::spawn(move || {
                    let delegation = CopyDelegation { local: &sender, peer: &receiver };
                    let mut last = 0;
                    for _ in 0..2 {
                        let Some((ticket, job)) = delegation.published_job(last) else { continue };
                        last = ticket;
                        let claimed = delegation.claim(ticket);
                        if claimed {
                            assert_eq!(job.slot, ticket, "a claimed job belongs to its ticket");
                            parts[ticket as usize - 1].write();
                        }
                        delegation.report(ticket, claimed);
                    }
                })
            };
            let delegation = CopyDelegation { local: &receiver, peer: &sender };
            for ticket in 1..=2 {
                delegation.publish(ticket, &CopyJob { slot: ticket, ..CopyJob::default() });
                let mut done = false;
                if delegation.withdraw(ticket) {
                    done = loop {
                        match delegation.outcome(ticket) {
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
            sending.join().unwrap();
        });
    }
}
