//! The close handshake: sends a Fin or Reset until the peer replies, and replies to a Fin or Reset of the peer.
//!
//! `Conn` creates a [`Closing`] when the connection is drained, aborted or broken by a failure, or when the peer ends
//! it. The object retransmits its Fin or Reset until the peer replies or the time limit has passed. The close is then
//! done. The object exists for the time `linger` after that, to reply again if its reply was lost (like TIME_WAIT).
//!
//! Each row of the table is a state, each column an event. A cell contains the reply that is sent, and the new state.
//!
//! | state | Fin arrives | FinAck arrives | Reset arrives | time limit |
//! |---|---|---|---|---|
//! | Fin sent | FinAck, done | done | FinAck, done | done |
//! | Reset sent | no reply, because the Reset is retransmitted | done | FinAck, done | done |
//! | done | FinAck | no reply | FinAck | object freed (`linger`) |
//!
//! A connection that the peer has ended is done from the start. The time limit of "Reset sent" is [`MAX_RESETS`]
//! transmissions, if they end before `give_up`.

use crate::proto::wire::Kind;
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Maximum interval between retransmissions, in nanoseconds. The interval doubles up to this value.
const MAX_INTERVAL: Nanos = SECONDS;
/// Minimum interval between retransmissions, in nanoseconds.
const MIN_INTERVAL: Nanos = 5 * MILLIS;
/// Maximum number of transmissions of a Reset. If all are lost, the peer's timeouts end its connection.
const MAX_RESETS: u32 = 6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CloseTiming {
    /// First retransmission interval, longer than a round trip.
    pub(crate) timeout: Nanos,
    /// Time without a reply after which the peer has timed out.
    pub(crate) give_up: Nanos,
    /// Time for which late packets get a reply.
    pub(crate) linger: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Closing {
    /// The packet to send: a Fin or Reset. `FinAck` if the peer has ended the connection.
    kind: Kind,
    /// Time of the next transmission of this packet, if any.
    due: Option<Nanos>,
    wait: Nanos,
    transmissions: u32,
    /// Whether a reply to a received packet is due.
    pub(crate) must_reply: bool,
    /// Whether the close is done: the peer knows that the connection has ended, or has timed out.
    known: bool,
    give_up: Nanos,
    linger: Nanos,
    /// Time at which the closing connection can be freed.
    free_at: Nanos,
}

impl Closing {
    /// Starts a close by the peer: replies to its Fin or Reset.
    pub(crate) fn reply(now: Nanos, timing: CloseTiming) -> Closing {
        Closing { must_reply: true, known: true, due: None, ..Closing::new(Kind::FinAck, now, timing) }
    }

    /// Starts a graceful close (`Fin`), after the peer has acked all packets of requests, or an abrupt one (`Reset`).
    pub(crate) fn new(kind: Kind, now: Nanos, timing: CloseTiming) -> Closing {
        Closing {
            kind,
            due: Some(now),
            wait: timing.timeout.clamp(MIN_INTERVAL, MAX_INTERVAL),
            transmissions: 0,
            must_reply: false,
            known: false,
            give_up: now.saturating_add(timing.give_up),
            linger: timing.linger,
            free_at: now.saturating_add(timing.linger),
        }
    }

    /// Handles a packet of the connection.
    pub(crate) fn receive(&mut self, now: Nanos, kind: Kind) {
        match (self.kind, kind) {
            // An aborted connection does not reply to a Fin. The peer gets the retransmissions of the Reset.
            (Kind::Reset, Kind::Fin) if !self.known => {}
            (_, Kind::Fin | Kind::Reset) => {
                self.must_reply = true;
                self.stop_retransmitting(now);
            }
            (Kind::Fin | Kind::Reset, Kind::FinAck) => self.stop_retransmitting(now),
            _ => {}
        }
    }

    /// Stops retransmissions, because the peer knows that the connection has ended, or has timed out.
    fn stop_retransmitting(&mut self, now: Nanos) {
        if !self.known {
            self.known = true;
            self.due = None;
            self.free_at = now.saturating_add(self.linger);
        }
    }

    /// Returns the kind of the packet that is due, if any. The caller sends it.
    pub(crate) fn transmit(&mut self, now: Nanos) -> Option<Kind> {
        if std::mem::take(&mut self.must_reply) {
            return Some(Kind::FinAck);
        }
        self.due.filter(|due| now >= *due)?;
        self.transmissions += 1;
        self.due = Some(now.saturating_add(self.wait));
        self.wait = (self.wait * 2).min(MAX_INTERVAL);
        Some(self.kind)
    }

    /// Whether `transmit` would return a packet.
    pub(crate) fn has_packet(&self, now: Nanos) -> bool {
        self.must_reply || self.due.is_some_and(|due| due <= now)
    }

    /// Handles an expired deadline.
    pub(crate) fn on_time(&mut self, now: Nanos) {
        let is_enough =
            self.kind == Kind::Reset && self.transmissions >= MAX_RESETS && self.due.is_some_and(|due| now >= due);
        if now >= self.give_up || is_enough {
            self.stop_retransmitting(now);
        }
    }

    /// Returns the time of the next call of `on_time` or `transmit`.
    pub(crate) fn deadline(&self) -> Nanos {
        match self.due {
            _ if self.must_reply => 0,
            Some(due) => due.min(self.give_up),
            None => self.free_at,
        }
    }

    /// Whether the peer knows that the connection has ended, or has timed out. A drained connection reports its event
    /// when this becomes true.
    pub(crate) fn is_done(&self) -> bool {
        self.known
    }

    /// Whether the closing connection can be freed, because late packets no longer need replies.
    pub(crate) fn can_be_freed(&self, now: Nanos) -> bool {
        self.known && !self.must_reply && now >= self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::setup::tests::TestRandom;

    const TIMING: CloseTiming = CloseTiming { timeout: 20 * MILLIS, give_up: 10 * SECONDS, linger: SECONDS };

    fn sent(closing: &mut Closing, now: Nanos) -> Vec<Kind> {
        std::iter::from_fn(|| closing.transmit(now)).collect()
    }

    fn start_graceful(now: Nanos) -> Closing {
        Closing::new(Kind::Fin, now, TIMING)
    }

    #[test]
    fn fin_is_retransmitted_until_the_reply() {
        let mut closing = start_graceful(0);
        assert_eq!(sent(&mut closing, 0), [Kind::Fin]);
        assert_eq!(closing.deadline(), 20 * MILLIS);
        assert_eq!(sent(&mut closing, 20 * MILLIS), [Kind::Fin]);
        assert_eq!(closing.deadline(), 60 * MILLIS);
        assert!(!closing.is_done());
        closing.receive(60 * MILLIS, Kind::FinAck);
        assert!(closing.is_done() && !closing.can_be_freed(60 * MILLIS));
        assert_eq!(sent(&mut closing, 60 * MILLIS), []);
        assert!(closing.can_be_freed(60 * MILLIS + TIMING.linger) && closing.deadline() == 60 * MILLIS + TIMING.linger);
    }

    #[test]
    fn lost_reply_is_repeated_while_closing() {
        let mut closing = Closing::reply(0, TIMING);
        assert!(closing.is_done() && !closing.can_be_freed(TIMING.linger), "the FIN must still be answered");
        assert_eq!(sent(&mut closing, 0), [Kind::FinAck]);
        for kind in [Kind::Fin, Kind::Reset] {
            closing.receive(5, kind);
            assert_eq!(sent(&mut closing, 5), [Kind::FinAck]);
        }
        for kind in [Kind::FinAck, Kind::Ack, Kind::Fragment, Kind::Confirm] {
            closing.receive(5, kind);
            assert_eq!(sent(&mut closing, 5), [], "{kind:?} gets no answer");
        }
        assert!(closing.can_be_freed(TIMING.linger));
    }

    #[test]
    fn simultaneous_fins_complete_both_closes() {
        let (mut one, mut other) = (start_graceful(0), start_graceful(0));
        assert_eq!((sent(&mut one, 0), sent(&mut other, 0)), (vec![Kind::Fin], vec![Kind::Fin]));
        one.receive(1, Kind::Fin);
        other.receive(1, Kind::Fin);
        assert!(one.is_done() && other.is_done());
        assert_eq!((sent(&mut one, 1), sent(&mut other, 1)), (vec![Kind::FinAck], vec![Kind::FinAck]));
        one.receive(2, Kind::FinAck);
        assert_eq!(sent(&mut one, 2), [], "a FinAck gets no answer");
    }

    #[test]
    fn crossing_fin_and_reset_complete_both_closes() {
        let mut fin = start_graceful(0);
        let mut reset = Closing::new(Kind::Reset, 0, TIMING);
        assert_eq!((sent(&mut fin, 0), sent(&mut reset, 0)), (vec![Kind::Fin], vec![Kind::Reset]));
        reset.receive(1, Kind::Fin);
        assert!(!reset.is_done(), "a FIN from the peer does not confirm the Reset");
        assert_eq!(sent(&mut reset, 20 * MILLIS), [Kind::Reset]);
        fin.receive(1, Kind::Reset);
        assert!(fin.is_done());
        assert_eq!(sent(&mut fin, 1), [Kind::FinAck]);
        reset.receive(2, Kind::FinAck);
        assert!(reset.is_done());
    }

    #[test]
    fn close_to_a_silent_peer_times_out() {
        for (mut closing, word, at_most) in [
            (start_graceful(0), Kind::Fin, TIMING.give_up),
            (Closing::new(Kind::Reset, 0, TIMING), Kind::Reset, 2 * SECONDS),
        ] {
            let (mut now, mut times) = (0, 0);
            while !closing.is_done() {
                assert!(sent(&mut closing, now).iter().all(|kind| *kind == word));
                times += 1;
                assert!(closing.deadline() > now, "the next deadline is in the future");
                now = closing.deadline();
                closing.on_time(now);
            }
            assert!(
                now <= at_most && times > 4,
                "{word:?} was sent {times} times until {now} ns, instead of more than 4 times until {at_most} ns"
            );
            assert!(closing.can_be_freed(now + TIMING.linger) && !closing.can_be_freed(now));
        }
    }

    #[test]
    fn both_sides_close_under_random_loss() {
        for seed in 0..500 {
            let mut dice = TestRandom::new(seed);
            let (mut one, mut other) = (Some(start_graceful(0)), None::<Closing>);
            let mut in_flight: Vec<(Nanos, usize, Kind)> = Vec::new();
            let mut now = 0;
            while !one.as_ref().is_some_and(|end| end.can_be_freed(now)) && now < 60 * SECONDS {
                for (from, end) in [&mut one, &mut other].into_iter().enumerate() {
                    let Some(end) = end else { continue };
                    end.on_time(now);
                    for kind in sent(end, now) {
                        (0..dice.below(3))
                            .for_each(|_| in_flight.push((now + dice.below(30) * MILLIS, 1 - from, kind)));
                    }
                }
                let (arrived, rest) = in_flight.into_iter().partition::<Vec<_>, _>(|(at, ..)| *at <= now);
                in_flight = rest;
                for (_, to, kind) in arrived {
                    match [&mut one, &mut other][to] {
                        Some(end) => end.receive(now, kind),
                        None if kind == Kind::Fin => other = Some(Closing::reply(now, TIMING)),
                        None => panic!("seed {seed}: a side without a connection received {kind:?} instead of Fin"),
                    }
                }
                now += MILLIS;
            }
            assert!(
                one.is_some_and(|end| end.is_done()) && other.is_some(),
                "seed {seed}: both sides must complete the close"
            );
            assert!(now < TIMING.give_up, "seed {seed}: the close ended only by its timeout");
        }
    }
}
