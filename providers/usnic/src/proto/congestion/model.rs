//! A path in virtual time, for tests: flows with real controllers through one bottleneck, and nothing of it left to chance.
//!
//! Every packet meets, in this order: random loss, a policer (token bucket, no queue), a queue of bounded length before a link.
//! What passes comes to the other side and is acknowledged, one by one; both hosts may stand still now and then, as hosts
//! with too few processors do. Flows detect loss as the protocol does: three later packets, 9/8 of a round trip, or a probe
//! timeout. What is lost is not sent again: a flow counts what arrives.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Congestion, Controller, Loss, Sample};
use crate::proto::pacer::Pacer;
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

/// A sequence of numbers that looks random (splitmix64).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What is between the hosts.
#[derive(Clone, Copy)]
pub(super) struct Road {
    /// Round trip of an empty path.
    pub(super) rtt: Nanos,
    /// Bytes a second of the link, and bytes that its queue holds.
    pub(super) link: u64,
    pub(super) queue: u64,
    /// Part of packets that vanish.
    pub(super) loss: f64,
    /// Bytes a second that are let pass, and those that may have been saved up.
    pub(super) policer: Option<(u64, u64)>,
    /// Now and then a host stands still: mean time between, longest time of.
    pub(super) stalls: Option<(Nanos, Nanos)>,
}

impl Default for Road {
    fn default() -> Self {
        Road { rtt: 50 * MICROS, link: 3_000_000_000, queue: u64::MAX, loss: 0.0, policer: None, stalls: None }
    }
}

/// Who sends.
pub(super) struct Sender {
    pub(super) control: Congestion,
    pub(super) packet: u64,
    /// Packets that share a fate: what segmentation offload sends as one.
    pub(super) train: u64,
    /// Least probe timeout: of the first, and of those after it.
    pub(super) patience: (Nanos, Nanos),
    /// What the peer allows.
    pub(super) limit: u64,
    pub(super) starts: Nanos,
}

struct Sent {
    number: u64,
    bytes: u64,
    at: Nanos,
}

pub(super) struct Flow {
    pub(super) sender: Sender,
    pacer: Pacer,
    flight: VecDeque<Sent>,
    in_flight: u64,
    number: u64,
    sent: u64,
    pub(super) arrived: u64,
    pub(super) lost: u64,
    srtt: Nanos,
    min_rtt: Nanos,
    app_limited: bool,
    probes: u32,
    probe_at: Nanos,
    wake_at: Nanos,
    /// Bytes a second that there are to send, since when, and what was sent by then; `None`: no end of them.
    offered: Option<(u64, Nanos, u64)>,
    /// Sum and number of queueing delays, for their mean.
    delays: (u128, u64),
}

impl Flow {
    pub(super) fn window(&self) -> u64 {
        self.sender.control.window()
    }

    /// What leaves at once and shares a fate: no more than a third of the window, as with TCP.
    fn unit(&self) -> u64 {
        if self.sender.control.goes_by_rate() {
            return self.sender.packet;
        }
        let third = self.window() / 3 / self.sender.packet * self.sender.packet;
        self.sender.train.min(third).max(self.sender.packet)
    }

    pub(super) fn mean_delay(&self) -> Nanos {
        (self.delays.0 / u128::from(self.delays.1.max(1))) as Nanos
    }
}

#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Ack { flow: usize, number: u64 },
    Wake { flow: usize },
}

pub(super) struct Model {
    pub(super) road: Road,
    pub(super) flows: Vec<Flow>,
    pub(super) now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    order: u64,
    chance: Chance,
    free_at: Nanos,
    /// The last ack of all comes then: nothing is overtaken.
    last: Nanos,
    tokens: (f64, Nanos),
    /// Until when each host stands still, and when it next does.
    hosts: [(Nanos, Nanos); 2],
}

impl Model {
    pub(super) fn new(road: Road, seed: u64) -> Self {
        let tokens = (road.policer.map_or(0, |(_, burst)| burst) as f64, 0);
        let mut model = Model {
            road,
            flows: Vec::new(),
            now: 0,
            events: BinaryHeap::new(),
            order: 0,
            chance: Chance(seed),
            free_at: 0,
            last: 0,
            tokens,
            hosts: [(0, 0); 2],
        };
        model.hosts = [(0, model.next_stall(0)), (0, model.next_stall(0))];
        model
    }

    pub(super) fn add(&mut self, sender: Sender) -> usize {
        let flow = self.flows.len();
        let wake_at = sender.starts;
        self.post(wake_at, Event::Wake { flow });
        self.flows.push(Flow {
            sender,
            pacer: Pacer::default(),
            flight: VecDeque::new(),
            in_flight: 0,
            number: 0,
            sent: 0,
            arrived: 0,
            lost: 0,
            srtt: 0,
            min_rtt: Nanos::MAX,
            app_limited: false,
            probes: 0,
            probe_at: Nanos::MAX,
            wake_at,
            offered: None,
            delays: (0, 0),
        });
        flow
    }

    /// Lets so much time pass, and says how many bytes a second of each flow arrived in it.
    pub(super) fn run(&mut self, time: Nanos) -> Vec<f64> {
        let end = self.now + time;
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.arrived).collect();
        self.flows.iter_mut().for_each(|flow| flow.delays = (0, 0));
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            match event {
                Event::Ack { flow, number } => self.acked(flow, number),
                Event::Wake { flow } => self.woken(flow),
            }
        }
        self.now = end;
        let seconds = time as f64 / SECONDS as f64;
        self.flows.iter().zip(before).map(|(flow, before)| (flow.arrived - before) as f64 / seconds).collect()
    }

    /// From now on there is only so much to send.
    pub(super) fn offer(&mut self, flow: usize, rate: u64) {
        let now = self.now;
        let flow = &mut self.flows[flow];
        flow.offered = Some((rate, now, flow.sent));
    }

    fn post(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn next_stall(&mut self, from: Nanos) -> Nanos {
        let Some((mean, _)) = self.road.stalls else { return Nanos::MAX };
        from + (2.0 * mean as f64 * self.chance.share()) as Nanos
    }

    /// When a host that should do something at this time comes to it.
    fn runs_at(&mut self, host: usize, at: Nanos) -> Nanos {
        while let Some((_, longest)) = self.road.stalls.filter(|_| self.hosts[host].1 <= at) {
            let until = self.hosts[host].1 + (longest as f64 * self.chance.share()) as Nanos;
            self.hosts[host] = (until, self.next_stall(until));
        }
        at.max(self.hosts[host].0)
    }

    /// When the ack of a packet that leaves now comes, if it does; and how long it was in the queue.
    fn travels(&mut self, bytes: u64) -> Option<(Nanos, Nanos)> {
        if self.chance.share() < self.road.loss {
            return None;
        }
        if let Some((rate, burst)) = self.road.policer {
            let earned = (self.now - self.tokens.1) as f64 * rate as f64 / 1e9;
            self.tokens = ((self.tokens.0 + earned).min(burst as f64), self.now);
            if self.tokens.0 < bytes as f64 {
                return None;
            }
            self.tokens.0 -= bytes as f64;
        }
        let waits = self.free_at.saturating_sub(self.now);
        let queued = u128::from(waits) * u128::from(self.road.link) / u128::from(SECONDS);
        if queued + u128::from(bytes) > u128::from(self.road.queue) {
            return None;
        }
        self.free_at = self.free_at.max(self.now) + bytes * SECONDS / self.road.link;
        let there = self.runs_at(0, self.free_at + self.road.rtt / 2);
        // Hosts are never quite as fast as the time before.
        let jitter = (self.chance.share() * self.road.rtt as f64 / 8.0) as Nanos;
        self.last = self.runs_at(1, there + self.road.rtt / 2 + jitter).max(self.last);
        Some((self.last, waits))
    }

    fn woken(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.flows[index];
        if flow.wake_at != now {
            return; // called off for an earlier one
        }
        flow.wake_at = Nanos::MAX;
        if !flow.flight.is_empty() && flow.probe_at <= now {
            flow.probes += 1;
            flow.sender.control.timed_out(now);
            // TCP's probe is followed by its timeout, after which it begins anew.
            if flow.sender.patience.1 > flow.sender.patience.0 && flow.probes == 2 {
                flow.sender.control.timed_out(now);
            }
            flow.probe_at = now + (pto(flow).max(flow.sender.patience.1) << (flow.probes - 1).min(6));
            self.transmit(index, true);
        }
        self.send(index);
    }

    /// Sends what may be sent, and sees to it that the flow wakes.
    fn send(&mut self, index: usize) {
        let mut next = Nanos::MAX;
        loop {
            let now = self.now;
            let flow = &mut self.flows[index];
            let window = flow.sender.control.window();
            flow.app_limited = false;
            if let Some((rate, since, before)) = flow.offered {
                let left = u128::from(rate) * u128::from(now - since) / u128::from(SECONDS) + u128::from(before);
                if u128::from(flow.sent + flow.sender.packet) > left {
                    flow.app_limited = true;
                    next = next.min(now + flow.sender.packet * SECONDS / rate);
                    break;
                }
            }
            if flow.in_flight + flow.unit() > window.min(flow.sender.limit) && flow.in_flight > 0 {
                flow.app_limited = flow.sender.limit < window;
                break;
            }
            match flow.pacer.ready(now, flow.sender.packet) {
                Err(at) => {
                    next = next.min(at);
                    break;
                }
                Ok(()) => self.transmit(index, false),
            }
        }
        let flow = &mut self.flows[index];
        if !flow.flight.is_empty() {
            next = next.min(flow.probe_at);
        }
        if next < flow.wake_at {
            flow.wake_at = next;
            self.post(next, Event::Wake { flow: index });
        }
    }

    fn transmit(&mut self, index: usize, probe: bool) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let bytes = if probe { flow.sender.packet } else { flow.unit() };
        let number = flow.number;
        flow.number += 1;
        flow.sent += bytes;
        flow.in_flight += bytes;
        flow.sender.control.sent(now, bytes, flow.in_flight);
        let rate = flow.sender.control.rate();
        flow.pacer.spent(now, bytes, rate);
        if flow.flight.is_empty() || !probe {
            flow.probe_at = now + pto(flow);
        }
        flow.flight.push_back(Sent { number, bytes, at: now });
        if let Some((at, waited)) = self.travels(bytes) {
            self.flows[index].delays.0 += u128::from(waited);
            self.flows[index].delays.1 += 1;
            self.post(at, Event::Ack { flow: index, number });
        }
    }

    fn acked(&mut self, index: usize, number: u64) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let Ok(at) = flow.flight.binary_search_by_key(&number, |sent| sent.number) else {
            return self.send(index);
        };
        let Some(sent) = flow.flight.remove(at) else { return };
        let rtt = now - sent.at;
        flow.srtt = if flow.srtt == 0 { rtt } else { (7 * flow.srtt + rtt) / 8 };
        flow.min_rtt = flow.min_rtt.min(rtt);
        flow.arrived += sent.bytes;
        flow.in_flight -= sent.bytes;
        flow.probes = 0;
        flow.probe_at = now + pto(flow);
        let sample = Sample {
            now,
            bytes: sent.bytes,
            rtt: Some(rtt),
            min_rtt: flow.min_rtt,
            srtt: flow.srtt,
            in_flight: flow.in_flight,
            app_limited: flow.app_limited,
        };
        flow.sender.control.acked(&sample);
        self.lose(index, |sent, now, srtt| {
            sent.number + 3 <= number || (sent.number < number && late(sent, now, srtt))
        });
        self.send(index);
    }

    fn lose(&mut self, index: usize, is_lost: impl Fn(&Sent, Nanos, Nanos) -> bool) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let (srtt, mut bytes, mut first_sent) = (flow.srtt, 0, Nanos::MAX);
        while let Some(sent) = flow.flight.front().filter(|sent| is_lost(sent, now, srtt)) {
            bytes += sent.bytes;
            first_sent = first_sent.min(sent.at);
            flow.flight.pop_front();
        }
        if bytes > 0 {
            flow.lost += bytes;
            flow.in_flight -= bytes;
            flow.sender.control.lost(&Loss { now, bytes, in_flight: flow.in_flight, first_sent });
        }
    }
}

fn late(sent: &Sent, now: Nanos, srtt: Nanos) -> bool {
    now - sent.at > srtt + srtt / 8
}

fn pto(flow: &Flow) -> Nanos {
    let first = if flow.srtt == 0 { 100 * MILLIS } else { flow.srtt * 3 };
    first.max(flow.sender.patience.0)
}
