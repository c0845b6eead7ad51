//! A network path in virtual time, for tests: flows with the real controllers through one bottleneck. The same seed
//! always gives the same run.
//!
//! A packet is subject to random loss, then to a policer (token bucket, no queue), then to a bounded queue before a
//! link. Each packet that arrives is acked. Both hosts may stall, like hosts with too few CPUs. Flows detect loss as
//! the protocol does: by a packet threshold of three, or after 9/8 of a round trip. At a probe timeout they send one
//! more packet. They do not retransmit lost packets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::proto::congestion::{AckEvent, Congestion, Controller, LossEvent, SentPacket};
use crate::proto::flight::{Delivery, LostPackets, PacketState, is_loss_too_high};
use crate::proto::pacer::Pacer;
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

/// A pseudo-random sequence (splitmix64).
pub(in crate::proto::congestion) struct PseudoRandom(pub(in crate::proto::congestion) u64);

impl PseudoRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(in crate::proto::congestion) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The path between the hosts.
#[derive(Clone, Copy)]
pub(in crate::proto::congestion) struct SimPath {
    /// Round-trip time while the queue is empty.
    pub(in crate::proto::congestion) rtt: Nanos,
    /// Rate of the link in bytes per second.
    pub(in crate::proto::congestion) link: u64,
    /// Capacity of the queue before the link in bytes.
    pub(in crate::proto::congestion) queue: u64,
    /// Probability of random loss.
    pub(in crate::proto::congestion) loss: f64,
    /// Rate of the policer in bytes per second, and size of its token bucket.
    pub(in crate::proto::congestion) policer: Option<(u64, u64)>,
    /// Pauses of both hosts: mean interval between pauses, and maximum duration of a pause.
    pub(in crate::proto::congestion) stalls: Option<(Nanos, Nanos)>,
}

impl Default for SimPath {
    fn default() -> Self {
        SimPath { rtt: 50 * MICROS, link: 3_000_000_000, queue: u64::MAX, loss: 0.0, policer: None, stalls: None }
    }
}

pub(in crate::proto::congestion) struct Sender {
    pub(in crate::proto::congestion) control: Congestion,
    pub(in crate::proto::congestion) packet: u64,
    /// The peer's receive window.
    pub(in crate::proto::congestion) limit: u64,
    pub(in crate::proto::congestion) starts: Nanos,
}

struct Sent {
    number: u64,
    bytes: u64,
    at: Nanos,
    state: PacketState,
}

pub(in crate::proto::congestion) struct Flow {
    pub(in crate::proto::congestion) sender: Sender,
    pacer: Pacer,
    flight: VecDeque<Sent>,
    in_flight: u64,
    number: u64,
    sent: u64,
    pub(in crate::proto::congestion) arrived: u64,
    pub(in crate::proto::congestion) lost: u64,
    srtt: Nanos,
    min_rtt: Nanos,
    delivery: Delivery,
    is_cwnd_limited: bool,
    newest_acked: Nanos,
    probes: u32,
    probe_at: Nanos,
    wake_at: Nanos,
    /// Rate limit of the application in bytes per second, its start time, and the number of bytes that were sent before
    /// that time. `None` without a limit.
    offered: Option<(u64, Nanos, u64)>,
    /// Sum of the queueing delays, and number of packets in this sum.
    delays: (u128, u64),
}

impl Flow {
    pub(in crate::proto::congestion) fn cwnd(&self) -> u64 {
        self.sender.control.cwnd()
    }

    pub(in crate::proto::congestion) fn mean_delay(&self) -> Nanos {
        (self.delays.0 / u128::from(self.delays.1.max(1))) as Nanos
    }
}

#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum ModelEvent {
    Ack { flow: usize, number: u64 },
    Wake { flow: usize },
}

pub(in crate::proto::congestion) struct Model {
    pub(in crate::proto::congestion) path: SimPath,
    pub(in crate::proto::congestion) flows: Vec<Flow>,
    pub(in crate::proto::congestion) now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, ModelEvent)>>,
    order: u64,
    random: PseudoRandom,
    free_at: Nanos,
    /// Arrival time of the latest ack. Acks arrive in order.
    last: Nanos,
    tokens: (f64, Nanos),
    /// For each host: end of the current pause, and start of the next pause.
    hosts: [(Nanos, Nanos); 2],
}

impl Model {
    pub(in crate::proto::congestion) fn new(path: SimPath, seed: u64) -> Self {
        let tokens = (path.policer.map_or(0, |(_, burst)| burst) as f64, 0);
        let mut model = Model {
            path,
            flows: Vec::new(),
            now: 0,
            events: BinaryHeap::new(),
            order: 0,
            random: PseudoRandom(seed),
            free_at: 0,
            last: 0,
            tokens,
            hosts: [(0, 0); 2],
        };
        model.hosts = [(0, model.next_stall(0)), (0, model.next_stall(0))];
        model
    }

    pub(in crate::proto::congestion) fn add(&mut self, sender: Sender) -> usize {
        let flow = self.flows.len();
        let wake_at = sender.starts;
        self.post(wake_at, ModelEvent::Wake { flow });
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
            delivery: Delivery::default(),
            is_cwnd_limited: false,
            newest_acked: 0,
            probes: 0,
            probe_at: Nanos::MAX,
            wake_at,
            offered: None,
            delays: (0, 0),
        });
        flow
    }

    /// Runs the model for the time `time`. Returns the throughput of each flow in bytes per second.
    pub(in crate::proto::congestion) fn run(&mut self, time: Nanos) -> Vec<f64> {
        let end = self.now + time;
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.arrived).collect();
        self.flows.iter_mut().for_each(|flow| flow.delays = (0, 0));
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            match event {
                ModelEvent::Ack { flow, number } => self.acked(flow, number),
                ModelEvent::Wake { flow } => self.woken(flow),
            }
        }
        self.now = end;
        let seconds = time as f64 / SECONDS as f64;
        self.flows.iter().zip(before).map(|(flow, before)| (flow.arrived - before) as f64 / seconds).collect()
    }

    /// Limits the rate of a flow's application to `rate` bytes per second.
    pub(in crate::proto::congestion) fn offer(&mut self, flow: usize, rate: u64) {
        let now = self.now;
        let flow = &mut self.flows[flow];
        flow.offered = Some((rate, now, flow.sent));
    }

    fn post(&mut self, at: Nanos, event: ModelEvent) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn next_stall(&mut self, from: Nanos) -> Nanos {
        let Some((mean, _)) = self.path.stalls else { return Nanos::MAX };
        from + (2.0 * mean as f64 * self.random.share()) as Nanos
    }

    /// Returns the time at which a host that has work at `at` can run.
    fn runs_at(&mut self, host: usize, at: Nanos) -> Nanos {
        while let Some((_, longest)) = self.path.stalls.filter(|_| self.hosts[host].1 <= at) {
            let until = self.hosts[host].1 + (longest as f64 * self.random.share()) as Nanos;
            self.hosts[host] = (until, self.next_stall(until));
        }
        at.max(self.hosts[host].0)
    }

    /// Sends a packet. Returns the arrival time of its ack and the queueing delay, or `None` if the packet is lost.
    fn travels(&mut self, bytes: u64) -> Option<(Nanos, Nanos)> {
        if self.random.share() < self.path.loss {
            return None;
        }
        if let Some((rate, burst)) = self.path.policer {
            let earned = (self.now - self.tokens.1) as f64 * rate as f64 / 1e9;
            self.tokens = ((self.tokens.0 + earned).min(burst as f64), self.now);
            if self.tokens.0 < bytes as f64 {
                return None;
            }
            self.tokens.0 -= bytes as f64;
        }
        let waits = self.free_at.saturating_sub(self.now);
        let queued = u128::from(waits) * u128::from(self.path.link) / u128::from(SECONDS);
        if queued + u128::from(bytes) > u128::from(self.path.queue) {
            return None;
        }
        self.free_at = self.free_at.max(self.now) + bytes * SECONDS / self.path.link;
        let arrival = self.runs_at(0, self.free_at + self.path.rtt / 2);
        // The ack arrives late by a random time, because hosts respond with jitter.
        let jitter = (self.random.share() * self.path.rtt as f64 / 64.0) as Nanos;
        self.last = self.runs_at(1, arrival + self.path.rtt / 2 + jitter).max(self.last);
        Some((self.last, waits))
    }

    fn woken(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.flows[index];
        if flow.wake_at != now {
            return; // An earlier wake-up has replaced this one.
        }
        flow.wake_at = Nanos::MAX;
        if !flow.flight.is_empty() && flow.probe_at <= now {
            flow.probes += 1;
            flow.probe_at = now + (pto(flow) << flow.probes.min(6));
            self.transmit(index, true);
        }
        self.send(index);
    }

    /// Sends as many packets as the window and the pacing rate allow, and schedules the flow's next wake-up.
    fn send(&mut self, index: usize) {
        let mut next = Nanos::MAX;
        loop {
            let now = self.now;
            let flow = &mut self.flows[index];
            let cwnd = flow.cwnd();
            if let Some((rate, since, before)) = flow.offered {
                let left = u128::from(rate) * u128::from(now - since) / u128::from(SECONDS) + u128::from(before);
                if u128::from(flow.sent + flow.sender.packet) > left {
                    flow.delivery.mark_app_limited(flow.in_flight);
                    next = next.min(now + flow.sender.packet * SECONDS / rate);
                    break;
                }
            }
            if flow.in_flight + flow.sender.packet > cwnd.min(flow.sender.limit) && flow.in_flight > 0 {
                flow.is_cwnd_limited |= flow.in_flight + flow.sender.packet > cwnd;
                break;
            }
            match flow.pacer.may_send(now, flow.sender.packet) {
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
            self.post(next, ModelEvent::Wake { flow: index });
        }
    }

    fn transmit(&mut self, index: usize, probe: bool) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let bytes = flow.sender.packet;
        let number = flow.number;
        flow.number += 1;
        flow.sent += bytes;
        flow.in_flight += bytes;
        let state = flow.delivery.sent(now, bytes, flow.in_flight);
        let is_app_limited = flow.delivery.is_app_limited();
        flow.sender.control.sent(&SentPacket { now, bytes, in_flight: flow.in_flight, is_app_limited });
        let rate = flow.sender.control.pacing_rate();
        flow.pacer.record_sent(now, bytes, rate, bytes);
        if flow.flight.is_empty() || !probe {
            flow.probe_at = now + pto(flow);
        }
        flow.flight.push_back(Sent { number, bytes, at: now, state });
        if let Some((at, waited)) = self.travels(bytes) {
            self.flows[index].delays.0 += u128::from(waited);
            self.flows[index].delays.1 += 1;
            self.post(at, ModelEvent::Ack { flow: index, number });
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
        flow.delivery.acked(now, sent.bytes);
        self.lose(index, |sent, now, srtt| {
            sent.number + 3 <= number || (sent.number < number && late(sent, now, srtt))
        });
        let flow = &mut self.flows[index];
        flow.newest_acked = flow.newest_acked.max(sent.at);
        flow.sender.control.acked(&AckEvent {
            now,
            bytes: sent.bytes,
            rtt: Some(rtt),
            srtt: flow.srtt,
            in_flight: flow.in_flight,
            rate: Some(flow.delivery.sample(&sent.state, sent.at, flow.min_rtt)),
            is_cwnd_limited: std::mem::take(&mut flow.is_cwnd_limited),
            spurious: 0,
        });
        self.send(index);
    }

    fn lose(&mut self, index: usize, is_lost: impl Fn(&Sent, Nanos, Nanos) -> bool) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let (mut lost, total_delivered) = (LostPackets::default(), flow.delivery.total_delivered());
        let (mut first_sent, mut last) = (Nanos::MAX, None);
        while let Some(sent) = flow.flight.front().filter(|sent| is_lost(sent, now, flow.srtt)) {
            let packet = flow.delivery.lost(sent.bytes, &sent.state);
            lost.packets += 1;
            lost.ranges += u32::from(last.is_none_or(|last| last + 1 != sent.number));
            lost.last_sent = lost.last_sent.max(sent.at);
            lost.excess = lost.excess.or(Some(packet).filter(|it| is_loss_too_high(it.lost, it.tx_in_flight)));
            (first_sent, last) = (first_sent.min(sent.at), Some(sent.number));
            flow.lost += sent.bytes;
            flow.in_flight -= sent.bytes;
            flow.flight.pop_front();
        }
        if lost.packets > 0 {
            let is_persistent = lost.last_sent - first_sent > 3 * pto(flow) && flow.newest_acked <= first_sent;
            let in_flight = flow.in_flight;
            flow.sender.control.lost(&LossEvent { now, lost, in_flight, total_delivered, is_persistent });
        }
    }
}

fn late(sent: &Sent, now: Nanos, srtt: Nanos) -> bool {
    now - sent.at > srtt + srtt / 8
}

fn pto(flow: &Flow) -> Nanos {
    let first = if flow.srtt == 0 { 100 * MILLIS } else { flow.srtt * 3 };
    first.max(MILLIS)
}
