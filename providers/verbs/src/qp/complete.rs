//! Matches the device's completions with posted work.
//!
//! Called by the polling thread, with the completion queue's lock held. A failure is only recorded here; the engine ends the
//! connection.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Arrival, Completion, Segment, Status, Token, Work};
use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode};
use parking_lot::MutexGuard;

use super::{QpCore, Recvs, Requests, post};
use crate::cq::Solicited;
use crate::cq::status;
use crate::qp::work::Entry;

/// Whether a status ends the connection. A flush does not: it follows from a failure that is reported as well
/// (spec/endpoints 8.4).
fn is_failure(status: Status) -> bool {
    !matches!(status, Status::Success | Status::Flushed)
}

/// The operation of the peer that completed a receive, and its immediate data.
fn arrival(wc: &ibv_wc) -> (Arrival, u32) {
    // The flags are undefined if the receive failed.
    if wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 == 0 || !wc.is_valid() {
        return (Arrival::Send, 0);
    }
    let is_write = wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    (if is_write { Arrival::WriteImmediate } else { Arrival::SendImmediate }, wc.imm_data)
}

impl Recvs {
    /// Holds back a completion until the connection is reported.
    #[cold]
    fn keep(&mut self, done: Completion, mark: Solicited) {
        self.early.push(Completion { solicited: mark.later, ..done });
    }
}

impl Requests {
    /// Handles a completed request.
    fn succeeded(&mut self, entry: Entry, put: &mut dyn FnMut(Completion)) {
        if entry.token.work == Work::Bind {
            self.end_bind(&entry, true);
        }
        if !entry.suppress {
            put(post::done(entry.token, entry.bytes));
        }
    }

    #[cold]
    fn end_bind(&mut self, entry: &Entry, is_done: bool) {
        if entry.token.work == Work::Bind
            && let Some(window) = self.work.window()
        {
            window.completed(is_done);
        }
    }
}

impl QpCore {
    /// Handles a completion of the queue pair's own receive queue.
    #[inline(always)]
    pub(crate) fn complete_recv(&self, wc: &ibv_wc, mark: Solicited, mut put: impl FnMut(Completion)) {
        let mut recv = self.recv.lock();
        if recv.open
            && wc.is_valid()
            && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 == 0
            && let Some(entry) = recv.work.first(wc.wr_id)
        {
            let done = post::done(entry.token, wc.len() as u64);
            recv.work.drop_first();
            put(Completion { solicited: mark.now, ..done });
        } else {
            self.complete_recv_rarely(recv, wc, mark, &mut put);
        }
    }

    /// Handles every other completion of it.
    #[cold]
    #[inline(never)]
    fn complete_recv_rarely(
        &self,
        mut recv: MutexGuard<'_, Recvs>,
        wc: &ibv_wc,
        mark: Solicited,
        put: &mut dyn FnMut(Completion),
    ) {
        for _ in 1..recv.work.until(wc.wr_id) {
            self.pass_over_recv(&mut recv, mark, put);
        }
        let Some(entry) = recv.work.pop_at(wc.wr_id) else { return };
        let (status, bytes) = if wc.is_valid() {
            (Status::Success, wc.len() as u64)
        } else {
            (self.failure_of_recv(wc, recv.work.kept(wc.wr_id as u32)), 0)
        };
        let (arrival, value) = arrival(wc);
        let done = Completion { token: entry.token, status, bytes, solicited: mark.now, arrival, value };
        if recv.open { put(done) } else { recv.keep(done, mark) }
    }

    /// Completes a receive that the device has skipped.
    #[cold]
    fn pass_over_recv(&self, recv: &mut Recvs, mark: Solicited, put: &mut dyn FnMut(Completion)) {
        if let Some(entry) = recv.work.pop() {
            let done = post::done(entry.token, 0);
            if recv.open { put(done) } else { recv.keep(done, mark) }
        }
    }

    /// Handles a completion of the request queue.
    #[inline(always)]
    pub(crate) fn complete_request(&self, wc: &ibv_wc, mut put: impl FnMut(Completion)) {
        let mut send = self.send.lock();
        if wc.is_valid()
            && !send.draining
            && let Some(entry) = send.work.first(wc.wr_id).filter(|entry| entry.is_plain())
        {
            let done = post::done(entry.token, entry.bytes);
            send.work.drop_first();
            put(done);
        } else {
            self.complete_request_rarely(send, wc, &mut put);
        }
    }

    /// Handles every other completion of it.
    #[cold]
    #[inline(never)]
    fn complete_request_rarely(
        &self,
        mut send: MutexGuard<'_, Requests>,
        wc: &ibv_wc,
        put: &mut dyn FnMut(Completion),
    ) {
        for _ in 1..send.work.until(wc.wr_id) {
            // All earlier requests without a signalled completion are complete too.
            let passed = send.work.pop();
            passed.into_iter().for_each(|entry| send.succeeded(entry, put));
        }
        let Some(entry) = send.work.pop_at(wc.wr_id) else { return };
        if wc.is_valid() {
            send.succeeded(entry, put);
        } else {
            put(self.failure_of_request(&mut send, entry, wc.wr_id as u32, wc));
        }
        let is_drained = send.draining && send.outstanding() == 0;
        drop(send);
        if is_drained {
            self.soon(|core| core.drained());
        }
    }

    /// Handles a completion of a receive from the shared queue.
    pub(crate) fn complete_shared(&self, place: u64, wc: &ibv_wc, mark: Solicited, mut put: impl FnMut(Completion)) {
        let Some((srq, token)) = &self.shared else { return };
        let status = if wc.is_valid() { Status::Success } else { self.failure_of_recv(wc, srq.kept(place).as_deref()) };
        let Some(cookie) = srq.complete(place) else { return };
        let bytes = if status == Status::Success { wc.len() as u64 } else { 0 };
        let token = dapl::provider::Token { cookie, ..*token };
        let (arrival, value) = arrival(wc);
        let done = Completion { token, status, bytes, solicited: mark.now, arrival, value };
        let mut recv = self.recv.lock();
        if recv.open {
            put(done)
        } else {
            recv.keep(done, mark)
        }
        // The device reports a receive only when it is complete, so the receive briefly counts as outstanding.
        let crossed = recv.high.check(1);
        drop(recv);
        self.report_crossed(crossed);
    }

    /// Status of a failed receive, which ends the connection. A device may report no more than a local failure; if the
    /// segments are valid, the message was too long.
    #[cold]
    fn failure_of_recv(&self, wc: &ibv_wc, kept: Option<&[Segment]>) -> Status {
        let status = self.note_failure(wc);
        match kept {
            Some(segments) if status == Status::LocalEp => {
                let is_right = self.device.keys.are_right(&self.pd.0, segments, true);
                if is_right { Status::LocalLength } else { Status::LocalProtection }
            }
            _ => status,
        }
    }

    /// Status of a failed request, which ends the connection.
    #[cold]
    fn failure_of_request(&self, send: &mut Requests, entry: Entry, number: u32, wc: &ibv_wc) -> Completion {
        send.end_bind(&entry, false);
        let is_wrong = || {
            let kept = if entry.is_read { None } else { send.work.kept(number) };
            let written = entry.token.work == Work::Read || entry.token.work.is_atomic();
            kept.is_some_and(|segments| !self.device.keys.are_right(&self.pd.0, segments, written))
        };
        let status = match (self.note_failure(wc), entry.forced_status) {
            (Status::Flushed, _) => Status::Flushed,
            (_, Some(forced_status)) => forced_status,
            (Status::LocalEp, None) if is_wrong() => Status::LocalProtection,
            (status, None) => status,
        };
        if status == Status::RemoteAccess {
            let line = refused(&entry);
            self.soon(move |_| log::warn!("{line}"));
        }
        Completion { token: entry.token, status, ..Completion::default() }
    }

    fn note_failure(&self, wc: &ibv_wc) -> Status {
        let status = status::of(wc);
        if is_failure(status) {
            log::debug!("queue pair {}: work failed: {wc:?}", self.number());
            self.fail();
        }
        status
    }

    /// Records that the connection has failed; the engine ends it.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.soon(|core| core.break_off());
        }
    }

    pub(super) fn soon(&self, job: impl FnOnce(Arc<QpCore>) + Send + 'static) {
        if let Some(core) = self.me.upgrade() {
            self.device.reactor.soon(move || job(core));
        }
    }
}

/// The log line of a request that the peer's device refused. The engine writes it, so that polls write no line.
#[cold]
fn refused(entry: &Entry) -> String {
    let Token { ep, cookie, work, .. } = entry.token;
    format!(
        "ep {ep:#x}: {} with cookie {cookie:#x}, {} bytes, refused at the peer ({}): no registration or window has the key, or it is \
         of another protection zone, or does not grant the right, or the range is out of bounds; the device does not report which \
         (DAPL_DBG_IO_TRC=256 shows key and address)",
        work.name(),
        entry.bytes,
        Status::RemoteAccess.dat_name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_names_the_refused_request() {
        let token = Token { ep: 0x40, cookie: 0xbad, work: Work::Write, ..Token::default() };
        let entry = Entry { token, bytes: 64, suppress: false, is_read: false, forced_status: None };
        let line = refused(&entry);
        let wanted =
            "ep 0x40: rdma write with cookie 0xbad, 64 bytes, refused at the peer (DAT_DTO_ERR_REMOTE_ACCESS): ";
        assert!(line.starts_with(wanted), "{line}");
    }
}
