//! Checks of the final state of a run: events, completions and failed requests of each connection.

use dapl::provider::{ConnectionEvent, Status};

use super::link::{EndState, SimLink};
use super::run::Run;
use super::scenario::{OpKind, Scenario, ScriptedAction};

pub(super) fn check(run: &Run<'_>) {
    for (at, link) in run.links.iter().enumerate() {
        for side in 0..2 {
            check_events(link, side, at);
            check_completions(link, side, at);
        }
        if !run.scenario.is_excused(at) {
            check_undisturbed(link, at);
        } else if !run.scenario.is_loose(at) {
            check_failures(run.scenario, link, at);
            check_drained(run.scenario, link, at);
        }
    }
}

/// Checks the events of a side: one event for the end of an established connection, and none if this side aborted the
/// connection or the connection has not ended.
fn check_events(link: &SimLink, side: usize, at: usize) {
    let events = link.events(side);
    match link.state[side] {
        EndState::Ended if link.aborted[side] => {
            assert_eq!(events, [], "link {at} side {side}: a side that aborts gets no event")
        }
        EndState::Ended => assert_eq!(events.len(), 1, "link {at} side {side}: expected one event, not {events:?}"),
        EndState::ProcessExited => {}
        state => assert_eq!(events, [], "link {at} side {side}: expected no event in state {state:?}"),
    }
}

fn check_completions(link: &SimLink, side: usize, at: usize) {
    if link.state[side] != EndState::ProcessExited {
        let oracle = link.oracle.borrow();
        let it = &oracle.sides[side];
        assert_eq!(it.done, it.entries.len(), "link {at} side {side}: not all requests have completed");
        assert_eq!(it.done_recvs, it.posted_recvs, "link {at} side {side}: not all receives have completed");
    }
}

/// Checks that a connection that must not fail has completed all its work.
fn check_undisturbed(link: &SimLink, at: usize) {
    assert_eq!(link.state, [EndState::Ended; 2], "link {at}: both sides must have ended");
    assert!(link.complete, "link {at} ended before its work was complete");
    let oracle = link.oracle.borrow();
    for side in 0..2 {
        let it = &oracle.sides[side];
        assert!(
            it.entries.iter().all(|entry| entry.status == Some(Status::Success)),
            "link {at} side {side}: a request has failed"
        );
        assert_eq!(
            it.received,
            oracle.sides[1 - side].sends.len(),
            "link {at} side {side}: not all messages of the peer arrived"
        );
        assert!(it.failed_recvs.iter().all(|status| *status == Status::Flushed));
        assert!(
            it.events.iter().all(|event| *event == ConnectionEvent::Disconnected),
            "link {at} side {side}: expected only disconnects, not {:?}",
            it.events
        );
    }
}

/// Checks that each failed request that was not flushed had a cause: it was invalid, the network was down, or the peer
/// ended the connection. Also checks that receives failed only by a flush or a message that is too long.
fn check_failures(scenario: &Scenario, link: &SimLink, at: usize) {
    for side in 0..2 {
        let Some((index, status)) = link.failure(side) else { continue };
        let oracle = link.oracle.borrow();
        let kind = oracle.sides[side].entries[index].kind;
        let fits = match status {
            Status::RemoteAccess => matches!(kind, OpKind::BadWrite | OpKind::BadRead),
            Status::RemoteResponder => kind == OpKind::LongSend,
            Status::LocalProtection => kind == OpKind::BadSource,
            // A peer that has disconnected does not challenge new addresses. So after an address change all its
            // closing packets may be lost.
            Status::Transport => {
                is_cut(scenario, at)
                    || link.aborted.contains(&true)
                    || scenario.has_bad(at)
                    || (scenario.moves(at) && link.drained.contains(&true))
            }
            _ => false,
        };
        assert!(fits, "link {at} side {side}: request {index}, {kind:?}, must not complete with {status:?}");
    }
    let oracle = link.oracle.borrow();
    for side in 0..2 {
        for status in &oracle.sides[side].failed_recvs {
            let is_long = oracle.sides[1 - side].entries.iter().any(|entry| entry.kind == OpKind::LongSend);
            let fits = *status == Status::Flushed || (*status == Status::LocalLength && is_long);
            assert!(fits, "link {at} side {side}: a receive must not complete with {status:?}");
        }
    }
}

/// Checks that all sends that completed with success have arrived at the peer. Skips connections on which both sides
/// disconnected gracefully, those with an abort, an invalid request, an outage or a restart, and those that have not
/// ended.
fn check_drained(scenario: &Scenario, link: &SimLink, at: usize) {
    let aborts = scenario
        .actions
        .iter()
        .filter(|action| matches!(action.what, ScriptedAction::Abort(link, _) if link == at))
        .count();
    let is_quiet = aborts == 0 && !scenario.has_bad(at) && !is_cut(scenario, at) && !link.aborted.contains(&true);
    if !is_quiet || link.drained == [true; 2] || link.state != [EndState::Ended; 2] {
        return;
    }
    let oracle = link.oracle.borrow();
    for side in 0..2 {
        let (one, other) = (&oracle.sides[side], &oracle.sides[1 - side]);
        let sent = one.sends.iter().filter(|index| one.entries[**index].status == Some(Status::Success)).count();
        assert!(
            other.received >= sent,
            "link {at} side {side}: {sent} messages completed, but only {} arrived",
            other.received
        );
    }
}

/// Whether the network may have been down for longer than the timeout, or a process of the connection was restarted.
fn is_cut(scenario: &Scenario, at: usize) -> bool {
    let [a, b] = scenario.links[at].ends;
    let restarts = scenario
        .actions
        .iter()
        .any(|action| matches!(action.what, ScriptedAction::Restart(peer) if peer == a || peer == b));
    restarts || scenario.is_long_cut(at)
}
