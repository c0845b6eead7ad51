//! A scenario: connections between peers, their requests with the times of the posts, early disconnects, faults of the
//! network, restarts of processes and changes of addresses.
//!
//! A scenario is plain data derived from a seed, so that a failing scenario can be reduced by removing parts.

use super::random::TestRandom;
use crate::proto::congestion::Algorithm;
use crate::proto::{MICROS, MILLIS, Nanos, SECONDS};

/// Maximum length of a message, and size of the read-only memory for RDMA reads, in bytes.
pub(super) const LONGEST: u32 = 300 << 10;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) peers: Vec<PeerPlan>,
    pub(super) links: Vec<ConnectionPlan>,
    pub(super) faults: Vec<Fault>,
    pub(super) actions: Vec<ScheduledAction>,
    /// Whether all packets are encrypted.
    pub(super) sealed: bool,
    /// One-way delay of packets without faults.
    pub(super) latency: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct PeerPlan {
    pub(super) mtu: u16,
    pub(super) window_kib: u16,
    pub(super) cookies: bool,
}

/// Plan of one connection, from its request to its end. Side 0 is the client, side 1 the server.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPlan {
    pub(super) ends: [usize; 2],
    pub(super) start: Nanos,
    /// Time that the server's consumer takes to accept or reject a request.
    pub(super) think: Nanos,
    pub(super) accepts: bool,
    /// Time at which the client's consumer withdraws its request, if it is still pending.
    pub(super) withdraw: Option<Nanos>,
    pub(super) sides: [EndpointPlan; 2],
    pub(super) finish: EndPlan,
}

#[derive(Clone, Debug)]
pub(super) struct EndpointPlan {
    pub(super) shared: bool,
    pub(super) max_requests: u32,
    pub(super) max_recvs: u32,
    pub(super) reads: u32,
    pub(super) window: u32,
    pub(super) depth: u32,
    pub(super) mtu_start: usize,
    pub(super) congestion: Algorithm,
    pub(super) keepalive: Nanos,
    /// First PSN, or `None` for a random PSN.
    pub(super) psn: Option<u32>,
    /// Maximum number of packets that the side sends in one step.
    pub(super) burst: usize,
    pub(super) items: Vec<Item>,
    /// Number of posted receives that no message uses.
    pub(super) spare_recvs: u32,
}

/// A planned request.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) at: Nanos,
    pub(super) kind: OpKind,
    pub(super) length: u32,
    pub(super) fence: bool,
    pub(super) solicited: bool,
    /// For a send: the time at which the peer posts the receive.
    pub(super) recv_at: Nanos,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OpKind {
    Send,
    Write,
    Read,
    /// Reads the destination of the last write of the same side.
    ReadBack,
    Bind,
    /// A fetch-and-add or a compare-and-swap.
    Atomic,
    SendImmediate,
    SendInvalidate,
    WriteImmediate,
    /// A write with an unknown key.
    BadWrite,
    /// A read with an unknown key.
    BadRead,
    /// A send that is longer than its receive.
    LongSend,
    /// A send from unreadable memory.
    BadSource,
}

impl OpKind {
    pub(super) fn is_bad(self) -> bool {
        matches!(self, OpKind::BadWrite | OpKind::BadRead | OpKind::LongSend | OpKind::BadSource)
    }

    pub(super) fn is_send(self) -> bool {
        matches!(self, OpKind::Send | OpKind::LongSend | OpKind::BadSource) || self.has_value()
    }

    /// Whether the completion of the peer's receive contains immediate data or an invalidated key.
    pub(super) fn has_value(self) -> bool {
        matches!(self, OpKind::SendImmediate | OpKind::SendInvalidate | OpKind::WriteImmediate)
    }
}

/// The sides that disconnect when all work is done, gracefully (drain) or abruptly (abort).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EndPlan {
    Drain(usize),
    Abort(usize),
    DrainBoth,
    AbortBoth,
    DrainAndAbort,
}

/// A fault of the path from one peer to another, between two times. Rates are in packets per thousand.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) way: (usize, usize),
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FaultKind {
    Drop(u64),
    /// Delivers packets twice at this rate.
    Duplicate(u64),
    /// Delays packets at this rate by up to this time.
    DelaySome(u64, Nanos),
    /// Delays all packets by this time.
    DelayAll(Nanos),
    Corrupt(u64),
    /// Drops packets that are larger than this size.
    DropLarge(usize),
    Outage,
    /// Delivers old packets again at this rate.
    Replay(u64),
}

/// An action at a planned time.
#[derive(Clone, Debug)]
pub(super) struct ScheduledAction {
    pub(super) at: Nanos,
    pub(super) what: ScriptedAction,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ScriptedAction {
    /// The process of this peer exits and starts again.
    Restart(usize),
    /// The UDP port of this peer changes.
    Move(usize),
    Drain(usize, usize),
    Abort(usize, usize),
}

/// Connections may time out during an outage of at least this time.
pub(super) const LONG: Nanos = 4 * SECONDS;

impl Scenario {
    /// Returns the time after which no temporary fault, planned action or planned post occurs.
    pub(super) fn calm(&self) -> Nanos {
        let faults =
            self.faults.iter().filter(|fault| !matches!(fault.kind, FaultKind::DropLarge(_))).map(|fault| fault.until);
        let actions = self.actions.iter().map(|action| action.at);
        let items = |side: &EndpointPlan| side.items.iter().map(|item| item.at.max(item.recv_at)).max().unwrap_or(0);
        let links = self
            .links
            .iter()
            .map(|link| (link.start + link.think).max(items(&link.sides[0])).max(items(&link.sides[1])));
        faults.chain(actions).chain(links).max().unwrap_or(0)
    }

    /// Whether the network may corrupt packets of this connection, and the packets are not authenticated.
    pub(super) fn is_loose(&self, link: usize) -> bool {
        let link = &self.links[link];
        !self.sealed && self.between(link, |kind| matches!(kind, FaultKind::Corrupt(_)))
    }

    fn between(&self, link: &ConnectionPlan, is_it: impl Fn(&FaultKind) -> bool) -> bool {
        let [a, b] = link.ends;
        self.faults.iter().any(|fault| (fault.way == (a, b) || fault.way == (b, a)) && is_it(&fault.kind))
    }

    /// Whether a path of this connection may fail for so long that the connection times out.
    ///
    /// With encryption, this includes every address change of the server. The server's address may change before the
    /// client has received a packet of the connection, and the keys of the handshake cannot decrypt such packets.
    pub(super) fn is_long_cut(&self, at: usize) -> bool {
        let [a, b] = self.links[at].ends;
        if self.sealed && self.actions.iter().any(|action| action.what == ScriptedAction::Move(b)) {
            return true;
        }
        let cuts =
            |way, is_it: fn(&FaultKind) -> bool| self.faults.iter().any(|fault| fault.way == way && is_it(&fault.kind));
        let is_hole = |way| {
            cuts(way, |kind| matches!(kind, FaultKind::DropLarge(_)))
                && cuts(way, |kind| matches!(kind, FaultKind::Drop(_)))
        };
        // With random loss, detecting an MTU black hole may take longer than the timeout.
        if is_hole((a, b)) || is_hole((b, a)) {
            return true;
        }
        self.faults.iter().any(|fault| {
            (fault.way == (a, b) || fault.way == (b, a))
                && fault.kind == FaultKind::Outage
                && fault.until - fault.from >= LONG
        })
    }

    /// Whether this connection may end, or fail to be established, before its work is complete.
    pub(super) fn is_excused(&self, at: usize) -> bool {
        let link = &self.links[at];
        let [a, b] = link.ends;
        let is_cut = self.is_long_cut(at);
        let is_ended = self.actions.iter().any(|action| match action.what {
            ScriptedAction::Restart(peer) => peer == a || peer == b,
            ScriptedAction::Drain(link, _) | ScriptedAction::Abort(link, _) => link == at,
            ScriptedAction::Move(_) => false,
        });
        is_cut || is_ended || self.has_bad(at) || self.is_loose(at) || link.withdraw.is_some() || !link.accepts
    }

    /// Whether one of the peers of this connection changes its address.
    pub(super) fn moves(&self, link: usize) -> bool {
        let ends = self.links[link].ends;
        self.actions.iter().any(|action| matches!(action.what, ScriptedAction::Move(peer) if ends.contains(&peer)))
    }

    pub(super) fn has_bad(&self, link: usize) -> bool {
        self.links[link].sides.iter().any(|side| side.items.iter().any(|item| item.kind.is_bad()))
    }

    /// Removes a connection and its actions.
    pub(super) fn leave_out(&mut self, link: usize) {
        self.links.remove(link);
        let whose = |what: &ScriptedAction| match what {
            ScriptedAction::Drain(at, _) | ScriptedAction::Abort(at, _) => Some(*at),
            ScriptedAction::Restart(_) | ScriptedAction::Move(_) => None,
        };
        self.actions.retain(|action| whose(&action.what) != Some(link));
        for action in &mut self.actions {
            if let ScriptedAction::Drain(at, _) | ScriptedAction::Abort(at, _) = &mut action.what {
                *at -= usize::from(*at > link);
            }
        }
    }

    /// Creates the scenario of a seed. A seed with the bit [`EXTENDED`] gives extension operations.
    pub(super) fn of(seed: u64) -> Scenario {
        let mut scenario = Scenario::plain(seed & !EXTENDED);
        scenario.seed = seed;
        if seed & EXTENDED != 0 {
            let mut dice = TestRandom::new(seed);
            let sides = scenario.links.iter_mut().flat_map(|link| &mut link.sides);
            sides.flat_map(|side| &mut side.items).for_each(|item| extend(item, &mut dice));
        }
        scenario
    }

    /// Creates a scenario without extension operations.
    fn plain(seed: u64) -> Scenario {
        let mut dice = TestRandom::new(seed);
        let dice = &mut dice;
        let peers = dice.pick(&[2, 2, 2, 3, 4]);
        let span = MILLIS << dice.below(11);
        let span = span + dice.below(span);
        let count = dice.pick(&[1, 1, 2, 3, 4]);
        let budget = dice.pick(&[20, 60, 150, 300, 600]) / count as u64;
        let links = (0..count).map(|_| link(dice, peers, span, budget)).collect();
        let faults = faults(dice, peers, span);
        let mut scenario = Scenario {
            seed,
            peers: (0..peers).map(|_| peer(dice)).collect(),
            links,
            faults,
            actions: Vec::new(),
            sealed: dice.hits(150),
            latency: dice.pick(&[3, 10, 20, 100, 1000, 20_000]) * MICROS,
        };
        scenario.actions = actions(dice, peers, count, span);
        for link in &mut scenario.links {
            for side in 0..2 {
                // Each receive of a shared queue fits the longest message (`Run::post`), so no send is too long for it.
                let shared = link.sides[1 - side].shared;
                let items = link.sides[side].items.iter_mut().filter(|item| shared && item.kind == OpKind::LongSend);
                items.for_each(|item| item.kind = OpKind::BadWrite);
            }
        }
        let moves = scenario.actions.iter().any(|action| matches!(action.what, ScriptedAction::Move(_)));
        if moves {
            // The other peers learn a new address only from packets sent from it, so idle connections need frequent
            // keepalives.
            for side in scenario.links.iter_mut().flat_map(|link| &mut link.sides) {
                side.keepalive = side.keepalive.min(2 * SECONDS);
            }
        }
        scenario
    }
}

/// Bit of a seed: its scenario contains extension operations.
pub(super) const EXTENDED: u64 = 1 << 40;

/// Replaces a request by a similar extension operation at random.
fn extend(item: &mut Item, dice: &mut TestRandom) {
    item.kind = match item.kind {
        OpKind::Send => dice.pick(&[OpKind::Send, OpKind::SendImmediate, OpKind::SendInvalidate]),
        OpKind::Write => dice.pick(&[OpKind::Write, OpKind::WriteImmediate]),
        OpKind::Read | OpKind::Bind => dice.pick(&[item.kind, OpKind::Atomic, OpKind::Atomic]),
        other => other,
    };
}

fn peer(dice: &mut TestRandom) -> PeerPlan {
    PeerPlan {
        mtu: dice.pick(&[1200, 1200, 1472, 1472, 4000, 8972, 65_507]),
        window_kib: dice.pick(&[4, 32, 208, 208, 4096]),
        cookies: dice.hits(200),
    }
}

fn link(dice: &mut TestRandom, peers: usize, span: Nanos, budget: u64) -> ConnectionPlan {
    let client = dice.below(peers as u64) as usize;
    let server = (client + 1 + dice.below(peers as u64 - 1) as usize) % peers;
    let start = if dice.hits(700) { 0 } else { dice.below(span) };
    let has_bad = dice.hits(100);
    let side = dice.below(2) as usize;
    ConnectionPlan {
        ends: [client, server],
        start,
        think: if dice.hits(700) { 0 } else { dice.below(span / 2 + 1) },
        accepts: !dice.hits(30),
        withdraw: dice.hits(30).then(|| start + dice.below(span)),
        sides: {
            dice.hits(400); // This value is unused, but its generation keeps the scenarios of recorded seeds unchanged.
            [0, 1].map(|place| side_plan(dice, span, budget / 2, has_bad && place == side))
        },
        finish: dice.pick(&[
            EndPlan::Drain(0),
            EndPlan::Drain(1),
            EndPlan::Abort(0),
            EndPlan::Abort(1),
            EndPlan::DrainBoth,
            EndPlan::AbortBoth,
            EndPlan::DrainAndAbort,
        ]),
    }
}

fn side_plan(dice: &mut TestRandom, span: Nanos, budget: u64, has_bad: bool) -> EndpointPlan {
    let mut items = Vec::new();
    let (mut left, slowness) = (budget as i64, dice.pick(&[0, 0, 10, 1000]) * span / 1000);
    let small = dice.hits(500);
    while left > 0 {
        let length = length(dice, small);
        left -= 1 + i64::from(length) / 1100;
        let at = dice.below(span);
        let kind =
            dice.pick(&[OpKind::Send, OpKind::Send, OpKind::Write, OpKind::Read, OpKind::ReadBack, OpKind::Bind]);
        let recv_at = if dice.hits(500) { 0 } else { at + dice.below(slowness + 1) };
        items.push(Item { at, kind, length, fence: dice.hits(200), solicited: dice.hits(300), recv_at });
    }
    if has_bad && !items.is_empty() {
        let index = dice.below(items.len() as u64) as usize;
        items[index].kind = dice.pick(&[OpKind::BadWrite, OpKind::BadRead, OpKind::LongSend, OpKind::BadSource]);
        items[index].length = items[index].length.max(1);
    }
    items.sort_by_key(|item| item.at);
    EndpointPlan {
        shared: dice.hits(200),
        max_requests: dice.pick(&[1, 2, 16, 256, 256]),
        max_recvs: dice.pick(&[1, 2, 16, 256, 256]),
        reads: dice.pick(&[1, 2, 4, 16]),
        window: dice.pick(&[2, 64, 4096, 4096]),
        depth: dice.pick(&[1, 16, 1024, 1024]),
        mtu_start: dice.pick(&[300, 1172, 1172, 1172]),
        congestion: match dice.below(10) {
            0..3 => Algorithm::Cubic,
            3..5 => Algorithm::Local,
            _ => Algorithm::Bbr,
        },
        keepalive: dice.pick(&[200 * MILLIS, 2 * SECONDS, 15 * SECONDS]),
        psn: dice.hits(300).then(|| 0u32.wrapping_sub(dice.below(300) as u32)),
        burst: dice.pick(&[1, 4, 64, 10_000]),
        items,
        spare_recvs: dice.below(3) as u32,
    }
}

fn length(dice: &mut TestRandom, small: bool) -> u32 {
    let longest = if small { 9_000 } else { u64::from(LONGEST) };
    let length = match dice.below(10) {
        0 => 0,
        1..4 => dice.below(100),
        4 => 760 + dice.below(20),
        5 => 1100 + dice.below(100),
        6 => 1400 + dice.below(100),
        7 => dice.below(9_000),
        8 => dice.below(20_000),
        _ => dice.below(longest),
    };
    length.min(longest) as u32
}

fn faults(dice: &mut TestRandom, peers: usize, span: Nanos) -> Vec<Fault> {
    let count = dice.pick(&[0, 1, 2, 3, 4, 6, 8]);
    let mut faults: Vec<Fault> = (0..count).map(|_| fault(dice, peers, span)).collect();
    // Some scenarios have the same faults in both directions.
    if dice.hits(300) {
        let back: Vec<Fault> =
            faults.iter().map(|fault| Fault { way: (fault.way.1, fault.way.0), ..fault.clone() }).collect();
        faults.extend(back);
    }
    faults
}

fn fault(dice: &mut TestRandom, peers: usize, span: Nanos) -> Fault {
    let one = dice.below(peers as u64) as usize;
    let other = (one + 1 + dice.below(peers as u64 - 1) as usize) % peers;
    let from = if dice.hits(500) { 0 } else { dice.below(span) };
    let lasts = if dice.hits(500) { 2 * span } else { dice.below(span) };
    let kind = match dice.below(16) {
        0..3 => FaultKind::Drop(dice.pick(&[5, 20, 100, 300])),
        3..5 => FaultKind::Duplicate(dice.pick(&[10, 100, 500])),
        5..8 => FaultKind::DelaySome(dice.pick(&[10, 100, 500]), dice.pick(&[20, 300, 5_000]) * MICROS),
        8..10 => FaultKind::DelayAll(dice.pick(&[20, 300, 30_000]) * MICROS),
        10..12 => FaultKind::Corrupt(dice.pick(&[2, 20, 200])),
        12 => FaultKind::DropLarge(dice.pick(&[1200, 1252, 1400, 1472, 5000])),
        13 => FaultKind::Outage,
        _ => FaultKind::Replay(dice.pick(&[10, 100, 500])),
    };
    let lasts = match kind {
        FaultKind::Outage if dice.hits(100) => 25 * SECONDS,
        FaultKind::Outage => lasts.min(2 * SECONDS),
        FaultKind::DropLarge(_) => 1 << 60,
        _ => lasts,
    };
    Fault { way: (one, other), from, until: from + lasts, kind }
}

fn actions(dice: &mut TestRandom, peers: usize, links: usize, span: Nanos) -> Vec<ScheduledAction> {
    let mut actions = Vec::new();
    let mut action = |dice: &mut TestRandom, what| actions.push(ScheduledAction { at: dice.below(span), what });
    if dice.hits(100) {
        let peer = dice.below(peers as u64) as usize;
        action(dice, ScriptedAction::Restart(peer));
    }
    if dice.hits(150) {
        // Only one peer changes its address: two peers that do so at the same time cannot find each other again.
        let peer = dice.below(peers as u64) as usize;
        (0..1 + dice.below(2)).for_each(|_| action(dice, ScriptedAction::Move(peer)));
    }
    for _ in 0..dice.pick(&[0, 0, 0, 0, 1, 2]) {
        let (link, side) = (dice.below(links as u64) as usize, dice.below(2) as usize);
        let what = if dice.hits(500) { ScriptedAction::Drain(link, side) } else { ScriptedAction::Abort(link, side) };
        action(dice, what);
    }
    actions.sort_by_key(|action| action.at);
    actions
}
