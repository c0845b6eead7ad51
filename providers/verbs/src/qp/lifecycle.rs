//! The states of a connection, from the attempt to the flush.
//!
//! The manager reports here, on the engine's thread; the consumer may end the connection at any time on its own
//! thread. The thread that removes the link ends the connection; a report of the other thread has no effect.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dapl::error::{Error, Result};
use dapl::provider::{ConnId, ConnectionEvent, Status};
use ibverbs_sys::ibv_qp_attr_mask;
use parking_lot::MutexGuard;

use super::{Attached, CmConnection, Phase, QpCore, flushed};
use crate::engine::Source;
use crate::qp::state::{self, Change, Path};

/// Interval between the engine's checks of draining requests, at first and at most.
const DRAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

impl QpCore {
    /// Starts an attempt. Errors: there is a connection or attempt already.
    pub(crate) fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()> {
        let mut place = self.link.lock();
        if place.is_some() {
            return Err(Error::Internal);
        }
        self.failed.store(false, Ordering::Release);
        *place = Some(Attached { conn, link });
        Ok(())
    }

    /// Undoes the start of an attempt, after which nothing has changed.
    pub(crate) fn detach(&self, link: &dyn CmConnection) {
        let mut place = self.link.lock();
        if place.as_ref().is_some_and(|attached| attached.is(link)) {
            *place = None;
        }
    }

    /// Continues the attempt with another link. Returns false if the attempt has ended meanwhile.
    pub(crate) fn relink(&self, old: &dyn CmConnection, new: Arc<dyn CmConnection>) -> bool {
        let mut place = self.link.lock();
        match place.as_mut().filter(|attached| attached.is(old)) {
            Some(attached) => attached.link = new,
            None => return false,
        }
        true
    }

    /// Whether `link` is the current connection or attempt.
    pub(crate) fn has(&self, link: &dyn CmConnection) -> bool {
        self.link.lock().as_ref().is_some_and(|attached| attached.is(link))
    }

    /// Brings the queue pair to RTS, if `link` is its current attempt. `Ok(false)`: it is not.
    ///
    /// Errors: the device refuses the path; the attempt stays attached.
    pub(crate) fn raise(&self, link: &dyn CmConnection, path: &mut Path) -> std::io::Result<bool> {
        let place = self.link.lock();
        if !place.as_ref().is_some_and(|attached| attached.is(link)) {
            return Ok(false);
        }
        for cq in [&self.recv_cq, &self.request_cq] {
            cq.arm_for_connection().map_err(|_| std::io::Error::from_raw_os_error(libc::EIO))?;
        }
        let hw = self.hw();
        for change in path.init.iter_mut().chain([&mut path.to_receive, &mut path.to_send]) {
            hw.modify(&mut change.attributes, change.mask)?;
        }
        let Change { attributes, mask } = &path.to_send;
        // If the connection manager gives no value, the device's default is used.
        let is_reported = mask & ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0 as i32 != 0;
        self.send.lock().reads = if is_reported { attributes.max_rd_atomic } else { u8::MAX };
        Ok(true)
    }

    /// Reports that the connection is established. Engine only.
    pub(crate) fn established(&self, link: &dyn CmConnection, private_data: &[u8]) {
        let Some(conn) = self.open_requests(link) else { return };
        self.device.sink.event(conn, ConnectionEvent::Established, private_data);
        self.open_recvs(link);
        self.recv_cq.guard();
        self.request_cq.guard();
    }

    /// Posts waiting requests to the device. This happens before the consumer is notified, so that its later posts need
    /// not wait.
    fn open_requests(&self, link: &dyn CmConnection) -> Option<ConnId> {
        let place = self.link.lock();
        let conn = place.as_ref().filter(|attached| attached.is(link))?.conn;
        self.recv.lock().reported = true;
        let mut send = self.send.lock();
        send.open = true;
        if let Err(error) = self.submit_waiting(&mut send) {
            log::error!("queue pair {}: requests from before the connection cannot be posted: {error}", self.number());
            self.fail();
        }
        Some(conn)
    }

    /// Releases completions of receives, unless the connection has ended meanwhile.
    fn open_recvs(&self, link: &dyn CmConnection) {
        let place = self.link.lock();
        if !place.as_ref().is_some_and(|attached| attached.is(link)) {
            return;
        }
        let mut inner = self.recv_cq.lock();
        let mut recv = self.recv.lock();
        recv.open = true;
        for done in std::mem::take(&mut recv.early) {
            inner.push(done);
        }
        let count = recv.work.len();
        if recv.high.check(count).hard {
            self.fail();
        }
    }

    /// Reports that the attempt has failed, or the connection has ended. Engine only.
    pub(crate) fn over(&self, link: &dyn CmConnection, event: ConnectionEvent) {
        self.over_with(link, event, &[]);
    }

    /// As [`QpCore::over`], with private data of a peer that has rejected.
    pub(crate) fn over_with(&self, link: &dyn CmConnection, mut event: ConnectionEvent, private_data: &[u8]) {
        let mut place = self.link.lock();
        if !place.as_ref().is_some_and(|attached| attached.is(link)) {
            return;
        }
        if event == ConnectionEvent::Disconnected {
            // A transfer may have failed, and the peer may have ended the connection before this side detected the
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

    /// Ends the connection after a failure. Engine only.
    pub(super) fn break_off(&self) {
        let mut place = self.link.lock();
        // A failure may be reported twice; it must not end another connection.
        if !self.failed.load(Ordering::Acquire) {
            return;
        }
        if let Some(conn) = self.end(&mut place) {
            drop(place);
            self.device.sink.event(conn, ConnectionEvent::Broken, &[]);
        }
    }

    /// Handles an error event of the queue pair. Engine only.
    pub(crate) fn device_failed(&self) {
        self.fail();
    }

    /// Called when the peer has sent data before it confirmed the connection.
    pub(crate) fn peer_is_there(&self) {
        let link = self.link.lock().as_ref().map(|attached| attached.link.clone());
        if let Some(link) = link {
            link.peer_is_there();
        }
    }

    /// Removes the connection, flushes all work, and notifies the peer.
    fn end(&self, place: &mut MutexGuard<'_, Option<Attached>>) -> Option<ConnId> {
        let Attached { conn, link } = place.take()?;
        self.flush();
        link.end();
        Some(conn)
    }

    pub(super) fn abort(&self) {
        let mut place = self.link.lock();
        if self.end(&mut place).is_none() && self.recv.lock().phase == Phase::Live {
            self.flush();
        }
    }

    pub(super) fn reset(&self) -> Result<()> {
        self.abort();
        let _place = self.link.lock();
        if self.unanswered.swap(false, Ordering::AcqRel) {
            self.renumber();
        }
        self.begin_anew()
    }

    /// Records whether a peer that knows the number of the queue pair has not answered. If it never answers, the next
    /// attempt needs another number.
    pub(crate) fn set_unanswered(&self, unanswered: bool) {
        self.unanswered.store(unanswered, Ordering::Release);
    }

    /// Replaces the device's queue pair by one with another number. Needed because a peer's connection manager that
    /// still uses the old number rejects each request with that number as a stale connection. Nothing is posted on it.
    /// The lock of `link` is held.
    fn renumber(&self) {
        let (old, Some(me)) = (self.hw(), self.me.upgrade()) else { return };
        let new = match old.another() {
            Ok(new) => Arc::new(new),
            Err(error) => {
                log::warn!(
                    "queue pair {}: cannot be replaced by a new one, so a peer may reject it as stale: {error}",
                    old.number()
                );
                return;
            }
        };
        if self.shared.is_some() {
            self.recv_cq.fetch();
            let mut inner = self.recv_cq.lock();
            inner.leave_number(old.number());
            inner.enter_number(new.number(), &me);
        }
        self.device.opened.forget_qp(old.number(), self.me.as_ptr().cast());
        self.device.opened.adopt_qp(new.number(), self.me.clone());
        self.number.store(new.number(), Ordering::Relaxed);
        self.recv.lock().hw = new.clone();
        self.send.lock().hw = new;
    }

    pub(super) fn flush_recvs(&self) {
        let place = self.link.lock();
        if place.is_none() {
            self.flush();
            // The first queue pair reached INIT, so this fails only if the device was removed. The queue pair then
            // stays in error.
            let _ = self.begin_anew();
        }
    }

    fn begin_anew(&self) -> Result<()> {
        state::to_init(&self.hw(), self.device.port)?;
        self.failed.store(false, Ordering::Release);
        self.recv.lock().phase = Phase::Live;
        self.send.lock().phase = Phase::Live;
        Ok(())
    }

    /// Flushes all posted work; the queue pair is in RESET afterwards. The link's lock is held.
    fn flush(&self) {
        {
            let mut recv = self.recv.lock();
            recv.phase = Phase::Flushing;
            let mut send = self.send.lock();
            send.phase = Phase::Flushing;
            send.open = false;
            send.draining = false;
        }
        // Failures caused by the flush are not reported.
        self.failed.store(true, Ordering::Release);
        let hw = self.hw();
        state::to_error(&hw);
        self.device.wait_for_error_state();
        self.take_completions();
        state::to_reset(&hw);
        self.take_completions();

        let mut inner = self.recv_cq.lock();
        let mut recv = self.recv.lock();
        recv.open = false;
        let was_reported = std::mem::take(&mut recv.reported);
        for done in std::mem::take(&mut recv.early) {
            // No receive completes over a connection that was never established.
            let is_known = was_reported || done.status != Status::Success;
            inner.push(if is_known { done } else { flushed(done.token) });
        }
        recv.work.begin_anew();
        while let Some(entry) = recv.work.pop() {
            inner.push(flushed(entry.token));
        }
        // Under the completion queue's lock, so that work flushed from now on completes after all of this.
        recv.phase = Phase::Broken;
        drop((recv, inner));

        let mut inner = self.request_cq.lock();
        let mut send = self.send.lock();
        send.work.begin_anew();
        while let Some(entry) = send.work.pop() {
            inner.push(flushed(entry.token));
        }
        while let Some(window) = send.work.window() {
            drop(window);
        }
        for held in std::mem::take(&mut send.held) {
            inner.push(flushed(held.token()));
        }
        send.phase = Phase::Broken;
    }

    fn take_completions(&self) {
        self.recv_cq.fetch();
        self.request_cq.fetch();
    }

    /// Ends the connection after all requests have completed.
    pub(super) fn drain(&self) {
        self.request_cq.fetch();
        let place = self.link.lock();
        if place.is_none() {
            // The connection has just ended; the next one must not be affected.
            return;
        }
        let mut send = self.send.lock();
        send.draining = true;
        let is_empty = send.outstanding() == 0;
        drop((send, place));
        if is_empty {
            self.soon(|core| core.drained());
        } else {
            self.look_again(0);
        }
    }

    fn look_again(&self, looks: u64) {
        let me: std::sync::Weak<dyn Source> = self.me.clone();
        let [first, last] = DRAIN;
        self.device.reactor.after((first * (1 << looks.min(10)) as u32).min(last), me, looks + 1);
    }

    /// Called when all requests are complete. Engine only.
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

impl Source for QpCore {
    /// Checks requests that drain, because possibly no thread polls.
    fn expired(&self, looks: u64) {
        self.request_cq.fetch();
        let send = self.send.lock();
        let goes_on = send.draining && send.outstanding() > 0;
        drop(send);
        if goes_on {
            self.look_again(looks);
        }
    }
}

impl Attached {
    fn is(&self, link: &dyn CmConnection) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.link), link)
    }
}
