//! A thread of a transaction: executes the operations in order, each over all endpoints, and checks the data.
//!
//! With data checks, three checkpoint messages end an iteration (see `plan`). Before a side sends its last checkpoint
//! message, it fills the memory for the next iteration: with the data that it will send or write, or that the peer will
//! read, and with a fill byte where RDMA will write.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::party::Party;
use super::pattern::{Origin, UNWRITTEN};
use crate::dat::RemoteBuffer;
use crate::dat::raw::Post;
use crate::failure::{Failure, Result};
use crate::operation::{Side, Transfer};
use crate::progress::Progress;
use crate::stop;

impl Party<'_> {
    /// Runs all iterations over the connected endpoints. `theirs` is the partner's memory.
    pub(super) fn run(&mut self, theirs: RemoteBuffer, progress: &Progress) -> Result {
        for iteration in 0..self.plan.test().iterations {
            stop::check()?;
            let began = Instant::now();
            self.iterate(iteration, &theirs).map_err(|failure| failure.at(&format!("iteration {iteration}")))?;
            self.latency.record(began.elapsed());
            progress.step();
        }
        self.settle_all()
    }

    fn iterate(&mut self, iteration: u32, theirs: &RemoteBuffer) -> Result {
        for number in 0..self.plan.operations().len() {
            let checkpoint = self.plan.checkpoint(number);
            if checkpoint == Some(0) {
                self.settle_all()?;
            }
            // The server checks before it sends its message, the client after it has received that message.
            if checkpoint == Some(1) && self.side == Side::Server {
                self.check(iteration)?;
                self.prepare(iteration.wrapping_add(1));
            }
            self.operate(number, iteration, theirs)?;
            if checkpoint == Some(1) && self.side == Side::Client {
                self.check(iteration)?;
                self.prepare(iteration.wrapping_add(1));
            }
        }
        Ok(())
    }

    fn operate(&mut self, number: usize, iteration: u32, theirs: &RemoteBuffer) -> Result {
        let operation = self.plan.operations()[number];
        if operation.by != self.side {
            // The target of an RDMA operation does nothing.
            return match operation.transfer {
                Transfer::Send => self.receive(number, iteration),
                Transfer::Read | Transfer::Write => Ok(()),
            };
        }
        for endpoint in 0..self.eps.len() {
            let place = theirs.part(self.plan.at(endpoint, number) as u64, operation.length() as u64);
            let post = match operation.transfer {
                Transfer::Send => Post::Send,
                Transfer::Read => Post::Read(place),
                Transfer::Write => Post::Write(place),
            };
            self.post_request(endpoint, number, post)?;
        }
        if operation.is_deferred {
            return Ok(());
        }
        for endpoint in 0..self.eps.len() {
            self.settle(endpoint, operation.is_polled)?;
            if operation.transfer == Transfer::Read && self.plan.test().validates {
                self.compare(endpoint, number, iteration)?;
            }
        }
        Ok(())
    }

    /// Waits for the peer's message on each endpoint, checks its data with `-V`, and posts the receive again.
    fn receive(&mut self, number: usize, iteration: u32) -> Result {
        for endpoint in 0..self.eps.len() {
            self.await_receive(endpoint, number)?;
            let is_checkpoint = self.plan.checkpoint(number).is_some();
            if self.plan.test().validates && !is_checkpoint {
                self.compare(endpoint, number, iteration)?;
            }
            self.post_receive(endpoint, number)?;
            // Dequeues the deferred completions of sends.
            self.settle(endpoint, false)?;
        }
        Ok(())
    }

    fn settle_all(&mut self) -> Result {
        (0..self.eps.len()).try_for_each(|endpoint| self.settle(endpoint, false))
    }

    /// Fills the data that this side sends or writes, or the peer reads, in an iteration. Fills the targets of RDMA
    /// with `UNWRITTEN`.
    pub(super) fn prepare(&self, iteration: u32) {
        for endpoint in 0..self.eps.len() {
            for (number, operation) in self.plan.operations().iter().enumerate() {
                let (at, length) = (self.plan.at(endpoint, number), operation.length());
                let is_ours = operation.by == self.side;
                match (operation.transfer, is_ours) {
                    (Transfer::Send | Transfer::Write, true) | (Transfer::Read, false) => {
                        self.memory.fill(at, length, self.origin(self.side, endpoint, number, iteration).pattern());
                    }
                    (Transfer::Read, true) | (Transfer::Write, false) => self.memory.fill(at, length, |_| UNWRITTEN),
                    // A receive is posted for this memory, so it must not be touched.
                    (Transfer::Send, false) => {}
                }
            }
        }
    }

    /// Checks the data that the peer wrote by RDMA in a finished iteration.
    fn check(&self, iteration: u32) -> Result {
        for endpoint in 0..self.eps.len() {
            for (number, operation) in self.plan.operations().iter().enumerate() {
                if operation.transfer == Transfer::Write && operation.by != self.side {
                    self.compare(endpoint, number, iteration)?;
                }
            }
        }
        Ok(())
    }

    /// Compares received data with the expected pattern.
    fn compare(&self, endpoint: usize, number: usize, iteration: u32) -> Result {
        let operation = &self.plan.operations()[number];
        let pattern = self.origin(self.side.peer(), endpoint, number, iteration).pattern();
        match self.memory.differs(self.plan.at(endpoint, number), operation.length(), &pattern) {
            None => Ok(()),
            Some((at, found)) => {
                let wanted = pattern(at);
                let place = format!("endpoint {endpoint}, operation {number} ({operation}): byte {at}");
                Failure::with_message(format!("{place} is 0x{found:02x}, expected 0x{wanted:02x}"))
            }
        }
    }

    fn origin(&self, by: Side, endpoint: usize, operation: usize, iteration: u32) -> Origin {
        Origin { by, thread: self.number, endpoint, operation, iteration }
    }
}
