//! What the device's completions mean: which work they end, and what the consumer hears of it.
//!
//! Called by whoever polls, with the completion queue's lock held. A failure is only noted here; the engine ends the
//! connection.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, Segment, Status, Work};
use ibverbs_sys::ibv_wc;

use super::{Core, Recvs, post};
use crate::cq::{Mark, Side};
use crate::status;

/// What ends a connection. A flush alone does not: it only follows from something, which is told as well (8.4).
fn is_failure(status: Status) -> bool {
    !matches!(status, Status::Success | Status::Flushed)
}

impl Recvs {
    /// The connection was not reported yet: this waits for it.
    #[cold]
    fn keep(&mut self, done: Completion, mark: Mark) {
        self.early.push(Completion { solicited: mark.later, ..done });
    }
}

impl Core {
    /// A completion of one of its own queues.
    #[inline(always)]
    pub(crate) fn complete(
        &self,
        side: Side,
        epoch: u32,
        number: u32,
        wc: &ibv_wc,
        mark: Mark,
        put: impl FnMut(Completion),
    ) {
        if !wc.is_valid() {
            return self.complete_badly(side, epoch, number, wc, mark, put);
        }
        match side {
            Side::Recv => self.complete_recv(epoch, number, Status::Success, wc, mark, put),
            Side::Request => self.complete_request(epoch, number, Status::Success, wc, put),
        }
    }

    #[cold]
    fn complete_badly(
        &self,
        side: Side,
        epoch: u32,
        number: u32,
        wc: &ibv_wc,
        mark: Mark,
        put: impl FnMut(Completion),
    ) {
        let status = status::of(wc);
        match side {
            Side::Recv => self.complete_recv(epoch, number, status, wc, mark, put),
            Side::Request => self.complete_request(epoch, number, status, wc, put),
        }
        if is_failure(status) {
            self.fail();
        }
    }

    #[inline(always)]
    fn complete_recv(
        &self,
        epoch: u32,
        number: u32,
        status: Status,
        wc: &ibv_wc,
        mark: Mark,
        mut put: impl FnMut(Completion),
    ) {
        let mut recv = self.recv.lock();
        let count = recv.work.until(epoch, number);
        for left in (0..count).rev() {
            let Some(entry) = recv.work.pop() else { return };
            // One that was passed over was never the device's; it cannot have failed alone.
            let status = if left == 0 { self.cause_of_recv(status, recv.work.kept(number)) } else { Status::Success };
            let bytes = if status == Status::Success && left == 0 { wc.len() as u64 } else { 0 };
            let done = Completion { token: entry.token, status, bytes, solicited: mark.now };
            if recv.open { put(done) } else { recv.keep(done, mark) }
        }
    }

    #[inline(always)]
    fn complete_request(&self, epoch: u32, number: u32, status: Status, wc: &ibv_wc, mut put: impl FnMut(Completion)) {
        let mut send = self.send.lock();
        let count = send.work.until(epoch, number);
        for left in (0..count).rev() {
            let Some(entry) = send.work.pop() else { return };
            let status = if left == 0 { status } else { Status::Success };
            if entry.token.work == Work::Bind
                && let Some(window) = send.work.window()
            {
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
            let is_wrong = || {
                let written = entry.token.work == Work::Read;
                send.work
                    .kept(number)
                    .is_some_and(|segments| !self.device.keys.are_right(&self.pd.0, segments, written))
            };
            let status = match (status, entry.doom) {
                (Status::Flushed, _) => status,
                (_, Some(doom)) => doom,
                (Status::LocalEp, None) if is_wrong() => Status::LocalProtection,
                _ => status,
            };
            put(Completion { token: entry.token, status, bytes: 0, solicited: false });
        }
        let is_drained = count > 0 && send.draining && send.outstanding() == 0;
        drop(send);
        if is_drained {
            self.soon(|core| core.drained());
        }
    }

    /// A receive out of the shared queue.
    pub(crate) fn complete_shared(&self, place: u64, wc: &ibv_wc, mark: Mark, mut put: impl FnMut(Completion)) {
        let Some((srq, token)) = &self.shared else { return };
        let status = self.cause_of_recv(status::of(wc), (!wc.is_valid()).then(|| srq.kept(place)).flatten().as_deref());
        let Some(cookie) = srq.complete(place) else { return };
        let bytes = if status == Status::Success { wc.len() as u64 } else { 0 };
        let token = dapl::provider::Token { cookie, ..*token };
        let done = Completion { token, status, bytes, solicited: mark.now };
        let mut recv = self.recv.lock();
        if recv.open {
            put(done)
        } else {
            recv.keep(done, mark)
        }
        // As far as the device tells, it is taken and complete at once: it was one for a moment.
        let crossed = recv.high.look(1);
        drop(recv);
        self.tell_crossed(crossed);
        if is_failure(status) {
            self.fail();
        }
    }

    /// What was wrong with a receive of which the device says no more than that it has failed here: if its segments are
    /// right, the message was too long for them.
    fn cause_of_recv(&self, status: Status, kept: Option<&[Segment]>) -> Status {
        match kept {
            Some(segments) if status == Status::LocalEp => {
                let is_right = self.device.keys.are_right(&self.pd.0, segments, true);
                if is_right { Status::LocalLength } else { Status::LocalProtection }
            }
            _ => status,
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
