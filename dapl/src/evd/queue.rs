//! The rules of an EVD's queue: what is counted, who is to be told, when a wait is over.
//!
//! Only this room uses it, under the EVD's lock. It knows no clock, no thread and no provider.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::event::Event;
use crate::error::{Error, Result, State};

/// Which completions notify: the strongest that any EP feeding the EVD asks for.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Config {
    /// All.
    #[default]
    Threshold,
    /// Those posted without UNSIGNALLED.
    Notify,
    /// Those whose send asked for it.
    Solicited,
}

/// Who must be told of an arrival.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Signal {
    #[default]
    Nobody,
    /// A thread sleeps in a wait that is over now.
    Waiter,
    /// The EVD is to trigger its CNO, if it has one.
    Cno,
}

/// The thread inside `dat_evd_wait`.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    token: u64,
    threshold: usize,
    /// A notifying event has come since it began to wait.
    told: bool,
    asleep: bool,
}

/// What a waiting thread finds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Found {
    /// Enough events.
    Enough,
    /// Not yet.
    TooFew,
    /// It is no waiter any more: somebody made the EVD unwaitable.
    Expelled,
}

/// The queue and its state bits.
#[derive(Debug)]
pub(super) struct Queue {
    events: VecDeque<Event>,
    /// How many of `events` notify.
    loud: usize,
    length: usize,
    waiter: Option<Waiter>,
    pub(super) enabled: bool,
    pub(super) waitable: bool,
    /// The EVD was closed: events are dropped.
    pub(super) closed: bool,
    config: Config,
}

impl Queue {
    /// How many events beyond its length an EVD takes before it counts as overflown (1.4: it grows on demand).
    const MARGIN: usize = 1 << 16;
    /// Room made at once; a queue that is drained as it should never allocates again.
    const ROOM: usize = 64;

    pub(super) fn new(length: usize) -> Self {
        Queue {
            events: VecDeque::with_capacity(length.min(Self::ROOM)),
            loud: 0,
            length,
            waiter: None,
            enabled: true,
            waitable: true,
            closed: false,
            config: Config::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// What the consumer knows as `evd_qlen`.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= self.length
    }

    pub(super) fn is_overflown(&self) -> bool {
        self.events.len() >= self.length + Self::MARGIN
    }

    pub(super) fn has_waiter(&self) -> bool {
        self.waiter.is_some()
    }

    /// Whether an event is queued that a CNO would have been triggered for.
    pub(super) fn has_loud(&self) -> bool {
        self.loud > 0
    }

    pub(super) fn config(&self) -> Config {
        self.config
    }

    pub(super) fn configure(&mut self, config: Config) {
        self.config = self.config.max(config);
    }

    /// Queues an event and says who must be told (1.3, 3.6.1).
    pub(super) fn push(&mut self, event: Event) -> Signal {
        if self.closed {
            return Signal::Nobody;
        }
        let loud = event.notifies();
        self.events.push_back(event);
        self.loud += usize::from(loud);
        match &mut self.waiter {
            Some(waiter) => {
                waiter.told |= loud;
                if waiter.asleep && waiter.told && self.events.len() >= waiter.threshold {
                    waiter.asleep = false;
                    return Signal::Waiter;
                }
                Signal::Nobody
            }
            None if loud && self.enabled => Signal::Cno,
            None => Signal::Nobody,
        }
    }

    /// The oldest event.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.loud -= usize::from(event.notifies());
        Some(event)
    }

    /// The oldest event, for a consumer that does not wait.
    pub(super) fn dequeue(&mut self) -> Result<Option<Event>> {
        if self.waiter.is_some() {
            return Err(Error::InvalidState(State::EvdWaiter));
        }
        Ok(self.pop())
    }

    /// A thread begins to wait. The order of the checks is that of 2.5.
    pub(super) fn begin_wait(&mut self, token: u64, threshold: i32) -> Result<()> {
        let threshold = usize::try_from(threshold).map_err(|_| Error::InvalidParameter(3))?;
        if threshold == 0 || threshold > self.length {
            return Err(Error::InvalidParameter(3));
        }
        if threshold > 1 && self.config != Config::Threshold {
            let state = if self.config == Config::Notify { State::EvdConfigNotify } else { State::EvdConfigSolicited };
            return Err(Error::InvalidState(state));
        }
        if self.waiter.is_some() {
            return Err(Error::InvalidState(State::EvdWaiter));
        }
        if !self.waitable {
            return Err(Error::InvalidState(State::EvdUnwaitable));
        }
        // Events that are there already end a wait whether or not they notify.
        self.waiter = Some(Waiter { token, threshold, told: true, asleep: false });
        Ok(())
    }

    /// What the waiter `token` finds. After the first look only a notifying event ends the wait; with the time, any.
    pub(super) fn look(&mut self, token: u64, time_is_over: bool) -> Found {
        let queued = self.events.len();
        match &mut self.waiter {
            Some(waiter) if waiter.token == token => {
                waiter.asleep = false;
                if (waiter.told || time_is_over) && queued >= waiter.threshold {
                    return Found::Enough;
                }
                Found::TooFew
            }
            _ => Found::Expelled,
        }
    }

    /// The first look is over: what is queued now no longer ends the wait by itself.
    pub(super) fn settle(&mut self) {
        if let Some(waiter) = &mut self.waiter {
            waiter.told = self.loud > 0;
        }
    }

    /// The waiter goes to sleep.
    pub(super) fn fall_asleep(&mut self) {
        if let Some(waiter) = &mut self.waiter {
            waiter.asleep = true;
        }
    }

    /// The waiter leaves, if it is still this one.
    pub(super) fn end_wait(&mut self, token: u64) {
        if self.waiter.is_some_and(|waiter| waiter.token == token) {
            self.waiter = None;
        }
    }

    /// Sends the waiter away; true when it sleeps and must be woken to learn of it.
    pub(super) fn expel(&mut self) -> bool {
        self.waiter.take().is_some_and(|waiter| waiter.asleep)
    }

    /// Changes the length (2.8); the checks against the IA's limit are the caller's.
    pub(super) fn resize(&mut self, length: usize) -> Result<()> {
        if self.waiter.is_some() {
            return Err(Error::InvalidState(State::EvdWaiter));
        }
        if length < self.events.len() {
            return Err(Error::InvalidState(State::Plain));
        }
        self.length = length;
        Ok(())
    }

    /// The EVD ends: its events go, and nothing is queued any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.events = VecDeque::new();
        self.loud = 0;
    }
}
