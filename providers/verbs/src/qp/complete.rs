//! Matches the device's completions with posted work.
//!
//! A consumer thread or the engine polls the device, and completes the work under the completion queue's lock. A
//! failure is only recorded. The engine ends the connection later, because a sink must be called by the engine and
//! without locks.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dapl::provider::{Completion, ReceivedOp, Segment, Status, Token, Work};
use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode};
use parking_lot::MutexGuard;

use super::{QpCore, ReceiveQueue, SendQueue, post};
use crate::cq::AssumedSolicited;
use crate::cq::status;
use crate::qp::work::WorkEntry;

/// Whether a status ends the connection. A flush does not: it is the consequence of another failure, which ends the
/// connection (spec/endpoints 8.4), or of a connection that is ending.
fn is_failure(status: Status) -> bool {
    !matches!(status, Status::Success | Status::Flushed)
}

/// Returns the peer's operation that completed a receive, and its immediate data.
fn arrival(wc: &ibv_wc) -> (ReceivedOp, u32) {
    // The flags are undefined if the receive failed.
    if wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM == 0 || !wc.is_valid() {
        return (ReceivedOp::Send, 0);
    }
    let is_write = wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    (if is_write { ReceivedOp::WriteImmediate } else { ReceivedOp::SendImmediate }, wc.imm_data)
}

impl ReceiveQueue {
    /// Holds back a completion until ESTABLISHED was reported.
    #[cold]
    fn hold_back(&mut self, done: Completion, mark: AssumedSolicited) {
        self.unreported_recvs.push(Completion { solicited: mark.later, ..done });
    }
}

impl SendQueue {
    /// Completes a request that has succeeded, unless its completion is suppressed. Records that a bind is in effect.
    fn succeeded(&mut self, entry: WorkEntry, put: &mut dyn FnMut(Completion)) {
        if entry.token.work == Work::Bind {
            self.end_bind(&entry, true);
        }
        if !entry.suppress {
            put(post::success(entry.token, entry.bytes));
        }
    }

    #[cold]
    fn end_bind(&mut self, entry: &WorkEntry, is_done: bool) {
        if entry.token.work == Work::Bind
            && let Some(window) = self.work.pop_window()
        {
            window.completed(is_done);
        }
    }
}

impl QpCore {
    /// Handles a completion of the queue pair's own receive queue.
    #[inline(always)]
    pub(crate) fn complete_recv(&self, wc: &ibv_wc, mark: AssumedSolicited, mut put: impl FnMut(Completion)) {
        let mut recv = self.recv.lock();
        if recv.is_reported
            && wc.is_valid()
            && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM == 0
            && let Some(entry) = recv.work.first(wc.wr_id)
        {
            let done = post::success(entry.token, wc.len() as u64);
            recv.work.drop_first();
            put(Completion { solicited: mark.now, ..done });
        } else {
            self.complete_recv_cold(recv, wc, mark, &mut put);
        }
    }

    /// General path of [`QpCore::complete_recv`]: failed, skipped, early and immediate-data receives.
    #[cold]
    #[inline(never)]
    fn complete_recv_cold(
        &self,
        mut recv: MutexGuard<'_, ReceiveQueue>,
        wc: &ibv_wc,
        mark: AssumedSolicited,
        put: &mut dyn FnMut(Completion),
    ) {
        for _ in 1..recv.work.count_through(wc.wr_id) {
            self.complete_skipped_recv(&mut recv, mark, put);
        }
        let Some(entry) = recv.work.pop_at(wc.wr_id) else { return };
        let (status, bytes) = if wc.is_valid() {
            (Status::Success, wc.len() as u64)
        } else {
            (self.failure_of_recv(wc, recv.work.saved_segments(wc.wr_id as u32)), 0)
        };
        let (arrival, value) = arrival(wc);
        let done = Completion { token: entry.token, status, bytes, solicited: mark.now, arrival, value };
        if recv.is_reported { put(done) } else { recv.hold_back(done, mark) }
    }

    /// Completes a receive with 0 bytes, because the device has completed a later one without reporting this one.
    #[cold]
    fn complete_skipped_recv(&self, recv: &mut ReceiveQueue, mark: AssumedSolicited, put: &mut dyn FnMut(Completion)) {
        if let Some(entry) = recv.work.pop() {
            let done = post::success(entry.token, 0);
            if recv.is_reported { put(done) } else { recv.hold_back(done, mark) }
        }
    }

    /// Handles a completion of the send queue.
    #[inline(always)]
    pub(crate) fn complete_request(&self, wc: &ibv_wc, mut put: impl FnMut(Completion)) {
        let mut send = self.send.lock();
        if wc.is_valid()
            && !send.draining
            && let Some(entry) = send.work.first(wc.wr_id).filter(|entry| entry.only_completes())
        {
            let done = post::success(entry.token, entry.bytes);
            send.work.drop_first();
            put(done);
        } else {
            self.complete_request_cold(send, wc, &mut put);
        }
    }

    /// General path of [`QpCore::complete_request`]: failed, suppressed, skipped and bind requests, and draining
    /// connections.
    #[cold]
    #[inline(never)]
    fn complete_request_cold(&self, mut send: MutexGuard<'_, SendQueue>, wc: &ibv_wc, put: &mut dyn FnMut(Completion)) {
        for _ in 1..send.work.count_through(wc.wr_id) {
            // The device completes requests in order, so all earlier requests are complete too.
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
            self.run_on_engine(|core| core.drained());
        }
    }

    /// Handles a completion of a receive from the shared receive queue. `place`: slot of the receive in that queue.
    pub(crate) fn complete_shared(
        &self,
        place: u64,
        wc: &ibv_wc,
        mark: AssumedSolicited,
        mut put: impl FnMut(Completion),
    ) {
        let Some((srq, token)) = &self.shared else { return };
        let status = if wc.is_valid() {
            Status::Success
        } else {
            self.failure_of_recv(wc, srq.saved_segments(place).as_deref())
        };
        let Some(cookie) = srq.complete(place) else { return };
        let bytes = if status == Status::Success { wc.len() as u64 } else { 0 };
        let token = dapl::provider::Token { cookie, ..*token };
        let (arrival, value) = arrival(wc);
        let done = Completion { token, status, bytes, solicited: mark.now, arrival, value };
        let mut recv = self.recv.lock();
        if recv.is_reported {
            put(done)
        } else {
            recv.hold_back(done, mark)
        }
        // The high watermarks count receives that the connection has outstanding. A shared receive is known to be used
        // by this connection only when it completes, so it counts as one outstanding receive here.
        let crossed = recv.high.check(1);
        drop(recv);
        self.report_crossed(crossed);
    }

    /// Records the failure of a receive, which ends the connection unless the receive was flushed. Returns its status.
    /// Some devices report only that the failure is local. If all segments are valid in this case, the message was too
    /// long.
    #[cold]
    fn failure_of_recv(&self, wc: &ibv_wc, kept: Option<&[Segment]>) -> Status {
        let status = self.record_failure(wc);
        match kept {
            Some(segments) if status == Status::LocalEp => {
                let is_valid = self.device.keys.are_valid(self.pd.id(), segments, true);
                if is_valid { Status::LocalLength } else { Status::LocalProtection }
            }
            _ => status,
        }
    }

    /// Records the failure of a request, which ends the connection unless the request was flushed. Returns the
    /// completion of the request.
    #[cold]
    fn failure_of_request(&self, send: &mut SendQueue, entry: WorkEntry, number: u32, wc: &ibv_wc) -> Completion {
        send.end_bind(&entry, false);
        let has_invalid_segment = || {
            let kept = if entry.is_read { None } else { send.work.saved_segments(number) };
            let written = entry.token.work == Work::Read || entry.token.work.is_atomic();
            kept.is_some_and(|segments| !self.device.keys.are_valid(self.pd.id(), segments, written))
        };
        let status = match (self.record_failure(wc), entry.forced_status) {
            (Status::Flushed, _) => Status::Flushed,
            (_, Some(forced_status)) => forced_status,
            (Status::LocalEp, None) if has_invalid_segment() => Status::LocalProtection,
            (status, None) => status,
        };
        if status == Status::RemoteAccess {
            let message = refusal_message(&entry);
            self.run_on_engine(move |_| log::warn!("{message}"));
        }
        Completion { token: entry.token, status, ..Completion::default() }
    }

    fn record_failure(&self, wc: &ibv_wc) -> Status {
        let status = status::of(wc);
        if is_failure(status) {
            let (code, vendor_error) = wc.error().unwrap_or_default();
            log::debug!(
                "queue pair {:#x}: request {:#x} failed: {} (ibv_wc_status {code}, vendor error {vendor_error:#x})",
                self.number(),
                wc.wr_id,
                status.dat_name()
            );
            self.fail();
        }
        status
    }

    /// Records that the connection has failed. The engine ends it.
    pub(crate) fn fail(&self) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.run_on_engine(|core| core.break_connection());
        }
    }

    /// Ends the connection of an overdue send if the port is down. Soft-RoCE sometimes stops retransmitting when its
    /// link goes down, and then reports no error.
    pub(crate) fn fail_if_port_is_down(&self) {
        if self.device.shared_device.is_port_down(self.device.port) {
            self.fail();
        }
    }

    /// Queues a job for the engine thread. The job keeps the queue pair alive.
    pub(super) fn run_on_engine(&self, job: impl FnOnce(Arc<QpCore>) + Send + 'static) {
        if let Some(core) = self.me.upgrade() {
            self.device.engine.run_on_engine(move || job(core));
        }
    }
}

/// Returns the log message for a request that the peer's device refused. The engine logs it, because logging would
/// delay the polling thread.
#[cold]
fn refusal_message(entry: &WorkEntry) -> String {
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
    fn refusal_message_names_ep_operation_cookie_and_length() {
        let token = Token { ep: 0x40, cookie: 0xbad, work: Work::Write, ..Token::default() };
        let entry = WorkEntry { token, bytes: 64, suppress: false, is_read: false, forced_status: None };
        let message = refusal_message(&entry);
        let beginning =
            "ep 0x40: rdma write with cookie 0xbad, 64 bytes, refused at the peer (DAT_DTO_ERR_REMOTE_ACCESS): ";
        assert!(message.starts_with(beginning), "{message}");
    }
}
