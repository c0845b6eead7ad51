//! The settings of sm: values of the settings table, from `ia_params` and the environment (`dapl_software::settings`).
//!
//! Some properties have no setting. Only processes of the user who owns the base directory may connect. Huge pages are
//! not used, because each segment of a connection is smaller than a huge page. The slot size of 128 bytes is part of
//! the protocol version. The number of slots and the sizes of buffers are constants, which each process sends to its
//! peer.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_software::settings::{SM, SettingValues, read};

use crate::proto::handshake::Geometry;

/// A method by which the kernel copies between processes, without participation of the target process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ByKernel {
    Knem,
    Cma,
}

/// The configured method of RDMA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RmaMethod {
    /// The first that works: mapped memory, KNEM, cross-memory attach, the bounce buffer.
    Auto,
    /// The first of these methods that works; if no method works, the bounce buffer.
    Order([Option<ByKernel>; 2]),
}

impl RmaMethod {
    /// Converts the names of the setting `rma`. Methods after the bounce buffer (`mmap`) are dropped, because the
    /// bounce buffer always works.
    fn of(words: &[&str]) -> Self {
        let kernels = words.iter().take_while(|word| **word != "mmap");
        let mut order = kernels.map(|word| if *word == "knem" { ByKernel::Knem } else { ByKernel::Cma });
        RmaMethod::Order([order.next(), order.next()])
    }

    /// Returns the kernel methods that may be used, the preferred one first.
    pub(crate) fn by_kernel(self) -> impl Iterator<Item = ByKernel> {
        let order = match self {
            RmaMethod::Auto => [Some(ByKernel::Knem), Some(ByKernel::Cma)],
            RmaMethod::Order(order) => order,
        };
        order.into_iter().flatten()
    }

    pub(crate) fn has(self, way: ByKernel) -> bool {
        self.by_kernel().any(|known| known == way)
    }
}

impl std::fmt::Display for RmaMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == RmaMethod::Auto {
            f.write_str("shared memory mapped where that is safe, ")?;
        }
        for way in self.by_kernel() {
            f.write_str(match way {
                ByKernel::Knem => "KNEM where its device exists, ",
                ByKernel::Cma => "cross-memory copy where it works, ",
            })?;
        }
        f.write_str(if self.by_kernel().next().is_some() { "else shared buffers" } else { "shared buffers" })
    }
}

/// The settings of one IA.
#[derive(Clone, Debug)]
pub(crate) struct SmSettings {
    /// Base directory; `None`: the default directory of this user under `/dev/shm`.
    pub(crate) base: Option<String>,
    pub(crate) rma: RmaMethod,
    /// Whether the length from which the kernel copies messages is measured at run time.
    pub(crate) calibrate: bool,
    /// Sizes of the local rings and buffers.
    pub(crate) geometry: Geometry,
    /// Longest time in nanoseconds that a waiting thread polls before it sleeps.
    pub(crate) spin: u32,
    /// Whether this process permits all processes of this user to copy from and to its memory (Yama).
    pub(crate) is_open: bool,
    /// Interval between heartbeats.
    pub(crate) alive: Duration,
    /// Time without activity after which a peer is given up.
    pub(crate) silence: Duration,
    /// Time for which a request is repeated if there is no listener.
    pub(crate) listener_wait: Duration,
}

impl SmSettings {
    /// Reads the settings from `ia_params` and the environment.
    pub(crate) fn read(params: &str) -> Self {
        #[cfg(test)]
        let (areas, params) = &tests::areas(params);
        let settings = Self::of(&read(&SM, params));
        #[cfg(test)]
        let settings = tests::hooked(settings, *areas);
        settings
    }

    fn of(given: &SettingValues<'_>) -> Self {
        let rma = given.order("rma").map_or(RmaMethod::Auto, |order| RmaMethod::of(&order));
        let silence = Duration::from_millis(given.number("give_up_ms"));
        SmSettings {
            base: given.text("dir").map(|(_, text)| text),
            rma,
            calibrate: rma == RmaMethod::Auto,
            geometry: Geometry::LOCAL,
            spin: given.number("spin_us") as u32 * 1000,
            is_open: given.word("cma") == "open",
            // The heartbeat interval is at most a quarter of the give-up time. Otherwise a peer with the same settings
            // would end the connection.
            alive: Duration::from_millis(given.number("keepalive_ms")).min(silence / 4),
            silence,
            listener_wait: Duration::from_millis(given.number("listener_wait_ms")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    /// Reads sizes of areas from `ia_params`: `slots=`, `message_buffer=`, `rma_buffer=`. Only tests set them.
    pub(super) fn areas(params: &str) -> (Geometry, String) {
        let (mut geometry, mut rest) = (Geometry::LOCAL, Vec::new());
        for word in params.split(' ') {
            let (name, number) = word.split_once('=').unwrap_or_default();
            match (name, number.parse()) {
                ("slots", Ok(slots)) => geometry.requests = slots,
                ("message_buffer", Ok(bytes)) => geometry.messages = bytes,
                ("rma_buffer", Ok(bytes)) => geometry.rma = bytes,
                _ => rest.push(word),
            }
        }
        assert!(geometry.is_valid(), "{params}");
        (geometry, rest.join(" "))
    }

    /// Sets the sizes of areas. Disables the measurement of copies if `DAPL_TEST_UNTIMED` is set, as in the second
    /// process of a test, because the measurement would pass fail points.
    pub(super) fn hooked(settings: SmSettings, geometry: Geometry) -> SmSettings {
        let calibrate = settings.calibrate && std::env::var_os("DAPL_TEST_UNTIMED").is_none();
        SmSettings { geometry, calibrate, ..settings }
    }

    impl SmSettings {
        fn from(params: &str, variable: &dyn Fn(&str) -> Option<String>) -> Self {
            Self::of(&dapl_software::settings::parse(&SM, params, variable))
        }
    }

    #[test]
    fn ia_params_override_the_environment() {
        let env = |name: &str| match name {
            "DAPL_DIR" => Some("/env".to_string()),
            "DAPL_SM_RMA" => Some("mmap".to_string()),
            _ => None,
        };
        let read = |params| SmSettings::from(params, &env);
        assert_eq!((read("").base.as_deref(), read("").rma), (Some("/env"), RmaMethod::Order([None, None])));
        let both = read("/params rma=auto");
        assert_eq!((both.base.as_deref(), both.rma), (Some("/params"), RmaMethod::Auto));
        assert_eq!(read("rma=auto /a=b").base.as_deref(), Some("/a=b"), "a path with '=' after a setting");
        assert_eq!(read("dir=/named").base.as_deref(), Some("/named"));
    }

    #[test]
    fn settings_without_parameters_have_the_default_values() {
        let settings = SmSettings::from("", &none);
        assert_eq!((settings.base, settings.rma, settings.is_open), (None, RmaMethod::Auto, false));
        assert_eq!((settings.calibrate, settings.spin, settings.listener_wait.as_millis()), (true, 150_000, 50));
        assert_eq!((settings.alive.as_millis(), settings.silence.as_millis()), (5_000, 60_000));
    }

    #[test]
    fn invalid_sm_settings_are_replaced_by_defaults() {
        let bad = SmSettings::from("", &|name| (name != "DAPL_DIR").then(|| "12x".to_string()));
        assert_eq!((bad.rma, bad.is_open, bad.spin), (RmaMethod::Auto, false, 150_000));
        assert_eq!((bad.alive.as_millis(), bad.silence.as_millis()), (5_000, 60_000));
        let set = SmSettings::from("cma=open keepalive_ms=3600001 give_up_ms=999 nonsense=1 a b c", &none);
        assert_eq!((set.is_open, set.alive.as_millis(), set.silence.as_millis()), (true, 5_000, 60_000));
    }

    #[test]
    fn rma_order_is_parsed_and_invalid_lists_mean_auto() {
        use ByKernel::{Cma, Knem};
        let order = |text: &str| SmSettings::from(&format!("rma={text}"), &none).rma;
        assert_eq!(order("auto").by_kernel().collect::<Vec<_>>(), [Knem, Cma]);
        for (text, ways) in [
            ("knem,cma,mmap", [Some(Knem), Some(Cma)]),
            ("cma,knem", [Some(Cma), Some(Knem)]),
            ("cma", [Some(Cma), None]),
            ("cma,mmap,knem", [Some(Cma), None]),
            ("mmap", [None, None]),
        ] {
            assert_eq!(order(text), RmaMethod::Order(ways), "{text}");
        }
        for bad in ["", ",", "cma,", "cma,cma", "fast", "auto,cma", "CMA"] {
            assert_eq!(order(bad), RmaMethod::Auto, "{bad}");
        }
        assert!(order("cma").has(Cma) && !order("cma").has(Knem) && !order("mmap,cma").has(Cma));
        assert_eq!(order("mmap").to_string(), "shared buffers");
        assert_eq!(order("cma").to_string(), "cross-memory copy where it works, else shared buffers");
        assert!(!SmSettings::from("rma=cma", &none).calibrate, "a configured order needs no measurement");
    }

    #[test]
    fn default_geometry_is_valid_and_smaller_than_a_huge_page() {
        assert!(Geometry::LOCAL.is_valid() && Geometry::LOCAL.area_len() < 2 << 20);
    }

    #[test]
    fn heartbeat_interval_is_at_most_a_quarter_of_the_give_up_time() {
        assert_eq!(SmSettings::from("give_up_ms=1000", &none).alive.as_millis(), 250);
        assert_eq!(SmSettings::from("give_up_ms=1000 keepalive_ms=100", &none).alive.as_millis(), 100);
    }

    #[test]
    fn unknown_sm_variables_are_reported() {
        let names = ["DAPL_SM_RMA", "DAPL_SM_DIRECTORY", "DAPL_SMALL", "DAPL_SM_CMA"].map(String::from);
        assert_eq!(SM.unknown(names.into_iter()).collect::<Vec<_>>(), ["DAPL_SM_DIRECTORY"]);
    }

    #[test]
    fn settings_page_lists_every_setting() {
        let page = include_str!("../../../docs/settings.md");
        for setting in SM.settings {
            let begin = format!("| `{}` | ", setting.variable);
            let row = page.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row begins {begin:?}"));
            assert!(row.contains("sm"), "{row:?}");
            setting.documented_texts().iter().for_each(|text| {
                assert!(row.contains(text.as_str()), "{text:?} is not in {row:?}");
            });
        }
    }
}
