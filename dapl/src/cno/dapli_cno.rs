//! A wait on a CNO, cut into steps as a wait on an EVD is: look, sleep, look.
//!
//! No other room may call these. Any number of threads may wait; each trigger wakes one, the end of the last EVD all.
#![forbid(unsafe_code)]

use std::thread::ThreadId;

use dat_abi::DAT_TIMEOUT;

use super::Cno;
use super::triggers::Triggers;
use crate::error::{Error, Handle};
use crate::ffi::Agent;
use crate::handle::{self, ObjectId};
use crate::provider::Provider;
use crate::wait::{self, Cause, Deadline};

/// What the CNO's lock guards.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) triggers: Triggers,
    /// Tokens of the threads in `dat_cno_wait`.
    pub(super) waiters: Vec<u64>,
    /// Waiters that the end of the last EVD released and that have not left yet.
    pub(super) released: Vec<u64>,
    /// The last EVD ended while nobody waited: the next who comes hears of it.
    pub(super) orphaned: bool,
    pub(super) agent: Option<Agent>,
    /// Threads with an agent of this CNO to call, or inside one.
    pub(super) calling: Vec<ThreadId>,
    /// It is being freed: nothing triggers it any more.
    pub(super) dead: bool,
}

/// Names a wait across its sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) id: ObjectId,
    pub(super) token: u64,
    pub(super) deadline: Deadline,
}

/// What a step comes to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// The EVD that triggered; 0 when the last one ended.
    Evd(usize),
    Fail(Error),
    /// Sleep while the word holds this.
    Sleep(u32),
}

/// Begins a wait.
pub(super) fn begin<P: Provider>(cno: &Cno<P>, timeout: DAT_TIMEOUT) -> (Wait, Next) {
    let mut wait = Wait { id: cno.id, token: wait::token(), deadline: Deadline::NEVER };
    {
        let mut inner = cno.inner.lock();
        if inner.dead {
            // Freed since the handle was looked at; nobody will wake a waiter any more.
            return (wait, Next::Fail(Error::InvalidHandle(Handle::Cno)));
        }
        inner.waiters.push(wait.token);
    }
    if timeout == 0 {
        return (wait, cno.look(wait.token, Cause::TimedOut));
    }
    let next = cno.look(wait.token, Cause::Start);
    if let Next::Sleep(_) = next {
        wait.deadline = Deadline::after(timeout);
    }
    (wait, next)
}

/// Goes on after a sleep. A CNO that has gone was closed with its IA: cno_free refuses while threads wait.
pub(super) fn resume<P: Provider>(wait: &Wait, cause: Cause) -> Next {
    match handle::from_id::<Cno<P>>(wait.id) {
        Some(cno) => cno.look(wait.token, cause),
        None => Next::Evd(0),
    }
}

/// Takes a waiter out whose thread ended in its sleep, and passes on what it may have been woken for.
pub(super) fn clear<P: Provider>(id: ObjectId, token: u64) {
    if let Some(cno) = handle::from_id::<Cno<P>>(id) {
        cno.leave(token);
    }
}

impl<P: Provider> Cno<P> {
    /// The first EVD that still has events, or what else there is to say.
    fn look(&self, token: u64, cause: Cause) -> Next {
        let next = loop {
            let mut inner = self.inner.lock();
            if let Some(at) = inner.released.iter().position(|released| *released == token) {
                inner.released.swap_remove(at);
                break Next::Evd(0);
            }
            if cause == Cause::Interrupted {
                break Next::Fail(Error::Interrupted);
            }
            let Some(source) = inner.triggers.pop() else {
                if std::mem::take(&mut inner.orphaned) {
                    break Next::Evd(0);
                }
                if cause == Cause::TimedOut {
                    break Next::Fail(Error::QueueEmpty);
                }
                return Next::Sleep(wait::word(self.id).map_or(0, |(_, value)| value));
            };
            drop(inner);
            if source.pending(self.id) {
                break Next::Evd(source.id().handle);
            }
        };
        self.leave(token);
        next
    }

    /// A waiter leaves. What it leaves behind is for the next one: it may have been woken for it.
    fn leave(&self, token: u64) {
        let mut inner = self.inner.lock();
        inner.waiters.retain(|waiter| *waiter != token);
        inner.released.retain(|waiter| *waiter != token);
        if inner.triggers.is_empty() || inner.waiters.is_empty() {
            return;
        }
        wait::bump(self.id);
        drop(inner);
        wait::wake(self.id, 1);
    }
}
