//! The data shared by the objects of one IA: listeners, pending events, and faults that tests have requested. Events
//! are reported only when the test delivers them.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;

use super::FakeProvider;
use crate::error::Result;
use crate::provider::{CmSink, ConnId, ConnectionEvent, SharedCookie};
use crate::runtime::handle::ObjectId;

pub(super) type CmCallback = Box<dyn FnOnce(&dyn CmSink<FakeProvider>) + Send>;
pub(super) type ListenHook = Box<dyn FnOnce(ObjectId) -> Result<()> + Send>;

#[derive(Default)]
pub(super) struct FakeNetwork {
    pub(super) listeners: Mutex<HashMap<u64, ObjectId>>,
    pub(super) events: Mutex<VecDeque<CmCallback>>,
    pub(super) closed: AtomicBool,
    pub(super) keys: AtomicU32,
    pub(super) srqs: AtomicU32,
    /// Slow mode: a message consumes a receive, which completes when the test calls `FakeQp::arrive`, or is flushed.
    pub(super) slow: AtomicBool,
    pub(super) make_binds_fail: AtomicBool,
    /// Called by the next `listen` with the listener's id. An error is the result of `listen`.
    pub(super) at_next_listen: Mutex<Option<ListenHook>>,
    /// Length and number of registrations, by shared-memory cookie.
    pub(super) members: Mutex<HashMap<SharedCookie, (u64, usize)>>,
}

impl FakeNetwork {
    pub(super) fn report(&self, event: impl FnOnce(&dyn CmSink<FakeProvider>) + Send + 'static) {
        self.events.lock().push_back(Box::new(event));
    }

    pub(super) fn event(&self, conn: ConnId, event: ConnectionEvent) {
        self.report(move |sink| sink.event(conn, event, &[]));
    }
}
