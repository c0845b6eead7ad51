//! Tests of extension operations: their checks, and the completions that they cause at both ends.

use super::*;
use crate::ep::dapls_post::{ParameterNumbers, post_extension};
use crate::error::Result;
use crate::evd::Evd;
use crate::provider::{Completion, CompletionQueue, Op, ReceivedOp, Remote, Segment, Work};
use crate::runtime::handle::from_handle;

const POSITIONS: ParameterNumbers = ParameterNumbers { local: 3, remote: 5, flags: 7 };
const REMOTE: Remote = Remote { key: 9, address: 0x1000 };
const WORD: Segment = Segment { key: 1, pad: 0, address: 8, length: 8 };
const ADD: Op = Op::FetchAdd { remote: REMOTE, add: 1 };
const SWAP: Op = Op::CompareSwap { remote: REMOTE, compare: 1, swap: 2 };
const WRITE: Op = Op::WriteImmediate { remote: REMOTE, data: 0xABCD, solicited: false };
const SEND: Op = Op::SendImmediate { data: 7, solicited: true };
const INVALIDATE: Op = Op::SendInvalidate { key: 0x55, solicited: false };

fn post_with(ep: H, op: Op, cookie: u64, segments: &[Segment], flags: DAT_COMPLETION_FLAGS) -> Result<()> {
    post_extension::<FakeProvider>(ep, op, segments, cookie, flags, POSITIONS)
}

fn post(ep: H, op: Op, cookie: u64) -> Result<()> {
    post_with(ep, op, cookie, &[WORD], 0)
}

/// Removes and returns the completions of the EVD's CQ, at most 16.
fn completions(evd: H) -> Vec<Completion> {
    let cq = from_handle::<Evd<FakeProvider>>(evd, Handle::Plain).unwrap().cq().unwrap();
    let mut out = [Completion::default(); 16];
    let count = cq.ready(&mut out);
    out[..count].to_vec()
}

#[test]
fn receives_get_immediate_data_and_invalidated_keys() {
    let world = World::new(c"immediate");
    let (client, server) = world.pair(5);
    for (cookie, op) in [(1, SEND), (2, WRITE), (3, INVALIDATE)] {
        assert_eq!((recv(server, 10 + cookie), post(client, op, cookie)), (DAT_SUCCESS, Ok(())));
    }
    let done = completions(world.dto);
    let received: Vec<_> = done.iter().filter(|done| done.token.work == Work::Recv).collect();
    let fields = received.iter().map(|done| (done.token.cookie, done.arrival, done.value, done.bytes, done.solicited));
    assert_eq!(
        fields.collect::<Vec<_>>(),
        [
            (11, ReceivedOp::SendImmediate, 7, 8, true),
            (12, ReceivedOp::WriteImmediate, 0xABCD, 8, false),
            (13, ReceivedOp::SendInvalidate, 0x55, 8, false)
        ]
    );
    assert_eq!(received.iter().map(|done| done.immediate()).collect::<Vec<_>>(), [Some(7), Some(0xABCD), None]);
    assert_eq!(received.iter().map(|done| done.invalidated()).collect::<Vec<_>>(), [None, None, Some(0x55)]);
    let requests = done.iter().filter(|done| !done.token.work.is_recv());
    assert_eq!(
        requests.map(|done| (done.token.cookie, done.token.work)).collect::<Vec<_>>(),
        [(1, Work::Send), (2, Work::WriteImmediate), (3, Work::Send)]
    );
    finish(world, &[client, server], &[]);
}

#[test]
fn receives_of_extension_messages_are_plain_receives_in_1_2() {
    let world = World::new(c"immediate 1.2");
    let (client, server) = world.pair(5);
    for op in [SEND, WRITE, INVALIDATE] {
        assert_eq!((recv(server, 10), post_with(client, op, 1, &[WORD], DAT_COMPLETION_SUPPRESS_FLAG)), (0, Ok(())));
        let event = next(world.dto).expect("the EVD has the completion of a receive");
        assert_eq!(event.event_number, DAT_DTO_COMPLETION_EVENT);
        // SAFETY: the event number selects the union member.
        let done = unsafe { event.event_data.dto_completion_event_data };
        assert_eq!((done.ep_handle, done.status, done.transfered_length), (server, DAT_DTO_SUCCESS, 8));
    }
    finish(world, &[client, server], &[]);
}

#[test]
fn atomic_operations_complete_with_their_kind_and_no_receive() {
    let world = World::new(c"atomics");
    let (client, server) = world.pair(5);
    assert_eq!((post(client, ADD, 1), post(client, SWAP, 2)), (Ok(()), Ok(())));
    let done = completions(world.dto);
    assert_eq!(
        done.iter().map(|done| (done.token.cookie, done.token.work, done.bytes)).collect::<Vec<_>>(),
        [(1, Work::FetchAdd, 8), (2, Work::CompareSwap, 8)]
    );
    finish(world, &[client, server], &[]);
}

#[test]
fn invalid_extension_operands_and_flags_return_the_parameter_number() {
    let world = World::new(c"wrong operands");
    let (client, server) = world.pair(5);
    let misaligned = |by: u64| Op::FetchAdd { remote: Remote { address: 0x1000 + by, ..REMOTE }, add: 1 };
    for by in [1, 2, 4, 7] {
        assert_eq!(post(client, misaligned(by), 1), Err(Error::InvalidParameter(5)));
    }
    let long = Segment { length: 16, ..WORD };
    for segments in [&[][..], &[WORD, WORD], &[long], &[Segment { length: 4, ..WORD }]] {
        assert_eq!(post_with(client, SWAP, 1, segments, 0), Err(Error::InvalidParameter(3)));
    }
    assert_eq!(post_with(client, WRITE, 1, &[WORD; 5], 0), Err(Error::InvalidParameter(3)));
    for op in [ADD, SWAP, WRITE, SEND, INVALIDATE] {
        assert_eq!(post_with(client, op, 1, &[WORD], DAT_COMPLETION_UNSIGNALLED_FLAG), Err(Error::InvalidParameter(7)));
        assert_eq!(post_with(client, op, 1, &[WORD], 0x100), Err(Error::InvalidParameter(7)));
        assert_eq!(post(null_mut(), op, 1), Err(Error::InvalidHandle(Handle::Ep)));
    }
    assert_eq!(completions(world.dto).len(), 0);
    finish(world, &[client, server], &[]);
}

#[test]
fn extension_posts_that_a_provider_lacks_return_model_not_supported() {
    let world = World::new(c"without extensions");
    let (client, server) = world.pair(5);
    for op in [ADD, SWAP, WRITE, SEND, INVALIDATE] {
        assert_eq!(post(client, op, 1), Err(Error::ModelNotSupported));
    }
    assert_eq!(post(client, Op::Send { solicited: false }, 1), Ok(()));
    finish(world, &[client, server], &[]);
}

#[test]
fn extension_posts_on_an_unconnected_ep_are_refused() {
    let world = World::new(c"unconnected extensions");
    let ep = world.ep();
    for op in [ADD, SWAP, WRITE, SEND, INVALIDATE] {
        assert_eq!(post(ep, op, 1), Err(Error::InvalidState(State::EpUnconnected)));
    }
    finish(world, &[ep], &[]);
}
