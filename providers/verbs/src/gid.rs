//! Chooses the GID of an IA's port, and another GID of the port for a peer of the other address family. On Ethernet,
//! the GID determines the RoCE version and the VLAN too. The caller logs the choice.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

use crate::ibv::{Gid, GidKind};
use crate::manager_kind::ManagerKind;

/// Properties of an IA that determine its GID.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GidRequirements<'a> {
    /// Whether the port is RoCE. On RoCE, peers address this host by the GID of its IP address.
    pub(crate) is_roce: bool,
    pub(crate) address: Option<IpAddr>,
    /// The network device that has the address.
    pub(crate) netdev: Option<&'a str>,
    /// The GID index of the settings, if set.
    pub(crate) index: Option<u32>,
}

/// Chooses the GID with the required index, if an index is set. Otherwise, on RoCE, the best GID by these criteria in
/// order: RoCE v2, GID of the address, GID of its network device, link-local GID, lowest index. On other ports, the GID
/// with the lowest index. Returns `None` if no GID has the required index, or if a RoCE port has no GID; an iWARP port
/// without GIDs gets an all-zero one.
pub(crate) fn choose(gids: &[Gid], wanted: &GidRequirements<'_>) -> Option<Gid> {
    if let Some(index) = wanted.index {
        return gids.iter().find(|gid| gid.index == index).cloned();
    }
    if !wanted.is_roce {
        // Only an iWARP port may have no GID, and iWARP does not use GIDs.
        let zero = Gid { index: 0, raw: [0; 16], kind: GidKind::Ib, netdev: None };
        return Some(gids.iter().min_by_key(|gid| gid.index).cloned().unwrap_or(zero));
    }
    let address = wanted.address.map(raw);
    let rank = |gid: &&Gid| {
        let is_v2 = gid.kind == GidKind::RoceV2;
        let is_address = Some(gid.raw) == address;
        let is_link_local = Ipv6Addr::from(gid.raw).is_unicast_link_local();
        let is_of_netdev = wanted.netdev.is_some() && gid.netdev.as_deref() == wanted.netdev;
        (is_v2, is_address, is_of_netdev, is_link_local, Reverse(gid.index))
    };
    gids.iter().max_by_key(rank).cloned()
}

/// Whether paths can use the GID with this index. Address handles have eight bits for it; with the manager `rdma`, the
/// kernel creates the address handles and has no such limit.
pub(crate) fn is_usable(index: u32, manager: ManagerKind) -> bool {
    manager == ManagerKind::Rdma || u8::try_from(index).is_ok()
}

/// Whether packets can travel between two GIDs of Ethernet ports: either both represent IPv4 addresses, or neither
/// does.
pub(crate) fn is_same_family(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let is_v4 = |gid: &[u8; 16]| Ipv6Addr::from(*gid).to_ipv4_mapped().is_some();
    is_v4(one) == is_v4(other)
}

/// Finds a GID of the port with the address family of `peer`. Called if `chosen`, the GID of the IA, has the other
/// family and so cannot reach the peer. Prefers GIDs of the network device of `chosen`, then GIDs with the scope of
/// `peer` (link-local or not), then the lowest index. Needed for peers with the C implementation, which uses the first
/// GID by default.
pub(crate) fn gid_reaching(gids: &[Gid], chosen: &Gid, peer: &[u8; 16]) -> Option<Gid> {
    let is_link_local = |gid: &[u8; 16]| Ipv6Addr::from(*gid).is_unicast_link_local();
    let rank = |gid: &&Gid| {
        let is_same_scope = is_link_local(&gid.raw) == is_link_local(peer);
        (gid.netdev == chosen.netdev, is_same_scope, Reverse(gid.index))
    };
    gids.iter().filter(|gid| is_same_family(&gid.raw, peer)).max_by_key(rank).cloned()
}

/// Returns the GID that an IP address has on Ethernet.
pub(crate) fn raw(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Describes a GID for log messages and IA attributes.
pub(crate) fn describe(gid: &Gid) -> String {
    let Gid { index, raw, kind, netdev } = gid;
    let netdev = netdev.as_deref().map(|netdev| format!(" on {netdev}")).unwrap_or_default();
    format!("GID {} (index {index}, {}{netdev})", Ipv6Addr::from(*raw), kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager_kind::SocketFormat;

    fn gid(index: u32, text: &str, kind: GidKind, netdev: &str) -> Gid {
        let raw = text.parse::<Ipv6Addr>().unwrap().octets();
        Gid { index, raw, kind, netdev: Some(netdev.to_string()).filter(|netdev| !netdev.is_empty()) }
    }

    /// GIDs as the kernel creates them for eth2 (192.0.2.1) and a VLAN on it (198.51.100.1), and a GID of an IPv6 address
    /// of eth2.
    fn table() -> Vec<Gid> {
        vec![
            gid(0, "fe80::1", GidKind::RoceV1, "eth2"),
            gid(1, "fe80::1", GidKind::RoceV2, "eth2"),
            gid(2, "::ffff:192.0.2.1", GidKind::RoceV1, "eth2"),
            gid(3, "::ffff:192.0.2.1", GidKind::RoceV2, "eth2"),
            gid(4, "fe80::1", GidKind::RoceV1, "eth2.100"),
            gid(5, "fe80::1", GidKind::RoceV2, "eth2.100"),
            gid(6, "::ffff:198.51.100.1", GidKind::RoceV1, "eth2.100"),
            gid(7, "::ffff:198.51.100.1", GidKind::RoceV2, "eth2.100"),
            gid(8, "2001:db8::1", GidKind::RoceV2, "eth2"),
        ]
    }

    fn roce<'a>(address: &str, netdev: &'a str) -> GidRequirements<'a> {
        GidRequirements { is_roce: true, address: address.parse().ok(), netdev: Some(netdev), index: None }
    }

    fn index(gids: &[Gid], wanted: &GidRequirements<'_>) -> Option<u32> {
        choose(gids, wanted).map(|gid| gid.index)
    }

    #[test]
    fn gid_of_the_address_is_preferred() {
        assert_eq!(index(&table(), &roce("192.0.2.1", "eth2")), Some(3));
        assert_eq!(index(&table(), &roce("198.51.100.1", "eth2.100")), Some(7));
        assert_eq!(index(&table(), &roce("2001:db8::1", "eth2")), Some(8));
    }

    #[test]
    fn link_local_gid_of_the_network_device_is_used_if_no_gid_has_the_address() {
        assert_eq!(index(&table(), &roce("192.0.2.77", "eth2")), Some(1));
        assert_eq!(index(&table(), &roce("192.0.2.77", "eth2.100")), Some(5));
        assert_eq!(index(&table(), &roce("", "eth9")), Some(1));
        let no_link_local: Vec<_> = table().into_iter().filter(|gid| gid.raw[0] != 0xFE).collect();
        assert_eq!(index(&no_link_local, &roce("", "eth2.100")), Some(7));
    }

    #[test]
    fn rocev1_gid_is_chosen_only_if_there_is_no_rocev2_gid() {
        let v1: Vec<_> = table().into_iter().filter(|gid| gid.kind == GidKind::RoceV1).collect();
        assert_eq!(index(&v1, &roce("192.0.2.1", "eth2")), Some(2));
        assert_eq!(index(&v1, &roce("192.0.2.77", "eth2")), Some(0));
        let one_v2 = [gid(0, "::ffff:192.0.2.1", GidKind::RoceV1, "eth2"), gid(1, "fe80::1", GidKind::RoceV2, "eth2")];
        assert_eq!(index(&one_v2, &roce("192.0.2.1", "eth2")), Some(1));
        assert_eq!(index(&[], &roce("192.0.2.1", "eth2")), None);
    }

    #[test]
    fn configured_index_precedes_all_criteria() {
        let wanted = |index| GidRequirements { index: Some(index), ..roce("192.0.2.1", "eth2") };
        assert_eq!(index(&table(), &wanted(4)), Some(4));
        assert_eq!(index(&table(), &wanted(9)), None);
    }

    #[test]
    fn only_rdma_cm_uses_gids_with_an_index_above_255() {
        let socket = [SocketFormat::Dat12, SocketFormat::Dat20].map(ManagerKind::Socket);
        for manager in socket.into_iter().chain([ManagerKind::None]) {
            assert_eq!([255, 256, 65_535].map(|index| is_usable(index, manager)), [true, false, false]);
        }
        assert!(is_usable(65_535, ManagerKind::Rdma));
    }

    #[test]
    fn gid_of_another_family_is_chosen_by_network_device_scope_and_index() {
        let raw = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let (v4, link, global) = (raw("::ffff:192.0.2.9"), raw("fe80::9"), raw("2001:db8::9"));
        assert!(is_same_family(&link, &global) && is_same_family(&v4, &raw("::ffff:10.0.0.1")));
        assert!(!is_same_family(&v4, &link) && !is_same_family(&global, &v4));
        let reach = |chosen: usize, peer| gid_reaching(&table(), &table()[chosen], peer).map(|gid| gid.index);
        assert_eq!(
            [reach(3, &link), reach(7, &link)],
            [Some(0), Some(4)],
            "GIDs of the same network device are preferred"
        );
        assert_eq!(reach(3, &global), Some(8));
        assert_eq!(reach(7, &global), Some(4), "the network device precedes the scope");
        assert_eq!(reach(1, &v4), Some(2));
        let only_v4: Vec<_> = table().into_iter().filter(|gid| is_same_family(&gid.raw, &v4)).collect();
        assert_eq!(gid_reaching(&only_v4, &only_v4[0], &link), None);
    }

    #[test]
    fn first_gid_is_chosen_on_infiniband() {
        let ib = GidRequirements { is_roce: false, address: None, netdev: None, index: None };
        let gids = [gid(1, "fe80::2", GidKind::Ib, ""), gid(0, "fe80::1", GidKind::Ib, "")];
        assert_eq!(index(&gids, &ib), Some(0));
        assert_eq!(choose(&[], &ib).map(|gid| gid.raw), Some([0; 16]));
        assert_eq!(index(&gids, &GidRequirements { index: Some(1), ..ib }), Some(1));
    }

    #[test]
    fn description_has_gid_index_type_and_network_device() {
        let text = describe(&table()[3]);
        assert_eq!(text, "GID ::ffff:192.0.2.1 (index 3, roce-v2 on eth2)");
    }
}
