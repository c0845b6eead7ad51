//! Computes the transitions of a queue pair from INIT to RTS from the local port, the settings, and the peer's
//! parameters. The connection managers `socket` and `none` use it, because they do not query the subnet manager for a
//! path.
//!
//! On Ethernet each packet has a global route header with both GIDs, on InfiniBand only with `DAPL_GLOBAL_ROUTING=1`.
//! The limits of RDMA reads are those of the EP; the limit of outgoing reads is reduced to the number that the peer
//! accepts, if the peer has sent it.
#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};
use std::net::Ipv6Addr;

use super::wire::PathLimits;
use crate::cm::name_service::Gid;
use ibverbs_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_MTU_256, IBV_MTU_4096, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr,
    ibv_qp_attr_mask as mask, ibv_qp_state,
};

use crate::device::Device;
use crate::qp::ReadLimits;
use crate::qp::state::{PathToRts, StateChange};
use crate::{gid, settings};

/// First PSN of both peers, as in the C implementation.
const FIRST_PSN: u32 = 1;

/// The local end of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalEnd {
    pub(crate) port: u8,
    pub(crate) lid: u16,
    pub(crate) is_ethernet: bool,
    pub(crate) active_mtu: ibv_mtu,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    /// Index of the partition key `DAPL_IB_PKEY` in the port's table; 0 if the table does not have the key. `None`: the
    /// variable is not set or 0, and the queue pair keeps index 0.
    pub(crate) partition: Option<u16>,
    pub(crate) settings: settings::PathSettings,
}

/// The peer's end of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RemoteEnd {
    pub(crate) lid: u16,
    pub(crate) number: u32,
    /// Not used if packets have no global route header.
    pub(crate) gid: Gid,
    /// The peer's limits, if it has sent them.
    pub(crate) limits: Option<PathLimits>,
}

impl Display for LocalEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "GID {} (index {})", Ipv6Addr::from(self.gid), self.gid_index)
    }
}

impl Display for RemoteEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "GID {}, LID {}, queue pair {:#x}", Ipv6Addr::from(self.gid), self.lid, self.number)
    }
}

impl LocalEnd {
    /// Whether packets have a global route header, which needs the peer's GID.
    pub(crate) fn is_global(&self) -> bool {
        self.is_ethernet || self.settings.global_routing
    }

    /// Whether packets from the local GID can reach the peer's GID.
    pub(crate) fn reaches(&self, peer: &Gid) -> bool {
        !self.is_ethernet || gid::is_same_family(&self.gid, peer)
    }

    /// Returns the `ibv_mtu` code of the local MTU.
    fn local_mtu(&self) -> ibv_mtu {
        mtu(self.settings.mtu).min(self.active_mtu)
    }

    /// Returns the `ibv_mtu` code of the path: the smaller of both peers' MTUs. An invalid code of the peer is ignored.
    fn path_mtu(&self, remote: Option<PathLimits>) -> ibv_mtu {
        let remote = remote.map(|limits| ibv_mtu::from(limits.mtu));
        let remote = remote.filter(|code| (IBV_MTU_256..=IBV_MTU_4096).contains(code));
        remote.map_or(self.local_mtu(), |code| code.min(self.local_mtu()))
    }

    /// Returns the limits to send to the peer. `remote`: the peer's limits, if known. `reads`: number of RDMA reads by
    /// the peer that the queue pair accepts.
    pub(crate) fn limits(&self, remote: Option<PathLimits>, reads: u8) -> PathLimits {
        PathLimits { mtu: self.path_mtu(remote) as u8, reads }
    }

    /// Returns the transitions to RTS.
    pub(crate) fn path(&self, remote: &RemoteEnd, reads: ReadLimits) -> PathToRts {
        let settings = &self.settings;
        let to_receive = StateChange {
            attributes: ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTR,
                path_mtu: self.path_mtu(remote.limits),
                dest_qp_num: remote.number,
                rq_psn: FIRST_PSN,
                max_dest_rd_atomic: reads.incoming,
                min_rnr_timer: settings.rnr_timer,
                ah_attr: self.address_handle(remote),
                ..Default::default()
            },
            mask: mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        };
        let to_send = StateChange {
            attributes: ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTS,
                sq_psn: FIRST_PSN,
                timeout: settings.ack_timer,
                retry_cnt: settings.ack_retry,
                rnr_retry: settings.rnr_retry,
                max_rd_atomic: remote.limits.map_or(reads.outgoing, |limits| reads.outgoing.min(limits.reads)),
                ..Default::default()
            },
            mask: mask::IBV_QP_STATE
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        };
        PathToRts { init: self.partition.map(|index| self.partition(index)), to_receive, to_send }
    }

    fn partition(&self, index: u16) -> StateChange {
        // Without `IBV_QP_ACCESS_FLAGS`: the flags that `to_init` has set stay valid.
        StateChange {
            attributes: ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_INIT,
                pkey_index: index,
                port_num: self.port,
                ..Default::default()
            },
            mask: mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT,
        }
    }

    fn address_handle(&self, remote: &RemoteEnd) -> ibv_ah_attr {
        let mut handle = ibv_ah_attr {
            dlid: remote.lid,
            sl: self.settings.service_level,
            port_num: self.port,
            ..Default::default()
        };
        if self.is_global() {
            handle.is_global = 1;
            handle.grh = ibv_global_route {
                dgid: ibv_gid { raw: remote.gid },
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: self.settings.hop_limit,
                traffic_class: self.settings.traffic_class,
            };
        }
        handle
    }
}

/// Returns the local end with the port's current attributes. `None`: the query has failed, which is logged.
pub(crate) fn local(device: &Device) -> Option<LocalEnd> {
    let (name, port) = (device.context.name(), device.port);
    let attributes = device.context.port(port).inspect_err(|error| {
        log::error!(
            "{}: cannot query port {port} of {name}: {error}; the connection attempt fails; check the device (ibv_devinfo -d {name})",
            device.name
        );
    });
    let (attributes, settings) = (attributes.ok()?, device.settings.path);
    // The open of the IA refuses a GID index above 255 (`OpenFailure::GidIndexTooHigh`).
    let gid_index = u8::try_from(device.gid.index).ok()?;
    let partition = settings.pkey.map(|key| {
        let entry = |index: u16| {
            std::fs::read_to_string(format!("/sys/class/infiniband/{name}/ports/{port}/pkeys/{index}")).ok()
        };
        pkey_index(key, (0..u16::MAX).map_while(entry)).unwrap_or_else(|| {
            log::error!(
                "{}: port {port} of {name} has no partition key {key:#06x} (DAPL_IB_PKEY); using the first of its table; set \
                 DAPL_IB_PKEY to a key in /sys/class/infiniband/{name}/ports/{port}/pkeys",
                device.name
            );
            0
        })
    });
    Some(LocalEnd {
        port,
        lid: attributes.lid,
        is_ethernet: u32::from(attributes.link_layer) == IBV_LINK_LAYER_ETHERNET,
        active_mtu: attributes.active_mtu,
        gid_index,
        gid: device.gid.raw,
        partition,
        settings,
    })
}

/// Returns the local end with another GID of the port, which reaches the peer's GID. `None`: the port has no such GID,
/// its GIDs cannot be queried (logged), or `DAPL_VERBS_GID_INDEX` is set, which allows no other GID.
pub(crate) fn other_end_reaching(device: &Device, local: LocalEnd, peer: &Gid) -> Option<LocalEnd> {
    if device.settings.gid_index.is_some() {
        return None;
    }
    let gids = device.context.gids(device.port).inspect_err(|error| {
        log::error!(
            "{}: cannot query the GIDs of port {}: {error}; the connection attempt fails; set DAPL_VERBS_GID_INDEX to \
             the index of a GID that reaches the peer",
            device.name,
            device.port
        );
    });
    let mut gids = gids.ok()?;
    gids.retain(|gid| gid::is_usable(gid.index, device.settings.manager));
    let other = gid::gid_reaching(&gids, &device.gid, peer)?;
    Some(LocalEnd { gid_index: u8::try_from(other.index).ok()?, gid: other.raw, ..local })
}

/// Returns the index of a partition key in a port's table, whose entries have the form of sysfs (`0xffff`). The top
/// bit, which distinguishes full and limited members of a partition, is ignored.
pub(crate) fn pkey_index(key: u16, table: impl IntoIterator<Item = String>) -> Option<u16> {
    let is_of_partition = |text: String| {
        let entry = text.trim().strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
        entry.is_some_and(|entry| entry & 0x7FFF == key & 0x7FFF)
    };
    table.into_iter().position(is_of_partition).and_then(|index| u16::try_from(index).ok())
}

/// Returns the `ibv_mtu` code for a number of bytes per packet: 1 for 256, and one more for twice as many bytes.
fn mtu(bytes: u32) -> ibv_mtu {
    bytes.ilog2() - 7
}

#[cfg(test)]
pub(crate) mod tests {
    use ibverbs_sys::{IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048};

    use super::*;

    const REMOTE: RemoteEnd = RemoteEnd { lid: 5, number: 0x11, gid: [9; 16], limits: None };
    const READS: ReadLimits = ReadLimits { incoming: 3, outgoing: 7 };

    /// Returns a local end with fixed parameters, independent of device and environment.
    pub(crate) fn port(link_layer: u32) -> LocalEnd {
        let is_ethernet = link_layer == IBV_LINK_LAYER_ETHERNET;
        let settings = settings::PathSettings {
            mtu: 1024,
            ack_timer: 16,
            ack_retry: 7,
            rnr_timer: 12,
            rnr_retry: 7,
            global_routing: false,
            hop_limit: 255,
            traffic_class: 0,
            service_level: 0,
            pkey: None,
        };
        let (active_mtu, gid) = (IBV_MTU_4096, [8; 16]);
        LocalEnd { port: 2, lid: 4, is_ethernet, active_mtu, gid_index: 6, gid, partition: None, settings }
    }

    fn handle(local: &LocalEnd) -> ibv_ah_attr {
        local.path(&REMOTE, READS).to_receive.attributes.ah_attr
    }

    #[test]
    fn path_takes_values_from_settings_peer_and_read_limits() {
        let path = port(IBV_LINK_LAYER_ETHERNET).path(&REMOTE, READS);
        assert!(path.init.is_none());
        let receive = path.to_receive.attributes;
        assert_eq!((receive.qp_state, receive.path_mtu), (ibv_qp_state::IBV_QPS_RTR, IBV_MTU_1024));
        assert_eq!((receive.dest_qp_num, receive.rq_psn, receive.min_rnr_timer), (0x11, 1, 12));
        assert_eq!(receive.max_dest_rd_atomic, 3, "reads by the peer");
        let send = path.to_send.attributes;
        assert_eq!((send.qp_state, send.sq_psn), (ibv_qp_state::IBV_QPS_RTS, 1));
        assert_eq!((send.timeout, send.retry_cnt, send.rnr_retry), (16, 7, 7));
        assert_eq!(send.max_rd_atomic, 7, "reads by the local queue pair");
        assert_eq!([path.to_receive.mask, path.to_send.mask], [0x12_9181, 0x1_2E01]);
    }

    #[test]
    fn packets_on_ethernet_always_have_a_global_route_header() {
        let handle = handle(&port(IBV_LINK_LAYER_ETHERNET));
        assert_eq!((handle.is_global, handle.port_num, handle.dlid), (1, 2, 5));
        assert_eq!((handle.grh.sgid_index, handle.grh.hop_limit, handle.grh.traffic_class), (6, 255, 0));
    }

    #[test]
    fn infiniband_packets_have_a_global_route_header_only_if_configured() {
        let mut local = port(ibverbs_sys::IBV_LINK_LAYER_INFINIBAND);
        assert_eq!((local.is_global(), handle(&local).is_global, handle(&local).grh.hop_limit), (false, 0, 0));
        local.settings.global_routing = true;
        assert_eq!((local.is_global(), handle(&local).is_global), (true, 1));
    }

    #[test]
    fn path_mtu_is_limited_by_port_and_setting() {
        let codes = [IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096];
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu), codes);
        let mut local = port(IBV_LINK_LAYER_ETHERNET);
        local.active_mtu = IBV_MTU_512;
        assert_eq!(local.path(&REMOTE, READS).to_receive.attributes.path_mtu, IBV_MTU_512);
        local.settings.mtu = 256;
        assert_eq!(local.path(&REMOTE, READS).to_receive.attributes.path_mtu, IBV_MTU_256);
    }

    #[test]
    fn peers_limits_reduce_mtu_and_reads() {
        let local = port(IBV_LINK_LAYER_ETHERNET);
        let of = |mtu, reads| {
            let remote = RemoteEnd { limits: Some(PathLimits { mtu, reads }), ..REMOTE };
            let path = local.path(&remote, READS);
            (path.to_receive.attributes.path_mtu, path.to_send.attributes.max_rd_atomic)
        };
        assert_eq!([of(1, 2), of(5, 255), of(3, 7)], [(IBV_MTU_256, 2), (IBV_MTU_1024, 7), (IBV_MTU_1024, 7)]);
        assert_eq!([of(0, 0), of(6, 1), of(255, 1)], [(IBV_MTU_1024, 0), (IBV_MTU_1024, 1), (IBV_MTU_1024, 1)]);
        assert_eq!(local.limits(None, 4), PathLimits { mtu: IBV_MTU_1024 as u8, reads: 4 });
        let small = PathLimits { mtu: IBV_MTU_512 as u8, reads: 1 };
        assert_eq!(local.limits(Some(small), 4), PathLimits { reads: 4, ..small });
    }

    #[test]
    fn pkey_index_is_looked_up_by_key_and_set_in_init() {
        let table = || ["0xffff\n", "0x0000", "0x8001"].map(String::from);
        assert_eq!(
            [pkey_index(0x8001, table()), pkey_index(1, table()), pkey_index(0xFFFF, table())],
            [Some(2), Some(2), Some(0)]
        );
        assert_eq!(pkey_index(0x8002, table()), None);
        let mut local = port(IBV_LINK_LAYER_ETHERNET);
        local.partition = Some(2);
        let init = local.path(&REMOTE, READS).init.unwrap();
        assert_eq!((init.attributes.pkey_index, init.attributes.port_num, init.mask), (2, 2, 0x31));
    }
}
