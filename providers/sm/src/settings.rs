//! What an administrator can set: what the settings of `dat_knobs`' table mean here.
//!
//! How they are read, from `ia_params` and the environment, is in `dapl_software::settings`.
//!
//! Not here, on purpose: who may connect, since the base directory is of one user and closed to others, and a list of others
//! would have to open it to them; huge pages, since no area is as large as one, whatever is set; the size of a slot, 128 bytes,
//! since both sides must have the same and it is part of the protocol's version. Each side makes its rings and buffers as its
//! own settings say, and tells the other.
#![forbid(unsafe_code)]

use std::time::Duration;

use dapl_software::settings::{Given, SM, read};

use crate::proto::handshake::Geometry;

/// A way in which the kernel moves bytes, without the target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ByKernel {
    Knem,
    Cma,
}

/// How RDMA moves bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RmaMethod {
    /// Whatever is fastest of what is seen to work.
    Auto,
    /// The first of these that is seen to work, else shared buffers.
    Order([Option<ByKernel>; 2]),
}

impl RmaMethod {
    /// What comes behind shared buffers is never used: they always work.
    fn of(words: &[&str]) -> Self {
        let kernels = words.iter().take_while(|word| **word != "mmap");
        let mut order = kernels.map(|word| if *word == "knem" { ByKernel::Knem } else { ByKernel::Cma });
        RmaMethod::Order([order.next(), order.next()])
    }

    /// The kernel's ways that may be used, the best first.
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
                ByKernel::Knem => "KNEM where it is there, ",
                ByKernel::Cma => "cross-memory copy where it works, ",
            })?;
        }
        f.write_str(if self.by_kernel().next().is_some() { "else shared buffers" } else { "shared buffers" })
    }
}

/// The settings of one IA, as the table has them.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// `None`: one of this user's under `/dev/shm`.
    pub(crate) base: Option<String>,
    pub(crate) first_id: Option<u32>,
    /// In the names of end points, instead of the process's own.
    pub(crate) pid: Option<u32>,
    pub(crate) rma: RmaMethod,
    /// Copies are to be timed.
    pub(crate) calibrate: bool,
    /// Of this side's areas.
    pub(crate) geometry: Geometry,
    /// Nanoseconds that a wait may look before it sleeps.
    pub(crate) spin: u32,
    /// Opened to the user's other processes.
    pub(crate) is_open: bool,
    pub(crate) max_message: u64,
    pub(crate) alive: Duration,
    pub(crate) silence: Duration,
    /// How long a request is retried that finds no listener.
    pub(crate) listener_wait: Duration,
}

impl Knobs {
    /// From `ia_params` and the environment.
    pub(crate) fn read(params: &str) -> Self {
        Self::of(&read(&SM, params))
    }

    fn of(given: &Given<'_>) -> Self {
        let rma = given.order("rma").map_or(RmaMethod::Auto, |order| RmaMethod::of(&order));
        let silence = Duration::from_millis(given.number("silence_ms"));
        Knobs {
            base: given.text("dir").map(|(_, text)| text),
            first_id: given.text("first_id").map(|_| given.number("first_id") as u32),
            pid: Some(given.number("pid") as u32).filter(|pid| *pid != 0),
            rma,
            calibrate: rma == RmaMethod::Auto && given.word("calibrate") == "on",
            geometry: geometry(given),
            spin: given.number("spin_us") as u32 * 1000,
            is_open: given.word("cma") == "open",
            max_message: given.number("max_message"),
            // Who is rarely heard would be taken for dead by a peer of the same settings.
            alive: Duration::from_millis(given.number("alive_ms")).min(silence / 4),
            silence,
            listener_wait: Duration::from_millis(given.number("listener_wait_ms")),
        }
    }
}

fn geometry(given: &Given<'_>) -> Geometry {
    let bytes = |name| given.number(name) as u32 & !63;
    let requests = (given.number("slots") as u32).next_power_of_two();
    Geometry { requests, messages: bytes("message_buffer"), rma: bytes("rma_buffer"), ..Geometry::OURS }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    impl Knobs {
        fn from(params: &str, variable: &dyn Fn(&str) -> Option<String>) -> Self {
            Self::of(&dapl_software::settings::parse(&SM, params, variable))
        }
    }

    #[test]
    fn parameters_come_before_the_environment() {
        let env = |name: &str| match name {
            "DAPL_SM_DIR" => Some("/env".to_string()),
            "DAPL_SM_RMA" => Some("mmap".to_string()),
            _ => None,
        };
        let read = |params| Knobs::from(params, &env);
        assert_eq!((read("").base.as_deref(), read("").rma), (Some("/env"), RmaMethod::Order([None, None])));
        let both = read("/params 7 rma=auto");
        assert_eq!((both.base.as_deref(), both.first_id, both.rma), (Some("/params"), Some(7), RmaMethod::Auto));
        assert_eq!(read("rma=auto /a=b").base.as_deref(), Some("/a=b"), "words of both kinds, in any order");
        assert_eq!(read("dir=/named").base.as_deref(), Some("/named"));
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let knobs = Knobs::from("", &none);
        assert_eq!((knobs.base, knobs.first_id, knobs.rma, knobs.is_open), (None, None, RmaMethod::Auto, false));
        assert_eq!((knobs.pid, knobs.calibrate, knobs.spin, knobs.geometry), (None, true, 150_000, Geometry::OURS));
        assert_eq!((knobs.max_message, knobs.alive.as_millis(), knobs.silence.as_millis()), (1 << 31, 5_000, 60_000));
        assert_eq!(knobs.listener_wait.as_millis(), 50);
    }

    #[test]
    fn bad_values_fall_back() {
        let bad = Knobs::from("", &|name| (name != "DAPL_SM_DIR").then(|| "12x".to_string()));
        assert_eq!((bad.rma, bad.is_open, bad.first_id), (RmaMethod::Auto, false, Some(1)));
        assert_eq!((bad.pid, bad.calibrate, bad.spin, bad.geometry), (None, true, 150_000, Geometry::OURS));
        assert_eq!((bad.max_message, bad.alive.as_millis(), bad.silence.as_millis()), (1 << 31, 5_000, 60_000));
        let set = Knobs::from("cma=open max_message=65536 alive_ms=3600001 silence_ms=999 nonsense=1 a b c", &none);
        assert_eq!((set.is_open, set.max_message, set.alive.as_millis()), (true, 65_536, 5_000));
    }

    #[test]
    fn rma_has_an_order() {
        use ByKernel::{Cma, Knem};
        let order = |text: &str| Knobs::from(&format!("rma={text}"), &none).rma;
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
        assert!(!Knobs::from("rma=cma calibrate=on", &none).calibrate, "an order leaves nothing to choose");
        assert!(!Knobs::from("calibrate=off", &none).calibrate);
    }

    #[test]
    fn areas_are_sane_and_smaller_than_a_huge_page_whatever_is_set() {
        let of = |slots: u64, messages: u64, rma: u64| {
            let text = format!("slots={slots} message_buffer={messages} rma_buffer={rma}");
            Knobs::from(&text, &none).geometry
        };
        for slots in [8, 9, 255, 256, 257, 4095, 4096] {
            for messages in [32_768, 32_769, 100_000, 1 << 20] {
                for rma in [65_536, 65_599, 1 << 20] {
                    let geometry = of(slots, messages, rma);
                    assert!(geometry.is_sane() && geometry.area_len() < 2 << 20, "{geometry:?}");
                    assert!(u64::from(geometry.requests) >= slots && u64::from(geometry.messages) <= messages);
                }
            }
        }
        assert_eq!(of(7, 32_767, 65_535), Geometry::OURS, "too small");
        assert_eq!(of(4097, (1 << 20) + 1, (1 << 20) + 1), Geometry::OURS, "too large");
    }

    #[test]
    fn signs_of_life_come_sooner_than_death() {
        assert_eq!(Knobs::from("silence_ms=1000", &none).alive.as_millis(), 250);
        assert_eq!(Knobs::from("silence_ms=1000 alive_ms=100", &none).alive.as_millis(), 100);
    }

    #[test]
    fn misspelt_variables_are_found() {
        let names = ["DAPL_SM_DIR", "DAPL_SM_DIRECTORY", "DAPL_SMALL", "DAPL_SM_MAX_MESSAGE"].map(String::from);
        assert_eq!(SM.unknown(names.into_iter()).collect::<Vec<_>>(), ["DAPL_SM_DIRECTORY"]);
    }

    #[test]
    fn the_readme_tells_of_all() {
        let readme = include_str!("../../../README.md");
        for knob in SM.knobs {
            let begin = format!("| `{}` | sm: ", knob.variable);
            let row = readme.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row begins {begin:?}"));
            knob.facts().iter().for_each(|fact| {
                assert!(row.contains(fact.as_str()), "{fact:?} is not in {row:?}");
            });
        }
    }
}
