//! Where the two sides of a bench meet: on this host, or over a wire between namespaces that loses packets.
//!
//! On the wire each packet travels alone, and the same rule is for all who use it.
#![forbid(unsafe_code)]

use std::process::Command;

use crate::Result;
use crate::net::Rule;
use crate::net::wire::{ADDRESSES, Applied, DEVICE, Wire};

/// What a bench asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Terrain {
    /// This host, by its own addresses.
    Loopback,
    /// A wire on which so many of a thousand packets are lost, either way.
    Wire { per_mille: u32 },
}

/// The same, laid out. Dropped, it is gone.
pub(super) struct Ground {
    wire: Option<(Wire, [Applied; 2], Terrain)>,
}

impl Terrain {
    /// In words.
    pub(super) fn name(self) -> String {
        match self {
            Terrain::Loopback => "this host".to_owned(),
            Terrain::Wire { per_mille } => {
                format!("two network namespaces, {} % of packets lost either way", f64::from(per_mille) / 10.0)
            }
        }
    }

    /// What clients call the server's host.
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

    /// Lays it out; `net::wire::prepare` was called before if it is a wire.
    pub(super) fn lay(terrain: Terrain) -> Result<Self> {
        let Terrain::Wire { per_mille } = terrain else {
            return Ok(Ground::here());
        };
        let wire = Wire::lay()?;
        let loss = wire.apply_to_both(Rule::Loss { per_mille })?;
        Ok(Ground { wire: Some((wire, loss, terrain)) })
    }

    /// The interface that either side has.
    pub(super) fn device(&self) -> &'static str {
        if self.wire.is_some() { DEVICE } else { "lo" }
    }

    /// What clients call the server's host.
    pub(super) fn host(&self) -> &'static str {
        self.terrain().host()
    }

    fn terrain(&self) -> Terrain {
        self.wire.as_ref().map_or(Terrain::Loopback, |(.., terrain)| *terrain)
    }

    /// A server's command, as it is started there.
    pub(super) fn server(&self, command: Command) -> Command {
        self.at(0, command)
    }

    /// A client's.
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
