//! One run of a scenario in virtual time, from the first connection request until no peer has a connection.

use super::established::{self, SimConnection};
use super::link::{EndState, SimLink};
use super::network::{Datagram, Network, peer_of};
use super::oracle::OracleHost;
use super::peer::{Peer, SetupEvent, address};
use super::scenario::{EndPlan, OpKind, Scenario, ScriptedAction};
use crate::proto::conn::Post;
use crate::proto::setup::HandshakeResult;
use crate::proto::{MICROS, Nanos, SECONDS};

/// Time limit for all work after the last fault. The connections must end within the same time after that.
const TIME_LIMIT: Nanos = 60 * SECONDS;
/// Maximum number of steps of a run.
const MAX_STEPS: u32 = 400_000;
/// Maximum number of consecutive steps at the same virtual time.
const MAX_STEPS_AT_ONE_TIME: u32 = 2_000;

pub(super) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) now: Nanos,
    network: Network,
    pub(super) peers: Vec<Peer>,
    pub(super) links: Vec<SimLink>,
    actions_done: usize,
    restarts: u64,
    /// Time of an additional step, in which consumers may post or connections may send again.
    again: Option<Nanos>,
}

/// Runs the scenario, and panics if a check fails.
pub(super) fn run(scenario: &Scenario, traced: bool) {
    let mut run = Run::new(scenario);
    run.network.traced = traced;
    let limit = scenario.calm() + 2 * TIME_LIMIT;
    let (mut steps, mut at_once) = (0, 0);
    while !run.is_over() {
        let before = run.now;
        run.step();
        steps += 1;
        at_once = if run.now == before { at_once + 1 } else { 0 };
        assert!(run.now < limit, "the run did not end within its limit of {limit} ns: {}", run.state());
        assert!(
            steps < MAX_STEPS && at_once < MAX_STEPS_AT_ONE_TIME,
            "more than {MAX_STEPS} steps, or {MAX_STEPS_AT_ONE_TIME} at one time: {}",
            run.state()
        );
    }
    super::verdict::check(&run);
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Run<'a> {
        let peers = scenario.peers.iter().enumerate();
        let peers = peers.map(|(at, plan)| Peer::new(at, 0, plan, scenario.sealed, scenario.seed, 0)).collect();
        let links = (0..scenario.links.len()).map(|at| SimLink::new(scenario, at)).collect();
        Run {
            scenario,
            now: 0,
            network: Network::new(scenario),
            peers,
            links,
            actions_done: 0,
            restarts: 0,
            again: None,
        }
    }

    /// Does all work that is due now, then advances the clock to the next event.
    fn step(&mut self) {
        while let Some(datagram) = self.network.arrived(self.now) {
            let to = peer_of(datagram.to);
            if let Some(peer) = self.peers.get_mut(to) {
                peer.receive(self.now, datagram);
            }
            self.record(to);
        }
        self.execute_planned_actions();
        for at in 0..self.links.len() {
            self.run_consumers(at);
        }
        let done = self.done();
        for at in 0..self.peers.len() {
            self.peers[at].on_time(self.now);
            self.record(at);
            self.send(at);
            self.peers[at].remove_closed(self.now);
        }
        if self.done() != done {
            self.again = Some(self.now + MICROS); // Completions may allow consumers to post further work.
        }
        let next = self.next().unwrap_or(self.now + SECONDS);
        self.now = next.max(self.now);
    }

    /// Returns the number of completions of all connections.
    fn done(&self) -> u64 {
        let sides =
            |link: &SimLink| link.oracle.borrow().sides.iter().map(|it| it.done as u64 + it.done_recvs).sum::<u64>();
        self.links.iter().map(sides).sum()
    }

    fn next(&mut self) -> Option<Nanos> {
        let peers = self.peers.iter().filter_map(Peer::deadline);
        let actions = self.scenario.actions.get(self.actions_done).map(|action| action.at);
        let links = (0..self.links.len()).filter_map(|at| self.links[at].deadline(self.scenario, at, self.now));
        peers.chain(actions).chain(links).chain(self.network.next()).chain(self.again.take()).min()
    }

    fn send(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        let mut out: Vec<_> = peer.out.drain(..).collect();
        for connection in peer.connections.values_mut() {
            for count in 0..=connection.burst {
                if count == connection.burst {
                    self.again = Some(self.now + 5 * MICROS);
                    break;
                }
                let Some(packet) = connection.transmit(self.now) else { break };
                out.push(packet);
            }
            connection.record_event();
        }
        let from = peer.address;
        for (to, bytes) in out {
            self.network.carry(self.now, Datagram { from, to, bytes, garbled: false });
        }
    }

    /// Handles the set-up events of a process.
    fn record(&mut self, at: usize) {
        for event in std::mem::take(&mut self.peers[at].events) {
            match event {
                SetupEvent::Requested(link, id) => {
                    let due = self.now + self.scenario.links[link].think;
                    self.links[link].pending.push((due, id));
                }
                SetupEvent::Failed(link, why) => self.links[link].fails(0, why),
                SetupEvent::AcceptFailed(link) => self.links[link].fails(1, "not confirmed"),
                SetupEvent::Established(link, number, agreed, early) => self.establish(link, number, *agreed, early),
            }
        }
    }

    fn establish(&mut self, at: usize, number: u32, agreed: HandshakeResult, early: Option<Datagram>) {
        let side = usize::from(!agreed.terms.active);
        let link = &mut self.links[at];
        assert_eq!(link.state[side], EndState::Trying, "a side was established twice");
        link.state[side] = EndState::Established(number);
        let plan = &self.scenario.links[at];
        let peer = &mut self.peers[plan.ends[side]];
        let mine = &plan.sides[side];
        let config = established::config(mine, peer.plan.window_kib);
        let pool = mine.shared.then(|| peer.pool.clone());
        let host = OracleHost { oracle: link.oracle.clone(), side, pool };
        let mut connection = SimConnection::new(at, agreed, &config, host, mine.burst, self.now);
        // The peer has credits for these receives from the handshake.
        while !mine.shared && link.recvs_posted[side] < link.due_recvs(side, mine.max_recvs as usize, 0) {
            link.post_recv(side, &mut connection);
        }
        if let Some(early) = early {
            connection.receive_first(self.now, &early);
        }
        peer.connections.insert(number, connection);
    }

    fn execute_planned_actions(&mut self) {
        while let Some(action) = self.scenario.actions.get(self.actions_done).filter(|action| action.at <= self.now) {
            self.actions_done += 1;
            match action.what {
                ScriptedAction::Restart(peer) => self.restart(peer),
                ScriptedAction::Move(peer) => {
                    let port = self.peers[peer].address.port();
                    self.peers[peer].address = address(peer, port + 1);
                }
                ScriptedAction::Drain(link, side) => self.end(link, side, false),
                ScriptedAction::Abort(link, side) => self.end(link, side, true),
            }
        }
    }

    fn restart(&mut self, at: usize) {
        self.restarts += 1;
        let plan = &self.scenario.peers[at];
        let mut fresh = Peer::new(at, self.restarts, plan, self.scenario.sealed, self.scenario.seed, self.now);
        fresh.address = self.peers[at].address;
        self.peers[at] = fresh;
        for (link, plan) in self.links.iter_mut().zip(&self.scenario.links) {
            for side in 0..2 {
                let was_there = !matches!(link.state[side], EndState::Ended | EndState::Failed(_) | EndState::Before);
                if plan.ends[side] == at && was_there {
                    link.state[side] = EndState::ProcessExited;
                }
                if plan.ends[side] == at && side == 1 {
                    link.pending.clear();
                }
                if plan.ends[side] == at && plan.sides[side].shared {
                    link.recvs_posted[side] = 0; // The process posts the receives again after its restart.
                }
            }
        }
    }

    fn end(&mut self, at: usize, side: usize, abort: bool) {
        let plan = &self.scenario.links[at];
        let link = &mut self.links[at];
        let EndState::Established(number) = link.state[side] else { return };
        let Some(connection) = self.peers[plan.ends[side]].connections.get_mut(&number) else { return };
        if connection.conn.is_closed() {
            return;
        }
        if abort {
            link.aborted[side] = true;
            connection.conn.abort(self.now, &mut connection.host);
        } else {
            link.drained[side] = true;
            connection.conn.drain(self.now);
        }
        connection.record_event();
    }

    /// Makes the calls of both consumers of a connection that are due: connect, withdraw, accept or reject, posts and
    /// disconnect.
    fn run_consumers(&mut self, at: usize) {
        let plan = &self.scenario.links[at];
        if !self.links[at].started && self.now >= plan.start {
            self.links[at].started = true;
            self.links[at].state[0] = EndState::Trying;
            let wanted = self.links[at].wanted(plan, 0, self.now);
            self.peers[plan.ends[0]].connect(self.now, at, plan.ends[1], &wanted);
        }
        if plan.withdraw.is_some_and(|when| when <= self.now)
            && self.links[at].state[0] == EndState::Trying
            && self.peers[plan.ends[0]].withdraw(self.now, at)
        {
            self.links[at].fails(0, "withdrawn");
        }
        self.answer_requests(at);
        for side in 0..2 {
            self.post(at, side);
        }
        self.end_when_done(at);
    }

    fn answer_requests(&mut self, at: usize) {
        let plan = &self.scenario.links[at];
        let link = &mut self.links[at];
        let due: Vec<_> = link.pending.extract_if(.., |(due, _)| *due <= self.now).collect();
        for (_, id) in due {
            let server = &mut self.peers[plan.ends[1]];
            if server.acceptor.request(id).is_none() {
                continue;
            }
            let is_free =
                matches!(link.state[1], EndState::Before | EndState::Failed("not confirmed") | EndState::Trying);
            if !plan.accepts || !is_free {
                server.decide(self.now, at, id, None);
                if is_free {
                    link.state[1] = EndState::Failed("refused");
                }
                continue;
            }
            // Several accepts may be pending: a client whose address changes sends requests from both addresses, and
            // old packets may arrive late. The connection uses the accept that the client confirms.
            let wanted = link.wanted(plan, 1, self.now);
            let is_there = server.decide(self.now, at, id, Some(&wanted));
            if is_there {
                link.state[1] = EndState::Trying;
            } else if link.state[1] != EndState::Trying {
                link.state[1] = EndState::Failed("not confirmed");
            }
        }
    }

    /// Posts the receives and requests that are due, up to the limits of the queues.
    fn post(&mut self, at: usize, side: usize) {
        let plan = &self.scenario.links[at];
        let (link, mine) = (&mut self.links[at], &plan.sides[side]);
        let peer = &mut self.peers[plan.ends[side]];
        while mine.shared && link.recvs_posted[side] < link.due_recvs(side, usize::MAX, self.now) {
            // A shared receive has the length of the longest message of any connection, so that any message fits.
            let longest = self.scenario.links.iter().flat_map(|link| &link.sides).flat_map(|side| &side.items);
            let longest = longest.filter(|item| item.kind.is_send()).map(|item| item.length).max().unwrap_or(0);
            peer.pool.borrow_mut().put(longest);
            link.recvs_posted[side] += 1;
        }
        let EndState::Established(number) = link.state[side] else { return };
        let Some(connection) = peer.connections.get_mut(&number) else {
            link.state[side] = EndState::Ended;
            return;
        };
        let closed = connection.conn.is_closed();
        while !mine.shared
            && (closed || connection.conn.outstanding().1 < mine.max_recvs)
            && link.recvs_posted[side] < link.due_recvs(side, usize::MAX, self.now)
        {
            link.post_recv(side, connection);
        }
        while let Some(item) = mine.items.get(link.posted[side]).filter(|item| item.at <= self.now)
            && (closed || connection.conn.outstanding().0 < mine.max_requests)
        {
            link.posted[side] += 1;
            let (work, length, request) = link.oracle.borrow_mut().post(side, item);
            let post = Post { work, length, fence: item.fence };
            connection.conn.post(self.now, post, |own| *own = request, &mut connection.host);
        }
    }

    fn end_when_done(&mut self, at: usize) {
        let plan = &self.scenario.links[at];
        let both = |link: &SimLink| link.state.iter().all(|state| matches!(state, EndState::Established(_)));
        if self.links[at].finished || !both(&self.links[at]) {
            return;
        }
        let is_late = self.scenario.is_loose(at) && self.now >= self.scenario.calm() + 20 * SECONDS;
        let is_done = self.links[at].is_done(plan) && self.now >= self.scenario.calm();
        if !is_done && !is_late {
            return;
        }
        let link = &mut self.links[at];
        link.finished = true;
        link.complete = is_done;
        let finish = if is_late { EndPlan::AbortBoth } else { plan.finish };
        if is_done && !self.scenario.is_excused(at) {
            self.check_counters(at);
        }
        match finish {
            EndPlan::Drain(side) => self.end(at, side, false),
            EndPlan::Abort(side) => self.end(at, side, true),
            EndPlan::DrainBoth => [0, 1].iter().for_each(|side| self.end(at, *side, false)),
            EndPlan::AbortBoth => [0, 1].iter().for_each(|side| self.end(at, *side, true)),
            EndPlan::DrainAndAbort => {
                self.end(at, 0, false);
                self.end(at, 1, true);
            }
        }
    }

    /// Checks the counters of both sides when all work is complete: received packets, refusals, invalid acks and
    /// payload bytes.
    fn check_counters(&self, at: usize) {
        let plan = &self.scenario.links[at];
        let counters = [0, 1].map(|side| {
            let EndState::Established(number) = self.links[at].state[side] else {
                panic!("both sides are established when counters are checked")
            };
            self.peers[plan.ends[side]].connections[&number].conn.counters()
        });
        let oracle = self.links[at].oracle.borrow();
        for (ours, theirs) in [(0, 1), (1, 0)] {
            let (a, b) = (&counters[ours], &counters[theirs]);
            assert!(b.received <= a.sent, "{} packets were received, but only {} were sent", b.received, a.sent);
            assert_eq!((a.refusals_sent, a.refusals_received, a.acks_of_unsent), (0, 0, 0));
            let bytes = |side: usize, kind: fn(OpKind) -> bool| -> u64 {
                let entries = &oracle.sides[side].entries;
                entries.iter().filter(|entry| kind(entry.kind)).map(|entry| u64::from(entry.length)).sum()
            };
            let sent = bytes(ours, |kind| matches!(kind, OpKind::Send | OpKind::Write) || kind.has_value());
            let read = bytes(theirs, |kind| matches!(kind, OpKind::Read | OpKind::ReadBack));
            let fits = b.received_bytes == sent + read || (a.withdrawn_sends > 0 && b.received_bytes > sent + read);
            assert!(fits, "{} bytes of payload were received, but {} were sent", b.received_bytes, sent + read);
        }
    }

    fn is_over(&self) -> bool {
        let links = self.links.iter().all(|link| {
            let is_idle = link.state[1] == EndState::Before && link.pending.is_empty();
            link.state[0].is_final() && (link.state[1].is_final() || is_idle)
        });
        let is_calm = self.actions_done == self.scenario.actions.len() && self.network.next().is_none();
        links && is_calm && self.peers.iter().all(Peer::is_empty)
    }

    pub(super) fn state(&self) -> String {
        let link = |link: &SimLink| {
            let oracle = link.oracle.borrow();
            let side = |side: usize| {
                let it = &oracle.sides[side];
                format!(
                    "{:?}: {} of {} requests completed, {} messages received, events {:?}",
                    link.state[side],
                    it.done,
                    it.entries.len(),
                    it.received,
                    it.events
                )
            };
            format!("[{} | {}]", side(0), side(1))
        };
        let links: Vec<String> = self.links.iter().map(link).collect();
        let empty: Vec<bool> = self.peers.iter().map(Peer::is_empty).collect();
        let connections: Vec<String> = self
            .peers
            .iter()
            .flat_map(|peer| peer.connections.values())
            .map(|connection| {
                format!(
                    "\n  link {} side {}: outstanding {:?} deadline {:?} work {} {:?}",
                    connection.link,
                    connection.host.side,
                    connection.conn.outstanding(),
                    connection.conn.deadline(),
                    connection.conn.pending_work(self.now).needs_service(),
                    connection.conn.counters()
                )
            })
            .collect();
        format!(
            "at {} ns, calm from {} ns; links {}; peers without connections: {empty:?}{}",
            self.now,
            self.scenario.calm(),
            links.join(" "),
            connections.concat()
        )
    }
}
