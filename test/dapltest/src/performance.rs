//! The performance test: one operation, many times, several in flight; the latency of each, and the total.
//!
//! The client starts the operations and measures. The server exports its memory, and takes messages if the operation is SR.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dat_abi::*;
use serde_json::json;

use crate::channel::Channel;
use crate::client::Server;
use crate::common::Common;
use crate::dat::raw::Post;
use crate::dat::{Ep, Event, How, Ia, Memory, Patience, Place, raw, status_word};
use crate::failure::{Failure, Result};
use crate::header::Header;
use crate::operation::{Operation, Transfer};
use crate::progress::Progress;
use crate::report::{Latency, Report};
use crate::set::{Listener, Needs, Set};
use crate::stop;
use crate::transaction;
use crate::wire::{Message, Offer, Performance};

/// Default number of operations in flight.
const PIPELINE: u32 = 64;
/// Time to wait for the event that explains a failed transfer.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);
/// Time that a side waits for the other's result, besides the limit for one event.
const RESULT_LIMIT: Duration = Duration::from_secs(10);

/// One side of it.
struct Line {
    ep: Ep,
    memory: Memory,
    set: Set,
    operation: Operation,
    /// Maximum number of operations in flight.
    pipeline: usize,
    patience: Patience,
}

impl Line {
    fn new(ia: &Ia, test: &Performance, common: &Common) -> Result<Self> {
        let adapter = raw::ia_query(ia.handle())?;
        transaction::fits(&test.operation, &adapter)?;
        let most = u32::try_from(adapter.max_dto_per_ep / 2).unwrap_or(1).max(1);
        let wanted = if test.pipeline == 0 { PIPELINE } else { test.pipeline };
        let pipeline = wanted.min(most).min(test.iterations) as usize;
        let needs = Needs {
            endpoints: 1,
            // Twice the number in flight, so that there is always a posted one.
            receives: 2 * pipeline,
            requests: pipeline,
            segments: test.operation.segments.into(),
            length: test.operation.length(),
        };
        let set = Set::new(ia, needs, false)?;
        let memory = Memory::new(ia, &set.pz, test.operation.length())?;
        let ep = set.ep(ia, needs)?;
        let patience = Patience { how: if test.polls { How::Poll } else { How::Sleep }, limit: common.limit };
        Ok(Line { ep, memory, set, operation: test.operation, pipeline, patience })
    }

    fn post(&self, post: Post, cookie: u64) -> Result {
        let mut segments = self.memory.segments(0, self.operation.size as usize, self.operation.segments.into());
        Ok(self.ep.post(post, &mut segments, cookie)?)
    }

    fn sleeping(&self) -> Patience {
        Patience { how: How::Sleep, ..self.patience }
    }

    /// It must be the end of this one, and a good one.
    fn expect(&self, event: Event, wanted: u64) -> Result {
        match event {
            Event::Dto { cookie, status: DAT_DTO_SUCCESS, length, .. } => {
                match cookie == wanted && length == self.operation.length() as u64 {
                    true => Ok(()),
                    false => Failure::said(format!("operation {cookie} with {length} bytes in place of {wanted}")),
                }
            }
            Event::Dto { status, .. } => {
                let fate = self.set.fate(Patience { how: How::Sleep, limit: CAUSE_LIMIT });
                Failure::said(format!("operation {wanted}: {}{fate}", status_word(status)))
            }
            event => Failure::said(format!("{event:?} in place of the end of operation {wanted}")),
        }
    }

    /// The client's part.
    fn drive(&self, theirs: Place, count: u64, progress: &Progress) -> Result<Latency> {
        let place = theirs.part(0, self.operation.length() as u64);
        let post = match self.operation.transfer {
            Transfer::Send => Post::Send,
            Transfer::Read => Post::Read(place),
            Transfer::Write => Post::Write(place),
        };
        let mut latency = Latency::default();
        let mut under_way = VecDeque::with_capacity(self.pipeline);
        let mut posted = 0;
        for done in 0..count {
            while posted < count && under_way.len() < self.pipeline {
                under_way.push_back(Instant::now());
                self.post(post, posted)?;
                posted += 1;
            }
            stop::check()?;
            let event = self.patience.next(&self.set.request, "the end of an operation")?;
            self.expect(event, done)?;
            latency.record(under_way.pop_front().expect("it was under way").elapsed());
            progress.step();
        }
        Ok(latency)
    }

    /// The server's part if messages are received. `posted` receives are posted already.
    fn sink(&self, posted: u64, count: u64) -> Result {
        for done in 0..count {
            stop::check()?;
            let event = self.patience.next(&self.set.recv, "a message of the client")?;
            self.expect(event, done)?;
            if done + posted < count {
                self.post(Post::Recv, done + posted)?;
            }
        }
        Ok(())
    }
}

/// The client of `-T P`.
pub(crate) fn run(common: &Common, host: &str, test: &Performance) -> Result<Report> {
    let ia = Ia::open(&common.device)?;
    let line = Line::new(&ia, test, common)?;
    let mut server = Server::find(&ia, host, common)?;
    let offer = server.ask(&Message::Performance(test.clone()), 1)?[0];
    if offer.place.length < test.operation.length() as u64 {
        return Failure::said("the server offers less memory than the test needs");
    }
    server.channel.say(&Message::Ready(vec![Offer { qual: 0, place: line.memory.place() }]))?;
    let count = u64::from(test.iterations);
    let progress = Progress::new(count);
    let connected = line.set.connect(&line.ep, server.address, offer.qual, common.qos, line.sleeping());
    let began = Instant::now();
    let ran = connected.and_then(|()| line.drive(offer.place, count, &progress));
    let elapsed = began.elapsed();
    drop(progress);
    let theirs = server.compare(&ran.as_ref().map(drop).map_err(Failure::clone), common.limit + RESULT_LIMIT);
    let latency = ran?;
    theirs?;
    line.set.is_quiet()?;
    let pipeline = line.pipeline;
    drop(line);
    server.channel.end()?;
    let header = Header::new(&ia)?;
    ia.close()?;
    let mut report = report(test, common, pipeline, elapsed, &latency);
    report.header(&header);
    Ok(report)
}

/// Its server.
pub(crate) fn serve(ia: &Ia, mut channel: Channel, test: &Performance, common: &Common) -> Result {
    let made = Line::new(ia, test, common).and_then(|line| Ok((line, Listener::any(ia, 1)?)));
    let (line, listener) = match made {
        Ok(made) => made,
        Err(failure) => return channel.refuse(failure),
    };
    let count = u64::from(test.iterations);
    let is_sink = test.operation.transfer == Transfer::Send;
    let posted = if is_sink { (2 * line.pipeline as u64).min(count) } else { 0 };
    (0..posted).try_for_each(|number| line.post(Post::Recv, number))?;
    channel.say(&Message::Ready(vec![Offer { qual: listener.qual, place: line.memory.place() }]))?;
    match channel.hear()? {
        Message::Ready(_) => {}
        message => return Failure::said(format!("{message:?} in place of the client's memory")),
    }
    let mut ran = listener.accept(&line.ep, &line.set, line.sleeping(), || channel.is_over());
    if is_sink {
        ran = ran.and_then(|()| line.sink(posted, count));
    }
    // RDMA needs no action here; the end of the connection would be noticed as well.
    let ended = await_the_end(&mut channel, common);
    let ours = ran.clone().map_err(|failure| failure.to_string());
    ended?;
    channel.say(&Message::Over(ours))?;
    channel.await_end()?;
    ran
}

/// The client says when it is done, however long that takes; a client that is gone says nothing more, and is noticed.
fn await_the_end(channel: &mut Channel, common: &Common) -> Result {
    const EVER: Duration = Duration::from_secs(24 * 3600);
    let limit = common.limit.max(EVER);
    match channel.hear_within(limit)? {
        Message::Over(theirs) => {
            if let (Err(reason), true) = (theirs, common.debug > 0) {
                println!("dapltest: the client: {reason}");
            }
            Ok(())
        }
        message => Failure::said(format!("{message:?} in place of the end of the test")),
    }
}

fn report(test: &Performance, common: &Common, pipeline: usize, elapsed: Duration, latency: &Latency) -> Report {
    let (seconds, count) = (elapsed.as_secs_f64(), f64::from(test.iterations));
    let bytes = test.operation.length() as f64 * count;
    let mut report = Report::new("performance", common);
    let mode = if test.polls { "polling" } else { "blocking" };
    report.line(format!(
        "performance test on {}: {}, {} times, {pipeline} under way, {mode}",
        common.device, test.operation, test.iterations
    ));
    let (rate, speed) = (count / seconds, bytes / seconds / 1e6);
    report.line(format!("  {seconds:.3} s: {rate:.0} operations/s, {speed:.1} MB/s"));
    report.line(format!("  an operation: {}", latency.words()));
    report.put("operation", json!(test.operation.to_string()));
    report.put("iterations", json!(test.iterations));
    report.put("pipeline", json!(pipeline));
    report.put("mode", json!(mode));
    report.put("seconds", json!(seconds));
    report.put("operations_per_s", json!(rate));
    report.put("mb_per_s", json!(speed));
    report.put("operation_us", latency.json());
    report
}
