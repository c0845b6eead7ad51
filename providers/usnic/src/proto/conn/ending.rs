//! How a connection ends: drained and with a FIN, at once and with a reset, refused, or given up.
//!
//! Whatever the way: everything posted completes exactly once, in order; then there is one piece of news; then late packets
//! are answered for a while, so that the other side learns of it too.

use dapl::provider::Status;

use super::Conn;
use super::words::{Host, News, Payload};
use crate::proto::psn::Psn;
use crate::proto::wire::{Kind, Refusal};
use crate::proto::{MILLIS, Nanos};

/// A last word is repeated after so long, then after twice as long, and so on.
const REPEAT: Nanos = 20 * MILLIS;
/// A word that needs no answer is said so often.
const WORDS: u32 = 4;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Open,
    /// Ends when the last request is complete.
    Draining,
    /// The peer is told so, until it answers.
    Finishing,
    /// All is flushed.
    Closed,
}

#[derive(Debug, Default)]
pub(super) struct Ending {
    phase: Phase,
    news: Option<News>,
    /// Said now; repeated by itself then.
    word: Option<Kind>,
    is_due: bool,
    again: Option<Nanos>,
    said: u32,
    since: Nanos,
    /// Told in every ack.
    pub(super) refusal: Option<(Refusal, Psn)>,
    /// Nobody has to be answered any more after this.
    until: Option<Nanos>,
}

impl Ending {
    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    pub(super) fn has_word(&self) -> bool {
        self.is_due && self.word.is_some()
    }

    /// The word that is to be said now.
    pub(super) fn word(&mut self, now: Nanos) -> Option<Kind> {
        let word = self.word.filter(|_| self.is_due)?;
        self.is_due = false;
        let repeats = word == Kind::Fin || (word == Kind::Reset && self.said < WORDS);
        self.again = repeats.then(|| now.saturating_add(REPEAT << self.said.min(6)));
        self.said += 1;
        Some(word)
    }

    fn say(&mut self, word: Kind, now: Nanos) {
        (self.word, self.is_due, self.said, self.since) = (Some(word), true, 0, now);
    }

    /// No request is outstanding.
    pub(super) fn emptied(&mut self, now: Nanos) {
        if self.phase == Phase::Draining {
            self.phase = Phase::Finishing;
            self.say(Kind::Fin, now);
        }
    }

    /// The peer still says something, after the end: it has not heard our last word.
    pub(super) fn spoken_to(&mut self) {
        self.is_due = matches!(self.word, Some(Kind::Reset | Kind::Fin));
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        [self.again, self.until].into_iter().flatten().min()
    }
}

impl<Q, R> Conn<Q, R> {
    /// Ends the connection when the last request is complete.
    pub(crate) fn drain(&mut self, now: Nanos) {
        self.now = now;
        if self.ending.phase == Phase::Open {
            self.ending.phase = Phase::Draining;
            if self.requests.queue.is_empty() {
                self.ending.emptied(now);
            }
        }
    }

    /// Ends it now: everything posted is flushed, the peer is told. No news come of it.
    pub(crate) fn abort(&mut self, now: Nanos, host: &mut impl Host<Request = Q, Recv = R>) {
        self.now = now;
        self.settle(host);
        if !self.ending.is_closed() {
            self.close(None, host);
            self.ending.say(Kind::Reset, now);
        }
        self.ending.news = None;
    }

    /// What became of it; told once.
    pub(crate) fn news(&mut self) -> Option<News> {
        self.ending.news.take()
    }

    /// All is flushed; what comes is answered until `is_over`.
    pub(crate) fn is_closed(&self) -> bool {
        self.ending.is_closed()
    }

    /// Nothing more needs an answer: it can be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.is_closed() && !self.ending.has_word() && self.ending.until.is_none()
    }

    /// The memory of a payload could not be read; the packet does not leave.
    pub(crate) fn source_gone(
        &mut self,
        payload: &Payload,
        status: Status,
        host: &mut impl Host<Request = Q, Recv = R>,
    ) {
        if self.ending.is_closed() {
            return;
        }
        match *payload {
            Payload::Request { slot, .. } => {
                self.requests.fail(slot, status);
                self.retire(host);
            }
            Payload::Remote { slot, .. } => {
                self.serving.lose(slot);
                self.refuse_gone(host);
            }
            Payload::None | Payload::Padding(_) => {}
        }
    }

    /// A read whose memory is gone is refused when all before it have been answered.
    pub(super) fn refuse_gone(&mut self, host: &mut impl Host<Request = Q, Recv = R>) {
        if let Some(psn) = self.serving.refusable() {
            self.refuse(Refusal::Source, psn, None, host);
        }
    }

    /// The peer asks for what it may not have: it is told, and both sides are done. `receive`: one that fails of itself.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        refusal: Refusal,
        psn: Psn,
        receive: Option<(u32, Status)>,
        host: &mut impl Host<Request = Q, Recv = R>,
    ) {
        self.counters.refusals_sent += 1;
        if let Some((place, status)) = receive
            && self.receives.is_first(place)
            && let Some(own) = self.receives.pop()
        {
            host.recv_done(own, status, 0, false);
        }
        self.close(Some(News::Broken), host);
        self.ending.refusal = Some((refusal, psn));
        self.ending.again = Some(self.now.saturating_add(REPEAT));
        self.acks.whole_at_once();
    }

    /// The peer refused a message of ours.
    #[cold]
    pub(super) fn refused(&mut self, refusal: Refusal, psn: Psn, host: &mut impl Host<Request = Q, Recv = R>) {
        if self.ending.is_closed() {
            return;
        }
        self.counters.refusals_received += 1;
        let status = match refusal {
            Refusal::Access | Refusal::Source => Status::RemoteAccess,
            Refusal::Receive | Refusal::Nonsense => Status::RemoteResponder,
        };
        let culprit = self.requests.of_packet(psn).or(self.requests.queue.first());
        if let Some(slot) = culprit {
            // Those before it are not complete, and will not be.
            while let Some(first) = self.requests.queue.first().filter(|first| *first != slot) {
                self.give_back(first, Status::Flushed, host);
            }
            self.give_back(slot, status, host);
        }
        self.break_off(host);
    }

    /// The peer answers what was not asked.
    #[cold]
    pub(super) fn bad_answer(&mut self, host: &mut impl Host<Request = Q, Recv = R>) {
        self.counters.malformed += 1;
        self.end_with(Status::BadResponse, host);
    }

    /// Nothing comes back any more.
    #[cold]
    pub(super) fn give_up(&mut self, host: &mut impl Host<Request = Q, Recv = R>) {
        self.end_with(Status::Transport, host);
    }

    /// The oldest request ends so; without one, the peer went away.
    fn end_with(&mut self, status: Status, host: &mut impl Host<Request = Q, Recv = R>) {
        let is_idle = self.requests.queue.is_empty();
        if let Some(request) = self.requests.queue.pop() {
            host.request_done(request.own, status, 0);
        }
        self.close(Some(if is_idle { News::Disconnected } else { News::Broken }), host);
        self.ending.say(Kind::Reset, self.now);
    }

    fn give_back(&mut self, slot: u32, status: Status, host: &mut impl Host<Request = Q, Recv = R>) {
        if let Some(request) = self.requests.queue.take(slot) {
            host.request_done(request.own, status, 0);
        }
    }

    /// A request has failed: the peer is told that it is over.
    #[cold]
    pub(super) fn break_off(&mut self, host: &mut impl Host<Request = Q, Recv = R>) {
        self.close(Some(News::Broken), host);
        self.ending.say(Kind::Reset, self.now);
    }

    /// The peer ends it.
    #[cold]
    pub(super) fn take_end(&mut self, kind: Kind, host: &mut impl Host<Request = Q, Recv = R>) {
        let is_closed = self.ending.is_closed();
        match kind {
            Kind::Fin => {
                if !is_closed {
                    self.close(Some(News::Disconnected), host);
                }
                if self.ending.word.is_none_or(|word| word != Kind::Reset) {
                    self.ending.say(Kind::FinAck, self.now);
                }
            }
            Kind::FinAck if self.ending.phase == Phase::Finishing => {
                self.close(Some(News::Disconnected), host);
            }
            Kind::Reset => {
                if !is_closed {
                    self.close(Some(News::Disconnected), host);
                }
                // Who has said this listens to nothing more.
                (self.ending.word, self.ending.again, self.ending.until) = (None, None, None);
                self.ending.refusal = None;
            }
            _ => {}
        }
    }

    /// Flushes everything in its order.
    #[cold]
    fn close(&mut self, news: Option<News>, host: &mut impl Host<Request = Q, Recv = R>) {
        self.ending.phase = Phase::Closed;
        self.ending.news = news;
        self.ending.again = None;
        self.ending.word = None;
        self.ending.until = Some(self.now.saturating_add(self.config.linger));
        while let Some(request) = self.requests.queue.pop() {
            host.request_done(request.own, Status::Flushed, 0);
        }
        while let Some(own) = self.receives.pop() {
            host.recv_done(own, Status::Flushed, 0, false);
        }
        self.serving.clear();
        self.notes.clear();
        self.credits.stop();
        self.turn_at = None;
    }

    /// Of the end, what the time brings.
    pub(super) fn end_on_time(&mut self, host: &mut impl Host<Request = Q, Recv = R>) {
        let now = self.now;
        if self.ending.again.is_some_and(|at| at <= now) {
            self.ending.again = None;
            if self.ending.refusal.is_some() {
                self.ending.said += 1;
                self.ending.again = (self.ending.said < WORDS).then(|| now.saturating_add(REPEAT << self.ending.said));
                self.acks.whole_at_once();
            }
            self.ending.is_due = self.ending.word.is_some();
            if self.ending.phase == Phase::Finishing && now.saturating_sub(self.ending.since) >= self.config.give_up {
                self.close(Some(News::Disconnected), host);
            }
        }
        if self.ending.until.is_some_and(|at| at <= now) {
            (self.ending.until, self.ending.again, self.ending.word) = (None, None, None);
        }
    }
}
