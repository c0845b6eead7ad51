//! Tests of the connection state machine: a table of its transitions, the handshake between two machines, hand-offs,
//! and repeated requests, replies, rejections and lookups.

use super::*;
use crate::proto::handshake::{ConnectParams, Geometry};

const QUAL: u64 = 7;
const SILENCE: Duration = Duration::from_secs(60);
const LOOKUP_TIME: Duration = Duration::from_millis(20);

fn params(token: u64) -> ConnectParams {
    ConnectParams {
        generation: 1,
        token,
        endpoint: 2,
        qual: QUAL,
        geometry: Geometry::LOCAL,
        pd: 1,
        reads: 4,
        table_slots: 16,
        probe_address: 0,
        probe_value: 0,
        barrier: false,
        ip: [0; 16],
    }
}

fn active(now: Instant) -> ConnectionMachine {
    let request = Datagram::Request { id: 1, params: params(0), private_data: b"hello".to_vec() };
    ConnectionMachine::active(1, request, now + LOOKUP_TIME, SILENCE, now)
}

fn requested(now: Instant) -> ConnectionMachine {
    let mut machine = active(now);
    assert_eq!(machine.handle(MachineInput::Found { qual: QUAL, token: 99 }, now), [MachineAction::Transmit]);
    machine.handle(MachineInput::Sent(DatagramDelivery::Queued), now);
    machine
}

fn offered(now: Instant) -> ConnectionMachine {
    ConnectionMachine::passive(2, 1, 99, SILENCE, now)
}

fn accepting() -> Datagram {
    Datagram::Reply {
        client: 1,
        server: 2,
        token: 99,
        result: ReplyResult::Accepted,
        accepted: Some((params(99), vec![])),
    }
}

fn after(mut machine: ConnectionMachine, inputs: &[MachineInput], now: Instant) -> ConnectionMachine {
    for input in inputs {
        machine.handle(input.clone(), now);
    }
    machine
}

fn name(state: &MachineState) -> String {
    format!("{state:?}").split(['(', ' ']).next().unwrap().to_string()
}

fn brief(action: &MachineAction) -> String {
    match action {
        MachineAction::Send(Datagram::Reply { result, .. }) => format!("{result:?}").replace("([])", ""),
        MachineAction::Send(Datagram::Reset { .. }) => "Reset".to_string(),
        MachineAction::Established(_) => "Established".to_string(),
        MachineAction::Ended(event, data) if data.is_empty() => format!("Ended({event:?})"),
        other => format!("{other:?}"),
    }
}

fn reply(result: ReplyResult) -> MachineInput {
    MachineInput::Reply { server: if result == ReplyResult::NoListener { 0 } else { 2 }, result }
}

fn inputs() -> Vec<(&'static str, MachineInput)> {
    vec![
        ("found", MachineInput::Found { qual: QUAL, token: 98 }),
        ("not found", MachineInput::NotFound),
        ("no peer", MachineInput::Sent(DatagramDelivery::NoPeer)),
        ("accepted", reply(ReplyResult::Accepted)),
        ("pending", reply(ReplyResult::Pending)),
        ("rejected", reply(ReplyResult::Rejected(Vec::new()))),
        ("no listener", reply(ReplyResult::NoListener)),
        ("handed off", reply(ReplyResult::HandedOff(8))),
        ("joined", MachineInput::Joined(vec![])),
        ("join failed", MachineInput::JoinFailed),
        ("repeated", MachineInput::Repeated),
        ("accept", MachineInput::Accept(accepting())),
        ("refuse", MachineInput::Refuse(ReplyResult::Rejected(Vec::new()))),
        ("ack", MachineInput::Ack),
        ("alive", MachineInput::Alive),
        ("deadline", MachineInput::Deadline),
        ("gone", MachineInput::Gone),
        ("close", MachineInput::Close),
    ]
}

/// Expected transitions. Inputs without effect have no row.
const TABLE: &str = "\
LookingUp + found -> Requested [Transmit]
LookingUp + deadline -> LookingUp [Lookup]
LookingUp + gone -> Closed [Ended(PeerRejected)]
LookingUp + close -> Closed []
Requested + no peer -> Requested [Recheck]
Requested + accepted -> Requested [Join]
Requested + pending -> Requested [Watch]
Requested + rejected -> Closed [Ended(PeerRejected)]
Requested + no listener -> LookingUp []
Requested + handed off -> LookingUp [LookupQual(8)]
Requested + joined -> Open [Ack, Established]
Requested + join failed -> Closed [Reset, Ended(Rejected)]
Requested + deadline -> Requested [Transmit]
Requested + gone -> Closed [Ended(PeerRejected)]
Requested + close -> Closed [Reset]
Offered + repeated -> Offered [Pending]
Offered + accept -> Replied [Transmit]
Offered + refuse -> Refused [Rejected]
Offered + gone -> Abandoned []
Offered + close -> Closed []
Replied + no peer -> Replied [Recheck]
Replied + repeated -> Replied [Transmit]
Replied + ack -> Open [Established]
Replied + alive -> Open [Established]
Replied + deadline -> Replied [Transmit]
Replied + gone -> Closed [Mark, Ended(AcceptFailed)]
Replied + close -> Closed [Reset]
Open + accepted -> Open [Ack]
Open + gone -> Closed [Mark, Ended(Disconnected)]
Open + close -> Closed [Mark]
Refused + repeated -> Refused [Rejected]
Refused + deadline -> Closed []
Refused + gone -> Closed []
Refused + close -> Closed []
Abandoned + accept -> Closed [Ended(AcceptFailed)]
Abandoned + refuse -> Closed []
Abandoned + close -> Closed []
";

#[test]
fn connection_machine_transitions_match_the_table() {
    let now = Instant::now();
    let states: [&dyn Fn() -> ConnectionMachine; 7] = [
        &|| active(now),
        &|| requested(now),
        &|| offered(now),
        &|| after(offered(now), &[MachineInput::Accept(accepting())], now),
        &|| after(offered(now), &[MachineInput::Accept(accepting()), MachineInput::Ack], now),
        &|| after(offered(now), &[MachineInput::Refuse(ReplyResult::Rejected(Vec::new()))], now),
        &|| after(offered(now), &[MachineInput::Gone], now),
    ];
    let mut table = String::new();
    for state in states {
        for (input_name, input) in inputs() {
            let mut machine = state();
            let before = name(&machine.state);
            let actions: Vec<String> = machine.handle(input, now).iter().map(brief).collect();
            let next = name(&machine.state);
            if next != before || !actions.is_empty() {
                table += &format!("{before} + {input_name} -> {next} [{}]\n", actions.join(", "));
            }
        }
    }
    assert_eq!(table, TABLE);
}

#[test]
fn handshake_of_three_datagrams_opens_both_machines() {
    let now = Instant::now();
    let (mut active, mut passive) = (requested(now), offered(now));
    assert_eq!(passive.handle(MachineInput::Accept(accepting()), now), [MachineAction::Transmit]);
    assert_eq!(passive.outgoing(), Some(&accepting()));
    assert_eq!(active.handle(reply(ReplyResult::Accepted), now), [MachineAction::Join]);
    let data = b"from the acceptor".to_vec();
    let actions = active.handle(MachineInput::Joined(data.clone()), now);
    assert_eq!(actions, [MachineAction::Ack, MachineAction::Established(data)]);
    assert_eq!(passive.handle(MachineInput::Ack, now), [MachineAction::Established(vec![])]);
    assert!(active.is_open() && passive.is_open());
    assert_eq!((active.peer_id, active.due, passive.due), (2, None, None));
    assert_eq!(active.handle(reply(ReplyResult::Accepted), now), [MachineAction::Ack], "the acknowledgement was lost");
    assert_eq!(active.handle(MachineInput::Gone, now), [MachineAction::Mark, ended(ConnectionEvent::Disconnected)]);
    assert_eq!(active.handle(MachineInput::Gone, now), [], "reported once");
}

#[test]
fn request_carries_its_token_and_qualifier() {
    let now = Instant::now();
    let mut machine = requested(now);
    let carried = |machine: &ConnectionMachine| match machine.outgoing() {
        Some(Datagram::Request { params, private_data, .. }) => (params.qual, params.token, private_data.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(carried(&machine), (QUAL, 99, b"hello".to_vec()));
    assert_eq!(machine.handle(reply(ReplyResult::HandedOff(8)), now), [MachineAction::LookupQual(8)]);
    assert_eq!(machine.handle(MachineInput::Found { qual: 8, token: 98 }, now), [MachineAction::Transmit]);
    assert_eq!((carried(&machine), machine.token), ((8, 98, b"hello".to_vec()), 98));
    assert_eq!(machine.peer_id, 0, "the id of another listener");
}

#[test]
fn rejection_is_reported_with_its_private_data() {
    let now = Instant::now();
    let data = b"full".to_vec();
    assert_eq!(
        requested(now).handle(reply(ReplyResult::Rejected(data.clone())), now),
        [MachineAction::Ended(ConnectionEvent::PeerRejected, data)]
    );
}

#[test]
fn request_is_handed_off_at_most_eight_times() {
    let now = Instant::now();
    let mut machine = requested(now);
    for token in 0..MAX_HAND_OFFS as u64 {
        assert_eq!(machine.handle(reply(ReplyResult::HandedOff(8)), now), [MachineAction::LookupQual(8)]);
        machine.handle(MachineInput::Found { qual: 8, token }, now);
    }
    assert_eq!(machine.handle(reply(ReplyResult::HandedOff(8)), now), [ended(ConnectionEvent::Rejected)]);
}

#[test]
fn missing_listener_is_looked_up_again_until_the_time_limit() {
    let begin = Instant::now();
    let mut machine = active(begin);
    let (mut now, mut waits) = (begin, Vec::new());
    while machine.handle(MachineInput::NotFound, now).is_empty() {
        let due = machine.due.unwrap();
        waits.push((due - now).as_millis());
        now = due;
        assert_eq!(machine.handle(MachineInput::Deadline, now), [MachineAction::Lookup]);
    }
    assert_eq!(waits, [1, 2, 4, 8, 5]);
    assert_eq!(now - begin, LOOKUP_TIME);
    assert!(machine.is_closed());
}

#[test]
fn end_point_of_an_exited_process_is_cleaned_and_looked_up_again() {
    let now = Instant::now();
    let mut machine = active(now);
    machine.handle(MachineInput::Found { qual: QUAL, token: 99 }, now);
    assert_eq!(machine.handle(MachineInput::Sent(DatagramDelivery::NoPeer), now), [MachineAction::CleanUp]);
    machine.handle(MachineInput::Found { qual: QUAL, token: 98 }, now + LOOKUP_TIME);
    let actions = machine.handle(MachineInput::Sent(DatagramDelivery::NoPeer), now + LOOKUP_TIME);
    assert_eq!(actions, [MachineAction::CleanUp, ended(ConnectionEvent::Rejected)]);
}

#[test]
fn unanswered_request_is_repeated_with_backoff() {
    let begin = Instant::now();
    let mut machine = requested(begin);
    let (mut now, mut waits) = (begin, Vec::new());
    for pending in [false, false, false, false, false, false, true, true] {
        if pending {
            assert_eq!(machine.handle(reply(ReplyResult::Pending), now), [MachineAction::Watch]);
        }
        let due = machine.due.unwrap();
        waits.push((due - now).as_millis());
        now = due;
        assert_eq!(machine.handle(MachineInput::Deadline, now), [MachineAction::Transmit]);
        machine.handle(MachineInput::Sent(DatagramDelivery::Queued), now);
    }
    assert_eq!(waits, [20, 40, 80, 160, 320, 500, 2000, 2000]);
}

#[test]
fn reply_is_repeated_until_give_up() {
    let begin = Instant::now();
    let mut machine = after(offered(begin), &[MachineInput::Accept(accepting())], begin);
    machine.handle(MachineInput::Sent(DatagramDelivery::Full), begin);
    assert_eq!(machine.due, Some(begin + FIRST_FULL_RETRY));
    assert_eq!(machine.handle(MachineInput::Deadline, begin + SILENCE), [MachineAction::Transmit]);
    let late = begin + SILENCE + FIRST_FULL_RETRY;
    assert_eq!(machine.handle(MachineInput::Deadline, late), [MachineAction::Recheck]);
    assert_eq!(machine.handle(MachineInput::Gone, late), [MachineAction::Mark, ended(ConnectionEvent::AcceptFailed)]);
}

#[test]
fn rejection_is_repeated_until_its_deadline() {
    let now = Instant::now();
    let mut machine = after(offered(now), &[MachineInput::Refuse(ReplyResult::Rejected(Vec::new()))], now);
    let repeated = machine.handle(MachineInput::Repeated, now);
    assert_eq!(repeated.iter().map(brief).collect::<Vec<_>>(), ["Rejected"]);
    assert_eq!(machine.due, Some(now + REJECT_LINGER));
    assert_eq!(machine.handle(MachineInput::Deadline, now + REJECT_LINGER), []);
    assert!(machine.is_closed());
}
