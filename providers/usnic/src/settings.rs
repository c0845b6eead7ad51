//! What an administrator can set: what the settings of `dat_knobs`' table mean here.
//!
//! How they are read, from `ia_params` and the environment, is in `dapl_software::settings`.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use dapl_software::base_dir::{BaseDir, Kind};
use dapl_software::settings::{Given, USNIC, read};

use crate::proto::{MICROS, MILLIS, Nanos};

/// Where processes find each other's listeners and names of shared memory.
const BASE_DIR: Kind = Kind { provider: "usnic", variable: "DAPL_USNIC_DIR", default: "/dev/shm/dapl-usnic" };

/// Congestion control.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Congestion {
    Bbr,
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
    /// 0: never.
    pub(crate) keepalive: Nanos,
    pub(crate) connect_give_up: Nanos,
    /// How long a request is retried that finds no listener.
    pub(crate) listener_wait: Nanos,
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
        Self::of(&read(&USNIC, params))
    }

    /// The base directory that `dir` names, or this user's own.
    pub(crate) fn base_dir(&self) -> BaseDir {
        BaseDir::new(&BASE_DIR, self.dir.as_deref())
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
            congestion: if given.word("congestion") == "cubic" { Congestion::Cubic } else { Congestion::Bbr },
            keepalive: given.number("keepalive_ms") * MILLIS,
            connect_give_up: given.number("connect_give_up_ms") * MILLIS,
            listener_wait: given.number("listener_wait_ms") * MILLIS,
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
    use dapl_software::settings::parse;

    use super::*;
    use crate::proto::{SECONDS, WINDOW};

    fn with(params: &str) -> Knobs {
        Knobs::of(&parse(&USNIC, params, &|_| None))
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let knobs = with("");
        assert_eq!((knobs.address, knobs.port, knobs.data_ports), (None, 17_471, None));
        assert_eq!((knobs.gso, knobs.gro, knobs.checked, knobs.always_cookies), (true, true, false, false));
        assert_eq!((knobs.tiny, knobs.window, knobs.ack_delay), (768, WINDOW, 50_000));
        assert_eq!((knobs.first_timeout, knobs.min_timeout, knobs.keepalive), (100 * MILLIS, MILLIS, 15 * SECONDS));
        assert_eq!((knobs.rnr_limit, knobs.congestion), (None, Congestion::Bbr));
    }

    #[test]
    fn parameters_come_before_the_environment() {
        let env = |name: &str| match name {
            "DAPL_USNIC_ADDRESS" => Some("eth7".to_owned()),
            "DAPL_USNIC_PORT" => Some("99".to_owned()),
            _ => None,
        };
        let read = |params| Knobs::of(&parse(&USNIC, params, &env));
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
        for knob in USNIC.knobs {
            assert_eq!(knob.variable, format!("{}_{}", USNIC.prefix, knob.name.to_uppercase()));
        }
    }

    #[test]
    fn the_readme_tells_of_all() {
        let readme = include_str!("../../../README.md");
        for knob in USNIC.knobs {
            let begin = format!("| `{}` | usnic: ", knob.variable);
            let row = readme.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row begins {begin:?}"));
            knob.facts().iter().for_each(|fact| {
                assert!(row.contains(fact.as_str()), "{fact:?} is not in {row:?}");
            });
        }
    }
}
