//! The functions of a queue pair that the connection managers `socket` and `none` call.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;

use dapl::error::Result;
use dapl::provider::{ConnId, ConnectionEvent};

use super::path::{LocalEnd, RemoteEnd};
use crate::qp::{CmConnection, QpCore};

/// The functions of [`QpCore`] that a connection uses. A trait, because the tests of the connection managers run
/// without an RDMA device, and a queue pair cannot be created without one.
pub(in crate::cm) trait CmQueuePair: Send + Sync {
    fn number(&self) -> u32;
    /// Number of outstanding reads that the queue pair accepts from its peer.
    fn reads_in(&self) -> u8;
    fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()>;
    fn bring_up(&self, link: &dyn CmConnection, local: &LocalEnd, remote: &RemoteEnd) -> io::Result<bool>;
    fn established(&self, link: &dyn CmConnection, private_data: &[u8]);
    /// Ends the attempt or connection, and reports `event`. `private_data`: the data of a peer that has rejected the
    /// request.
    fn report_end(&self, link: &dyn CmConnection, event: ConnectionEvent, private_data: &[u8]);
}

impl CmQueuePair for QpCore {
    fn number(&self) -> u32 {
        QpCore::number(self)
    }

    fn reads_in(&self) -> u8 {
        self.reads.incoming
    }

    fn attach(&self, conn: ConnId, link: Arc<dyn CmConnection>) -> Result<()> {
        QpCore::attach(self, conn, link)
    }

    fn bring_up(&self, link: &dyn CmConnection, local: &LocalEnd, remote: &RemoteEnd) -> io::Result<bool> {
        QpCore::bring_up(self, link, &mut local.path(remote, self.reads))
    }

    fn established(&self, link: &dyn CmConnection, private_data: &[u8]) {
        QpCore::established(self, link, private_data);
    }

    fn report_end(&self, link: &dyn CmConnection, event: ConnectionEvent, private_data: &[u8]) {
        QpCore::report_end(self, link, event, private_data);
    }
}
