//! The network between the two sides of a bench: the loopback interface, or a link between namespaces that drops
//! packets.
//!
//! The link has segmentation offload disabled, and applies the same rule to all programs.
#![forbid(unsafe_code)]

use std::process::Command;

use crate::Result;
use crate::net::Rule;
use crate::net::wire::{ADDRESSES, Applied, DEVICE, Wire};

/// The network that a bench needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Terrain {
    /// The loopback interface of this host.
    Loopback,
    /// A link that drops `per_mille` of 1000 packets in each direction.
    Wire { per_mille: u32 },
}

/// A network that is set up; removed when dropped.
pub(super) struct Ground {
    wire: Option<(Wire, [Applied; 2], Terrain)>,
}

impl Terrain {
    /// Description of the network.
    pub(super) fn name(self) -> String {
        match self {
            Terrain::Loopback => "this host".to_owned(),
            Terrain::Wire { per_mille } => {
                format!("two network namespaces, {} % of packets lost either way", f64::from(per_mille) / 10.0)
            }
        }
    }

    /// Server address that clients use.
    pub(super) fn host(self) -> &'static str {
        match self {
            Terrain::Loopback => "localhost",
            Terrain::Wire { .. } => ADDRESSES[0],
        }
    }
}

impl Ground {
    /// The loopback interface of this host.
    pub(super) fn here() -> Self {
        Ground { wire: None }
    }

    /// Sets up the network. For `Wire`, call `net::wire::prepare` before.
    pub(super) fn lay(terrain: Terrain) -> Result<Self> {
        let Terrain::Wire { per_mille } = terrain else {
            return Ok(Ground::here());
        };
        let wire = Wire::lay()?;
        let loss = wire.apply_to_both(Rule::Loss { per_mille })?;
        Ok(Ground { wire: Some((wire, loss, terrain)) })
    }

    /// Name of the network interface on both sides.
    pub(super) fn device(&self) -> &'static str {
        if self.wire.is_some() { DEVICE } else { "lo" }
    }

    /// Server address that clients use.
    pub(super) fn host(&self) -> &'static str {
        self.terrain().host()
    }

    fn terrain(&self) -> Terrain {
        self.wire.as_ref().map_or(Terrain::Loopback, |(.., terrain)| *terrain)
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
