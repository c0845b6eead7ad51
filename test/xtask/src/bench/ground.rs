//! The network between the two sides of a bench: this host, or a link between namespaces that drops packets.
//!
//! On the link each packet is a packet of its own (no offload), and the same rule applies to all programs.
#![forbid(unsafe_code)]

use std::process::Command;

use crate::Result;
use crate::net::Rule;
use crate::net::wire::{ADDRESSES, Applied, DEVICE, Wire};

/// The network that a bench needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Terrain {
    /// This host, by its own addresses.
    Loopback,
    /// A link that drops this many of a thousand packets in each direction.
    Wire { per_mille: u32 },
}

/// The network after its setup; removed when dropped.
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

    /// Address of the server for clients.
    pub(super) fn host(self) -> &'static str {
        match self {
            Terrain::Loopback => "localhost",
            Terrain::Wire { .. } => ADDRESSES[0],
        }
    }
}

impl Ground {
    /// This host.
    pub(super) fn here() -> Self {
        Ground { wire: None }
    }

    /// Sets up the network. For a wire, `net::wire::prepare` was called before.
    pub(super) fn lay(terrain: Terrain) -> Result<Self> {
        let Terrain::Wire { per_mille } = terrain else {
            return Ok(Ground::here());
        };
        let wire = Wire::lay()?;
        let loss = wire.apply_to_both(Rule::Loss { per_mille })?;
        Ok(Ground { wire: Some((wire, loss, terrain)) })
    }

    /// Interface of either side.
    pub(super) fn device(&self) -> &'static str {
        if self.wire.is_some() { DEVICE } else { "lo" }
    }

    /// Address of the server for clients.
    pub(super) fn host(&self) -> &'static str {
        self.terrain().host()
    }

    fn terrain(&self) -> Terrain {
        self.wire.as_ref().map_or(Terrain::Loopback, |(.., terrain)| *terrain)
    }

    /// Command of a server in this network.
    pub(super) fn server(&self, command: Command) -> Command {
        self.at(0, command)
    }

    /// Command of a client in this network.
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
