//! Limits of an IA, configuration of its connections, and the attributes and counters that `dat_ia_query` reports.
#![forbid(unsafe_code)]

use dapl::provider::{Extensions, Limits, NamedCount, QpSpec, TRANSPORT_MTU};
use dapl_software::memory::regions::SLOTS;

use crate::Usnic;
use crate::counters::{self, CounterValues};
use crate::device::{CONNECTIONS, Device};
use crate::proto::conn::ConnConfig;
use crate::proto::wire::FRAGMENT;

pub(crate) fn limits() -> Limits {
    let limits = dapl_software::limits::limits(CONNECTIONS as u32 - 1, SLOTS as u32 - 1);
    Limits { extensions: Extensions::ALL, ..limits }
}

/// Builds the configuration for the connections of a new queue pair.
pub(crate) fn config(device: &Device, spec: &QpSpec<Usnic>) -> ConnConfig {
    let settings = &device.settings;
    let window_kib = device.socket.receive_buffer >> 10;
    ConnConfig {
        max_requests: spec.max_requests,
        max_recvs: spec.max_recvs,
        shared: spec.shared.is_some(),
        window_kib: u16::try_from(window_kib).unwrap_or(u16::MAX),
        give_up: settings.give_up,
        rnr_limit: settings.rnr_limit,
        keepalive: settings.keepalive,
        congestion: settings.congestion,
        ..ConnConfig::default()
    }
}

/// Returns the provider-specific attributes of an open IA for `dat_ia_query`, as names and values.
pub(crate) fn named_attributes(device: &Device) -> Vec<(String, String)> {
    let socket = &device.socket;
    let is_on = |on: bool| if on { "on" } else { "off" }.to_owned();
    vec![
        ("interface".into(), device.interface.name.clone()),
        ("address".into(), device.address().to_string()),
        ("data port".into(), socket.local.port().to_string()),
        ("mtu".into(), device.ceiling().to_string()),
        // The number of message bytes in the largest fragment, without encryption.
        (TRANSPORT_MTU.into(), device.ceiling().saturating_sub(FRAGMENT).to_string()),
        ("gso".into(), is_on(socket.has_gso())),
        ("gro".into(), is_on(socket.gro)),
        ("receive buffer".into(), socket.receive_buffer.to_string()),
    ]
}

/// Returns the counters of an IA: those of its socket and engine, and the totals of its connections.
pub(crate) fn counts(device: &Device, unreadable: u64, sums: CounterValues) -> Vec<NamedCount> {
    let count = |name, value| NamedCount { name, unit: "", value, is_level: false };
    let lost = [
        count("dropped by the socket", device.socket.drops()),
        count("unmatched packets", device.unmatched()),
        count("late after polling", device.late_after_polling()),
        count("unreadable requests", unreadable),
    ];
    lost.into_iter().chain(counters::with_names(sums)).collect()
}
