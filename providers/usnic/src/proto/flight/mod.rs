//! What was sent and is not acked: who may send, what is lost, and when to worry (US-8, US-9, US-11).
//!
//! A packet is in one of four states: free (acked, its number is done with), queued (it has no number yet, so this room does
//! not know it), in flight, to be resent. A connection says what it sent, hands in every ack that came, and asks what to
//! send again and when to come back. An ack may be stale, doubled, or made up: what lies outside of what was sent is counted
//! and changes nothing. Each packet costs a bounded amount of work, and the memory grows to the window and no further.
//!
//! Nothing is sent here, and how fast to send is for `congestion` to say.

mod reorder;
mod ring;

use super::bits::Bits;
use super::psn::Psn;
use super::rtt::{Rtt, Timing};
use super::wire::Range;
use super::{Nanos, WINDOW};
use reorder::Reorder;
use ring::Ring;

/// Timeouts in a row before a peer can be given up: a process that slept has to ask again first.
const TIMEOUTS: u32 = 3;

/// Why a packet is to be sent again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Why {
    /// Later ones were acked.
    Gap,
    /// Nothing was acked for long: it is sent to get an answer.
    Probe,
}

/// Where a packet stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    Free,
    Queued,
    Flying,
    Lost,
}

/// An ack of what was not sent, or of what was done with long ago.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OutOfWindow;

/// Packets that were found lost at one time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Lost {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    /// When the first and the last of them had left.
    pub(crate) first_sent: Nanos,
    pub(crate) last_sent: Nanos,
}

impl Lost {
    fn add(&mut self, sent: Nanos, bytes: u32) {
        self.first_sent = if self.packets == 0 { sent } else { self.first_sent.min(sent) };
        self.last_sent = self.last_sent.max(sent);
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

/// What an ack brought.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Acked {
    /// Newly acked.
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    /// A new sample, without the peer's delay; it is in `rtt()` already.
    pub(crate) rtt: Option<Nanos>,
    /// Found lost; they are on the resend list.
    pub(crate) lost: Lost,
    /// The cumulative number moved.
    pub(crate) advanced: bool,
    /// Packets that were thought lost, and whose first copy came after all.
    pub(crate) spurious: u32,
    /// Older than one that came before: nothing was done.
    pub(crate) old: bool,
}

/// What a deadline brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Timeout {
    /// It was not yet time.
    Nothing,
    /// So many packets were put on the resend list, and as many may leave whatever the congestion window says
    /// (`probes`). They are not known to be lost.
    Probe(u32),
    /// These are lost, and on the resend list.
    Lost(Lost),
    /// No progress for the time agreed: the peer is gone.
    GiveUp,
}

/// What happened, for those who look for trouble.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    /// Acks: older than another, repeating a gap, outside of what was sent.
    pub(crate) old: u64,
    pub(crate) repeated: u64,
    pub(crate) outside: u64,
    /// Packets put on the resend list, by cause.
    pub(crate) gaps: u64,
    pub(crate) probes: u64,
    /// Of these, those whose first copy came after all.
    pub(crate) spurious_gaps: u64,
    pub(crate) spurious_probes: u64,
}

/// Packets sent and not acked. `T`: what is needed to send one again.
#[derive(Debug)]
pub(crate) struct Flight<T> {
    /// Everything before `first` is acked; `next` was not yet sent.
    first: Psn,
    next: Psn,
    /// From `first` on: sent and not acked, and of these the ones to be resent; the others fly.
    unacked: Bits,
    lost: Bits,
    lost_count: u32,
    /// None before this one is to be resent.
    lost_from: Psn,
    ring: Ring<T>,
    reorder: Reorder,
    rtt: Rtt,
    /// When something was last acked, or the first packet left.
    progress: Nanos,
    /// When the last timeout was, and how many there were since the last progress.
    timed_out: Nanos,
    timeouts: u32,
    probes: u32,
    /// Acks since the cumulative number moved that tell of a gap behind it.
    gap_acks: u32,
    tally: Tally,
}

/// What one ack's packets say together.
#[derive(Default)]
struct Round {
    acked: Acked,
    /// Latest leave among the packets sent once, and when that was.
    newest: Option<(u64, Nanos)>,
    /// One was sent more than once: what the ack answers is not sure (Karn).
    is_unsure: bool,
}

impl<T: Copy> Flight<T> {
    /// Nothing was sent; the first packet will be `first`.
    pub(crate) fn new(first: Psn, timing: Timing) -> Self {
        Flight {
            first,
            next: first,
            unacked: Bits::new(),
            lost: Bits::new(),
            lost_count: 0,
            lost_from: first,
            ring: Ring::new(),
            reorder: Reorder::new(),
            rtt: Rtt::new(timing),
            progress: 0,
            timed_out: 0,
            timeouts: 0,
            probes: 0,
            gap_acks: 0,
            tally: Tally::default(),
        }
    }

    /// The number of the next new packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Everything before this is acked.
    pub(crate) fn cumulative(&self) -> Psn {
        self.first
    }

    /// From the first that is not acked to the last sent.
    fn span(&self) -> u32 {
        self.next.since(self.first).unsigned_abs()
    }

    /// New packets that may be sent before the window is full (US-8).
    pub(crate) fn room(&self) -> u32 {
        WINDOW - self.span()
    }

    /// Everything sent is acked.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// In flight; those to be resent are not.
    pub(crate) fn bytes(&self) -> u64 {
        self.ring.bytes()
    }

    /// In flight; those to be resent are not.
    pub(crate) fn packets(&self) -> u32 {
        self.ring.flying()
    }

    /// Packets to be resent.
    pub(crate) fn lost_packets(&self) -> u32 {
        self.lost_count
    }

    /// Packets that may leave although the congestion window is full.
    pub(crate) fn probes(&self) -> u32 {
        self.probes
    }

    /// Timeouts since the last progress.
    pub(crate) fn timeouts(&self) -> u32 {
        self.timeouts
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Where a packet of the window stands.
    pub(crate) fn state(&self, psn: Psn) -> State {
        match psn.since(self.first) {
            ..0 => State::Free,
            at if at.unsigned_abs() >= self.span() => State::Queued,
            _ if !self.unacked.has(psn) => State::Free,
            _ if self.lost.has(psn) => State::Lost,
            _ => State::Flying,
        }
    }

    /// A new packet leaves. There has to be room.
    pub(crate) fn sent(&mut self, now: Nanos, bytes: u64, what: T) -> Psn {
        assert!(self.room() > 0, "who sends asks for room first");
        if self.is_empty() {
            self.progress = now;
        }
        let psn = self.next;
        let order = self.reorder.leave();
        self.ring.insert(psn, self.span(), what, u32::try_from(bytes).unwrap_or(u32::MAX), now, order);
        self.unacked.set(psn);
        self.next = psn.next();
        self.probes = self.probes.saturating_sub(1);
        psn
    }

    /// The first packet to be resent.
    pub(crate) fn lost(&self) -> Option<(Psn, T)> {
        if self.lost_count == 0 {
            return None;
        }
        let from = if self.lost_from.is_before(self.first) { self.first } else { self.lost_from };
        let psn = self.lost.first_set(from, self.next.since(from).unsigned_abs())?;
        Some((psn, self.ring.slot(psn).what))
    }

    /// Why a packet is to be resent, or was resent last.
    pub(crate) fn why(&self, psn: Psn) -> Option<Why> {
        matches!(self.state(psn), State::Flying | State::Lost).then(|| self.ring.slot(psn).why)
    }

    /// A packet left again. One that was acked meanwhile stays so.
    pub(crate) fn resent(&mut self, now: Nanos, psn: Psn) {
        match self.state(psn) {
            State::Free | State::Queued => return,
            State::Flying => self.stop(psn),
            State::Lost => {
                self.lost.clear(psn);
                self.lost_count -= 1;
                if self.lost_from == psn {
                    self.lost_from = psn.next();
                }
            }
        }
        let order = self.reorder.leave();
        let slot = self.ring.slot_mut(psn);
        (slot.sent, slot.order, slot.sends) = (now, order, slot.sends.saturating_add(1));
        self.ring.append(psn);
        self.probes = self.probes.saturating_sub(1);
    }

    /// Takes one that flies out of the flight, although it is not known where it is.
    fn stop(&mut self, psn: Psn) {
        if self.ring.oldest() != Some(psn) {
            self.reorder.void(self.ring.slot(psn).order);
        }
        self.ring.remove(psn);
    }

    /// One that flies is to be resent.
    fn lose(&mut self, psn: Psn, why: Why) -> (Nanos, u32) {
        self.stop(psn);
        self.lost_from = match self.lost_count {
            0 => psn,
            _ if psn.is_before(self.lost_from) => psn,
            _ => self.lost_from,
        };
        self.lost.set(psn);
        self.lost_count += 1;
        match why {
            Why::Gap => self.tally.gaps += 1,
            Why::Probe => self.tally.probes += 1,
        }
        let slot = self.ring.slot_mut(psn);
        slot.why = why;
        (slot.sent, slot.bytes)
    }

    /// An ack came: all before `next`, and `ranges` behind it; the peer waited for `delay`. `done` is called once for each
    /// packet that is newly acked, those before `next` in their order.
    pub(crate) fn acked(
        &mut self,
        now: Nanos,
        next: Psn,
        ranges: &[Range],
        delay: Nanos,
        done: &mut impl FnMut(Psn, T),
    ) -> Result<Acked, OutOfWindow> {
        if !self.is_inside(next, ranges) {
            self.tally.outside += 1;
            return Err(OutOfWindow);
        }
        if next.is_before(self.first) {
            self.tally.old += 1;
            return Ok(Acked { old: true, ..Acked::default() });
        }
        let mut round = Round::default();
        round.acked.advanced = next != self.first;
        self.take(now, self.first, next, &mut round, done);
        self.first = next;
        for range in ranges {
            self.take(now, Psn(range.first.get()), Psn(range.end.get()), &mut round, done);
        }
        self.learn(now, delay, &mut round);
        self.note_gap(now, !ranges.is_empty(), &mut round.acked);
        self.detect(now, &mut round.acked.lost);
        Ok(round.acked)
    }

    /// Nothing of it is about packets that were not sent, or that nobody can still wait for.
    fn is_inside(&self, next: Psn, ranges: &[Range]) -> bool {
        const LENGTH: i32 = WINDOW as i32;
        let sent = self.next.since(next);
        let is_near = (0..=LENGTH).contains(&sent) || (0..=LENGTH).contains(&self.first.since(next));
        let fits = |range: &Range| {
            let (first, end) = (Psn(range.first.get()).since(next), Psn(range.end.get()).since(next));
            0 <= first && first < end && end <= sent
        };
        is_near && ranges.iter().all(fits)
    }

    /// The packets of a range are there.
    fn take(&mut self, now: Nanos, from: Psn, end: Psn, round: &mut Round, done: &mut impl FnMut(Psn, T)) {
        let mut at = from;
        while at.is_before(end) {
            let Some(psn) = self.unacked.first_set(at, end.since(at).unsigned_abs()) else { return };
            self.settle(now, psn, round);
            done(psn, self.ring.slot(psn).what);
            at = psn.next();
        }
    }

    /// A packet is there: which of its copies?
    fn settle(&mut self, now: Nanos, psn: Psn, round: &mut Round) {
        let slot = self.ring.slot(psn);
        let (sent, order, sends, why) = (slot.sent, slot.order, slot.sends, slot.why);
        round.acked.packets += 1;
        round.acked.bytes += u64::from(slot.bytes);
        self.unacked.clear(psn);
        let was_lost = self.lost.has(psn);
        if was_lost {
            self.lost.clear(psn);
            self.lost_count -= 1;
        } else {
            self.ring.remove(psn);
        }
        // Sooner than anything ever came back: that was an earlier copy.
        let is_early = sends > 1 && self.rtt.minimum().is_some_and(|minimum| now.saturating_sub(sent) < minimum);
        if was_lost || is_early {
            self.in_vain(now, why, round);
        } else if sends > 1 && why == Why::Gap {
            self.reorder.needed();
        }
        if sends == 1 {
            self.reorder.arrived(order);
            round.newest = round.newest.max(Some((order, sent)));
        } else if is_early && !was_lost {
            self.reorder.void(order);
        } else if !was_lost {
            self.reorder.arrived(order);
        }
        round.is_unsure |= sends > 1;
    }

    /// A packet was put on the resend list for nothing.
    fn in_vain(&mut self, now: Nanos, why: Why, round: &mut Round) {
        match why {
            Why::Gap => {
                self.tally.spurious_gaps += 1;
                round.acked.spurious += 1;
                self.reorder.vain(now, &self.rtt);
            }
            Why::Probe => self.tally.spurious_probes += 1,
        }
    }

    /// What follows from packets newly acked.
    fn learn(&mut self, now: Nanos, delay: Nanos, round: &mut Round) {
        if round.acked.packets == 0 {
            return;
        }
        self.progress = now;
        self.timeouts = 0;
        self.probes = 0;
        if let (Some((_, sent)), false) = (round.newest, round.is_unsure) {
            self.rtt.sample(now, now.saturating_sub(sent), delay);
            round.acked.rtt = self.rtt.latest();
        }
    }

    /// An ack that tells once more of the same gap has the packet before it resent, unless a resend is on its way (US-11).
    fn note_gap(&mut self, now: Nanos, has_gap: bool, acked: &mut Acked) {
        if acked.advanced {
            self.gap_acks = 0;
        }
        if !has_gap {
            return;
        }
        self.gap_acks = self.gap_acks.saturating_add(1);
        if self.gap_acks == 1 {
            return;
        }
        self.tally.repeated += 1;
        if self.gap_acks <= self.reorder.repeats() || self.state(self.first) != State::Flying {
            return;
        }
        let slot = self.ring.slot(self.first);
        if slot.sends == 1 || now.saturating_sub(slot.sent) >= self.reorder.patience(&self.rtt) {
            let (sent, bytes) = self.lose(self.first, Why::Gap);
            acked.lost.add(sent, bytes);
        }
    }

    /// Finds what is lost, oldest first.
    fn detect(&mut self, now: Nanos, lost: &mut Lost) {
        let patience = self.reorder.patience(&self.rtt);
        while let Some(psn) = self.ring.oldest() {
            let slot = self.ring.slot(psn);
            let is_late = self.reorder.is_overtaken(slot.order) && now.saturating_sub(slot.sent) >= patience;
            if !is_late && !self.reorder.is_passed(slot.order, self.ring.flying() - 1) {
                return;
            }
            let (sent, bytes) = self.lose(psn, Why::Gap);
            lost.add(sent, bytes);
        }
    }

    /// When `on_time` has something to do; `None` if nothing is in flight (what is to be resent waits for its sender).
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let slot = self.ring.slot(self.ring.oldest()?);
        let timeout = self.timeout();
        if !self.reorder.is_overtaken(slot.order) {
            return Some(timeout);
        }
        Some(timeout.min(slot.sent.saturating_add(self.reorder.patience(&self.rtt))))
    }

    /// When to probe or to give up.
    fn timeout(&self) -> Nanos {
        let oldest = self.ring.oldest().map_or(0, |psn| self.ring.slot(psn).sent);
        let from = oldest.max(self.progress).max(self.timed_out);
        let timeout = from.saturating_add(self.rtt.pto(self.timeouts));
        match self.timeouts {
            ..TIMEOUTS => timeout,
            _ => timeout.min(self.give_up()),
        }
    }

    /// When the peer is gone, if it was asked often enough.
    fn give_up(&self) -> Nanos {
        self.progress.saturating_add(self.rtt.timing().give_up)
    }

    /// The time has come, perhaps. May have to be called again: ask `deadline`.
    pub(crate) fn on_time(&mut self, now: Nanos) -> Timeout {
        let mut lost = Lost::default();
        self.detect(now, &mut lost);
        if lost.packets > 0 {
            return Timeout::Lost(lost);
        }
        if self.ring.flying() == 0 || now < self.timeout() {
            return Timeout::Nothing;
        }
        if self.timeouts >= TIMEOUTS && now >= self.give_up() {
            return Timeout::GiveUp;
        }
        // One is enough if only an ack was late; if packets are lost, two have a better chance.
        self.probes = if self.timeouts == 0 { 1 } else { 2 };
        self.probes = self.probes.min(self.ring.flying());
        self.timeouts += 1;
        self.timed_out = now;
        for _ in 0..self.probes {
            if let Some(psn) = self.ring.oldest() {
                self.lose(psn, Why::Probe);
            }
        }
        Timeout::Probe(self.probes)
    }

    /// Gives the memory back of a connection that has nothing in flight, for one that rests; it comes again by itself.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            self.ring.rest();
        }
    }
}

#[cfg(test)]
mod tests;
