//! What the parts of one IA share: who listens, the news that wait, and what a test has changed. Nothing is reported but when the
//! test delivers.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;

use super::FakeProvider;
use crate::provider::{CmSink, ConnId, ConnectionEvent, SharedCookie};
use crate::runtime::handle::ObjectId;

pub(super) type News = Box<dyn FnOnce(&dyn CmSink<FakeProvider>) + Send>;

/// What the parts of one IA share.
#[derive(Default)]
pub(super) struct Net {
    pub(super) listeners: Mutex<HashMap<u64, ObjectId>>,
    pub(super) news: Mutex<VecDeque<News>>,
    pub(super) closed: AtomicBool,
    pub(super) keys: AtomicU32,
    pub(super) srqs: AtomicU32,
    /// Messages are received in two steps: who takes one completes it only when the test says so.
    pub(super) slow: AtomicBool,
    pub(super) spoil_binds: AtomicBool,
    /// Lengths and numbers of those who share memory.
    pub(super) members: Mutex<HashMap<SharedCookie, (u64, usize)>>,
}

impl Net {
    pub(super) fn report(&self, news: impl FnOnce(&dyn CmSink<FakeProvider>) + Send + 'static) {
        self.news.lock().push_back(Box::new(news));
    }

    pub(super) fn event(&self, conn: ConnId, event: ConnectionEvent) {
        self.report(move |sink| sink.event(conn, event, &[]));
    }
}
