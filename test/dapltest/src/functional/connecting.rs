//! Cases for connections: connects that succeed, are rejected or are refused, PSPs on one qualifier, RSPs, disconnects,
//! connects after a reset, and the free of a connected endpoint.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::objects::Bench;
use super::pair::{Pair, next_request, own_address};
use super::{Case, ensure, refused};
use crate::common::Common;
use crate::dat::raw::{self, Post};
use crate::dat::{Ep, Event, Object, WaitMethod, WaitPolicy, connection_word, drain};
use crate::failure::{Failure, Result};

pub(super) const CASES: &[Case] = &[
    ("two endpoints of an adapter can connect to each other", connects),
    ("a graceful disconnect causes one event on each endpoint", ends_once),
    ("an abrupt disconnect causes one event on each endpoint", ends_abruptly),
    ("a disconnect flushes posted receives in order", flushes),
    ("endpoints can connect again after a reset", again),
    ("a rejected connect gets PEER_REJECTED", rejects),
    ("a connect without a listener gets NON_PEER_REJECTED", no_listener),
    ("a second PSP on a qualifier is refused", twice),
    ("an RSP accepts a connection into its endpoint", reserved),
    ("a connect of a connected endpoint is refused", connected_already),
    ("a disconnect of an unconnected endpoint is refused", no_connection),
    ("freeing a connected endpoint ends its connection", freed),
];

fn connects(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    for end in &pair.ends {
        let (state, ..) = raw::ep_status(end.handle())?;
        ensure(state == DAT_EP_STATE_CONNECTED, "an endpoint is not CONNECTED after ESTABLISHED")?;
    }
    pair.free()
}

/// Expects exactly one disconnect event on each endpoint.
fn await_the_end(pair: &Pair) -> Result {
    let mut ended = Vec::new();
    for _ in &pair.ends {
        match pair.wait_policy.next(&pair.bench.conn, "the end of the connection")? {
            Event::Connection { ep, number: DAT_CONNECTION_EVENT_DISCONNECTED } => ended.push(ep),
            event => return Failure::with_message(format!("{event:?}, expected the end of the connection")),
        }
    }
    ended.sort();
    let mut wanted = pair.ends.each_ref().map(Ep::handle);
    wanted.sort();
    ensure(ended == wanted, "one endpoint got two disconnect events, the other none")
}

fn ends(common: &Common, flags: DAT_CLOSE_FLAGS) -> Result {
    let pair = Pair::new(common)?;
    pair.ends[1].disconnect(flags)?;
    await_the_end(&pair)?;
    // A second disconnect has no effect.
    pair.ends[0].disconnect(DAT_CLOSE_ABRUPT_FLAG)?;
    pair.ends[1].disconnect(DAT_CLOSE_ABRUPT_FLAG)?;
    ensure(drain(&pair.bench.conn).is_empty(), "a second disconnect queued an event")?;
    pair.free()
}

fn ends_once(common: &Common) -> Result {
    ends(common, DAT_CLOSE_GRACEFUL_FLAG)
}

fn ends_abruptly(common: &Common) -> Result {
    ends(common, DAT_CLOSE_ABRUPT_FLAG)
}

fn flushes(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    for cookie in 0..4 {
        pair.ends[0].post(Post::Recv, &mut pair.memory[0].segments(0, 64, 1), cookie)?;
    }
    pair.ends[1].disconnect(DAT_CLOSE_GRACEFUL_FLAG)?;
    await_the_end(&pair)?;
    let done = pair.completions(4)?;
    ensure(
        done.iter().all(|done| done.status == DAT_DTO_ERR_FLUSHED),
        "a receive did not complete with DAT_DTO_ERR_FLUSHED",
    )?;
    ensure(done.iter().map(|done| done.cookie).eq(0..4), "the cookies of the flushed receives differ from the posts")?;
    pair.free()
}

fn again(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    for _ in 0..3 {
        pair.ends[0].disconnect(DAT_CLOSE_GRACEFUL_FLAG)?;
        await_the_end(&pair)?;
        pair.ends.iter().try_for_each(|end| raw::ep_reset(end.handle()))?;
        pair.connect()?;
    }
    pair.free()
}

/// Returns the event that a connect leads to.
fn outcome(bench: &Bench, ep: &Ep, wait_policy: WaitPolicy) -> Result<DAT_EVENT_NUMBER> {
    match wait_policy.next(&bench.conn, "the connection event")? {
        Event::Connection { ep: whose, number } if whose == ep.handle() => Ok(number),
        event => Failure::with_message(format!("{event:?}, expected a connection event of the endpoint")),
    }
}

fn asleep(common: &Common) -> WaitPolicy {
    WaitPolicy { how: WaitMethod::Sleep, limit: common.limit }
}

fn microseconds(common: &Common) -> u32 {
    u32::try_from(common.limit.as_micros()).unwrap_or(DAT_TIMEOUT_INFINITE - 1)
}

fn rejects(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (psp, qual) = bench.ia.psp_any(&bench.requests)?;
    let ep = bench.ep()?;
    ep.connect(own_address(&bench.ia)?, qual, microseconds(common), DAT_QOS_BEST_EFFORT)?;
    raw::cr_reject(next_request(&bench, asleep(common))?)?;
    let number = outcome(&bench, &ep, asleep(common))?;
    let is_expected = number == DAT_CONNECTION_EVENT_PEER_REJECTED;
    ensure(is_expected, &format!("{}, expected DAT_CONNECTION_EVENT_PEER_REJECTED", connection_word(number)))?;
    ep.free()?;
    psp.free()?;
    bench.close()
}

fn no_listener(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (psp, qual) = bench.ia.psp_any(&bench.requests)?;
    psp.free()?;
    let ep = bench.ep()?;
    ep.connect(own_address(&bench.ia)?, qual, microseconds(common), DAT_QOS_BEST_EFFORT)?;
    let number = outcome(&bench, &ep, asleep(common))?;
    let is_expected = number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED;
    ensure(is_expected, &format!("{}, expected DAT_CONNECTION_EVENT_NON_PEER_REJECTED", connection_word(number)))?;
    ep.free()?;
    bench.close()
}

fn twice(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (psp, qual) = bench.ia.psp_any(&bench.requests)?;
    let second = bench.ia.psp(qual, &bench.requests).map(|psp| psp.handle());
    refused(second, DAT_CONN_QUAL_IN_USE, DAT_NO_SUBTYPE)?;
    psp.free()?;
    bench.close()
}

fn reserved(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (psp, qual) = bench.ia.psp_any(&bench.requests)?;
    psp.free()?;
    let [near, far] = [bench.ep()?, bench.ep()?];
    let rsp = bench.ia.rsp(qual, &far, &bench.requests)?;
    near.connect(own_address(&bench.ia)?, qual, microseconds(common), DAT_QOS_BEST_EFFORT)?;
    // The request of an RSP already has its endpoint, so the accept names none.
    raw::cr_accept(next_request(&bench, asleep(common))?, crate::dat::Handle::NULL)?;
    for _ in 0..2 {
        match asleep(common).next(&bench.conn, "the ESTABLISHED event")? {
            Event::Connection { number: DAT_CONNECTION_EVENT_ESTABLISHED, .. } => {}
            event => return Failure::with_message(format!("{event:?}, expected ESTABLISHED")),
        }
    }
    rsp.free()?;
    near.free()?;
    far.free()?;
    bench.close()
}

fn connected_already(common: &Common) -> Result {
    let pair = Pair::new(common)?;
    let to = own_address(&pair.bench.ia)?;
    let second = pair.ends[0].connect(to, 1, microseconds(common), DAT_QOS_BEST_EFFORT);
    refused(second, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED)?;
    pair.free()
}

fn no_connection(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let ep = bench.ep()?;
    let ended = ep.disconnect(DAT_CLOSE_ABRUPT_FLAG);
    refused(ended, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED)?;
    ep.free()?;
    bench.close()
}

fn freed(common: &Common) -> Result {
    let Pair { ends: [near, far], memory, bench, wait_policy } = Pair::new(common)?;
    near.free()?;
    match wait_policy.next(&bench.conn, "the end of the connection")? {
        Event::Connection { ep, number } if ep == far.handle() && number != DAT_CONNECTION_EVENT_ESTABLISHED => {}
        event => return Failure::with_message(format!("{event:?}, expected the end of the connection")),
    }
    far.free()?;
    drop(memory);
    bench.close()
}
