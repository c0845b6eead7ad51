//! Delay-based AIMD with a target, and loss as the backstop: the default.
//!
//! Twice in a row a whole round trip in which no packet came through within the target: the queue is ours to shorten, and the
//! window falls in proportion. One such round alone is a busy machine. If the queue does not shorten although we sent less and
//! less, somebody else fills it (or the scheduler does), and delay is no longer listened to until it is gone.
//!
//! Loss makes the window fall for two round trips, as an experiment: `evidence` says whether less was lost. If so the window
//! stays down (AIMD as gentle as CUBIC's); if not it comes back, and such loss is not answered any more but now and then, to
//! ask again. Heavy loss is always answered. A window below a packet is paced. Where loss comes without any queue and a round
//! trip holds but a few packets, rounds are longer than round trips (`capacity`), and once such loss is known to come from
//! what we send, a rate takes the place of the window (`policed`).

use super::base::Base;
use super::capacity::{self, Capacity};
use super::evidence::Evidence;
use super::policed::Policed;
use super::rounds::{Load, Round, Rounds};
use super::{Controller, INITIAL_PACKETS, Loss, Sample, pace};
use crate::proto::{MILLIS, Nanos, SECONDS};

/// Share of the window that is left after a loss, and the least that is after delay: those of CUBIC, so that both share.
const BETA: f64 = 0.7;
/// The same where a round trip holds only a few packets: TCP needs the room, for its losses cost it timeouts there.
const HALF: f64 = 0.5;
/// A standing queue of one part in so many of a round is enough not to lengthen round trips.
const QUEUED: f64 = 8.0;
/// The most that is left after delay: smaller steps would make flows equal too slowly.
const MILD: f64 = 0.85;
/// Packets by which the window grows in a round trip: what CUBIC's decrease makes equal to Reno (RFC 9438, 4.3).
const STEP: f64 = 0.53;
/// The most that a window grows by one ack, once past slow start.
const LEAP: f64 = 0.1;
/// Loss that is always answered.
const HEAVY: f64 = 0.2;
/// Rounds for which a smaller window does not grow, rounds that are taken for low load, and rounds until what those lost is
/// known.
const HELD: u32 = 2;
const LOW: u32 = 4;
const SETTLED: u32 = 7;
/// Rounds between experiments while loss counts as random.
const AGAIN: u32 = 16;
/// The queue is drained, to see the path without it, when the clock passes a multiple of the power of two next above so many
/// round trips, and at least this: flows of one host do so together, for one alone would find the others' packets there.
const DRAIN: (u64, Nanos) = (64, 1 << 24);
/// Part of the window that is left meanwhile.
const DRAINED: f64 = 0.25;
/// Decreases that must have shortened a queue, if it is ours.
const VAIN: u32 = 3;
/// Rounds for which a queue that was too long is remembered: one that comes back as soon was not gone.
const KEPT: u32 = 32;
/// Part of the path that we keep where others fill the queue and give way less than we do.
const DUE: f64 = 0.4;
/// How far beyond the target such a queue is: one of ours errs by less about the path's own delay.
const FAR: f64 = 1.5;
/// When a queue that was somebody else's is looked at again: at multiples of these, the second on long round trips. All
/// flows of a host do so together, for two that are deaf would keep each other so.
const AFRESH: (Nanos, Nanos) = (SECONDS, 8 * SECONDS);
/// The longest round trip for the first.
const LONG: Nanos = 8 * MILLIS;
/// Steps of the golden section visit every part of a packet evenly.
const GOLDEN: f64 = 0.618_033_988_749_895;
/// A window that has been below a packet for so long stays there.
const STARVED: Nanos = 300 * MILLIS;
/// Part of the best that is taken to pass where nothing else is known.
const FIRST: f64 = 1.0 / 64.0;
/// How late acks may be where a rate decides.
const SLACK: Nanos = 2 * MILLIS;
/// Probe timeouts in a row after which nothing is believed to be in flight.
const SILENT: u32 = 3;
/// Least part of a packet that a window may be, and the longest wait for a packet that follows from it.
const LEAST: (f64, Nanos) = (1.0 / 64.0, 100 * MILLIS);
/// The least round trip is forgotten after one to two of these: routes change.
const MEMORY: Nanos = 10 * SECONDS;
/// In that of so long a queue shows, and no stall of a host, in which some packets come through at once.
const LATELY: Nanos = 50 * MILLIS;

/// A queue that is too long, and what we did about it.
#[derive(Clone, Copy, Debug)]
struct Long {
    /// Window and round trip when this began.
    window: f64,
    rtt: f64,
    /// Rounds since then.
    age: u32,
    cuts: u32,
    /// What is acknowledged now was sent before the last decrease.
    fresh: bool,
}

impl Long {
    /// A queue of ours is as long as our window. This one is clearly longer than what we have left of it.
    fn is_in_vain(&self, window: f64, rtt: f64) -> bool {
        let left = window / self.window;
        self.cuts >= VAIN && left <= HALF && rtt >= self.rtt * left.sqrt()
    }
}

/// What delay did when the queue was found too long.
#[derive(Clone, Copy, Debug)]
enum Queue {
    Short,
    /// One round was too long.
    Suspect,
    Long(Long),
    /// Not ours.
    Foreign,
}

/// A few rounds with a smaller window.
#[derive(Clone, Copy, Debug)]
struct Experiment {
    /// The window before.
    window: f64,
    /// Rounds that have ended since.
    rounds: u32,
    /// Not for a loss, but to see the path without our queue.
    drains: bool,
}

#[derive(Debug)]
pub(crate) struct Delay {
    packet: f64,
    target: Nanos,
    window: f64,
    /// Below this, slow start.
    threshold: f64,
    /// Window before the last answer to congestion: beyond it growth quickens.
    peak: f64,
    /// Rounds spent beyond.
    beyond: u32,
    base: Base,
    lately: Base,
    rounds: Rounds,
    evidence: Evidence,
    capacity: Capacity,
    queue: Queue,
    /// The last time that it was too long.
    past: Option<Long>,
    experiment: Option<Experiment>,
    /// The rate decides, not the window.
    policed: Option<Policed>,
    /// Rounds since the last.
    quiet: u32,
    cut_at: Nanos,
    /// At losses since then the window was below a packet.
    starves_since: Option<Nanos>,
    timeouts: u32,
    srtt: Nanos,
    app_limited: bool,
    /// Queueing delay that is always there: a mean of the least of each round.
    standing: f64,
    /// Part of a packet that the window is rounded up by: goes round, so that windows of a few packets are not steps.
    dither: f64,
}

impl Delay {
    pub(crate) fn new(packet: u64, target: Nanos) -> Self {
        let packet = packet.max(1) as f64;
        Delay {
            packet,
            target,
            window: packet * INITIAL_PACKETS as f64,
            threshold: f64::INFINITY,
            peak: 0.0,
            beyond: 0,
            base: Base::new(MEMORY),
            lately: Base::new(LATELY),
            rounds: Rounds::new(),
            evidence: Evidence::default(),
            capacity: Capacity::default(),
            queue: Queue::Short,
            past: None,
            experiment: None,
            policed: None,
            quiet: 0,
            cut_at: 0,
            starves_since: None,
            timeouts: 0,
            srtt: 0,
            app_limited: false,
            standing: 0.0,
            dither: 0.0,
        }
    }

    /// One that knows already that so many bytes a second pass.
    #[cfg(test)]
    pub(crate) fn behind_a_policer(packet: u64, passes: f64) -> Self {
        Delay { policed: Some(Policed::new(0, passes, passes)), ..Delay::new(packet, MILLIS) }
    }

    fn decrease(&mut self, share: f64) {
        let least = LEAST.0.max((self.srtt as f64 / LEAST.1 as f64).min(1.0)) * self.packet;
        self.peak = self.window;
        self.beyond = 0;
        self.window = (self.window * share).max(least);
        self.threshold = self.window;
    }

    /// The window that a fair part of the path needs.
    fn due(&self, rtt: f64) -> f64 {
        self.capacity.best() * rtt / SECONDS as f64 * DUE
    }

    /// After a decrease from this window: where others fill the queue, a fair part is kept.
    fn keep_due(&mut self, before: f64) {
        if matches!(self.queue, Queue::Foreign) {
            self.window = self.window.max(self.due(self.srtt as f64)).min(before);
            self.threshold = self.window;
        }
    }

    /// What a round should last at least. Where packets queue, windows work, and round trips will do.
    fn round(&self) -> Nanos {
        let queue = (self.standing * QUEUED) as Nanos;
        capacity::round(self.capacity.most(), self.packet).saturating_sub(queue)
    }

    /// A round trip holds only a few packets of so many bytes a second that pass, and no queue is a large part of it.
    fn is_short(&self, passes: f64) -> bool {
        let queue = self.lately.rtt().saturating_sub(self.base.rtt());
        capacity::round(passes, self.packet).saturating_sub(queue.saturating_mul(2)) > self.base.rtt()
    }

    fn grow(&mut self, bytes: f64) {
        if self.window < self.threshold {
            self.window = (self.window + bytes).min(self.threshold);
        } else {
            let most = (self.window / self.packet / 16.0).max(STEP);
            let packets = (STEP * (1.0 + f64::from(self.beyond) / 8.0)).min(most);
            let longer = (self.round() as f64 / self.srtt.max(1) as f64).max(1.0);
            let step = packets * self.packet * (bytes / self.window) / (longer * longer);
            self.window += step.min(LEAP * self.window);
        }
    }

    /// Queueing delay to aim at: more for the smaller windows, so that flows become equal though each errs a little about the
    /// path's own delay (Swift, 3.5). It is `target` at nine packets.
    fn aim(&self) -> f64 {
        let packets = (self.window / self.packet).max(1.0);
        self.target as f64 * (0.6 + 1.2 / packets.sqrt())
    }

    /// A round has ended: was its queue too long?
    fn judge_delay(&mut self, now: Nanos, began: Nanos, least: Nanos) {
        if least == Nanos::MAX {
            return;
        }
        let delay = least.saturating_sub(self.base.rtt()) as f64;
        if delay <= self.aim() {
            if self.window < self.threshold && delay > self.aim() / 2.0 {
                self.threshold = self.window;
            }
            self.queue = Queue::Short;
            return;
        }
        let rtt = least as f64;
        match self.queue {
            Queue::Foreign => {
                let period = if self.srtt < LONG { AFRESH.0 } else { AFRESH.1 };
                if now / period != began / period {
                    self.queue = Queue::Suspect;
                }
            }
            Queue::Short => self.queue = Queue::Suspect,
            Queue::Suspect => {
                let new = Long { window: self.window, rtt, age: 0, cuts: 0, fresh: true };
                let kept = self.past.filter(|past| past.age < KEPT && past.window > self.window);
                self.shorten(least, kept.unwrap_or(new));
            }
            Queue::Long(long) if long.fresh => {
                let rtt = if long.cuts == 1 { long.rtt.max(rtt) } else { long.rtt };
                self.queue = Queue::Long(Long { rtt, fresh: false, ..long });
            }
            Queue::Long(long) if delay > self.aim() * FAR && long.is_in_vain(self.window, rtt) => {
                // Others have taken what we left: it was for nothing.
                self.window = self.window.max(long.window);
                self.threshold = self.window.max(self.due(rtt));
                self.queue = Queue::Foreign;
                self.past = None;
            }
            Queue::Long(long) => self.shorten(least, long),
        }
    }

    fn shorten(&mut self, least: Nanos, long: Long) {
        let aim = (self.base.rtt() as f64 + self.aim() * 0.75) / least as f64;
        let floor = if self.threshold == f64::INFINITY { HALF } else { BETA };
        self.decrease(aim.clamp(floor, MILD));
        self.experiment = None;
        let long = Long { cuts: long.cuts + 1, fresh: true, ..long };
        self.past = Some(long);
        self.queue = Queue::Long(long);
    }

    fn end_round(&mut self, now: Nanos, in_flight: u64) {
        let Round { began, least, .. } = *self.rounds.now();
        if least != Nanos::MAX {
            self.standing += (least.saturating_sub(self.base.rtt()) as f64 - self.standing) / 8.0;
        }
        if least != Nanos::MAX && least.saturating_sub(self.base.rtt()) as f64 > self.aim() {
            // Loss beside a long queue says nothing about loss without one.
            self.rounds.spoil();
        }
        self.quiet = self.quiet.saturating_add(1);
        let long = if let Queue::Long(long) = &mut self.queue { Some(long) } else { None };
        long.into_iter().chain(&mut self.past).for_each(|long| long.age = long.age.saturating_add(1));
        let ours = self.window > self.peak && !matches!(self.queue, Queue::Foreign);
        self.beyond = if ours { self.beyond.saturating_add(1) } else { 0 };
        let draining = self.experiment.is_some_and(|experiment| experiment.drains);
        let load = self.next_load(now, began);
        let settled = self.rounds.begin(now, in_flight, load);
        self.evidence.settled(&settled);
        if !draining && self.policed.is_none() {
            self.judge_delay(now, began, least);
        }
    }

    /// Begins, goes on with or ends an experiment, and says what the next round's packets are sent under.
    fn next_load(&mut self, now: Nanos, began: Nanos) -> Load {
        let full = if self.app_limited { Load::Other } else { Load::Full };
        let Some(experiment) = self.experiment.as_mut() else {
            let period = DRAIN.1.max(self.srtt.min(SECONDS).saturating_mul(DRAIN.0).next_power_of_two());
            let in_vain = self.window < self.threshold || matches!(self.queue, Queue::Foreign);
            if now / period == began / period || self.app_limited || in_vain {
                return full;
            }
            self.experiment = Some(Experiment { window: self.window, rounds: 0, drains: true });
            self.window = (self.window * DRAINED).max(self.packet.min(self.window));
            return Load::Other;
        };
        experiment.rounds += 1;
        let Experiment { window, rounds, drains } = *experiment;
        if drains && rounds >= HELD {
            self.experiment = None;
            self.window = window;
        } else if rounds >= SETTLED {
            self.experiment = None;
            self.quiet = 0;
            if self.evidence.is_random() {
                self.window = self.window.max(window);
            }
        }
        if rounds < LOW && !drains && !self.app_limited { Load::Low } else { Load::Other }
    }

    /// Loss comes at a rate. Windows take over again where packets queue, where loss turns out to be random, and where a
    /// round trip holds enough of them.
    fn go_by_rate(&mut self, sample: &Sample) {
        let Some(policed) = self.policed.as_mut() else { return };
        let Some(turn) = policed.acked(sample) else { return };
        let (passes, is_wide) = (policed.passes(), policed.is_wide());
        self.window = policed.rate() * self.srtt as f64 / SECONDS as f64;
        self.evidence.settled(&turn);
        let queue = if turn.least == Nanos::MAX { 0 } else { turn.least.saturating_sub(self.base.rtt()) };
        // Not one packet of so many came through at once, twice in a row: no busy machine does that.
        let queues = queue as f64 > self.aim();
        let again = queues && matches!(self.queue, Queue::Suspect);
        self.queue = if queues { Queue::Suspect } else { Queue::Short };
        let is_random = is_wide && self.evidence.is_random();
        if is_random || again || !self.is_short(passes) {
            self.policed = None;
        }
    }

    /// The window has been below a packet for long: nothing is learnt of it, and beside others it hardly grows.
    fn starves(&mut self, now: Nanos) -> bool {
        if self.window >= self.packet {
            self.starves_since = None;
            return false;
        }
        now.saturating_sub(*self.starves_since.get_or_insert(now)) >= STARVED
    }

    /// Delay is as long as loss by a queue would make it, so that loss is no chance.
    fn queues(&self) -> bool {
        !matches!(self.queue, Queue::Short | Queue::Suspect)
    }
}

impl Controller for Delay {
    fn sent(&mut self, _now: Nanos, bytes: u64, _in_flight: u64) {
        self.rounds.sent(bytes);
        self.policed.iter_mut().for_each(|policed| policed.sent(bytes));
    }

    fn acked(&mut self, sample: &Sample) {
        self.dither = (self.dither + GOLDEN).fract();
        self.timeouts = 0;
        self.srtt = sample.srtt;
        self.app_limited = sample.app_limited;
        if let Some(rtt) = sample.rtt {
            self.base.seen(sample.now, rtt);
            self.lately.seen(sample.now, rtt);
        }
        self.go_by_rate(sample);
        if sample.app_limited || self.policed.is_some() {
            self.rounds.spoil();
        } else if self.experiment.is_none_or(|experiment| experiment.rounds >= HELD) {
            self.grow(sample.bytes as f64);
        }
        self.capacity.acked(sample.now, sample.bytes);
        let least = self.round();
        if self.rounds.acked(sample.bytes, sample.rtt) && sample.now >= self.rounds.now().began.saturating_add(least) {
            self.end_round(sample.now, sample.in_flight);
        }
    }

    fn lost(&mut self, loss: &Loss) {
        self.rounds.lost(loss.bytes, loss.first_sent);
        if let Some(policed) = self.policed.as_mut() {
            policed.lost(loss.now, loss.bytes);
            return;
        }
        if loss.first_sent <= self.cut_at {
            return;
        }
        let (sent, lost, events) = self.rounds.recent();
        let heavy = lost > HEAVY * sent && events >= 3.0;
        let idle = self.app_limited && ((loss.in_flight + loss.bytes) as f64) < self.window / 2.0;
        if !heavy {
            let known = self.evidence.is_random() && self.evidence.explains(sent, lost, events);
            if idle || self.experiment.is_some() || (known && self.quiet < AGAIN && !self.queues()) {
                return;
            }
        }
        let window = self.window;
        let least = self.round();
        let share = if least > self.srtt { HALF } else { BETA };
        self.decrease(if heavy { (1.0 - lost / sent.max(lost)).clamp(HALF, share) } else { share });
        if heavy && self.evidence.is_random() {
            self.evidence = Evidence::default();
        } else if !heavy {
            self.keep_due(window);
        }
        self.capacity.congested();
        self.cut_at = loss.now.max(self.rounds.now().began.saturating_add(least));
        self.experiment =
            if heavy || self.queues() { None } else { Some(Experiment { window, rounds: 0, drains: false }) };
        let load = if heavy { Load::Other } else { Load::Low };
        let settled = self.rounds.begin(loss.now, loss.in_flight, load);
        self.evidence.settled(&settled);
        let (passes, best) = (self.capacity.most(), self.capacity.best());
        let is_policed = self.is_short(passes) && !self.queues() && self.evidence.is_ours();
        if is_policed || (self.starves(loss.now) && self.is_short(best)) {
            self.experiment = None;
            let passes = if passes > 0.0 { passes } else { best * FIRST };
            self.policed = Some(Policed::new(loss.now, passes, best));
        }
    }

    fn overflowed(&mut self, now: Nanos) {
        if now <= self.cut_at.saturating_add(self.srtt) {
            return;
        }
        let window = self.window;
        self.decrease(BETA);
        self.keep_due(window);
        self.experiment = None;
        self.rounds.spoil();
        self.cut_at = now;
    }

    fn timed_out(&mut self, now: Nanos) {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts == SILENT {
            self.experiment = None;
            self.policed.iter_mut().for_each(|policed| policed.silent(now));
            self.decrease(BETA);
            self.window = self.window.min(self.packet);
        }
    }

    fn window(&self) -> u64 {
        if let Some(policed) = &self.policed {
            // The rate is what counts; this is room for acks that are late.
            let room = policed.rate() * (SLACK + 2 * self.srtt) as f64 / SECONDS as f64;
            return room.max(4.0 * self.packet) as u64;
        }
        if self.window < self.packet { self.packet as u64 } else { (self.window + self.dither * self.packet) as u64 }
    }

    fn rate(&self) -> Option<u64> {
        if let Some(policed) = &self.policed {
            let least = self.packet * SECONDS as f64 / LEAST.1 as f64;
            return Some(policed.rate().max(least) as u64);
        }
        let gain = if self.window < self.threshold { 2.0 } else { 1.25 };
        pace(self.window, self.packet, self.srtt, gain)
    }

    fn goes_by_rate(&self) -> bool {
        self.policed.is_some()
    }

    fn resize(&mut self, packet: u64) {
        self.packet = packet.max(1) as f64;
    }
}
