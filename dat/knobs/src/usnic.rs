//! What can be set in usnic, per IA and by environment.
//!
//! The plain word of `ia_params` is the interface or address. Not here, on purpose: a way to switch congestion control off,
//! or do-not-fragment.
#![forbid(unsafe_code)]

use crate::{Knob, Notation, Table, Values, number};

/// The settings of `libdaplusnic.so.1`.
pub static USNIC: Table =
    Table { provider: "usnic", prefix: "DAPL_USNIC", plain: &["address"], notation: Notation::Decimal, knobs: KNOBS };

/// Packets that the protocol's own window has.
const WINDOW: u64 = 4096;

const KNOBS: &[Knob] = &[
    Knob {
        name: "address",
        variable: "DAPL_USNIC_ADDRESS",
        values: Values::Text("the first interface that is up and leads elsewhere"),
        meaning: "interface, or one of its addresses, that the IA is bound to; with `%` and the interface for a link-local one",
    },
    Knob {
        name: "dir",
        variable: "DAPL_USNIC_DIR",
        values: Values::Text("one of this user's under /dev/shm"),
        meaning: "directory in which processes find each other's listeners and names of shared memory",
    },
    Knob {
        name: "port",
        variable: "DAPL_USNIC_PORT",
        values: number(1, 65_535, 17_471, ""),
        meaning: "UDP port of set-ups, the same for all who are to meet",
    },
    Knob {
        name: "data_ports",
        variable: "DAPL_USNIC_DATA_PORTS",
        values: Values::Text("whichever is free"),
        meaning: "UDP ports that data leave from, as `7000-7099`; without it whichever is free",
    },
    Knob {
        name: "receive_buffer",
        variable: "DAPL_USNIC_RECEIVE_BUFFER",
        values: number(8 << 10, 1 << 30, 8 << 20, " bytes"),
        meaning: "socket buffer for what has arrived; peers send no more than it holds",
    },
    Knob {
        name: "send_buffer",
        variable: "DAPL_USNIC_SEND_BUFFER",
        values: number(8 << 10, 1 << 30, 4 << 20, " bytes"),
        meaning: "socket buffer for what has not left",
    },
    Knob {
        name: "gso",
        variable: "DAPL_USNIC_GSO",
        values: Values::OneOf(&["on", "off"]),
        meaning: "whether trains of packets are given to the kernel in one piece",
    },
    Knob {
        name: "gro",
        variable: "DAPL_USNIC_GRO",
        values: Values::OneOf(&["on", "off"]),
        meaning: "whether trains of packets are taken from the kernel in one piece",
    },
    Knob {
        name: "mtu",
        variable: "DAPL_USNIC_MTU",
        values: number(1_200, 65_507, 65_507, " bytes"),
        meaning: "largest payload of a datagram that is tried on a path",
    },
    Knob {
        name: "command_mtu",
        variable: "DAPL_USNIC_COMMAND_MTU",
        values: number(0, 1_024, 768, " bytes"),
        meaning: "longest message that goes by the command channel, ahead of others",
    },
    Knob {
        name: "command_depth",
        variable: "DAPL_USNIC_COMMAND_DEPTH",
        values: number(1, WINDOW, 1_024, " packets"),
        meaning: "packets of the command channel in flight",
    },
    Knob {
        name: "data_depth",
        variable: "DAPL_USNIC_DATA_DEPTH",
        values: number(1, WINDOW, WINDOW, " packets"),
        meaning: "packets of the data channel in flight",
    },
    Knob {
        name: "window",
        variable: "DAPL_USNIC_WINDOW",
        values: number(2, WINDOW, WINDOW, " packets"),
        meaning: "packets in flight in all",
    },
    Knob {
        name: "ack_delay_us",
        variable: "DAPL_USNIC_ACK_DELAY_US",
        values: number(0, 25_000, 50, " us"),
        meaning: "an acknowledgement waits so long for something that carries it",
    },
    Knob {
        name: "first_timeout_ms",
        variable: "DAPL_USNIC_FIRST_TIMEOUT_MS",
        values: number(1, 60_000, 100, " ms"),
        meaning: "what is not acknowledged is asked after so late, while the round trip is not known",
    },
    Knob {
        name: "min_timeout_us",
        variable: "DAPL_USNIC_MIN_TIMEOUT_US",
        values: number(100, 1_000_000, 1_000, " us"),
        meaning: "and so late at least, once it is",
    },
    Knob {
        name: "give_up_ms",
        variable: "DAPL_USNIC_GIVE_UP_MS",
        values: number(100, 3_600_000, 10_000, " ms"),
        meaning: "a peer that has said nothing for so long, though asked, is gone",
    },
    Knob {
        name: "rnr_retries",
        variable: "DAPL_USNIC_RNR_RETRIES",
        values: number(0, 1_000_000, 0, ""),
        meaning: "a peer without a receive is asked so often before the connection breaks; 0: for ever",
    },
    Knob {
        name: "congestion",
        variable: "DAPL_USNIC_CONGESTION",
        values: Values::OneOf(&["bbr", "cubic"]),
        meaning: "congestion control to other hosts: BBRv3, or CUBIC",
    },
    Knob {
        name: "keepalive_ms",
        variable: "DAPL_USNIC_KEEPALIVE_MS",
        values: number(0, 86_400_000, 15_000, " ms"),
        meaning: "an idle connection says something after so long; 0: never",
    },
    Knob {
        name: "connect_give_up_ms",
        variable: "DAPL_USNIC_CONNECT_GIVE_UP_MS",
        values: number(100, 3_600_000, 10_000, " ms"),
        meaning: "a host that does not answer a connect for so long cannot be reached",
    },
    Knob {
        name: "listener_wait_ms",
        variable: "DAPL_USNIC_LISTENER_WAIT_MS",
        values: number(0, 60_000, 50, " ms"),
        meaning: "a connect that finds no listener is retried for this long before it is rejected; 0: not at all",
    },
    Knob {
        name: "cookies",
        variable: "DAPL_USNIC_COOKIES",
        values: Values::OneOf(&["load", "always"]),
        meaning: "when who asks for a connection must first show that it is where it says: under load, or always",
    },
    Knob {
        name: "key",
        variable: "DAPL_USNIC_KEY",
        values: Values::Text("none: the path is trusted"),
        meaning: "file (mode 0600) with the key that all peers share: everything is authenticated and encrypted",
    },
    Knob {
        name: "checked",
        variable: "DAPL_USNIC_CHECKED",
        values: Values::OneOf(&["off", "on"]),
        meaning: "whether packets carry a checksum (CRC32C) of their own beside UDP's",
    },
    Knob {
        name: "max_message",
        variable: "DAPL_USNIC_MAX_MESSAGE",
        values: number(1 << 16, 1 << 31, 1 << 31, " bytes"),
        meaning: "longest message or RDMA transfer",
    },
    Knob {
        name: "spin_us",
        variable: "DAPL_USNIC_SPIN_US",
        values: number(0, 1_000_000, 150, " us"),
        meaning: "a wait looks at most so long before it sleeps; how long, it learns",
    },
];
