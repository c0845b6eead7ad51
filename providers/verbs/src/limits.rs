//! Limits of an IA, from the attributes of the device and the port, and from the connection manager, which limits the
//! private data. Also the names of the vendor and the link layer, the firmware version, and the MTU in bytes.
//!
//! A limit that is too large for its DAT attribute is reduced to the attribute's maximum. RDMA reads are limited to
//! 255, because connection messages have eight bits for their number, and segments to [`MAX_SEGMENTS`]. The limit of an
//! unsupported feature is 0. The limits of requests, receives and segments hold for each endpoint, with its own receive
//! queue or a shared one.
#![forbid(unsafe_code)]

use std::ffi::CStr;

use dapl::error::{Error, Result};
use dapl::provider::{Extensions, Limits};
use ibverbs_sys::{
    IBV_DEVICE_MEM_WINDOW, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_atomic_cap, ibv_device_attr,
    ibv_port_attr,
};

use crate::ibv::Context;
use crate::manager_kind::ManagerKind;
use crate::qp::gather::MAX_SEGMENTS;
use crate::settings::VerbsSettings;

/// Returns the limits of an IA on this port, and the attributes of the device. Errors: `Internal` if the attributes
/// cannot be queried.
pub(crate) fn of(context: &Context, port: u8, settings: &VerbsSettings) -> Result<(Limits, ibv_device_attr)> {
    let attributes = context.attributes().and_then(|device| Ok((device, context.port(port)?)));
    let (device, port) = attributes.map_err(|error| {
        log::error!(
            "cannot query the attributes of device {0}: {error}; the IA cannot be opened; check the device (ibv_devinfo -d {0})",
            context.name()
        );
        Error::Internal
    })?;
    let mut limits = limits(&device, &port, settings);
    limits.extensions.immediate = !context.is_iwarp; // RFC 5040 has no immediate data
    Ok((limits, device))
}

/// Minimum of the limit reported for the length of an EVD. It may exceed `max_cqe`, because an EVD's queue is in
/// software and uses several completion queues of the device if necessary.
const MAX_EVENTS: u32 = 1 << 20;

fn limits(device: &ibv_device_attr, port: &ibv_port_attr, settings: &VerbsSettings) -> Limits {
    let has_srqs = device.max_srq > 0;
    // All completions of a work queue go to one completion queue of the device, so `max_cqe` limits the work queue.
    // `max_wr` and `max_sge` apply to shared receive queues too, so they do not exceed the device's limits of these.
    let mut max_wr = count(device.max_qp_wr).min(count(device.max_cqe));
    let mut max_sge = count(device.max_sge).min(MAX_SEGMENTS as u32);
    if has_srqs {
        max_wr = max_wr.min(count(device.max_srq_wr));
        max_sge = max_sge.min(count(device.max_srq_sge));
    }
    let has_windows = device.device_cap_flags & IBV_DEVICE_MEM_WINDOW != 0;
    // Maximum private data in bytes, by the message that carries them (spec/endpoints 9.1).
    let [connect, connect_1_2, accept, reject] = match settings.manager {
        // A request of the InfiniBand CM has 92 bytes of private data, of which rdma_cm uses 36. A reject has 148
        // bytes. The version numbers that precede the consumer's data use 4 of them (spec/endpoints 10.4).
        ManagerKind::Rdma => [56, 48, 196, 144],
        ManagerKind::Socket(format) => {
            let of = format.layout();
            [of.most_in_request, of.most_in_request, of.most_in_reply, of.most_in_reject]
        }
        ManagerKind::None | ManagerKind::Datagram => [0; 4],
    };
    Limits {
        max_eps: count(device.max_qp),
        max_dtos: max_wr,
        max_evds: count(device.max_cq),
        max_evd_qlen: count(device.max_cqe).max(MAX_EVENTS),
        max_iov: max_sge,
        max_lmrs: count(device.max_mr),
        max_lmr_size: device.max_mr_size,
        max_pzs: count(device.max_pd),
        max_message: port.max_msg_sz.into(),
        max_rdma: port.max_msg_sz.into(),
        max_rmrs: if has_windows { count(device.max_mw) } else { 0 },
        max_srqs: count(device.max_srq),
        max_reads_in: reads(device.max_qp_rd_atom),
        max_reads_out: reads(device.max_qp_init_rd_atom),
        private_data_connect: connect,
        private_data_connect_1_2: connect_1_2,
        private_data_accept: accept,
        private_data_reject: reject,
        // Windows are of type 1, which a peer cannot invalidate.
        extensions: Extensions {
            immediate: true,
            invalidate: false,
            atomics: device.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE && device.max_qp_init_rd_atom > 0,
        },
        vendor: vendor(device.vendor_id, device.vendor_part_id),
        hardware_version: (device.hw_ver, 0),
        firmware_version: firmware(device),
    }
}

/// Converts a limit of the device. A negative number is an unsigned limit of the driver that exceeds `i32`.
fn count(number: i32) -> u32 {
    if number < 0 { i32::MAX as u32 } else { number as u32 }
}

/// Converts a limit of RDMA reads, which has eight bits in connection messages.
fn reads(number: i32) -> u32 {
    count(number).min(u8::MAX.into())
}

/// Returns the vendor's name, or its id if the name is not known, with the part number; `software` for soft-RoCE.
fn vendor(id: u32, part: u32) -> String {
    let name = match id {
        0x02c9 | 0x15b3 => "Mellanox",
        0x8086 => "Intel",
        0x14e4 => "Broadcom",
        0x1077 => "QLogic",
        0x1425 | 0x0743 => "Chelsio",
        0x10df => "Emulex",
        0x1d0f => "Amazon",
        0x1f3f => "Alibaba",
        0xff_ffff => return "software".to_string(),
        _ => return format!("vendor {id:#06x}, part {part}"),
    };
    format!("{name}, part {part}")
}

/// Returns the first two numbers of the firmware version, such as 16 and 35 of `16.35.2000`.
fn firmware(device: &ibv_device_attr) -> (u32, u32) {
    let bytes = device.fw_ver.map(|byte| byte as u8);
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy).unwrap_or_default();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

pub(crate) fn link_layer(number: u8) -> &'static str {
    match number.into() {
        IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
        IBV_LINK_LAYER_ETHERNET => "Ethernet",
        _ => "unspecified",
    }
}

/// Returns the number of bytes for an `ibv_mtu` code: 1 is 256, and each higher code is twice as much.
pub(crate) fn mtu(code: u32) -> u32 {
    128 << code.clamp(1, 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> ibv_device_attr {
        let mut device = ibv_device_attr {
            max_mr_size: u64::MAX,
            vendor_id: 0x02c9,
            vendor_part_id: 4123,
            hw_ver: 3,
            max_qp: 1000,
            max_qp_wr: 32768,
            device_cap_flags: IBV_DEVICE_MEM_WINDOW,
            max_sge: 30,
            max_cq: 500,
            max_cqe: 4_194_303,
            max_mr: -1,
            max_pd: 100,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 300,
            max_mw: 77,
            max_srq: 5,
            max_srq_wr: 32767,
            max_srq_sge: 31,
            ..Default::default()
        };
        for (place, byte) in device.fw_ver.iter_mut().zip(b"20.31.1014\0") {
            *place = *byte as i8;
        }
        device
    }

    fn port() -> ibv_port_attr {
        ibv_port_attr { max_msg_sz: 1 << 30, ..Default::default() }
    }

    fn settings(params: &str) -> VerbsSettings {
        VerbsSettings::read(params, "")
    }

    #[test]
    fn limits_are_those_of_the_device_reduced_to_attribute_ranges() {
        let limits = limits(&device(), &port(), &settings("mlx5_0 1"));
        assert_eq!((limits.max_eps, limits.max_evds, limits.max_pzs, limits.max_rmrs), (1000, 500, 100, 77));
        assert_eq!((limits.max_lmrs, limits.max_lmr_size), (i32::MAX as u32, u64::MAX));
        assert_eq!((limits.max_message, limits.max_rdma, limits.max_evd_qlen), (1 << 30, 1 << 30, 4_194_303));
        assert_eq!((limits.max_reads_in, limits.max_reads_out), (16, 255), "eight bits in connection messages");
        assert_eq!(
            (limits.max_srqs, limits.max_dtos, limits.max_iov),
            (5, 32767, 30),
            "the limit applies to shared receive queues too"
        );
        assert_eq!((limits.vendor.as_str(), limits.hardware_version), ("Mellanox, part 4123", (3, 0)));
        assert_eq!(limits.firmware_version, (20, 31));
        assert_eq!(limits.extensions, Extensions { immediate: true, ..Extensions::default() });
        let atomic = ibv_device_attr { atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA, ..device() };
        assert!(super::limits(&atomic, &port(), &settings("mlx5_0 1")).extensions.atomics);
    }

    #[test]
    fn missing_srqs_and_windows_have_limit_zero() {
        let device = ibv_device_attr { max_srq: 0, device_cap_flags: 0, max_sge: 100, ..device() };
        let limits = limits(&device, &port(), &settings("mlx5_0 1"));
        assert_eq!((limits.max_srqs, limits.max_rmrs, limits.max_dtos), (0, 0, 32768));
        assert_eq!(limits.max_iov, MAX_SEGMENTS as u32);
    }

    #[test]
    fn queue_length_is_limited_by_the_completion_queue() {
        let device = ibv_device_attr { max_cqe: 1001, ..device() };
        assert_eq!(limits(&device, &port(), &settings("x")).max_dtos, 1001);
    }

    #[test]
    fn private_data_limits_depend_on_the_connection_manager() {
        let of = |params| {
            let limits = limits(&device(), &port(), &settings(params));
            let connect = (limits.private_data_connect, limits.private_data_connect_1_2);
            (connect, limits.private_data_accept, limits.private_data_reject)
        };
        assert_eq!(of("x cm=rdma"), ((56, 48), 196, 144));
        assert_eq!([of("x cm=socket"), of("x cm=none")], [((92, 92), 196, 0), ((0, 0), 0, 0)]);
        assert_eq!(of("x cm=socket2"), ((68, 68), 68, 68));
    }

    #[test]
    fn unknown_versions_vendors_and_mtu_codes_have_defaults() {
        let mut device = device();
        device.fw_ver = [0; 64];
        assert_eq!(firmware(&device), (0, 0));
        device.fw_ver = [b'7' as i8; 64];
        assert_eq!(firmware(&device), (0, 0), "no terminating NUL");
        assert_eq!(vendor(0x1234, 7), "vendor 0x1234, part 7");
        assert_eq!([1, 2, 3, 4, 5, 0, 9].map(mtu), [256, 512, 1024, 2048, 4096, 256, 4096]);
    }
}
