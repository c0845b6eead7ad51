//! A rate in place of a window, where loss comes at a rate and not from a queue: behind a policer on a short path.
//!
//! Such a path holds less than a packet, so windows say nothing there, and TCP recovers from loss within microseconds but
//! sits in a timeout where nothing of what it sends gets through. Whoever keeps the policer's bucket empty keeps TCP out; who
//! leaves room has TCP fill it. So time goes by turns: the rate grows slowly while nothing is lost, and falls while
//! something is, but not below a fair part of what was seen to pass. Now and then a turn probes for that. Knows no window
//! and no round trip; whether loss is congestion at all is `evidence`'s to say.

use super::Sample;
use super::rounds::{Load, Round};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Time in which losses are counted: more than TCP's bursts take, less than its timeouts.
const TURN: Nanos = 50 * MILLIS;
/// Part of what passes that we keep while others lose with us.
const FAIR: f64 = 0.4;
/// What is left of the rate after a turn with loss, and what is left at least where much is lost.
const GENTLE: f64 = 0.85;
const HARD: f64 = 0.5;
/// The least part of what is sent that is taken to get through: no more than twice the fair part leaves to make up for loss.
const LEAST: f64 = 0.5;
/// Loss of a turn that says that the path has become narrower: more than a TCP beside us causes that heeds no loss. What is
/// left of what passed, then: one such turn may be chance.
const MUCH: f64 = 0.5;
const NARROWER: f64 = 0.8;
/// Bytes a second by which the rate grows in a turn without loss, where so many pass: elsewhere by the root of that, for who
/// gets little must grow faster in proportion, or gets little for ever. Doubled after some such turns in a row, to an eighth.
const STEP: (f64, f64) = (1_250_000.0, 125_000_000.0);
const CALM: u32 = 8;
const LEAP: f64 = 0.125;
/// A turn in so long probes, if the rate is near the fair part: with so many times that. When hardly more of it is lost than
/// else, the next comes sooner, and with more, to a bound.
const PROBE: (Nanos, Nanos) = (2 * SECONDS, SECONDS / 2);
const NEAR: f64 = 1.5;
const PROBES: f64 = 3.0;
const FURTHER: (f64, f64, f64) = (0.95, 1.5, 12.0);
/// The first turn does with the best rate of late, in these bounds: what passes beside others says too little.
const FIRST: (f64, f64) = (2.0, 8.0);
/// What passed is forgotten after one to two of these: two probes at least.
const MEMORY: Nanos = 5 * SECONDS;

/// The present turn.
#[derive(Debug, Default)]
struct Turn {
    began: Nanos,
    sent: f64,
    acked: f64,
    lost: f64,
    events: f64,
    /// When the first loss of it was found, and what had been acked by then.
    lost_at: Option<(Nanos, f64)>,
    /// There was less to send than the rate.
    idle: bool,
    probes: bool,
    is_first: bool,
    /// Least round trip of an ack in it; the largest number: none.
    least: Nanos,
}

impl Turn {
    fn new(began: Nanos) -> Self {
        Turn { began, least: Nanos::MAX, ..Turn::default() }
    }

    /// Bytes a second that passed; 0: that cannot be told. A policer lets pass what it has saved up, however fast that comes:
    /// once it loses, it has nothing left.
    fn passed(&self, now: Nanos) -> f64 {
        let Some((at, acked)) = self.lost_at else { return 0.0 };
        let time = now.saturating_sub(at);
        if time < TURN / 4 { 0.0 } else { (self.acked - acked) * SECONDS as f64 / time as f64 }
    }
}

#[derive(Debug)]
pub(super) struct Policed {
    /// Bytes a second.
    rate: f64,
    turn: Turn,
    /// Turns without loss in a row.
    calm: u32,
    /// Part of what is sent that gets through: a mean, while others lose with us.
    through: f64,
    /// Times the fair part that a probe sends.
    reach: f64,
    /// The most that passed in a turn of late, and of the time before, in bytes a second.
    most: (f64, f64),
    forget_at: Nanos,
    probe_at: Nanos,
}

impl Policed {
    /// Nothing is acknowledged any more: this turn says nothing.
    pub(super) fn silent(&mut self, now: Nanos) {
        let Turn { is_first, probes, .. } = self.turn;
        if !is_first {
            self.rate = self.rate.min(self.fair());
        }
        self.turn = Turn { is_first, probes, ..Turn::new(now) };
    }

    /// What is ours beside others: as much more leaves as is lost, that so much arrives.
    fn fair(&self) -> f64 {
        FAIR * self.passes() / self.through
    }

    /// So many bytes a second were seen to pass while packets were lost, and so many at best.
    pub(super) fn new(now: Nanos, passes: f64, best: f64) -> Self {
        Policed {
            rate: best.max(passes * FIRST.0).min(passes * FIRST.1),
            turn: Turn { is_first: true, ..Turn::new(now) },
            calm: 0,
            through: 1.0,
            reach: PROBES,
            most: (passes, 0.0),
            forget_at: now.saturating_add(MEMORY),
            probe_at: now.saturating_add(PROBE.1),
        }
    }

    /// Bytes a second that may leave now.
    pub(super) fn rate(&self) -> f64 {
        if self.turn.probes { self.rate.max(FAIR * self.reach * self.passes()) } else { self.rate }
    }

    /// Two probes in a row got through, the second with far more than passed before: there is no such bound as was taken for
    /// one.
    pub(super) fn is_wide(&self) -> bool {
        self.reach > PROBES * FURTHER.1
    }

    /// Bytes a second that pass, as far as was seen of late.
    pub(super) fn passes(&self) -> f64 {
        self.most.0.max(self.most.1)
    }

    pub(super) fn sent(&mut self, bytes: u64) {
        self.turn.sent += bytes as f64;
    }

    pub(super) fn lost(&mut self, now: Nanos, bytes: u64) {
        self.turn.lost_at.get_or_insert((now, self.turn.acked));
        self.turn.lost += bytes as f64;
        self.turn.events += 1.0;
    }

    /// Gives the turn that this ends: what was lost in it, and under which load.
    pub(super) fn acked(&mut self, sample: &Sample) -> Option<Round> {
        self.turn.acked += sample.bytes as f64;
        self.turn.idle |= sample.app_limited;
        self.turn.least = self.turn.least.min(sample.rtt.unwrap_or(Nanos::MAX));
        (sample.now.saturating_sub(self.turn.began) >= TURN).then(|| self.end_turn(sample.now))
    }

    fn end_turn(&mut self, now: Nanos) -> Round {
        let turn = std::mem::replace(&mut self.turn, Turn::new(now));
        let passed = turn.passed(now);
        if now >= self.forget_at {
            self.most = (0.0, self.most.0);
            self.forget_at = now.saturating_add(MEMORY);
        }
        self.most.0 = if turn.is_first && passed > 0.0 { passed } else { self.most.0.max(passed) };
        let was_low = self.rate <= self.passes() * FAIR * NEAR;
        if turn.is_first {
            self.rate = self.passes() * GENTLE;
        } else if !turn.probes {
            self.judge(&turn, passed);
        } else if turn.lost == 0.0 {
            // Savings, or nobody else there: it says nothing of what passes.
        } else if turn.acked >= FURTHER.0 * self.through * turn.sent {
            self.reach = (self.reach * FURTHER.1).min(FURTHER.2);
            self.probe_at = now.saturating_add(PROBE.1);
        } else {
            self.reach = PROBES;
        }
        if now >= self.probe_at {
            self.probe_at = now.saturating_add(PROBE.0);
            self.turn.probes = was_low && !turn.idle;
        }
        let load = match (turn.probes, was_low) {
            _ if turn.idle || turn.is_first => Load::Other,
            (true, _) => Load::Full,
            (false, true) => Load::Low,
            (false, false) => Load::Other,
        };
        Round { began: turn.began, load, sent: turn.sent, lost: turn.lost, events: turn.events, least: turn.least }
    }

    fn judge(&mut self, turn: &Turn, passed: f64) {
        let lost = turn.lost / turn.sent.max(turn.lost).max(1.0);
        self.through = (self.through + (1.0 - lost - self.through) / 8.0).max(LEAST);
        if lost > MUCH {
            self.calm = 0;
            self.most = (passed.max(self.passes() * NARROWER), 0.0);
            self.rate = (self.rate * GENTLE).min(passed).max(self.rate * HARD);
        } else if turn.lost > 0.0 {
            self.calm = 0;
            self.rate = self.rate.min((self.rate * GENTLE).max(self.fair()));
        } else if !turn.idle {
            self.calm = self.calm.saturating_add(1);
            let doublings = f64::from(1u32 << (self.calm / CALM).min(16));
            let step = STEP.0 * (self.passes() / STEP.1).sqrt();
            self.rate += (step * doublings).min(LEAP * self.passes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSES: f64 = 25_000_000.0;
    const PACKET: u64 = 1_000;

    fn sample(now: Nanos, bytes: u64, app_limited: bool) -> Sample {
        Sample { now, bytes, rtt: None, min_rtt: 0, srtt: 0, in_flight: 0, app_limited }
    }

    /// A policer, and somebody who takes what is left of it; what a turn of ours meets there.
    struct Path {
        policed: Policed,
        now: Nanos,
        passes: f64,
        has_company: bool,
    }

    impl Path {
        fn new(has_company: bool) -> Self {
            Path { policed: Policed::new(0, PASSES, PASSES), now: 0, passes: PASSES, has_company }
        }

        /// One turn; says at which rate, and under which load it was.
        fn turn(&mut self, part: f64) -> (f64, Load) {
            let rate = self.policed.rate() * part;
            let share = rate.min(self.passes) * TURN as f64 / SECONDS as f64;
            let lost = (rate - self.passes).max(if self.has_company { rate / 200.0 } else { 0.0 });
            self.policed.sent((rate * TURN as f64 / SECONDS as f64) as u64);
            if lost > 0.0 {
                self.policed.lost(self.now, (lost * TURN as f64 / SECONDS as f64) as u64);
            }
            self.now += TURN;
            let ended = self.policed.acked(&sample(self.now, share as u64, part < 1.0));
            (rate, ended.expect("it has lasted a turn").load)
        }

        fn turns(&mut self, count: usize) -> Vec<(f64, Load)> {
            (0..count).map(|_| self.turn(1.0)).collect()
        }
    }

    fn mean(turns: &[(f64, Load)]) -> f64 {
        turns.iter().map(|(rate, _)| rate).sum::<f64>() / turns.len() as f64
    }

    #[test]
    fn who_is_alone_takes_almost_all() {
        let mut path = Path::new(false);
        path.turns(40);
        let turns = path.turns(200);
        let mean = mean(&turns);
        assert!((0.85 * PASSES..1.05 * PASSES).contains(&mean), "{mean}");
    }

    #[test]
    fn beside_another_a_fair_part_is_kept_and_probes_remember_the_whole() {
        let mut path = Path::new(true);
        path.turns(40);
        let turns = path.turns(600);
        let mean = mean(&turns);
        assert!((0.35 * PASSES..0.5 * PASSES).contains(&mean), "half a minute later it has {mean}");
        let probes = turns.iter().filter(|(_, load)| *load == Load::Full).count();
        assert!((10..20).contains(&probes), "one in two seconds: {probes}");
        assert!(turns.iter().filter(|(_, load)| *load == Load::Low).count() > 500);
    }

    #[test]
    fn a_path_without_such_a_bound_is_known_by_two_probes() {
        let mut path = Path::new(true);
        path.turns(300);
        assert!(!path.policed.is_wide(), "one probe that gets through is not two");
        path.passes = f64::INFINITY;
        path.turns(100);
        assert!(path.policed.is_wide());
        path.passes = PASSES;
        path.turns(100);
        assert!(!path.policed.is_wide());
    }

    #[test]
    fn silence_says_nothing_of_what_passes() {
        let mut policed = Policed::new(0, PASSES / 4.0, PASSES);
        assert_eq!(policed.rate(), PASSES, "the first turn does with the best that was seen");
        policed.silent(TURN / 2);
        assert_eq!((policed.rate(), policed.turn.is_first), (PASSES, true), "it begins anew");
        policed.sent(PASSES as u64 / 20);
        policed.acked(&sample(2 * TURN, PASSES as u64 / 20, false));
        policed.rate = PASSES;
        policed.silent(3 * TURN);
        assert!(policed.rate() < PASSES / 2.0, "a fair part is left: {}", policed.rate());
    }

    #[test]
    fn a_path_that_becomes_narrower_or_wider_is_followed() {
        let mut path = Path::new(false);
        path.turns(40);
        path.passes = PASSES / 10.0;
        path.turns(30);
        assert!(path.policed.rate() < 1.3 * path.passes, "{}", path.policed.rate());
        path.turns(100);
        path.passes = PASSES;
        path.turns(60);
        assert!(path.policed.rate() > 0.5 * PASSES, "{}", path.policed.rate());
    }

    #[test]
    fn too_little_to_send_says_nothing() {
        let mut path = Path::new(false);
        path.turns(40);
        let before = path.policed.rate();
        assert!((0..200).map(|_| path.turn(0.1)).all(|(_, load)| load == Load::Other));
        assert!(path.policed.rate() <= before, "it grows by what is sent");
    }

    #[test]
    fn extremes_are_finite() {
        for passes in [0.0, 1.0, 1e18] {
            let mut policed = Policed::new(0, passes, passes);
            for turn in 1..200 {
                policed.sent(PACKET);
                if turn % 3 == 0 {
                    policed.lost(turn * TURN, u64::MAX >> 8);
                }
                policed.acked(&sample(turn * TURN, PACKET, false));
                assert!(policed.rate().is_finite() && policed.rate() >= 0.0);
            }
        }
    }
}
