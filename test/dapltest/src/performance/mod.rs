//! The performance test: one operation many times, several in flight (connects: one at a time). Each size is a separate
//! test between client and server.
//!
//! | module | |
//! |---|---|
//! | `window` | begin and end of the measured part, by count or by time |
//! | `runner` | one side of a test of transfers: starts operations, receives messages |
//! | `connects` | the test of connects |
//! | `rows` | results as a table and as JSON |
//!
//! The client starts the operations. The server receives the messages of SR, or offers its memory for RR and RW.
//! With `--bidirectional` each side does both at the same time.
#![forbid(unsafe_code)]

mod connects;
mod rows;
mod runner;
mod window;

use std::time::Duration;

use crate::amounts::Extent;
use crate::channel::Channel;
use crate::client::Server;
use crate::common::Common;
use crate::dat::{Ia, raw};
use crate::failure::{Failure, Result};
use crate::header::Header;
use crate::progress::Progress;
use crate::report::Report;
use crate::shared_objects::Listener;
use crate::transaction;
use crate::wire::{Message, Offer, Performance};
use rows::{ResultTable, Row};
use runner::Runner;

pub(crate) use connects::{Connects, serve as serve_connects};

/// Added to the limit for one event while a side waits for its peer's result.
const RESULT_LIMIT: Duration = Duration::from_secs(10);
/// Limit for a peer that is still measuring. A peer that has exited is detected earlier, by a disconnect event.
const MEASUREMENT_LIMIT: Duration = Duration::from_secs(48 * 3600);

/// Measurements that the client makes.
#[derive(Clone, Debug)]
pub(crate) enum Measurements {
    /// Transfers, one size after the other.
    Transfers(Vec<Performance>),
    Connects(Connects),
}

/// Runs the client of `-T P`. If a size fails, the sizes measured before are still reported.
pub(crate) fn run(common: &Common, host: &str, measurements: &Measurements) -> Result<Report> {
    let ia = Ia::open(&common.device)?;
    let adapter = raw::ia_query(ia.handle())?;
    if let Measurements::Transfers(tests) = measurements {
        tests.iter().try_for_each(|test| transaction::fits(&test.operation, &adapter))?;
    }
    let mut report = Report::new("performance", common);
    report.header(&Header::new(&ia)?);
    let (table, measured) = match measurements {
        Measurements::Transfers(tests) => {
            let pipeline = runner::pipeline(&tests[0], &adapter);
            let mut table = ResultTable::of_transfers(&mut report, &tests[0], pipeline, common);
            let measured = tests.iter().try_for_each(|test| {
                table.add(&mut report, measure(&ia, common, host, test)?);
                Ok(())
            });
            (table, measured)
        }
        Measurements::Connects(test) => {
            let mut table = ResultTable::of_connects(&mut report, test, common);
            let measured = connects::run(&ia, common, host, test).map(|row| table.add(&mut report, row));
            (table, measured)
        }
    };
    table.finish(&mut report);
    match measured {
        Ok(()) => ia.close()?,
        Err(failure) => report.fail(failure.to_string()),
    }
    Ok(report)
}

/// Measures one size.
fn measure(ia: &Ia, common: &Common, host: &str, test: &Performance) -> Result<Row> {
    let runner = Runner::new(ia, test, common, true)?;
    let mut server = Server::find(ia, host, common)?;
    let offer = server.ask(&Message::Performance(test.clone()), 1)?[0];
    if offer.place.length < test.operation.length() as u64 {
        return Failure::with_message("the server offers less memory than the test needs");
    }
    server.channel.send(&Message::Ready(vec![Offer { qual: 0, place: runner.target() }]))?;
    let progress = progress(test.extent, test.warm_up);
    let connected = runner.shared.connect(&runner.ep, server.address, offer.qual, common.qos, runner.sleeping());
    let ran = connected.and_then(|()| runner.run(offer.place, &progress));
    drop(progress);
    // With `--bidirectional` the server may still be measuring.
    let limit = if test.is_bidirectional { MEASUREMENT_LIMIT } else { common.limit + RESULT_LIMIT };
    let theirs = server.compare(&ran.as_ref().map(drop).map_err(Failure::clone), limit);
    let client = ran?;
    let server_figures = theirs?.unwrap_or_default();
    runner.shared.is_quiet()?;
    drop(runner);
    server.channel.end()?;
    Ok(Row { bytes: Some(test.operation.length() as u64), client, server: server_figures })
}

fn progress(extent: Extent, warm_up: u32) -> Progress {
    match extent {
        Extent::Operations(count) => Progress::new(u64::from(count) + u64::from(warm_up)),
        Extent::Time(time) => Progress::timed(time),
    }
}

/// Runs the server of a test of transfers.
pub(crate) fn serve(ia: &Ia, mut channel: Channel, test: &Performance, common: &Common) -> Result {
    let adapter = raw::ia_query(ia.handle())?;
    let fits = transaction::fits(&test.operation, &adapter);
    let made =
        fits.and_then(|()| Runner::new(ia, test, common, false)).and_then(|runner| Ok((runner, Listener::any(ia, 1)?)));
    let (runner, listener) = match made {
        Ok(made) => made,
        Err(failure) => return channel.refuse(failure),
    };
    channel.send(&Message::Ready(vec![Offer { qual: listener.qual, place: runner.target() }]))?;
    let client = match channel.receive()? {
        Message::Ready(offers) if offers.len() == 1 => offers[0].place,
        message => return Failure::with_message(format!("the client sent {message:?}; expected its memory (Ready)")),
    };
    if test.is_bidirectional && client.length < test.operation.length() as u64 {
        return Failure::with_message("the client offers less memory than the test needs");
    }
    let accepted = listener.accept(&runner.ep, &runner.shared, runner.sleeping(), || channel.is_over());
    let mut clock = window::MeasuredInterval::started();
    let ran = accepted.and_then(|()| runner.run(client, &Progress::hidden()));
    let over = await_over(&mut channel, common);
    clock.end();
    let figures = ran.as_ref().map_err(|failure| failure.to_string()).map(|measured| match runner.is_passive() {
        // The client's RDMA needs no action of this process, so this side reports only its processor time for the whole
        // connection.
        true => clock.figures(0),
        false => measured.figures,
    });
    over?;
    channel.send(&figures.map_or_else(|reason| Message::Over(Err(reason)), Message::Measured))?;
    channel.await_end()?;
    ran.map(drop)
}

/// Waits until the client reports the end of its part.
fn await_over(channel: &mut Channel, common: &Common) -> Result {
    match channel.receive_within(MEASUREMENT_LIMIT)? {
        Message::Over(theirs) => {
            if let (Err(reason), true) = (theirs, common.debug > 0) {
                println!("dapltest: the client: {reason}");
            }
            Ok(())
        }
        message => Failure::with_message(format!("the client sent {message:?}; expected the end of the test (Over)")),
    }
}
