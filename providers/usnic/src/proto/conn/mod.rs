//! An open connection: what is posted here becomes packets, what comes becomes completions.
//!
//! Driven from outside under one lock: posts, packets that came, packets that may leave, time. Touches no memory but its own
//! and never waits; what it needs of the world it asks of its [`Host`].

mod words;

pub(crate) use words::{Channel, Config, Host, News, Outgoing, Payload, Post, Source, Work};

use std::collections::VecDeque;

use dapl::provider::Status;

use crate::proto::Nanos;
use crate::proto::counters::Counters;
use crate::proto::setup::Terms;
use crate::proto::wire::Head;

/// A connection that stands, until nothing more needs an answer. `Q` and `R` are kept for the driver with requests and
/// receives.
pub(crate) struct Conn<Q, R> {
    terms: Terms,
    requests: VecDeque<Q>,
    recvs: VecDeque<R>,
    news: Option<News>,
    counters: Counters,
}

impl<Q, R> Conn<Q, R> {
    /// What the set-up has agreed on.
    pub(crate) fn new(_config: &Config, terms: Terms, _now: Nanos) -> Self {
        let (requests, recvs) = (VecDeque::new(), VecDeque::new());
        Conn { terms, requests, recvs, news: None, counters: Counters::default() }
    }

    /// Posts a request; the caller has seen to it that there is room. After the end it is flushed at once.
    pub(crate) fn post(&mut self, _now: Nanos, post: Post<Q>, _host: &mut impl Host<Request = Q, Recv = R>) {
        self.requests.push_back(post.request);
    }

    /// Posts a receive of `length` bytes, likewise.
    pub(crate) fn post_recv(
        &mut self,
        _now: Nanos,
        recv: R,
        _length: u64,
        _host: &mut impl Host<Request = Q, Recv = R>,
    ) {
        self.recvs.push_back(recv);
    }

    /// A packet for this connection, with its token: `body` is what follows the head.
    pub(crate) fn receive(
        &mut self,
        _now: Nanos,
        _head: &Head,
        _body: &[u8],
        _from: Source,
        _host: &mut impl Host<Request = Q, Recv = R>,
    ) {
    }

    /// The next packet that may leave now: its header is appended to `out`.
    pub(crate) fn transmit(
        &mut self,
        _now: Nanos,
        _out: &mut Vec<u8>,
        _host: &mut impl Host<Request = Q, Recv = R>,
    ) -> Option<Outgoing> {
        None
    }

    /// The deadline is here. Packets may be due after it.
    pub(crate) fn on_time(&mut self, _now: Nanos, _host: &mut impl Host<Request = Q, Recv = R>) {}

    /// When `on_time` is to be called, at the latest.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// `transmit` would give something.
    pub(crate) fn has_work(&self, _now: Nanos) -> bool {
        false
    }

    /// What the driver keeps with the request of a `Payload`.
    pub(crate) fn request(&self, slot: u32) -> Option<&Q> {
        self.requests.get(slot as usize)
    }

    /// The memory of a payload could not be read; the packet does not leave.
    pub(crate) fn source_gone(
        &mut self,
        _payload: &Payload,
        _status: Status,
        _host: &mut impl Host<Request = Q, Recv = R>,
    ) {
    }

    /// The socket says that a datagram of so many bytes is too large for the path.
    pub(crate) fn too_large(&mut self, _now: Nanos, _bytes: usize) {}

    /// Ends the connection when the last request is complete.
    pub(crate) fn drain(&mut self, _now: Nanos) {}

    /// Ends it now: everything posted is flushed, the peer is told. No news come of it.
    pub(crate) fn abort(&mut self, _now: Nanos, host: &mut impl Host<Request = Q, Recv = R>) {
        self.requests.drain(..).for_each(|request| host.request_done(request, Status::Flushed, 0));
        self.recvs.drain(..).for_each(|recv| host.recv_done(recv, Status::Flushed, 0, false));
    }

    /// What became of it; each is told once.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// All is flushed; what comes is answered until `is_over`.
    pub(crate) fn is_closed(&self) -> bool {
        self.news.is_some()
    }

    /// Nothing more needs an answer: it can be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        self.news.is_some()
    }

    /// Where packets go, unless they say otherwise.
    pub(crate) fn peer(&self) -> Source {
        self.terms.peer
    }

    /// Posted and not complete: requests, and receives (out of a shared queue: those that were taken).
    pub(crate) fn outstanding(&self) -> (u32, u32) {
        (self.requests.len() as u32, self.recvs.len() as u32)
    }

    /// What it has counted, and how it stands.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }
}
