//! State of a queue pair: its connection state and its work queues.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::Result;
use dapl::provider::{ConnId, ConnectionEvent, Provider, QpSpec, Segment, SendWr, Token};

use super::memory::Pd;
use super::reporter::{Report, ReportedCq, Reporter};
use super::work_queues::WorkQueues;

/// State of a queue pair. `Peer` identifies the connected queue pair.
pub struct QpState<P: Provider<Cq = ReportedCq<P>>, Peer> {
    pub reporter: Arc<Reporter<P>>,
    pub queues: WorkQueues<P>,
    stage: QpStage<Peer>,
    is_draining: bool,
}

enum QpStage<Peer> {
    Unconnected,
    Connecting(ConnId),
    /// Transfers start after the event `Established` was reported (`is_reported`).
    Connected {
        conn: ConnId,
        peer: Peer,
        is_reported: bool,
    },
    /// All work is flushed.
    Error,
}

impl<P: Provider<Cq = ReportedCq<P>>, Peer: Copy> QpState<P, Peer> {
    pub fn new(reporter: Arc<Reporter<P>>, spec: QpSpec<P>, pd: &Pd) -> Self {
        QpState { reporter, queues: WorkQueues::new(spec, pd), stage: QpStage::Unconnected, is_draining: false }
    }

    /// Queues a receive, or flushes it in the error state.
    pub fn post_recv(&mut self, segments: &[Segment], token: Token) -> Result<()> {
        self.queues.post_recv(segments, token)?;
        self.flush_if_failed();
        Ok(())
    }

    /// Queues a request, or flushes it in the error state.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<()> {
        self.queues.post_send(wr)?;
        self.flush_if_failed();
        Ok(())
    }

    fn flush_if_failed(&mut self) {
        if matches!(self.stage, QpStage::Error) {
            self.queues.flush();
        }
    }

    /// Starts an attempt to connect.
    pub fn begin(&mut self, conn: ConnId) {
        self.stage = QpStage::Connecting(conn);
    }

    /// Whether the attempt `conn` is in progress.
    pub fn is_connecting(&self, conn: ConnId) -> bool {
        matches!(self.stage, QpStage::Connecting(current) if current == conn)
    }

    /// Fails the attempt to connect: flushes the queues, and reports `event`.
    pub fn fail(&mut self, conn: ConnId, event: ConnectionEvent, private_data: &[u8]) {
        self.end(None);
        self.reporter.report(Report::Event(conn, event, private_data.to_vec()));
    }

    /// Connects to `peer` and reports `Established`. After this report, the reporter runs `then`, which must call
    /// `start`.
    pub fn establish(&mut self, conn: ConnId, peer: Peer, private_data: &[u8], then: impl FnOnce() + Send + 'static) {
        self.stage = QpStage::Connected { conn, peer, is_reported: false };
        self.reporter.report(Report::Event(conn, ConnectionEvent::Established, private_data.to_vec()));
        self.reporter.report(Report::Then(Box::new(then)));
    }

    /// Allows transfers on the connection `reported`. Returns the peer, or `None` if this connection has ended.
    pub fn start(&mut self, reported: ConnId) -> Option<Peer> {
        match &mut self.stage {
            QpStage::Connected { conn, peer, is_reported } if *conn == reported => {
                *is_reported = true;
                Some(*peer)
            }
            _ => None,
        }
    }

    /// Returns the connected peer, if `start` has allowed transfers.
    pub fn peer(&self) -> Option<Peer> {
        match self.stage {
            QpStage::Connected { peer, is_reported: true, .. } => Some(peer),
            _ => None,
        }
    }

    /// Starts a graceful disconnect: the connection ends when all requests are complete (see `is_drained`).
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether `drain` was called and all requests are complete. The caller then ends the connection.
    pub fn is_drained(&self) -> bool {
        self.is_draining && self.queues.requests.is_empty()
    }

    /// Ends the connection or the attempt to connect, and flushes the queues. For a connection, reports `event` and
    /// returns the peer.
    pub fn end(&mut self, event: Option<ConnectionEvent>) -> Option<Peer> {
        self.is_draining = false;
        self.queues.flush();
        let QpStage::Connected { conn, peer, .. } = std::mem::replace(&mut self.stage, QpStage::Error) else {
            return None;
        };
        if let Some(event) = event {
            self.reporter.report(Report::Event(conn, event, Vec::new()));
        }
        Some(peer)
    }

    /// Makes the queue pair usable for a new connection after its connection has ended.
    pub fn reset(&mut self) {
        self.stage = QpStage::Unconnected;
    }

    /// Checks the watermarks after the number of posted receives has changed. Returns true if a connection exists and
    /// the number is above the hard watermark. The caller then breaks the connection.
    pub fn has_too_many_recvs(&mut self) -> bool {
        let crossed = self.queues.check_watermarks();
        if crossed.soft {
            self.reporter.report(Report::ManyRecvs(self.queues.spec.ep));
        }
        crossed.hard && matches!(self.stage, QpStage::Connected { .. })
    }
}
