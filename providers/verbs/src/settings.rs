//! The settings of verbs: per IA (`ia_params`), and environment variables.
//!
//! Settings are read once, when the IA is opened. An invalid value is ignored, with a warning that gives its name, text
//! and range. For an invalid `cm=` or `listener_wait_ms=` in `ia_params` the environment variable or the default is
//! used, for an invalid port the first port, and for an invalid variable the default. Other words are ignored, with a
//! warning.
//!
//! Variables without `VERBS` in their name, except `DAPL_LISTENER_WAIT_MS`, are those of the C implementation's
//! providers, with the same defaults. Numbers are in C notation (16, 0x10, 020).
//!
//! `ia_params` begins with one of these: `mlx5_0 1` (a device and a port), `ib0 0` (a network device; the number is
//! ignored), `192.0.2.1 0` (an address), or `node-ib0 0` (a host name). If it is empty, the first device with an
//! address is used. Then `cm=rdma`, `cm=socket`, `cm=socket2` or `cm=none`, and `listener_wait_ms=N` may follow. They
//! take precedence over the environment.
//!
//! If no setting selects the connection manager, the library name in the dat.conf line selects it: `socket` for
//! `libdaplscm.so.1`, `socket2` for `libdaploscm.so.2`, else `rdma`. For `libdaploucm.so.2` and `libdaplomcm.so.2` the
//! open fails, because their connection managers are not implemented.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::manager_kind::ManagerKind;

/// The settings of one IA.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct VerbsSettings {
    /// First token of `ia_params`: a device, a network device, an address or a host name. Empty: the first device with
    /// an address.
    pub(crate) object: String,
    /// Second token of `ia_params`: the port, if `object` is a device. Default, and for 0: the first port.
    pub(crate) port: Option<u8>,
    /// `ia_params` `cm=`, or `DAPL_VERBS_CM`: `rdma`, `socket`, `socket2` or `none`. Default: `socket` for a line that
    /// names `libdaplscm.so.1`, `socket2` for one that names `libdaploscm.so.2`, else `rdma`.
    pub(crate) manager: ManagerKind,
    /// `DAPL_VERBS_GID_INDEX`: index of the port's GID to use, 0 to 65,535; with a manager other than `rdma`, an index
    /// above 255 is refused. Default: on RoCE preferably a GID of RoCE v2 and of the IA's address (`gid::choose`); on
    /// other ports the lowest index.
    pub(crate) gid_index: Option<u32>,
    /// `ia_params` `listener_wait_ms=`, or `DAPL_LISTENER_WAIT_MS`: time for which a connect that finds no listener is
    /// retried before it is rejected, 0 to 60,000 ms. Default: 50. 0: it is not retried.
    pub(crate) listener_wait: Duration,
    /// `DAPL_MAX_INLINE`: maximum length of data that are sent inline, 0 to 4,096 bytes. Default: 200, or 64 over
    /// iWARP.
    pub(crate) max_inline: Option<u32>,
    /// `DAPL_CM_ARP_TIMEOUT_MS`: limit of one attempt of rdma_cm to resolve an address, 1 to 3,600,000 ms. Default:
    /// 4,000.
    pub(crate) address_timeout: Duration,
    /// `DAPL_CM_ROUTE_TIMEOUT_MS`: limit of one attempt of rdma_cm to resolve a route, 1 to 3,600,000 ms. Default:
    /// 4,000.
    pub(crate) route_timeout: Duration,
    /// Path parameters for the managers `socket` and `none`; `rdma` uses some of them.
    pub(crate) path: PathSettings,
    /// The peer assumed by the manager `none`.
    pub(crate) peer: AssumedPeer,
}

/// Path parameters of a queue pair without path resolution. The manager `rdma`, which resolves the path, uses only the
/// RNR timer, the retry counts and, on RoCE, the ACK timer as an upper limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PathSettings {
    /// `DAPL_IB_MTU`: bytes per packet, 256, 512, 1024, 2048 or 4096. Default: 1024. Limited to the port's active MTU.
    pub(crate) mtu: u32,
    /// `DAPL_ACK_TIMER`: code of the ACK timeout, 0 to 31: 4.096 us * 2^code. Default: 16.
    pub(crate) ack_timer: u8,
    /// `DAPL_ACK_RETRY`: number of retransmissions after an ACK timeout, 0 to 7. Default: 7.
    pub(crate) ack_retry: u8,
    /// `DAPL_RNR_TIMER`: code of the delay that a sender waits after an RNR NAK, 0 to 31. Default: 12.
    pub(crate) rnr_timer: u8,
    /// `DAPL_RNR_RETRY`: number of retries after RNR NAKs, 0 to 7. 7: no limit. Default: 7.
    pub(crate) rnr_retry: u8,
    /// `DAPL_GLOBAL_ROUTING`: with 1 each packet has a global route header. On Ethernet each packet has one in any
    /// case. Default: 0.
    pub(crate) global_routing: bool,
    /// `DAPL_HOP_LIMIT`: hop limit in the global route header, 0 to 255. Default: 255.
    pub(crate) hop_limit: u8,
    /// `DAPL_TCLASS`: traffic class in the global route header, 0 to 255. Default: 0.
    pub(crate) traffic_class: u8,
    /// `DAPL_IB_SL`: service level, 0 to 15. Default: 0.
    pub(crate) service_level: u8,
    /// `DAPL_IB_PKEY`: the partition key, 1 to 65,535. Default, and for 0: the first key of the port's table.
    pub(crate) pkey: Option<u16>,
}

/// The peer assumed by the manager `none`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AssumedPeer {
    /// `DAPL_VERBS_PEER`: the peer's address. Default: the local address.
    pub(crate) address: Option<IpAddr>,
    /// `DAPL_VERBS_PEER`: the number of the peer's queue pair. Default: `same`.
    pub(crate) number: PeerNumber,
}

/// How the number of the peer's queue pair is derived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeerNumber {
    /// `same`, `+1` or `-1`: the difference between the peer's number and the local one.
    Offset(i32),
    /// The number itself, 1 to 16,777,215.
    Fixed(u32),
}

/// Default of `listener_wait_ms`.
const LISTENER_WAIT_MS: u32 = 50;
const LONGEST_LISTENER_WAIT_MS: u32 = 60_000;
/// Default maximum length of inline data in bytes.
const INLINE: u32 = 200;
/// Default maximum length of inline data in bytes, for iWARP.
const INLINE_IWARP: u32 = 64;

impl VerbsSettings {
    /// Reads the settings. `library`: the library's file name in the dat.conf line.
    pub(crate) fn read(params: &str, library: &str) -> Self {
        Self::from(params, library, &|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
    }

    /// Returns the maximum length of inline data to request for a queue pair, in bytes.
    pub(crate) fn inline(&self, is_iwarp: bool) -> u32 {
        self.max_inline.unwrap_or(if is_iwarp { INLINE_IWARP } else { INLINE })
    }

    /// Returns the maximum path MTU of connections in bytes. A smaller MTU of the InfiniBand path (`rdma`) or of the
    /// peer (wire format of 2.0) takes precedence. `active`: the port's active MTU in bytes.
    pub(crate) fn path_mtu(&self, active: u32) -> u32 {
        match self.manager {
            // On RoCE, rdma_cm uses the active MTU of the port; on InfiniBand, the MTU of the subnet manager's path.
            ManagerKind::Rdma => active,
            _ => self.path.mtu.min(active),
        }
    }

    fn from(params: &str, library: &str, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let line = IaParams::parse(params);
        let env = Environment(variable);
        let default = ManagerKind::of_library(library);
        let listener_wait = || env.number_or("DAPL_LISTENER_WAIT_MS", 0..=LONGEST_LISTENER_WAIT_MS, LISTENER_WAIT_MS);
        let manager =
            || env.parsed("DAPL_VERBS_CM", ManagerKind::NAMES, format!("\"{}\"", default.name()), ManagerKind::parse);
        let resolution_timeout = |name| Duration::from_millis(env.number_or(name, 1..=3_600_000, 4_000).into());
        VerbsSettings {
            object: line.object,
            port: line.port,
            manager: line.manager.or_else(manager).unwrap_or(default),
            listener_wait: Duration::from_millis(line.listener_wait.unwrap_or_else(listener_wait).into()),
            gid_index: env.number("DAPL_VERBS_GID_INDEX", 0..=65_535, "the index of the GID of the IA's address"),
            max_inline: env.number("DAPL_MAX_INLINE", 0..=4_096, format!("{INLINE} ({INLINE_IWARP} over iWARP)")),
            address_timeout: resolution_timeout("DAPL_CM_ARP_TIMEOUT_MS"),
            route_timeout: resolution_timeout("DAPL_CM_ROUTE_TIMEOUT_MS"),
            path: PathSettings::from(&env),
            peer: AssumedPeer::from(&env),
        }
    }
}

impl PathSettings {
    fn from(env: &Environment<'_>) -> Self {
        let byte = |name, high: u8, default: u8| env.number_or(name, 0..=high.into(), default.into()) as u8;
        let mtu = |text: &str| number(text).filter(|bytes| [256, 512, 1024, 2048, 4096].contains(bytes));
        PathSettings {
            mtu: env.parsed("DAPL_IB_MTU", "256, 512, 1024, 2048 or 4096", 1024, mtu).unwrap_or(1024),
            ack_timer: byte("DAPL_ACK_TIMER", 31, 16),
            ack_retry: byte("DAPL_ACK_RETRY", 7, 7),
            rnr_timer: byte("DAPL_RNR_TIMER", 31, 12),
            rnr_retry: byte("DAPL_RNR_RETRY", 7, 7),
            global_routing: byte("DAPL_GLOBAL_ROUTING", 1, 0) == 1,
            hop_limit: byte("DAPL_HOP_LIMIT", 255, 255),
            traffic_class: byte("DAPL_TCLASS", 255, 0),
            service_level: byte("DAPL_IB_SL", 15, 0),
            pkey: Some(env.number_or("DAPL_IB_PKEY", 0..=65_535, 0) as u16).filter(|key| *key != 0),
        }
    }
}

impl AssumedPeer {
    fn from(env: &Environment<'_>) -> Self {
        let default = AssumedPeer { address: None, number: PeerNumber::Offset(0) };
        let allowed =
            "an address, \"same\", \"+1\", \"-1\" or a number from 1 to 16777215, or an address and one of these";
        env.parsed("DAPL_VERBS_PEER", allowed, "the local address and \"same\"", AssumedPeer::parse).unwrap_or(default)
    }

    /// Parses an address, a queue pair number, or both with a comma in between.
    fn parse(text: &str) -> Option<Self> {
        let same = PeerNumber::Offset(0);
        if let Some((address, number)) = text.split_once(',') {
            return Some(AssumedPeer { address: Some(address.parse().ok()?), number: PeerNumber::parse(number)? });
        }
        match text.parse() {
            Ok(address) => Some(AssumedPeer { address: Some(address), number: same }),
            Err(_) => Some(AssumedPeer { address: None, number: PeerNumber::parse(text)? }),
        }
    }
}

impl PeerNumber {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "same" => Some(PeerNumber::Offset(0)),
            "+1" => Some(PeerNumber::Offset(1)),
            "-1" => Some(PeerNumber::Offset(-1)),
            text => number(text).filter(|number| (1..=0xFF_FFFF).contains(number)).map(PeerNumber::Fixed),
        }
    }
}

/// The parsed tokens of `ia_params`.
struct IaParams {
    object: String,
    port: Option<u8>,
    manager: Option<ManagerKind>,
    /// `listener_wait_ms=`, in milliseconds.
    listener_wait: Option<u32>,
}

impl IaParams {
    fn parse(params: &str) -> Self {
        let mut words = params.split_ascii_whitespace();
        let object = words.next().unwrap_or_default().to_string();
        let mut line = IaParams { object, port: None, manager: None, listener_wait: None };
        for (place, word) in words.enumerate() {
            if let Some(text) = word.strip_prefix("cm=") {
                line.manager = ManagerKind::parse(text);
                if line.manager.is_none() {
                    warn_invalid("cm in ia_params", text, ManagerKind::NAMES, "DAPL_VERBS_CM or the default");
                }
            } else if let Some(text) = word.strip_prefix("listener_wait_ms=") {
                line.listener_wait = number(text).filter(|wait| *wait <= LONGEST_LISTENER_WAIT_MS);
                if line.listener_wait.is_none() {
                    let allowed = format!("a number from 0 to {LONGEST_LISTENER_WAIT_MS}");
                    warn_invalid(
                        "listener_wait_ms in ia_params",
                        text,
                        allowed,
                        "DAPL_LISTENER_WAIT_MS or the default",
                    );
                }
            } else if let (0, Some(port)) = (place, number(word).and_then(|port| u8::try_from(port).ok())) {
                line.port = Some(port).filter(|port| *port != 0);
            } else if place == 0 {
                warn_invalid("second word of ia_params", word, "a port from 0 to 255", "the first port");
            } else {
                let allowed = "cm=rdma, cm=socket, cm=socket2, cm=none or listener_wait_ms=N";
                log::warn!("ia_params: ignoring \"{word}\", which is not {allowed}");
            }
        }
        line
    }
}

/// Access to environment variables, with warnings for invalid values.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// Returns the trimmed text of a variable; `None` if it is unset or empty.
    fn text(&self, name: &str) -> Option<String> {
        let text = (self.0)(name)?;
        Some(text.trim()).filter(|text| !text.is_empty()).map(String::from)
    }

    fn parsed<T>(
        &self,
        name: &str,
        allowed: impl Display,
        default: impl Display,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let value = parse(&text);
        if value.is_none() {
            warn_invalid(name, &text, allowed, default);
        }
        value
    }

    fn number(&self, name: &str, range: RangeInclusive<u32>, default: impl Display) -> Option<u32> {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        self.parsed(name, allowed, default, |text| number(text).filter(|value| range.contains(value)))
    }

    fn number_or(&self, name: &str, range: RangeInclusive<u32>, default: u32) -> u32 {
        self.number(name, range, default).unwrap_or(default)
    }
}

fn warn_invalid(name: &str, text: &str, allowed: impl Display, default: impl Display) {
    log::warn!("{name}: \"{text}\" is not {allowed}; using {default}");
}

/// Parses a decimal, hexadecimal (0x) or octal (0) number.
fn number(text: &str) -> Option<u32> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u32::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager_kind::SocketFormat as Format;

    fn with(params: &str, set: &[(&str, &str)]) -> VerbsSettings {
        let variable = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| text.to_string());
        VerbsSettings::from(params, "libdaplverbs.so.1", &variable)
    }

    #[test]
    fn ia_params_of_the_c_implementation_are_parsed() {
        let line = |params| {
            let settings = with(params, &[]);
            (settings.object, settings.port, settings.manager)
        };
        assert_eq!(line("mlx5_0 1"), ("mlx5_0".into(), Some(1), ManagerKind::Rdma));
        assert_eq!(line("ib0 0"), ("ib0".into(), None, ManagerKind::Rdma));
        assert_eq!(line("192.0.2.1 0 cm=socket"), ("192.0.2.1".into(), None, ManagerKind::Socket(Format::Dat12)));
        assert_eq!(line("node-ib0"), ("node-ib0".into(), None, ManagerKind::Rdma));
        assert_eq!(line("mlx5_0 cm=none"), ("mlx5_0".into(), None, ManagerKind::None));
        assert_eq!(line(" mlx5_0  2\tcm=rdma "), ("mlx5_0".into(), Some(2), ManagerKind::Rdma));
        assert_eq!(line(""), (String::new(), None, ManagerKind::Rdma));
    }

    #[test]
    fn invalid_tokens_of_ia_params_are_ignored() {
        let line = |params| {
            let settings = with(params, &[("DAPL_VERBS_CM", "socket")]);
            (settings.port, settings.manager)
        };
        assert_eq!(line("mlx5_0 x"), (None, ManagerKind::Socket(Format::Dat12)));
        assert_eq!(line("mlx5_0 256 cm=tcp"), (None, ManagerKind::Socket(Format::Dat12)));
        assert_eq!(line("mlx5_0 1 2 cm=none"), (Some(1), ManagerKind::None));
    }

    #[test]
    fn ia_params_precede_the_environment() {
        let socket = [("DAPL_VERBS_CM", "socket")];
        assert_eq!(with("mlx5_0 1", &socket).manager, ManagerKind::Socket(Format::Dat12));
        assert_eq!(with("mlx5_0 1 cm=none", &socket).manager, ManagerKind::None);
    }

    #[test]
    fn listener_wait_is_read_from_ia_params_or_environment() {
        let wait = |params, set: &[(&str, &str)]| with(params, set).listener_wait.as_millis();
        let variable = [("DAPL_LISTENER_WAIT_MS", "7")];
        assert_eq!([wait("mlx5_0 1", &[]), wait("mlx5_0 1", &variable)], [50, 7]);
        assert_eq!(wait("mlx5_0 1 cm=socket listener_wait_ms=0", &variable), 0);
        assert_eq!(wait("mlx5_0 1 listener_wait_ms=60000", &[]), 60_000);
        assert_eq!(wait("mlx5_0 1 listener_wait_ms=60001", &variable), 7);
    }

    #[test]
    fn library_name_selects_the_manager_if_no_setting_does() {
        let manager = |params, library, set: &'static [(&str, &str)]| {
            let variable = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| text.to_string());
            VerbsSettings::from(params, library, &variable).manager
        };
        let (old, new) = (ManagerKind::Socket(Format::Dat12), ManagerKind::Socket(Format::Dat20));
        for (library, kind) in [("libdaplscm.so.1", old), ("libdaplscm.so", old), ("libdaploscm.so.2", new)] {
            assert_eq!(manager("ib0 0", library, &[]), kind);
            assert_eq!(manager("ib0 0 cm=socket", library, &[]), old);
            assert_eq!(manager("ib0 0", library, &[("DAPL_VERBS_CM", "socket2")]), new);
            assert_eq!(manager("ib0 0 cm=rdma", library, &[]), ManagerKind::Rdma);
            assert_eq!(manager("ib0 0", library, &[("DAPL_VERBS_CM", "rdma")]), ManagerKind::Rdma);
        }
        for library in ["libdaplcma.so.1", "libdaplcma.so", "libdaplofa.so.2", "libdaplverbs.so.1", ""] {
            assert_eq!(manager("ib0 0", library, &[]), ManagerKind::Rdma);
        }
        assert_eq!(manager("mlx4_0 1", "libdaploucm.so.2", &[]), ManagerKind::Datagram);
        assert_eq!(manager("mlx4_0 1 cm=socket", "libdaplomcm.so.2", &[]), ManagerKind::Socket(Format::Dat12));
    }

    #[test]
    fn defaults_equal_those_of_the_c_implementation() {
        let settings = with("ib0 0", &[]);
        let four = Duration::from_secs(4);
        let path = PathSettings {
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
        assert_eq!((settings.address_timeout, settings.route_timeout, settings.path), (four, four, path));
        assert_eq!(settings.peer, AssumedPeer { address: None, number: PeerNumber::Offset(0) });
        assert_eq!(settings.gid_index, None);
        assert_eq!((settings.inline(false), settings.inline(true)), (200, 64));
    }

    #[test]
    fn each_verbs_variable_sets_its_field() {
        let all = [
            ("DAPL_VERBS_GID_INDEX", "3"),
            ("DAPL_MAX_INLINE", "0x40"),
            ("DAPL_CM_ARP_TIMEOUT_MS", "100"),
            ("DAPL_CM_ROUTE_TIMEOUT_MS", "200"),
            ("DAPL_IB_MTU", "4096"),
            ("DAPL_ACK_TIMER", "20"),
            ("DAPL_ACK_RETRY", "1"),
            ("DAPL_RNR_TIMER", "010"),
            ("DAPL_RNR_RETRY", "0"),
            ("DAPL_GLOBAL_ROUTING", "1"),
            ("DAPL_HOP_LIMIT", "64"),
            ("DAPL_TCLASS", "104"),
            ("DAPL_IB_SL", "5"),
            ("DAPL_IB_PKEY", "0x8001"),
            ("DAPL_VERBS_PEER", "192.0.2.9,-1"),
        ];
        let settings = with("mlx5_0 1", &all);
        assert_eq!((settings.gid_index, settings.inline(false)), (Some(3), 64));
        let (address_timeout, route_timeout) = (settings.address_timeout, settings.route_timeout);
        assert_eq!((address_timeout.as_millis(), route_timeout.as_millis()), (100, 200));
        let path = PathSettings {
            mtu: 4096,
            ack_timer: 20,
            ack_retry: 1,
            rnr_timer: 8,
            rnr_retry: 0,
            global_routing: true,
            hop_limit: 64,
            traffic_class: 104,
            service_level: 5,
            pkey: Some(0x8001),
        };
        assert_eq!(settings.path, path);
        let peer = AssumedPeer { address: Some("192.0.2.9".parse().unwrap()), number: PeerNumber::Offset(-1) };
        assert_eq!(settings.peer, peer);
        let peer = |text| with("", &[("DAPL_VERBS_PEER", text)]).peer;
        assert_eq!(peer("0x11"), AssumedPeer { address: None, number: PeerNumber::Fixed(17) });
        assert_eq!([peer("+1").number, peer("same").number], [PeerNumber::Offset(1), PeerNumber::Offset(0)]);
        assert_eq!(peer("fe80::1"), AssumedPeer { address: "fe80::1".parse().ok(), number: PeerNumber::Offset(0) });
        for wrong in ["192.0.2.9,", ",+1", "+1,192.0.2.9", "192.0.2.9,x"] {
            assert_eq!(peer(wrong), with("", &[]).peer, "{wrong}");
        }
    }

    #[test]
    fn invalid_verbs_settings_use_the_defaults() {
        let names = [
            "DAPL_VERBS_CM",
            "DAPL_VERBS_GID_INDEX",
            "DAPL_LISTENER_WAIT_MS",
            "DAPL_MAX_INLINE",
            "DAPL_CM_ARP_TIMEOUT_MS",
            "DAPL_CM_ROUTE_TIMEOUT_MS",
            "DAPL_IB_MTU",
            "DAPL_ACK_TIMER",
            "DAPL_ACK_RETRY",
            "DAPL_RNR_TIMER",
            "DAPL_RNR_RETRY",
            "DAPL_GLOBAL_ROUTING",
            "DAPL_HOP_LIMIT",
            "DAPL_TCLASS",
            "DAPL_IB_SL",
            "DAPL_IB_PKEY",
            "DAPL_VERBS_PEER",
        ];
        for text in ["12x", "-5", "99999999", "08", ""] {
            let set: Vec<_> = names.iter().map(|name| (*name, text)).collect();
            assert_eq!(with("mlx5_0 1", &set), with("mlx5_0 1", &[]), "{text:?}");
        }
    }
}
