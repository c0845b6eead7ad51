//! The states of a connection, from the attempt to connect to the flush.
//!
//! The connection manager reports events on the engine thread. At the same time, a consumer thread may end the
//! connection. The thread that removes the connection from `link` ends it; what the other thread reports later has no
//! effect.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent, Status};
use ibverbs_sys::ibv_qp_attr_mask;
use parking_lot::MutexGuard;

use super::{CmConnection, CmQueuePair, CurrentConnection, PostPhase, QpCore, ReadLimits, flushed};
use crate::engine::EventHandler;
use crate::qp::state::{self, PathToRts, StateChange};

/// First and longest interval between the engine's checks whether all requests of a draining connection are complete.
const DRAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

impl CmQueuePair for QpCore {
    fn number(&self) -> u32 {
        QpCore::number(self)
    }

    fn reads(&self) -> ReadLimits {
        self.reads
    }

    fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()> {
        let mut place = self.link.lock();
        if place.is_some() {
            return Err(Error::Internal);
        }
        self.failed.store(false, Ordering::Release);
        *place = Some(CurrentConnection { conn, link });
        Ok(())
    }

    fn bring_up(&self, link: &dyn CmConnection, path: &mut PathToRts) -> io::Result<bool> {
        let Some(_place) = self.lock_if_current(link) else { return Ok(false) };
        for cq in [&self.recv_cq, &self.request_cq] {
            cq.arm_for_connection().map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        }
        let hw = self.hw();
        for change in path.init.iter_mut().chain([&mut path.to_receive, &mut path.to_send]) {
            hw.modify(&mut change.attributes, change.mask)?;
        }
        let StateChange { attributes, mask } = &path.to_send;
        // If the connection manager does not limit the outstanding reads, the device uses its default.
        let is_limited = mask & ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC != 0;
        let mut send = self.send.lock();
        send.reads = if is_limited { attributes.max_rd_atomic } else { u8::MAX };
        send.is_rts = true;
        Ok(true)
    }

    fn established(&self, link: &dyn CmConnection, private_data: &[u8]) {
        let Some(conn) = self.open_requests(link) else { return };
        self.device.sink.event(conn, ConnectionEvent::Established, private_data);
        self.open_recvs(link);
        self.recv_cq.schedule_check();
        self.request_cq.schedule_check();
    }

    fn report_end(&self, link: &dyn CmConnection, mut event: ConnectionEvent, private_data: &[u8]) {
        let Some(mut place) = self.lock_if_current(link) else { return };
        if event == ConnectionEvent::Disconnected {
            // A transfer may have failed, and the peer may have disconnected before this process has polled the
            // failure.
            self.take_completions();
            if self.failed.load(Ordering::Acquire) {
                event = ConnectionEvent::Broken;
            }
        }
        if let Some(conn) = self.end(&mut place) {
            drop(place);
            self.device.sink.event(conn, event, private_data);
        }
    }
}

impl QpCore {
    /// Locks the connection or attempt, if it is `link`.
    fn lock_if_current(&self, link: &dyn CmConnection) -> Option<MutexGuard<'_, Option<CurrentConnection>>> {
        let place = self.link.lock();
        let is_current = place.as_ref().is_some_and(|attached| std::ptr::addr_eq(Arc::as_ptr(&attached.link), link));
        is_current.then_some(place)
    }

    /// Undoes `attach`, if `link` is still the current attempt.
    pub(crate) fn detach(&self, link: &dyn CmConnection) {
        if let Some(mut place) = self.lock_if_current(link) {
            *place = None;
        }
    }

    /// Replaces the link of the current attempt. Returns false if `old` is no longer the current attempt.
    pub(crate) fn replace_link(&self, old: &dyn CmConnection, new: Arc<dyn CmConnection>) -> bool {
        let Some(mut place) = self.lock_if_current(old) else { return false };
        if let Some(attached) = place.as_mut() {
            attached.link = new;
        }
        true
    }

    /// Whether `link` is the current connection or attempt.
    pub(crate) fn is_current(&self, link: &dyn CmConnection) -> bool {
        self.lock_if_current(link).is_some()
    }

    /// Posts the queued requests to the device. Called before the consumer is notified, so that posts after the
    /// notification go to the device immediately.
    fn open_requests(&self, link: &dyn CmConnection) -> Option<ConnId> {
        let place = self.lock_if_current(link)?;
        let conn = place.as_ref()?.conn;
        self.recv.lock().is_established = true;
        let mut send = self.send.lock();
        send.is_established = true;
        if let Err(error) = self.submit_queued(&mut send) {
            log::error!(
                "{}: queue pair {:#x}: cannot post the requests that waited for the connection: {error}; the connection ends with \
                 BROKEN",
                self.device.name,
                self.number()
            );
            self.fail();
        }
        Some(conn)
    }

    /// Passes on the receive completions that were held back, unless the connection has ended meanwhile.
    fn open_recvs(&self, link: &dyn CmConnection) {
        let Some(_place) = self.lock_if_current(link) else { return };
        let mut inner = self.recv_cq.lock();
        let mut recv = self.recv.lock();
        recv.is_reported = true;
        for done in std::mem::take(&mut recv.unreported_recvs) {
            inner.push(done);
        }
        let count = recv.work.len();
        if recv.high.check(count).hard {
            self.fail();
        }
    }

    /// Ends the connection after a failure. Called by the engine thread only.
    pub(super) fn break_connection(&self) {
        let mut place = self.link.lock();
        // `attach` has cleared `failed` if the failure was of an earlier connection, which must not end the new one.
        if !self.failed.load(Ordering::Acquire) {
            return;
        }
        if let Some(conn) = self.end(&mut place) {
            drop(place);
            self.device.sink.event(conn, ConnectionEvent::Broken, &[]);
        }
    }

    /// Removes the connection from `place`, flushes all work, and calls [`CmConnection::end`]. `None` if there is no
    /// connection.
    fn end(&self, place: &mut MutexGuard<'_, Option<CurrentConnection>>) -> Option<ConnId> {
        let CurrentConnection { conn, link } = place.take()?;
        self.flush();
        link.end();
        Some(conn)
    }

    pub(super) fn abort(&self) {
        let mut place = self.link.lock();
        if self.end(&mut place).is_none() && self.recv.lock().phase == PostPhase::Live {
            self.flush();
        }
    }

    pub(super) fn reset(&self) -> Result<()> {
        self.abort();
        let _place = self.link.lock();
        if self.unanswered.swap(false, Ordering::AcqRel) {
            self.renumber();
        }
        self.return_to_init()
    }

    /// Records whether the number of the queue pair was sent to a peer that has not replied. If the peer never replies,
    /// the next attempt needs another number.
    pub(crate) fn set_unanswered(&self, unanswered: bool) {
        self.unanswered.store(unanswered, Ordering::Release);
    }

    /// Replaces the device's queue pair, which has no posted work, by one with another number. A connection manager
    /// that still uses the old number would reject each request with that number as a stale connection. The caller
    /// holds the lock of `link`.
    fn renumber(&self) {
        let (old, Some(me)) = (self.hw(), self.me.upgrade()) else { return };
        let new = match old.recreate() {
            Ok(new) => Arc::new(new),
            Err(error) => {
                log::warn!(
                    "{}: queue pair {:#x} cannot be replaced by a new one: {error}; a peer may reject the next connection as stale; \
                     if it does, create another EP",
                    self.device.name,
                    old.number
                );
                return;
            }
        };
        if self.shared.is_some() {
            self.recv_cq.fetch();
            let mut inner = self.recv_cq.lock();
            inner.table.remove_number(old.number);
            inner.table.add_number(new.number, &me);
        }
        self.device.shared_device.remove_qp(old.number, self.me.as_ptr().cast());
        self.device.shared_device.add_qp(new.number, self.me.clone());
        self.number.store(new.number, Ordering::Relaxed);
        self.recv.lock().hw = new.clone();
        self.send.lock().hw = new;
    }

    pub(super) fn flush_recvs(&self) {
        let place = self.link.lock();
        if place.is_none() {
            self.flush();
            // The queue pair reached INIT before, so this fails only if the device was removed. The queue pair then
            // stays broken, and flushes all work.
            let _ = self.return_to_init();
        }
    }

    fn return_to_init(&self) -> Result<()> {
        state::to_init(&self.hw(), self.device.port)?;
        self.failed.store(false, Ordering::Release);
        self.recv.lock().phase = PostPhase::Live;
        self.send.lock().phase = PostPhase::Live;
        Ok(())
    }

    /// Flushes all posted work, and leaves the queue pair in RESET. The caller holds the lock of `link`.
    fn flush(&self) {
        {
            let mut recv = self.recv.lock();
            recv.phase = PostPhase::Flushing;
            let mut send = self.send.lock();
            send.phase = PostPhase::Flushing;
            send.is_rts = false;
            send.is_established = false;
            send.draining = false;
        }
        // Set so that failures caused by the flush are not reported.
        self.failed.store(true, Ordering::Release);
        let hw = self.hw();
        state::to_error(&hw);
        self.device.wait_for_error_state();
        self.take_completions();
        state::to_reset(&hw);
        self.take_completions();

        let mut inner = self.recv_cq.lock();
        let mut recv = self.recv.lock();
        recv.is_reported = false;
        let was_reported = std::mem::take(&mut recv.is_established);
        for done in std::mem::take(&mut recv.unreported_recvs) {
            // If the connection was not established, the consumer does not know it. So a receive that has succeeded
            // over it is reported as flushed.
            let is_delivered = was_reported || done.status != Status::Success;
            inner.push(if is_delivered { done } else { flushed(done.token) });
        }
        recv.work.next_generation();
        while let Some(entry) = recv.work.pop() {
            inner.push(flushed(entry.token));
        }
        // Set under the completion queue's lock, so that completions of later posts follow those of this flush.
        recv.phase = PostPhase::Broken;
        drop((recv, inner));

        let mut inner = self.request_cq.lock();
        let mut send = self.send.lock();
        send.work.next_generation();
        while let Some(entry) = send.work.pop() {
            inner.push(flushed(entry.token));
        }
        while let Some(window) = send.work.pop_window() {
            drop(window);
        }
        for request in std::mem::take(&mut send.queued_requests) {
            inner.push(flushed(request.token()));
        }
        send.phase = PostPhase::Broken;
    }

    fn take_completions(&self) {
        self.recv_cq.fetch();
        self.request_cq.fetch();
    }

    /// Ends the connection when all requests are complete.
    pub(super) fn drain(&self) {
        self.request_cq.fetch();
        let place = self.link.lock();
        if place.is_none() {
            // The connection has ended meanwhile. `draining` must not be set, because it would end the next connection.
            return;
        }
        let mut send = self.send.lock();
        send.draining = true;
        let is_empty = send.outstanding() == 0;
        drop((send, place));
        if is_empty {
            self.run_on_engine(|core| core.drained());
        } else {
            self.schedule_drain_check(0);
        }
    }

    fn schedule_drain_check(&self, checks: u64) {
        let [first, last] = DRAIN;
        self.device.engine.schedule((first * (1 << checks.min(10)) as u32).min(last), &self.me, checks + 1);
    }

    /// Ends a draining connection, if all requests are complete. Called by the engine thread only.
    pub(super) fn drained(&self) {
        let mut place = self.link.lock();
        let send = self.send.lock();
        let is_drained = send.draining && send.outstanding() == 0;
        drop(send);
        if !is_drained {
            return;
        }
        if let Some(conn) = self.end(&mut place) {
            drop(place);
            self.device.sink.event(conn, ConnectionEvent::Disconnected, &[]);
        }
    }
}

impl EventHandler for QpCore {
    /// Fetches completions of a draining connection, because possibly no consumer thread polls.
    fn expired(&self, checks: u64) {
        self.request_cq.fetch();
        let send = self.send.lock();
        let is_draining = send.draining && send.outstanding() > 0;
        drop(send);
        if is_draining {
            self.schedule_drain_check(checks);
        }
    }
}
