//! The transaction test: several threads repeat a sequence of operations, each thread over several endpoints.
//!
//! `plan` computes the memory layout, `pattern` the content of the data, `party` is one thread of one side, `run`
//! executes the operations. Client and server differ in connecting, in reporting, and in the time at which they check
//! the data.
#![forbid(unsafe_code)]

mod party;
mod pattern;
mod plan;
mod run;

pub(crate) use plan::fits;

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::channel::Channel;
use crate::client::Server;
use crate::common::Common;
use crate::dat::{Ia, WaitMethod, WaitPolicy, raw};
use crate::failure::{Failure, Result};
use crate::header::Header;
use crate::operation::Side;
use crate::progress::Progress;
use crate::report::{Latency, Report};
use crate::wire::{Message, Transaction};
use party::Party;
use plan::TransactionPlan;

/// Added to the limit for one event while a side waits for its peer's result.
const RESULT_LIMIT: Duration = Duration::from_secs(10);

/// Runs the client of `-T T`.
pub(crate) fn run(common: &Common, host: &str, test: &Transaction) -> Result<Report> {
    let ia = Ia::open(&common.device)?;
    let plan = TransactionPlan::new(test.clone(), &raw::ia_query(ia.handle())?)?;
    if common.debug > 0 {
        plan.operations().iter().for_each(|operation| eprintln!("dapltest: {operation}"));
    }
    let mut server = Server::find(&ia, host, common)?;
    let wait_policy = wait_policy(test, common);
    let parties = parties(&ia, &plan, Side::Client, wait_policy)?;
    let offers = server.ask(&Message::Transaction(test.clone()), parties.len())?;
    server.channel.send(&Message::Ready(parties.iter().map(Party::offer).collect()))?;

    let progress = Progress::new(u64::from(test.iterations) * parties.len() as u64);
    let began = Instant::now();
    let address = server.address;
    let ran = in_threads(parties, |party, number| {
        party.connect(address, &offers[number], common.qos)?;
        party.run(offers[number].place, &progress)
    });
    let seconds = began.elapsed();
    drop(progress);
    let ours = ran.as_ref().map(drop).map_err(Failure::clone);
    let theirs = server.compare(&ours, common.limit + RESULT_LIMIT);
    // If both sides fail, the local error is reported, because it is more specific.
    let mut parties = ran?;
    theirs?;
    let mut latency = Latency::default();
    for party in &mut parties {
        latency.add(&party.latency);
        party.disconnect()?;
    }
    drop(parties);
    server.channel.end()?;
    let header = Header::new(&ia)?;
    ia.close()?;
    Ok(report(&plan, common, &header, (seconds, &latency)))
}

/// Runs the server of `-T T`.
pub(crate) fn serve(ia: &Ia, mut channel: Channel, test: Transaction, common: &Common) -> Result {
    let wait_policy = wait_policy(&test, common);
    let plan = match TransactionPlan::new(test, &raw::ia_query(ia.handle())?) {
        Ok(plan) => plan,
        Err(failure) => return channel.refuse(failure),
    };
    let parties = match parties(ia, &plan, Side::Server, wait_policy) {
        Ok(parties) => parties,
        Err(failure) => return channel.refuse(failure),
    };
    channel.send(&Message::Ready(parties.iter().map(Party::offer).collect()))?;
    let theirs = match channel.receive()? {
        Message::Ready(offers) if offers.len() == parties.len() => offers,
        message => return Failure::with_message(format!("the client sent {message:?}; expected its memory (Ready)")),
    };
    let length = plan.length() as u64;
    if theirs.iter().any(|offer| offer.place.length < length) {
        return Failure::with_message("the client offers less memory than the test needs");
    }
    let progress = Progress::hidden();
    let ran = in_threads(parties, |party, number| {
        party.accept(&channel)?;
        party.run(theirs[number].place, &progress)
    });
    let ours = ran.as_ref().map(drop).map_err(|failure| failure.to_string());
    match channel.receive_within(common.limit + RESULT_LIMIT)? {
        Message::Over(theirs) => {
            if let (Err(reason), true) = (theirs, common.debug > 0) {
                println!("dapltest: the client: {reason}");
            }
        }
        message => {
            return Failure::with_message(format!("the client sent {message:?}; expected the end of the test (Over)"));
        }
    }
    channel.send(&Message::Over(ours))?;
    // Wait until the client disconnects: then nothing is in flight.
    channel.await_end()?;
    ran.map(drop)
}

fn wait_policy(test: &Transaction, common: &Common) -> WaitPolicy {
    WaitPolicy { how: if test.polls { WaitMethod::Poll } else { WaitMethod::Sleep }, limit: common.limit }
}

fn parties<'a>(ia: &Ia, plan: &'a TransactionPlan, side: Side, wait_policy: WaitPolicy) -> Result<Vec<Party<'a>>> {
    (0..plan.threads()).map(|number| Party::new(ia, plan, side, number, wait_policy)).collect()
}

/// Runs each party in a thread. After all threads have ended, returns the parties, or the first failure.
fn in_threads<'a>(
    parties: Vec<Party<'a>>,
    work: impl Fn(&mut Party<'a>, usize) -> Result + Sync,
) -> Result<Vec<Party<'a>>> {
    let work = &work;
    thread::scope(|scope| {
        let start = |(number, mut party): (usize, Party<'a>)| {
            scope.spawn(move || {
                // A failed party is dropped here, so that its partner gets a disconnect event immediately.
                work(&mut party, number).map_err(|failure| failure.at(&format!("thread {number}")))?;
                Ok(party)
            })
        };
        let threads: Vec<_> = parties.into_iter().enumerate().map(start).collect();
        let ended: Vec<Result<Party<'a>>> =
            threads.into_iter().map(|thread| thread.join().expect("no party thread panics")).collect();
        ended.into_iter().collect()
    })
}

fn report(
    plan: &TransactionPlan,
    common: &Common,
    header: &Header,
    (elapsed, latency): (Duration, &Latency),
) -> Report {
    let test = plan.test();
    let bytes: usize = plan.operations().iter().map(|operation| operation.length()).sum();
    let rounds = u64::from(test.threads) * u64::from(test.endpoints) * u64::from(test.iterations);
    let bytes = bytes as u64 * rounds;
    let seconds = elapsed.as_secs_f64();
    let operations: Vec<String> = plan.operations().iter().map(ToString::to_string).collect();
    let mut report = Report::new("transaction", common);
    report.header(header);
    report.line(format!(
        "transaction test on {}: {} threads, {} endpoints each, {} iterations{}",
        common.device,
        test.threads,
        test.endpoints,
        test.iterations,
        if test.validates { ", all data checked" } else { "" }
    ));
    report.line(format!("  {bytes} bytes in {seconds:.3} s: {:.1} MB/s", bytes as f64 / seconds / 1e6));
    report.line(format!("  an iteration: {}", latency.words()));
    report.put("threads", json!(test.threads));
    report.put("endpoints", json!(test.endpoints));
    report.put("iterations", json!(test.iterations));
    report.put("validated", json!(test.validates));
    report.put("operations", json!(operations));
    report.put("bytes", json!(bytes));
    report.put("seconds", json!(seconds));
    report.put("iteration_us", latency.json());
    report
}
