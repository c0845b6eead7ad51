//! The parsed settings of this provider.
//!
//! `dapl_software::settings` reads them from `ia_params` and the environment, by the settings table of usnic
//! (`dat_settings::USNIC`). datinfo and the documentation list the settings from the same table.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use dapl_software::base_dir::{BaseDir, BaseDirKind};
use dapl_software::settings::{SettingValues, USNIC, read};

use crate::proto::congestion::Algorithm;
use crate::proto::{MILLIS, Nanos};

/// The base directory contains the listeners of this user's processes and the names of shared memory.
const BASE_DIR: BaseDirKind = BaseDirKind { provider: "usnic", variable: "DAPL_DIR", default: "/dev/shm/dapl-usnic" };

/// The value of `rnr_retry` that means an unlimited number of retries, as in ibv_modify_qp(3).
const RETRY_FOREVER: u32 = 7;

#[derive(Clone, Debug)]
pub(crate) struct UsnicSettings {
    /// Name or address of the network interface. `None` selects an interface that is up, if possible not loopback.
    pub(crate) address: Option<String>,
    /// Path of the base directory. `None` selects a directory of this user under `/dev/shm`.
    pub(crate) dir: Option<String>,
    pub(crate) port: u16,
    /// Range from which the data socket takes its UDP port. `None` lets the kernel select a port.
    pub(crate) data_ports: Option<RangeInclusive<u16>>,
    /// Size of the data socket's receive buffer in bytes. The send buffer has half this size.
    pub(crate) buffer: usize,
    pub(crate) mtu_ceiling: usize,
    pub(crate) give_up: Nanos,
    /// Maximum number of RNR retries. `None` means no limit.
    pub(crate) rnr_limit: Option<u32>,
    pub(crate) congestion: Algorithm,
    pub(crate) keepalive: Nanos,
    /// Time in nanoseconds for which a request is repeated if the peer has no listener.
    pub(crate) listener_wait: Nanos,
    pub(crate) key_file: Option<String>,
    /// Maximum time in nanoseconds for which a waiting thread polls before it sleeps.
    pub(crate) spin: u32,
}

impl UsnicSettings {
    /// Reads the settings from `ia_params` and the environment.
    pub(crate) fn read(params: &str) -> Self {
        Self::of(&read(&USNIC, params))
    }

    /// Returns the base directory at the path `dir`, or this user's default directory.
    pub(crate) fn base_dir(&self) -> BaseDir {
        BaseDir::new(&BASE_DIR, self.dir.as_deref())
    }

    fn of(given: &SettingValues<'_>) -> Self {
        let small = |name| given.number(name) as u32;
        let text = |name| given.text(name).map(|(_, text)| text);
        UsnicSettings {
            address: text("address"),
            dir: text("dir"),
            port: given.number("port") as u16,
            data_ports: data_ports(given),
            buffer: given.number("buffer") as usize,
            mtu_ceiling: given.number("mtu") as usize,
            give_up: given.number("give_up_ms") * MILLIS,
            rnr_limit: Some(small("rnr_retry")).filter(|limit| *limit != RETRY_FOREVER),
            congestion: if given.word("congestion") == "cubic" { Algorithm::Cubic } else { Algorithm::Bbr },
            keepalive: given.number("keepalive_ms") * MILLIS,
            listener_wait: given.number("listener_wait_ms") * MILLIS,
            key_file: text("key"),
            spin: small("spin_us") * 1_000,
        }
    }
}

/// Parses a port, or a range of two ports with `-` between them.
fn data_ports(given: &SettingValues<'_>) -> Option<RangeInclusive<u16>> {
    let (place, text) = given.text("data_ports")?;
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
    let ports = port(first).zip(port(last)).filter(|(first, last)| first <= last);
    if ports.is_none() {
        log::warn!(
            "{place}: \"{text}\" is neither a port from 1 to 65535 nor a range such as 7000-7099; using any free port, \
            the default"
        );
    }
    ports.map(|(first, last)| first..=last)
}

#[cfg(test)]
mod tests {
    use dapl_software::settings::parse;

    use super::*;
    use crate::proto::SECONDS;

    fn with(params: &str) -> UsnicSettings {
        UsnicSettings::of(&parse(&USNIC, params, &|_| None))
    }

    #[test]
    fn settings_without_parameters_have_the_default_values() {
        let settings = with("");
        assert_eq!((settings.address, settings.port, settings.data_ports), (None, 17_471, None));
        assert_eq!((settings.give_up, settings.keepalive), (10 * SECONDS, 15 * SECONDS));
        assert_eq!((settings.rnr_limit, settings.congestion), (None, Algorithm::Bbr));
    }

    #[test]
    fn usnic_ia_params_override_the_environment() {
        let env = |name: &str| match name {
            "DAPL_DIR" => Some("/env".to_owned()),
            "DAPL_USNIC_PORT" => Some("99".to_owned()),
            _ => None,
        };
        let read = |params| UsnicSettings::of(&parse(&USNIC, params, &env));
        assert_eq!((read("").dir.as_deref(), read("").port), (Some("/env"), 99));
        let both = read("fe80::1%eth0 port=100 mtu=1400 congestion=cubic rnr_retry=6");
        assert_eq!((both.address.as_deref(), both.port, both.mtu_ceiling), (Some("fe80::1%eth0"), 100, 1400));
        assert_eq!((both.congestion, both.rnr_limit), (Algorithm::Cubic, Some(6)));
    }

    #[test]
    fn data_ports_is_one_port_or_a_range() {
        let ports = |text: &str| with(&format!("data_ports={text}")).data_ports;
        assert_eq!((ports("7000-7099"), ports("7000")), (Some(7000..=7099), Some(7000..=7000)));
        for bad in ["", "-", "0", "0-9", "9-8", "7000-", "-7000", "65536", "1-2-3", "a"] {
            assert_eq!(ports(bad), None, "data_ports={bad} is invalid and must be ignored");
        }
    }

    #[test]
    fn setting_names_match_their_variables() {
        for setting in USNIC.settings.iter().filter(|setting| !setting.variable.is_empty()) {
            let name = setting.name.to_uppercase();
            assert!([format!("DAPL_USNIC_{name}"), format!("DAPL_{name}")].contains(&setting.variable.to_owned()));
        }
    }

    #[test]
    fn settings_page_lists_every_setting() {
        let page = include_str!("../../../docs/settings.md");
        for setting in USNIC.settings.iter().filter(|setting| !setting.variable.is_empty()) {
            let begin = format!("| `{}` | ", setting.variable);
            let row = page.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("docs/settings.md has no row that begins with {begin:?}"));
            assert!(row.contains("usnic"), "the row does not name the provider usnic: {row:?}");
            setting.documented_texts().iter().for_each(|text| {
                assert!(row.contains(text.as_str()), "{text:?} is not in {row:?}");
            });
        }
    }
}
