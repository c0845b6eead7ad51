//! The test of connects: one endpoint repeatedly connects, disconnects and is reset. The rate includes all three
//! steps; the latency is that of the connect.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use dat_abi::*;

use super::rows::Row;
use super::window::{Counter, Measured, MeasuredInterval};
use super::{RESULT_LIMIT, progress};
use crate::amounts::Extent;
use crate::channel::Channel;
use crate::client::Server;
use crate::common::Common;
use crate::dat::{Ep, Event, Ia, WaitMethod, WaitPolicy, connection_word, raw};
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::shared_objects::{Listener, Needs, SharedObjects};
use crate::stop;
use crate::wire::{Message, Offer};

/// Parameters of a test of connects.
#[derive(Clone, Debug)]
pub(crate) struct Connects {
    pub(crate) extent: Extent,
    pub(crate) warm_up: u32,
    pub(crate) polls: bool,
}

/// Runs the client of the test of connects.
pub(super) fn run(ia: &Ia, common: &Common, host: &str, test: &Connects) -> Result<Row> {
    let (shared, ep) = objects(ia)?;
    let mut server = Server::find(ia, host, common)?;
    let offer = server.ask(&Message::Connects, 1)?[0];
    let wait_policy =
        WaitPolicy { how: if test.polls { WaitMethod::Poll } else { WaitMethod::Sleep }, limit: common.limit };
    let progress = progress(test.extent, test.warm_up);
    let connect = || {
        let began = Instant::now();
        shared.connect(&ep, server.address, offer.qual, common.qos, wait_policy)?;
        let latency = began.elapsed();
        ep.disconnect(DAT_CLOSE_GRACEFUL_FLAG)?;
        disconnected(&shared, &ep, wait_policy).map(|()| latency)
    };
    let ran = repeat(test, &progress, connect);
    drop(progress);
    let theirs = server.compare(&ran.as_ref().map(drop).map_err(Failure::clone), common.limit + RESULT_LIMIT);
    let client = ran?;
    let server_figures = theirs?.unwrap_or_default();
    drop((ep, shared));
    server.channel.end()?;
    Ok(Row { bytes: None, client, server: server_figures })
}

fn repeat(test: &Connects, progress: &Progress, connect: impl Fn() -> Result<Duration>) -> Result<Measured> {
    let mut counter = Counter::new(test.extent, test.warm_up);
    for started in 0.. {
        if !counter.wants(started) {
            break;
        }
        stop::check()?;
        let latency = connect().map_err(|failure| failure.at(&format!("connect {started}")))?;
        counter.complete(Some(latency));
        progress.step();
    }
    counter.end();
    Ok(counter.into_measured())
}

/// Runs the server: accepts each connect until the client sends `Over`.
pub(crate) fn serve(ia: &Ia, mut channel: Channel, common: &Common) -> Result {
    let made = objects(ia).and_then(|made| Ok((made, Listener::any(ia, 1)?)));
    let ((shared, ep), listener) = match made {
        Ok(made) => made,
        Err(failure) => return channel.refuse(failure),
    };
    channel.send(&Message::Ready(vec![Offer { qual: listener.qual, ..Offer::default() }]))?;
    let wait_policy = WaitPolicy { how: WaitMethod::Sleep, limit: common.limit };
    let mut window = MeasuredInterval::started();
    let mut accepted = 0;
    let mut accept = || {
        while listener.accept_unless(&ep, &shared, wait_policy, || channel.has_message())? {
            disconnected(&shared, &ep, wait_policy)?;
            accepted += 1;
            stop::check()?;
        }
        Ok::<_, Failure>(())
    };
    let ran = accept();
    window.end();
    super::await_over(&mut channel, common)?;
    let figures = ran.as_ref().map(|()| window.figures(accepted)).map_err(|failure| failure.to_string());
    channel.send(&figures.map_or_else(|reason| Message::Over(Err(reason)), Message::Measured))?;
    channel.await_end()?;
    ran
}

/// Creates an endpoint for connections without data.
fn objects(ia: &Ia) -> Result<(SharedObjects, Ep)> {
    let needs = Needs { endpoints: 1, receives: 1, requests: 1, segments: 1, length: 1, shares_evd: false };
    let shared = SharedObjects::new(ia, needs, false)?;
    let ep = shared.ep(ia, needs)?;
    Ok((shared, ep))
}

/// Waits for the disconnect event of an endpoint, and resets the endpoint for the next connection.
fn disconnected(shared: &SharedObjects, ep: &Ep, wait_policy: WaitPolicy) -> Result {
    match wait_policy.next(&shared.conn, "the disconnect")? {
        Event::Connection { ep: whose, number: DAT_CONNECTION_EVENT_DISCONNECTED } if whose == ep.handle() => {
            Ok(raw::ep_reset(ep.handle())?)
        }
        Event::Connection { number, .. } => Failure::with_message(format!(
            "the connection is {}, expected DAT_CONNECTION_EVENT_DISCONNECTED",
            connection_word(number)
        )),
        event => Failure::with_message(format!("{event:?}, expected a disconnect")),
    }
}
