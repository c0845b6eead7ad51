//! Waits for events. A wait without an event ends at its time limit, or when a signal requests the end of the program.
#![forbid(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use dat_abi::*;

use super::event::{Event, connection_word};
use super::objects::Evd;
use super::raw::{self, Handle};
use crate::failure::{Failure, Result};
use crate::stop;

/// Interval between checks for a signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Number of polls between two clock readings.
const POLLS_PER_CLOCK: u32 = 1024;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WaitMethod {
    /// Blocks in `dat_evd_wait` or `dat_cno_wait`.
    Sleep,
    /// Polls with `dat_evd_dequeue`.
    Poll,
}

/// How to wait, and the time limit for one event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitPolicy {
    pub(crate) how: WaitMethod,
    pub(crate) limit: Duration,
}

impl WaitPolicy {
    /// Waits for the next event of any kind. `what` names the expected event in the error.
    pub(crate) fn next(self, evd: &Evd, what: &str) -> Result<Event> {
        let deadline = Instant::now() + self.limit;
        let event = match (self.how, evd.cno) {
            (WaitMethod::Poll, _) => poll(evd.handle(), deadline)?,
            (WaitMethod::Sleep, None) => sleep(evd.handle(), deadline)?,
            (WaitMethod::Sleep, Some(cno)) => sleep_on(cno, evd.handle(), deadline)?,
        };
        event.ok_or_else(|| Failure::Message(format!("{what} did not arrive within {} s", self.limit.as_secs())))
    }

    /// Blocks for the next event. Returns `None` at the time limit.
    pub(crate) fn look(self, evd: &Evd) -> Result<Option<Event>> {
        sleep(evd.handle(), Instant::now() + self.limit)
    }
}

fn sleep(evd: Handle, deadline: Instant) -> Result<Option<Event>> {
    loop {
        let left = left(deadline);
        match raw::evd_wait(evd, left, 1) {
            Ok(event) => return Ok(Some(event)),
            Err(refusal) if !is_nothing(refusal) => return Err(refusal.into()),
            Err(_) => stop::check()?,
        }
        if left == 0 {
            return Ok(None);
        }
    }
}

fn sleep_on(cno: Handle, evd: Handle, deadline: Instant) -> Result<Option<Event>> {
    loop {
        match raw::evd_dequeue(evd) {
            Ok(event) => return Ok(Some(event)),
            Err(refusal) if !is_nothing(refusal) => return Err(refusal.into()),
            Err(_) => stop::check()?,
        }
        let left = left(deadline);
        if left == 0 {
            return Ok(None);
        }
        match raw::cno_wait(cno, left) {
            Err(refusal) if !is_nothing(refusal) => return Err(refusal.into()),
            _ => {}
        }
    }
}

fn poll(evd: Handle, deadline: Instant) -> Result<Option<Event>> {
    for turn in 1_u32.. {
        match raw::evd_dequeue(evd) {
            Ok(event) => return Ok(Some(event)),
            Err(refusal) if !is_nothing(refusal) => return Err(refusal.into()),
            Err(_) => {}
        }
        if turn.is_multiple_of(POLLS_PER_CLOCK) {
            stop::check()?;
            if Instant::now() > deadline {
                break;
            }
            // The peer may need this processor, so yield.
            thread::yield_now();
        }
    }
    Ok(None)
}

/// Microseconds until the deadline, but at most until the next signal check.
fn left(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now()).min(CHECK_INTERVAL);
    u32::try_from(left.as_micros()).unwrap_or(u32::MAX)
}

/// Whether a wait ended without an event.
fn is_nothing(refusal: raw::Refusal) -> bool {
    [DAT_TIMEOUT_EXPIRED, DAT_QUEUE_EMPTY, DAT_INTERRUPTED_CALL].contains(&refusal.kind())
}

/// Waits until this endpoint is connected.
pub(crate) fn connected(evd: &Evd, ep: Handle, wait_policy: WaitPolicy) -> Result {
    match wait_policy.next(evd, "a connection")? {
        Event::Connection { ep: whose, number } if whose == ep => match number {
            DAT_CONNECTION_EVENT_ESTABLISHED => Ok(()),
            number => Err(Failure::NotConnected(number, connection_word(number))),
        },
        event => Err(Failure::Message(format!("{event:?}, expected a connection"))),
    }
}

/// Dequeues all queued events.
pub(crate) fn drain(evd: &Evd) -> Vec<Event> {
    std::iter::from_fn(|| raw::evd_dequeue(evd.handle()).ok()).collect()
}
