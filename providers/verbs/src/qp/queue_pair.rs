//! Implements the provider interface of queue pairs by [`QpCore`] and the connection manager.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::Result;
use dapl::provider::{
    Bind, BindWr, ConnId, ConnectSpec, Connection, Op, Outstanding, QpSpec, QueuePair, Segment, SendWr, Token,
};

use super::QpCore;
use crate::Verbs;
use crate::cm::Manager;
use crate::device::Device;
use crate::memory::{Mr, Mw, Pd};

/// The object layer's handle of a queue pair. Dropping it ends the connection.
pub struct Qp {
    core: Arc<QpCore>,
    manager: Arc<dyn Manager>,
}

impl Qp {
    /// Creates a queue pair. Errors: those of the device, which are logged; `Exhausted(Evd)` if one of its completion
    /// queues cannot serve another queue pair.
    pub(crate) fn new(device: &Arc<Device>, manager: &Arc<dyn Manager>, pd: &Pd, spec: QpSpec<Verbs>) -> Result<Self> {
        let qp = Qp { core: QpCore::create(device, pd, spec)?, manager: manager.clone() };
        // If `add_to_tables` fails, dropping `qp` removes it from the tables.
        qp.core.add_to_tables()?;
        Ok(qp)
    }

    pub(crate) fn core(&self) -> &Arc<QpCore> {
        &self.core
    }
}

impl QueuePair for Qp {
    type Mr = Mr;
    type Mw = Mw;

    const POSTS_QUICKLY: bool = true;

    #[inline(always)]
    fn post_recv_quickly(&self, segment: &Segment, cookie: u64) -> bool {
        self.core.post_recv_quickly(segment, cookie)
    }

    #[inline(always)]
    fn post_request_quickly<const SUPPRESS: bool>(&self, op: Op, segment: &Segment, cookie: u64) -> bool {
        self.core.post_request_quickly::<SUPPRESS>(op, segment, cookie)
    }

    fn post_recv(&self, segments: &[Segment], token: Token) -> Result<()> {
        self.core.post_recv(segments, token)
    }

    fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        self.core.post_send(wr)
    }

    fn post_bind(&self, mw: &Mw, bind: Option<Bind<'_, Mr>>, wr: &BindWr) -> Result<u32> {
        self.core.post_bind(mw, bind, wr)
    }

    fn watch_recvs(&self, soft: Option<u32>, hard: Option<u32>) -> Result<()> {
        self.core.watch_recvs(soft, hard)
    }

    fn outstanding(&self) -> Outstanding {
        self.core.outstanding()
    }

    fn flush_recvs(&self) {
        self.core.flush_recvs();
    }
}

impl Connection for Qp {
    fn connect(&self, spec: &ConnectSpec<'_>, conn: ConnId) -> Result<()> {
        self.manager.connect(&self.core, spec, conn)
    }

    fn drain(&self) {
        self.core.drain();
    }

    fn abort(&self) {
        self.core.abort();
    }

    fn reset(&self) -> Result<()> {
        self.core.reset()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.core.remove_from_tables();
    }
}
