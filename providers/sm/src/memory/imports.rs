//! What of a peer's shared memory is mapped here, or was asked for: a key for each, shared by all connections to the peer.
//!
//! Asks nobody and maps nothing: `lend` does, on the engine's thread. A transfer looks here when it begins, and never waits:
//! as long as there is nothing it goes by another way. What is here goes with the peer, or when the engine finds its key
//! dead; a transfer that has it at that moment finishes first.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::mapped::{LONGEST, Mapped};

/// Keys of one peer; more are not asked for.
const MOST: usize = 256;
/// Questions under way: the queue of a set-up socket has few places, and others want some, too.
const MOST_ASKED: usize = 4;
/// A question or its answer got lost if it is older than so many rounds of the engine.
const PATIENCE: u8 = 2;
/// What was refused is asked for again after so many: there may have been no descriptor left just then.
const FORGIVEN: u8 = 6;

/// The state of one key.
#[derive(Debug)]
enum Loan {
    /// The question is out, since so many rounds.
    Asked(u8),
    /// It is not to be had, or made no sense, so many rounds ago.
    Refused(u8),
    Here(Arc<Mapped>),
}

/// All of one peer.
#[derive(Debug, Default)]
pub(crate) struct Loans(Mutex<HashMap<u32, Loan>>);

/// What a transfer finds.
#[derive(Debug)]
pub(crate) enum Found {
    Here(Arc<Mapped>),
    /// Nobody has asked: whoever hears this is to do it.
    Ask,
    Nothing,
}

impl Loans {
    /// What is behind this key. A key that may be asked for counts as asked.
    pub(crate) fn find(&self, key: u32) -> Found {
        let mut loans = self.0.lock();
        match loans.get(&key) {
            Some(Loan::Here(mapped)) => return Found::Here(mapped.clone()),
            Some(Loan::Asked(_) | Loan::Refused(_)) => return Found::Nothing,
            None => {}
        }
        let asked = loans.values().filter(|loan| matches!(loan, Loan::Asked(_))).count();
        if loans.len() >= MOST || asked >= MOST_ASKED {
            return Found::Nothing;
        }
        loans.insert(key, Loan::Asked(0));
        Found::Ask
    }

    /// The question did not get out.
    pub(crate) fn withdraw(&self, key: u32) {
        let mut loans = self.0.lock();
        if let Some(Loan::Asked(_)) = loans.get(&key) {
            loans.remove(&key);
        }
    }

    /// Is an answer expected?
    pub(crate) fn is_asked(&self, key: u32) -> bool {
        matches!(self.0.lock().get(&key), Some(Loan::Asked(_)))
    }

    /// The answer: `None` is a no. Too much for one peer is as good as that.
    pub(crate) fn settle(&self, key: u32, mapped: Option<Mapped>) {
        let mut loans = self.0.lock();
        let spans = |loan: &Loan| if let Loan::Here(mapped) = loan { mapped.span() } else { 0 };
        let room = LONGEST - loans.values().map(spans).sum::<u64>();
        let (loan, beyond) = match mapped {
            Some(mapped) if mapped.span() <= room => (Loan::Here(Arc::new(mapped)), None),
            refused => (Loan::Refused(0), refused),
        };
        loans.insert(key, loan);
        drop(loans);
        drop(beyond); // what is not kept is unmapped without the lock
    }

    /// Forgets what has ended.
    pub(crate) fn forget_dead(&self, is_live: impl Fn(u32) -> bool) {
        let gone: Vec<_> = self.0.lock().extract_if(|key, _| !is_live(*key)).collect();
        drop(gone); // unmapped without the lock
    }

    /// A round of the engine's: questions that nobody has answered, or answered with no long ago, may be asked again.
    pub(crate) fn grow_older(&self) {
        self.0.lock().retain(|_, loan| {
            let (rounds, most) = match loan {
                Loan::Asked(rounds) => (rounds, PATIENCE),
                Loan::Refused(rounds) => (rounds, FORGIVEN),
                Loan::Here(_) => return true,
            };
            *rounds += 1;
            *rounds < most
        });
    }

    /// How many keys are mapped.
    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        self.0.lock().values().filter(|loan| matches!(loan, Loan::Here(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use dapl::provider::Region;
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    fn mapped(length: u64) -> Mapped {
        let file = rustix::fs::memfd_create("loans", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, length).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        Mapped::of_file(&file, 0, Region { address: 4096, length }, true).unwrap()
    }

    #[test]
    fn a_key_is_asked_for_once_unless_the_question_got_lost() {
        let loans = Loans::default();
        let asks = |key| matches!(loans.find(key), Found::Ask);
        assert!(!loans.is_asked(1) && asks(1) && loans.is_asked(1) && !asks(1));
        loans.withdraw(1);
        assert!(asks(1));
        loans.settle(1, None);
        assert!(!asks(1) && !loans.is_asked(1), "no is no");
        loans.withdraw(1);
        assert!(!asks(1));
        (1..FORGIVEN).for_each(|_| loans.grow_older());
        assert!(!asks(1));
        loans.grow_older();
        assert!(asks(1), "for a time");
        loans.settle(1, None);
        assert!(asks(2));
        (0..PATIENCE).for_each(|_| loans.grow_older());
        assert!(asks(2) && !asks(1));
        loans.settle(2, Some(mapped(4096)));
        (0..PATIENCE).for_each(|_| loans.grow_older());
        assert!(matches!(loans.find(2), Found::Here(_)));
    }

    #[test]
    fn what_a_peer_makes_us_ask_and_map_is_bounded() {
        let loans = Loans::default();
        let asks = |key| matches!(loans.find(key), Found::Ask);
        assert_eq!((0..100).filter(|key| asks(*key)).count(), MOST_ASKED);
        loans.forget_dead(|_| false);
        assert_eq!(
            (0..1000)
                .filter(|key| asks(*key) && {
                    loans.settle(*key, None);
                    true
                })
                .count(),
            MOST
        );
        loans.forget_dead(|key| key == 7);
        assert!(!asks(7) && asks(8));
        for (key, expected) in [(1, 1), (2, 1), (3, 2)] {
            loans.settle(key, Some(mapped(if key == 3 { 4096 } else { LONGEST - 4096 })));
            assert_eq!(loans.mapped(), expected, "{key}");
        }
    }

    #[test]
    fn what_has_ended_goes_when_nobody_copies_any_more() {
        let loans = Loans::default();
        assert!(matches!(loans.find(1), Found::Ask));
        loans.settle(1, Some(mapped(4096)));
        let Found::Here(held) = loans.find(1) else { panic!() };
        let watched = Arc::downgrade(&held);
        loans.forget_dead(|_| false);
        assert!(loans.mapped() == 0 && watched.upgrade().is_some());
        drop(held);
        assert!(watched.upgrade().is_none());
    }
}
