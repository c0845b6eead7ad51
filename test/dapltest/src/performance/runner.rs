//! One side of a test of transfers: posts operations, and receives the peer's messages.
//!
//! A sender does not announce the number of messages. Its last message has a different length, which ends the test
//! for the receiver. This works for tests by count and by time.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dat_abi::*;

use super::window::{Counter, Measured};
use crate::amounts::Extent;
use crate::common::Common;
use crate::dat::raw::{self, Post};
use crate::dat::{Ep, Evd, Event, Ia, Memory, RemoteBuffer, WaitMethod, WaitPolicy, status_word};
use crate::failure::{Failure, Result};
use crate::operation::Transfer;
use crate::progress::Progress;
use crate::shared_objects::{Needs, SharedObjects};
use crate::stop;
use crate::wire::Performance;

/// Default number of operations in flight.
const DEFAULT_PIPELINE: u32 = 64;
/// Time to wait for the connection event that explains a failed transfer.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);
/// Bit that marks the cookie of a receive.
const RECEIVE_FLAG: u64 = 1 << 63;

/// One side of a test.
pub(super) struct Runner {
    pub(super) ep: Ep,
    memory: Memory,
    pub(super) shared: SharedObjects,
    test: Performance,
    /// Maximum number of operations in flight.
    pipeline: usize,
    wait_policy: WaitPolicy,
    /// Whether this side starts operations.
    starts: bool,
    /// Whether this side receives messages.
    receives: bool,
}

impl Runner {
    /// Creates the objects of a side, with receives posted.
    pub(super) fn new(ia: &Ia, test: &Performance, common: &Common, is_client: bool) -> Result<Self> {
        let adapter = raw::ia_query(ia.handle())?;
        let pipeline = pipeline(test, &adapter) as usize;
        let is_send = test.operation.transfer == Transfer::Send;
        let starts = is_client || test.is_bidirectional;
        let receives = is_send && (!is_client || test.is_bidirectional);
        let area = area(test);
        let needs = Needs {
            endpoints: 1,
            // Twice the number in flight, so that a receive is always posted.
            receives: 2 * pipeline,
            requests: pipeline,
            segments: test.operation.segments.into(),
            length: area,
            shares_evd: test.is_bidirectional,
        };
        let shared = SharedObjects::new(ia, needs, false)?;
        let memory = Memory::new(ia, &shared.pz, if test.is_bidirectional { 2 * area } else { area })?;
        let ep = shared.ep(ia, needs)?;
        let wait_policy =
            WaitPolicy { how: if test.polls { WaitMethod::Poll } else { WaitMethod::Sleep }, limit: common.limit };
        let runner = Runner { ep, memory, shared, test: test.clone(), pipeline, wait_policy, starts, receives };
        if receives {
            let mut receiver = Receiver::new(&runner);
            (0..2 * pipeline).try_for_each(|_| receiver.post(&runner))?;
        }
        Ok(runner)
    }

    /// Memory for the peer's transfers.
    pub(super) fn target(&self) -> RemoteBuffer {
        let (all, at) = (self.memory.place(), self.target_offset() as u64);
        RemoteBuffer { address: all.address + at, length: all.length - at, ..all }
    }

    /// With `--bidirectional` the second half of the memory is the target, so that no side sends bytes that its peer
    /// is writing.
    fn target_offset(&self) -> usize {
        if self.test.is_bidirectional { area(&self.test) } else { 0 }
    }

    pub(super) fn sleeping(&self) -> WaitPolicy {
        WaitPolicy { how: WaitMethod::Sleep, ..self.wait_policy }
    }

    /// Whether this side neither starts operations nor receives messages.
    pub(super) fn is_passive(&self) -> bool {
        !self.starts && !self.receives
    }

    /// Runs this side over the connected endpoint. `peer` is the peer's memory for RDMA.
    pub(super) fn run(&self, peer: RemoteBuffer, progress: &Progress) -> Result<Measured> {
        let mut sender = self.starts.then(|| Sender::new(self, peer));
        let mut receiver = self.receives.then(|| Receiver { posted: 2 * self.pipeline as u64, ..Receiver::new(self) });
        loop {
            if let Some(sender) = &mut sender {
                sender.post(self)?;
            }
            let is_sent = sender.as_ref().is_none_or(|sender| sender.state == SenderState::Done);
            if is_sent && receiver.as_ref().is_none_or(|receiver| receiver.is_done) {
                break;
            }
            stop::check()?;
            let event = self.wait_policy.next(self.evd(), "the completion of an operation")?;
            match (event, &mut sender, &mut receiver) {
                (Event::Dto { cookie, .. }, _, Some(receiver)) if cookie & RECEIVE_FLAG != 0 => {
                    receiver.take(self, event)?
                }
                (event, Some(sender), _) => {
                    sender.take(self, event)?;
                    progress.step();
                }
                (event, ..) => return Failure::with_message(format!("{event:?}, expected a message")),
            }
        }
        let counter = sender.map(|sender| sender.counter).or(receiver.map(|receiver| receiver.counter));
        Ok(counter.unwrap_or_else(|| Counter::new(self.test.extent, 0)).into_measured())
    }

    /// EVD of all completions that this side waits for.
    fn evd(&self) -> &Evd {
        if self.starts && !self.test.is_bidirectional { &self.shared.request } else { &self.shared.recv }
    }

    /// Checks that a completion is successful and has the cookie `expected`. Returns its length.
    fn check(&self, event: Event, expected: u64) -> Result<u64> {
        match event {
            Event::Dto { cookie, status: DAT_DTO_SUCCESS, length, .. } if cookie == expected => Ok(length),
            Event::Dto { cookie, status: DAT_DTO_SUCCESS, .. } => Failure::with_message(format!(
                "completion of operation {}, expected {}",
                cookie & !RECEIVE_FLAG,
                expected & !RECEIVE_FLAG
            )),
            Event::Dto { status, .. } => {
                let fate = self.shared.connection_failure(WaitPolicy { how: WaitMethod::Sleep, limit: CAUSE_LIMIT });
                Failure::with_message(format!("operation {}: {}{fate}", expected & !RECEIVE_FLAG, status_word(status)))
            }
            event => Failure::with_message(format!(
                "{event:?}, expected the completion of operation {}",
                expected & !RECEIVE_FLAG
            )),
        }
    }

    fn check_length(&self, length: u64, number: u64) -> Result {
        match length == self.test.operation.length() as u64 {
            true => Ok(()),
            false => Failure::with_message(format!(
                "operation {number} transferred {length} bytes, expected {}",
                self.test.operation.length()
            )),
        }
    }
}

/// Number of operations in flight, limited by the adapter and by the number of operations.
pub(super) fn pipeline(test: &Performance, adapter: &DAT_IA_ATTR) -> u32 {
    let most = u32::try_from(adapter.max_dto_per_ep / 2).unwrap_or(1).max(1);
    let wanted = if test.pipeline == 0 { DEFAULT_PIPELINE } else { test.pipeline };
    let all = match test.extent {
        Extent::Operations(count) => count.saturating_add(test.warm_up),
        Extent::Time(_) => u32::MAX,
    };
    wanted.min(most).min(all)
}

/// Length of the last message in a direction: one byte, or two if the other messages have one.
fn last_length(test: &Performance) -> usize {
    if test.operation.length() == 1 { 2 } else { 1 }
}

/// Buffer size of one message, in bytes.
fn area(test: &Performance) -> usize {
    test.operation.length().max(last_length(test))
}

/// Whether a sender still posts, waits for its last message, or has finished.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SenderState {
    Posting,
    /// The last message is in flight.
    Ending,
    Done,
}

/// Operations that this side starts.
struct Sender {
    post: Post,
    segments: Vec<DAT_LMR_TRIPLET>,
    counter: Counter,
    /// Post times of the operations in flight, oldest first.
    in_flight: VecDeque<Instant>,
    posted: u64,
    completed: u64,
    state: SenderState,
}

impl Sender {
    fn new(runner: &Runner, peer: RemoteBuffer) -> Self {
        let test = &runner.test;
        let place = peer.part(0, test.operation.length() as u64);
        let post = match test.operation.transfer {
            Transfer::Send => Post::Send,
            Transfer::Read => Post::Read(place),
            Transfer::Write => Post::Write(place),
        };
        let segments = runner.memory.segments(0, test.operation.size as usize, test.operation.segments.into());
        Sender {
            post,
            segments,
            counter: Counter::new(test.extent, test.warm_up),
            in_flight: VecDeque::with_capacity(runner.pipeline),
            posted: 0,
            completed: 0,
            state: SenderState::Posting,
        }
    }

    /// Posts operations until the pipeline is full. After the last completion of a test of sends, posts the message
    /// that ends this direction.
    fn post(&mut self, runner: &Runner) -> Result {
        if self.state != SenderState::Posting {
            return Ok(());
        }
        while self.in_flight.len() < runner.pipeline && self.counter.wants(self.posted) {
            self.in_flight.push_back(Instant::now());
            runner.ep.post(self.post, &mut self.segments, self.posted)?;
            self.posted += 1;
        }
        if !self.in_flight.is_empty() {
            return Ok(());
        }
        self.counter.end();
        if runner.test.operation.transfer == Transfer::Send {
            let mut last = runner.memory.segments(0, last_length(&runner.test), 1);
            runner.ep.post(Post::Send, &mut last, self.posted)?;
            self.state = SenderState::Ending;
        } else {
            self.state = SenderState::Done;
        }
        Ok(())
    }

    fn take(&mut self, runner: &Runner, event: Event) -> Result {
        let length = runner.check(event, self.completed)?;
        if self.state == SenderState::Ending {
            self.state = SenderState::Done;
            return Ok(());
        }
        runner.check_length(length, self.completed)?;
        let began = self.in_flight.pop_front().expect("a completion in order belongs to an operation in flight");
        self.counter.complete(Some(began.elapsed()));
        self.completed += 1;
        Ok(())
    }
}

/// Messages that this side receives.
struct Receiver {
    segments: Vec<DAT_LMR_TRIPLET>,
    counter: Counter,
    posted: u64,
    completed: u64,
    is_done: bool,
}

impl Receiver {
    fn new(runner: &Runner) -> Self {
        let (operation, at) = (&runner.test.operation, runner.target_offset());
        let segments = match operation.length() {
            1 => runner.memory.segments(at, area(&runner.test), 1),
            _ => runner.memory.segments(at, operation.size as usize, operation.segments.into()),
        };
        let counter = Counter::new(runner.test.extent, runner.test.warm_up);
        Receiver { segments, counter, posted: 0, completed: 0, is_done: false }
    }

    fn post(&mut self, runner: &Runner) -> Result {
        runner.ep.post(Post::Recv, &mut self.segments, RECEIVE_FLAG | self.posted)?;
        self.posted += 1;
        Ok(())
    }

    fn take(&mut self, runner: &Runner, event: Event) -> Result {
        let length = runner.check(event, RECEIVE_FLAG | self.completed)?;
        if length == last_length(&runner.test) as u64 {
            self.counter.end();
            self.is_done = true;
            return Ok(());
        }
        runner.check_length(length, self.completed)?;
        self.counter.complete(None);
        self.completed += 1;
        self.post(runner)
    }
}
