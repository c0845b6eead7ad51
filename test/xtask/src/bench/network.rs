//! The network between server and clients in the benches `sm` and `usnic`: the loopback interface, or a link between
//! namespaces that drops packets.
//!
//! Segmentation offload is disabled on the link, and the same drop rule applies to all programs.
#![forbid(unsafe_code)]

use std::process::Command;

use crate::Result;
use crate::net::Rule;
use crate::net::wire::{ADDRESSES, AppliedRule, DEVICE, Wire};

/// The network that a bench needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NetworkKind {
    /// The loopback interface of this host.
    Loopback,
    /// A link that drops `per_mille` of 1000 packets in each direction.
    Wire { per_mille: u32 },
}

/// A network that is set up. A link between namespaces is removed when this value is dropped.
pub(super) struct BenchNetwork {
    wire: Option<(Wire, [AppliedRule; 2], NetworkKind)>,
}

impl NetworkKind {
    /// Description of the network.
    pub(super) fn name(self) -> String {
        match self {
            NetworkKind::Loopback => "this host".to_owned(),
            NetworkKind::Wire { per_mille } => {
                format!("two network namespaces, {} % of packets lost either way", f64::from(per_mille) / 10.0)
            }
        }
    }

    /// Server address that clients use.
    pub(super) fn host(self) -> &'static str {
        match self {
            NetworkKind::Loopback => "localhost",
            NetworkKind::Wire { .. } => ADDRESSES[0],
        }
    }
}

impl BenchNetwork {
    /// The loopback interface of this host.
    pub(super) fn loopback() -> Self {
        BenchNetwork { wire: None }
    }

    /// Sets up the network. For `Wire`, call `net::wire::prepare` before.
    pub(super) fn set_up(network_kind: NetworkKind) -> Result<Self> {
        let NetworkKind::Wire { per_mille } = network_kind else {
            return Ok(BenchNetwork::loopback());
        };
        let wire = Wire::lay()?;
        let loss = wire.apply_to_both(Rule::Loss { per_mille })?;
        Ok(BenchNetwork { wire: Some((wire, loss, network_kind)) })
    }

    /// Name of the network interface on both sides.
    pub(super) fn device(&self) -> &'static str {
        if self.wire.is_some() { DEVICE } else { "lo" }
    }

    /// Server address that clients use.
    pub(super) fn host(&self) -> &'static str {
        self.network_kind().host()
    }

    fn network_kind(&self) -> NetworkKind {
        self.wire.as_ref().map_or(NetworkKind::Loopback, |(.., network_kind)| *network_kind)
    }

    /// Wraps a server's command to run in this network.
    pub(super) fn server(&self, command: Command) -> Command {
        self.at(0, command)
    }

    /// Wraps a client's command to run in this network.
    pub(super) fn client(&self, command: Command) -> Command {
        self.at(1, command)
    }

    fn at(&self, end: usize, command: Command) -> Command {
        match &self.wire {
            Some((wire, ..)) => wire.command(end, &command),
            None => command,
        }
    }
}
