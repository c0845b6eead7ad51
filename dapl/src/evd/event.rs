//! Events in the form in which an EVD queues them. The C entries convert them to `DAT_EVENT`.
//!
//! Handles and addresses in an event are plain numbers. The consumer gets them, and this library looks a handle up
//! again before it uses the object.
#![forbid(unsafe_code)]

use crate::ia::{AsyncError, ChildKey};
use crate::provider::{Completion, ConnectionEvent, Status};

#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A work request has completed, successfully or not.
    Dto(Completion),
    /// A failed work request whose EP was not notified yet. After the EP was notified, the consumer gets the completion
    /// as `Dto`.
    Failed(Completion),
    /// A connection request arrived.
    Request {
        /// Handle of the service point.
        sp: usize,
        /// Pointer to the local IA address.
        address: usize,
        /// The qualifier of the request.
        qual: u64,
        /// Handle of the CR.
        cr: usize,
        /// The CR as a child of the IA.
        child: ChildKey,
    },
    /// A connection event of an EP.
    Connection {
        kind: ConnectionEvent,
        /// Handle of the EP.
        ep: usize,
        /// Number of bytes of private data.
        data_size: u32,
        /// Pointer to the private data, valid as long as the EP keeps the data.
        data: usize,
    },
    /// An asynchronous error, which belongs to no work request.
    Async(AsyncError),
    /// A software event that the consumer posted.
    Software {
        /// The pointer in the posted event.
        pointer: usize,
    },
}

/// Whether the completion is a failure that ends the connection (spec/events 4.6). A flush does not.
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
    /// Whether the event wakes waiters and triggers the CNO. All events do, except unsolicited successful completions
    /// of work that was posted UNSIGNALLED.
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
    fn every_event_but_an_unsignalled_unsolicited_success_notifies() {
        let token = Token { unsignalled: true, ..Token::default() };
        let unsignalled = Completion { token, ..Completion::default() };
        assert!(!Event::Dto(unsignalled).notifies());
        assert!(Event::Dto(Completion { solicited: true, ..unsignalled }).notifies());
        assert!(Event::Dto(Completion { status: Status::Flushed, ..unsignalled }).notifies());
        assert!(Event::Dto(Completion::default()).notifies());
        assert!(Event::Software { pointer: 0 }.notifies());
    }
}
