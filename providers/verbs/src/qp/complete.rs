//! What the device's completions mean: which work they end, and what the consumer hears of it.
//!
//! Called by whoever polls, with the completion queue's lock held. A failure is only noted here; the engine ends the
//! connection.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Status};
use ibverbs_sys::ibv_wc;

use super::{Core, post};
use crate::cq::Side;
use crate::status;

/// What ends a connection. A flush alone does not: it only follows from something, which is told as well (8.4).
fn is_failure(status: Status) -> bool {
    !matches!(status, Status::Success | Status::Flushed)
}

impl Core {
    /// A completion of one of its own queues.
    pub(crate) fn complete(&self, side: Side, epoch: u32, number: u32, wc: &ibv_wc, put: impl FnMut(Completion)) {
        let status = status::of(wc);
        match side {
            Side::Recv => self.complete_recv(epoch, number, status, wc, put),
            Side::Request => self.complete_request(epoch, number, status, wc, put),
        }
        if is_failure(status) {
            self.fail();
        }
    }

    fn complete_recv(&self, epoch: u32, number: u32, status: Status, wc: &ibv_wc, mut put: impl FnMut(Completion)) {
        let mut recv = self.recv.lock();
        let count = recv.work.until(epoch, number);
        for left in (0..count).rev() {
            let Some(entry) = recv.work.pop() else { return };
            // One that was passed over was never the device's; it cannot have failed alone.
            let status = if left == 0 { status } else { Status::Success };
            let bytes = if status == Status::Success && left == 0 { wc.len() as u64 } else { 0 };
            let done = Completion { token: entry.token, status, bytes, solicited: false };
            if recv.open || status != Status::Success { put(done) } else { recv.early.push(done) }
        }
    }

    fn complete_request(&self, epoch: u32, number: u32, status: Status, wc: &ibv_wc, mut put: impl FnMut(Completion)) {
        let mut send = self.send.lock();
        let count = send.work.until(epoch, number);
        for left in (0..count).rev() {
            let Some(entry) = send.work.pop() else { return };
            let status = if left == 0 { status } else { Status::Success };
            if let Some(window) = entry.window {
                window.completed(status == Status::Success);
            }
            if status == Status::Success {
                if !entry.suppress {
                    put(post::done(entry.token, entry.bytes));
                }
                continue;
            }
            if status != Status::Flushed {
                log::debug!("queue pair {}: request failed: {wc:?}", self.number());
            }
            let status = if status == Status::Flushed { status } else { entry.doom.unwrap_or(status) };
            put(Completion { token: entry.token, status, bytes: 0, solicited: false });
        }
        let is_drained = count > 0 && send.draining && send.outstanding() == 0;
        drop(send);
        if is_drained {
            self.soon(|core| core.drained());
        }
    }

    /// A receive out of the shared queue.
    pub(crate) fn complete_shared(&self, place: u64, wc: &ibv_wc, mut put: impl FnMut(Completion)) {
        let Some((srq, token)) = &self.shared else { return };
        let Some(cookie) = srq.complete(place) else { return };
        let status = status::of(wc);
        let bytes = if status == Status::Success { wc.len() as u64 } else { 0 };
        let done = Completion { token: dapl::provider::Token { cookie, ..*token }, status, bytes, solicited: false };
        let mut recv = self.recv.lock();
        if recv.open || status != Status::Success {
            put(done)
        } else {
            recv.early.push(done)
        }
        // As far as the device tells, it is taken and complete at once: it was one for a moment.
        let crossed = recv.high.look(1);
        drop(recv);
        self.tell_crossed(crossed);
        if is_failure(status) {
            self.fail();
        }
    }

    /// The connection cannot go on; the engine sees to it.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.soon(|core| core.break_off());
        }
    }

    pub(super) fn soon(&self, job: impl FnOnce(Arc<Core>) + Send + 'static) {
        if let Some(core) = self.me.upgrade() {
            self.device.reactor.soon(move || job(core));
        }
    }
}
