//! What an administrator can set: one table of names, values and defaults, per IA (`ia_params`) and by environment.
//!
//! How they are read is in `dapl::knobs`. The plain word of `ia_params` is the interface or address.
//!
//! Not here, on purpose: a way to switch congestion control off, or do-not-fragment.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use dapl::knobs::{Given, Knob, Table, Values};

use crate::proto::{MICROS, MILLIS, Nanos, SECONDS, WINDOW};

static TABLE: Table = Table { provider: "usnic", prefix: "DAPL_USNIC", plain: &["address"], knobs: &KNOBS };

const fn number(low: u64, high: u64, default: u64, unit: &'static str) -> Values {
    Values::Number { low, high, default, unit }
}

const KNOBS: [Knob; 28] = [
    Knob {
        name: "address",
        variable: "DAPL_USNIC_ADDRESS",
        values: Values::Text,
        meaning: "interface, or one of its addresses, that the IA is bound to; with `%` and the interface for a link-local one",
    },
    Knob {
        name: "dir",
        variable: "DAPL_USNIC_DIR",
        values: Values::Text,
        meaning: "directory in which processes find each other's names of shared memory",
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
        values: Values::Text,
        meaning: "UDP ports that data leave from, as `7000-7099`; without it whichever is free",
    },
    Knob {
        name: "sockets",
        variable: "DAPL_USNIC_SOCKETS",
        values: Values::OneOf(&["shared", "own"]),
        meaning: "whether connections share the IA's data port, or each has a port of its own",
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
        values: number(1, WINDOW as u64, 1_024, " packets"),
        meaning: "packets of the command channel in flight",
    },
    Knob {
        name: "data_depth",
        variable: "DAPL_USNIC_DATA_DEPTH",
        values: number(1, WINDOW as u64, WINDOW as u64, " packets"),
        meaning: "packets of the data channel in flight",
    },
    Knob {
        name: "window",
        variable: "DAPL_USNIC_WINDOW",
        values: number(2, WINDOW as u64, WINDOW as u64, " packets"),
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
        values: Values::OneOf(&["delay", "cubic"]),
        meaning: "how the rate is found: by the delay of the path, or by loss alone",
    },
    Knob {
        name: "target_delay_us",
        variable: "DAPL_USNIC_TARGET_DELAY_US",
        values: number(1, 1_000_000, 500, " us"),
        meaning: "queueing delay that `delay` aims at",
    },
    Knob {
        name: "keepalive_s",
        variable: "DAPL_USNIC_KEEPALIVE_S",
        values: number(0, 86_400, 15, " s"),
        meaning: "an idle connection says something after so long; 0: never",
    },
    Knob {
        name: "connect_give_up_ms",
        variable: "DAPL_USNIC_CONNECT_GIVE_UP_MS",
        values: number(100, 3_600_000, 10_000, " ms"),
        meaning: "a host that does not answer a connect for so long cannot be reached",
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
        values: Values::Text,
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

/// How the rate is found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Congestion {
    Delay,
    Cubic,
}

/// The settings of one IA, as the table has them.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// `None`: the first interface that is up.
    pub(crate) address: Option<String>,
    /// `None`: one of this user's under `/dev/shm`.
    pub(crate) dir: Option<String>,
    pub(crate) port: u16,
    /// `None`: whichever the kernel gives.
    pub(crate) data_ports: Option<RangeInclusive<u16>>,
    /// Each connection has a socket of its own.
    pub(crate) own_sockets: bool,
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    pub(crate) gso: bool,
    pub(crate) gro: bool,
    pub(crate) mtu_ceiling: usize,
    /// Longest message that goes over the command channel.
    pub(crate) tiny: u32,
    pub(crate) command_depth: u32,
    pub(crate) data_depth: u32,
    pub(crate) window: u32,
    pub(crate) ack_delay: Nanos,
    pub(crate) first_timeout: Nanos,
    pub(crate) min_timeout: Nanos,
    pub(crate) give_up: Nanos,
    /// `None`: for ever.
    pub(crate) rnr_limit: Option<u32>,
    pub(crate) congestion: Congestion,
    pub(crate) target_delay: Nanos,
    /// 0: never.
    pub(crate) keepalive: Nanos,
    pub(crate) connect_give_up: Nanos,
    pub(crate) always_cookies: bool,
    pub(crate) key_file: Option<String>,
    pub(crate) checked: bool,
    pub(crate) max_message: u64,
    /// Nanoseconds that a wait may look before it sleeps.
    pub(crate) spin: u32,
}

impl Knobs {
    /// From `ia_params` and the environment.
    pub(crate) fn read(params: &str) -> Self {
        Self::of(&TABLE.read(params))
    }

    fn of(given: &Given<'_>) -> Self {
        let small = |name| given.number(name) as u32;
        let text = |name| given.text(name).map(|(_, text)| text);
        let first_timeout = given.number("first_timeout_ms") * MILLIS;
        Knobs {
            address: text("address"),
            dir: text("dir"),
            port: given.number("port") as u16,
            data_ports: data_ports(given),
            own_sockets: given.word("sockets") == "own",
            receive_buffer: given.number("receive_buffer") as usize,
            send_buffer: given.number("send_buffer") as usize,
            gso: given.word("gso") == "on",
            gro: given.word("gro") == "on",
            mtu_ceiling: given.number("mtu") as usize,
            tiny: small("command_mtu"),
            command_depth: small("command_depth"),
            data_depth: small("data_depth"),
            window: small("window"),
            ack_delay: given.number("ack_delay_us") * MICROS,
            first_timeout,
            // A first guess below the floor would be none.
            min_timeout: (given.number("min_timeout_us") * MICROS).min(first_timeout),
            give_up: given.number("give_up_ms") * MILLIS,
            rnr_limit: Some(small("rnr_retries")).filter(|limit| *limit != 0),
            congestion: if given.word("congestion") == "cubic" { Congestion::Cubic } else { Congestion::Delay },
            target_delay: given.number("target_delay_us") * MICROS,
            keepalive: given.number("keepalive_s") * SECONDS,
            connect_give_up: given.number("connect_give_up_ms") * MILLIS,
            always_cookies: given.word("cookies") == "always",
            key_file: text("key"),
            checked: given.word("checked") == "on",
            max_message: given.number("max_message"),
            spin: small("spin_us") * 1_000,
        }
    }
}

/// One port, or the first and the last with `-` between.
fn data_ports(given: &Given<'_>) -> Option<RangeInclusive<u16>> {
    let (place, text) = given.text("data_ports")?;
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
    let ports = port(first).zip(port(last)).filter(|(first, last)| first <= last);
    if ports.is_none() {
        log::warn!(
            "{place}: \"{text}\" is no range of ports such as 7000-7099; whichever is free is used, the default"
        );
    }
    ports.map(|(first, last)| first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(params: &str) -> Knobs {
        Knobs::of(&TABLE.parse(params, &|_| None))
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let knobs = with("");
        assert_eq!((knobs.address, knobs.port, knobs.data_ports, knobs.own_sockets), (None, 17_471, None, false));
        assert_eq!((knobs.gso, knobs.gro, knobs.checked, knobs.always_cookies), (true, true, false, false));
        assert_eq!((knobs.tiny, knobs.window, knobs.ack_delay), (768, 4096, 50_000));
        assert_eq!((knobs.first_timeout, knobs.min_timeout, knobs.keepalive), (100 * MILLIS, MILLIS, 15 * SECONDS));
        assert_eq!((knobs.rnr_limit, knobs.target_delay, knobs.congestion), (None, 500 * MICROS, Congestion::Delay));
    }

    #[test]
    fn parameters_come_before_the_environment() {
        let env = |name: &str| match name {
            "DAPL_USNIC_ADDRESS" => Some("eth7".to_owned()),
            "DAPL_USNIC_PORT" => Some("99".to_owned()),
            _ => None,
        };
        let read = |params| Knobs::of(&TABLE.parse(params, &env));
        assert_eq!((read("").address.as_deref(), read("").port), (Some("eth7"), 99));
        let both = read("fe80::1%eth0 port=100 gso=off congestion=cubic rnr_retries=7");
        assert_eq!((both.address.as_deref(), both.port, both.gso), (Some("fe80::1%eth0"), 100, false));
        assert_eq!((both.congestion, both.rnr_limit), (Congestion::Cubic, Some(7)));
    }

    #[test]
    fn ports_are_a_range_or_one() {
        let ports = |text: &str| with(&format!("data_ports={text}")).data_ports;
        assert_eq!((ports("7000-7099"), ports("7000")), (Some(7000..=7099), Some(7000..=7000)));
        for bad in ["", "-", "0", "0-9", "9-8", "7000-", "-7000", "65536", "1-2-3", "a"] {
            assert_eq!(ports(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_floor_is_not_above_the_first_guess() {
        assert_eq!(with("first_timeout_ms=1 min_timeout_us=5000").min_timeout, MILLIS);
    }

    #[test]
    fn names_and_variables_go_together() {
        for knob in &KNOBS {
            assert_eq!(knob.variable, format!("{}_{}", TABLE.prefix, knob.name.to_uppercase()));
        }
    }

    #[test]
    fn the_readme_tells_of_all() {
        let readme = include_str!("../../../README.md");
        for knob in &KNOBS {
            let begin = format!("| `{}` | usnic: ", knob.variable);
            let row = readme.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row begins {begin:?}"));
            knob.facts().iter().for_each(|fact| {
                assert!(row.contains(fact.as_str()), "{fact:?} is not in {row:?}");
            });
        }
    }
}
