//! Settings of usnic, in `ia_params` and in the environment. The interface or address can be set in `ia_params` only.
//!
//! The first word of `ia_params` without `=` is the interface or address. No setting disables congestion control or the
//! do-not-fragment bit.
#![forbid(unsafe_code)]

use crate::common::{dir, give_up, keepalive, listener_wait, rnr_retry, spin};
use crate::{NumberNotation, Setting, SettingsTable, Values, number};

/// The settings of `libdaplusnic.so.1`.
pub static USNIC: SettingsTable = SettingsTable {
    provider: "usnic",
    prefix: "DAPL_USNIC",
    plain: &["address"],
    notation: NumberNotation::Decimal,
    settings: SETTINGS,
};

const SETTINGS: &[Setting] = &[
    Setting {
        name: "address",
        variable: "",
        values: Values::Text("the first interface that is up and is not the loopback interface"),
        meaning: "interface, or one of its addresses, that the IA is bound to; for a link-local \
                  address, followed by `%` and the interface",
    },
    dir(),
    Setting {
        name: "port",
        variable: "DAPL_USNIC_PORT",
        values: number(1, 65_535, 17_471, ""),
        meaning: "UDP port of connection setup, the same on all hosts that are to connect",
    },
    Setting {
        name: "data_ports",
        variable: "DAPL_USNIC_DATA_PORTS",
        values: Values::Text("any free port"),
        meaning: "UDP port or range of UDP ports for data, such as `7000-7099`",
    },
    Setting {
        name: "buffer",
        variable: "DAPL_USNIC_BUFFER",
        values: number(8 << 10, 1 << 30, 8 << 20, " bytes"),
        meaning: "receive buffer of the data socket, which limits what peers have in flight; the send buffer is half as large",
    },
    Setting {
        name: "mtu",
        variable: "DAPL_USNIC_MTU",
        values: number(1_200, 65_507, 65_507, " bytes"),
        meaning: "maximum payload of a datagram that the search of the path MTU tries",
    },
    Setting {
        name: "congestion",
        variable: "DAPL_USNIC_CONGESTION",
        values: Values::OneOf(&["bbr", "cubic"]),
        meaning: "congestion control for peers on other hosts, BBRv3 or CUBIC",
    },
    Setting {
        name: "key",
        variable: "DAPL_USNIC_KEY",
        values: Values::Text("none, so packets are neither authenticated nor encrypted"),
        meaning: "file with the key that all peers share, to authenticate and encrypt packets",
    },
    spin(),
    keepalive(15_000),
    give_up(10_000),
    listener_wait(),
    rnr_retry(),
];
