//! Events as an EVD queues them; the entries convert them to `DAT_EVENT`.
//!
//! Objects, handles and addresses in an event are plain numbers; only the consumer uses them.
#![forbid(unsafe_code)]

use crate::ia::AsyncError;
use crate::provider::{Completion, ConnectionEvent, Status};

/// One event.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A work request has completed, successfully or not.
    Dto(Completion),
    /// A failed work request whose EP has not been notified. After the EP was notified, the consumer gets the
    /// completion as `Dto`.
    Failed(Completion),
    /// A connection request arrived.
    Request {
        /// Handle of the service point.
        sp: usize,
        /// Address of the local IA's socket address.
        address: usize,
        /// The qualifier of the request.
        qual: u64,
        /// Handle of the CR.
        cr: usize,
    },
    /// A connection event of an EP.
    Connection {
        kind: ConnectionEvent,
        /// Handle of the EP.
        ep: usize,
        /// Number of bytes of private data.
        data_size: u32,
        /// Address of the private data, valid as long as the EP keeps it.
        data: usize,
    },
    /// An error that concerns no work request.
    Async(AsyncError),
    /// Posted by the consumer.
    Software {
        /// Pointer that the consumer passed.
        pointer: usize,
    },
}

/// Sources of events that an EVD can serve.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum EventSource {
    Software,
    /// Connection requests.
    Request,
    Dto,
    Connection,
    RmrBind,
    Async,
    /// Completions of extended operations (2.0). They are queued together with DTO completions.
    Extension,
}

/// The set of streams that an EVD serves.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EventSources(u8);

impl EventSources {
    /// Returns the set with this stream added.
    pub fn with(self, stream: EventSource) -> Self {
        EventSources(self.0 | 1 << stream as u8)
    }

    /// Whether the set contains this stream.
    pub fn has(self, stream: EventSource) -> bool {
        self.0 & 1 << stream as u8 != 0
    }
}

/// Whether the completion is a failure that ends the connection (spec/events 4.6); a flush is not.
#[inline]
pub(super) fn is_failure(done: &Completion) -> bool {
    !matches!(done.status, Status::Success | Status::Flushed)
}

impl Default for Event {
    fn default() -> Self {
        Event::Dto(Completion::default())
    }
}

impl Event {
    /// Whether the event wakes waiters and triggers the CNO. All events do except completions of work that was posted
    /// without notification.
    pub fn notifies(&self) -> bool {
        match self {
            Event::Dto(done) | Event::Failed(done) => done.is_notifying(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Token;

    #[test]
    fn only_unsignalled_successes_do_not_notify() {
        let token = Token { unsignalled: true, ..Token::default() };
        let silent = Completion { token, ..Completion::default() };
        assert!(!Event::Dto(silent).notifies());
        assert!(Event::Dto(Completion { solicited: true, ..silent }).notifies());
        assert!(Event::Dto(Completion { status: Status::Flushed, ..silent }).notifies());
        assert!(Event::Dto(Completion::default()).notifies());
        assert!(Event::Software { pointer: 0 }.notifies());
    }
}
