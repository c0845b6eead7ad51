//! Connections on their way: who listens, who asks, who was asked.
#![forbid(unsafe_code)]

use std::sync::Arc;

use dapl::error::{Error, Result};
use dapl::handle::ObjectId;
use dapl::provider::{ConnId, ConnectSpec};

use crate::device::Device;
use crate::knobs::Knobs;
use crate::pair::Pair;
use crate::proto::Nanos;

/// What a queue pair brings into a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Wishes {
    /// Reads outstanding at most: its own, and the peer's.
    pub(crate) ord: u32,
    pub(crate) ird: u32,
    /// Receives that are posted already.
    pub(crate) credits: u32,
}

/// All of an IA.
#[derive(Debug)]
pub(crate) struct Setups {}

/// A listener; dropped, it listens no more. Requests that were reported stay answerable.
#[derive(Debug)]
pub(crate) struct Listening {
    device: Arc<Device>,
    qual: u64,
}

/// A connection request, answered once; dropped, it is refused.
#[derive(Debug)]
pub(crate) struct Incoming {
    device: Arc<Device>,
}

impl Setups {
    pub(crate) fn new(_name: &str, _knobs: &Knobs) -> Result<Self> {
        Ok(Setups {})
    }

    /// When the engine is to look after them.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        None
    }
}

impl Device {
    /// Down-call. Errors: `ConnQualTaken`.
    pub(crate) fn listen(&self, qual: u64, _id: ObjectId) -> Result<Listening> {
        let device = self.me.upgrade().ok_or(Error::Internal)?;
        Ok(Listening { device, qual })
    }

    /// Down-call: starts an attempt, and says its number. The pair hears `connecting` before, `open` or `end` later.
    ///
    /// Errors: `InvalidAddress(Unreachable)`, `Exhausted(Memory)`; then nothing is heard.
    pub(crate) fn connect(
        &self,
        _pair: Arc<dyn Pair>,
        _spec: &ConnectSpec<'_>,
        _conn: ConnId,
        _wishes: Wishes,
    ) -> Result<u32> {
        Err(Error::Internal)
    }

    /// Down-call: an attempt of ours is not wanted any more, by `connect` or `accept`, that did not open yet. The peer is
    /// told, nobody else is. An open connection ends by its own words.
    pub(crate) fn give_up(&self, number: u32) {
        self.forget(number);
    }
}

/// The engine: what came, what is due.
pub(crate) fn attend(_device: &Device) {}

impl Incoming {
    /// Accepts it into an unconnected queue pair, as `connect`. A requester that has left is no error: `AcceptFailed` is
    /// reported.
    pub(crate) fn accept(
        self,
        _pair: Arc<dyn Pair>,
        _private_data: &[u8],
        _conn: ConnId,
        _wishes: Wishes,
    ) -> Result<u32> {
        Err(Error::Internal)
    }

    /// The consumer's own no.
    pub(crate) fn reject(self) {}

    /// The request goes to whoever listens on `qual` on this host. The request back: nobody does.
    pub(crate) fn hand_off(self, _qual: u64) -> std::result::Result<(), Self> {
        Err(self)
    }
}
