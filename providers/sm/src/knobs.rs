//! What an administrator can set: one table of names, ranges and defaults, per IA (`ia_params`) and by environment.
//!
//! A bad value is reported with its name, text and range, and the default is used. A set-uid program ignores the
//! environment where it names files.
#![forbid(unsafe_code)]

use std::time::Duration;

/// How RDMA moves bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RmaMethod {
    /// Cross-memory copy where it is seen to work, else shared buffers.
    Auto,
    /// Shared buffers always.
    Mmap,
}

/// The settings of one IA.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// `ia_params` first word, or `DAPL_SM_DIR`: base directory. Default: one of this user's under `/dev/shm`.
    pub(crate) base: Option<String>,
    /// `ia_params` second word: number of the process's first end point. Default: 1.
    pub(crate) first_id: Option<u32>,
    /// `DAPL_SM_RMA`: `auto` or `mmap`. Default: `auto`.
    pub(crate) rma: RmaMethod,
    /// `DAPL_SM_ALIVE_MS`: time between signs of life, 100 to 3,600,000 milliseconds. Default: 5,000.
    pub(crate) alive: Duration,
    /// `DAPL_SM_SILENCE_MS`: after so long without one a peer is dead, 1,000 to 86,400,000 ms. Default: 60,000.
    pub(crate) silence: Duration,
}

impl Knobs {
    /// From `ia_params` and the environment.
    pub(crate) fn read(params: &str) -> Self {
        Self::from(params, dapl::debug::secure_variable)
    }

    fn from(params: &str, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut words = params.split_ascii_whitespace();
        let base = words.next().map(String::from).or_else(|| variable("DAPL_SM_DIR"));
        let first_id =
            words.next().and_then(|text| bounded("second word of ia_params", text, 1, 65_535)).map(|n| n as u32);
        let rma = match variable("DAPL_SM_RMA").as_deref() {
            None | Some("auto") => RmaMethod::Auto,
            Some("mmap") => RmaMethod::Mmap,
            Some(other) => {
                log::warn!("DAPL_SM_RMA=\"{other}\" is not \"auto\" or \"mmap\"; using \"auto\"");
                RmaMethod::Auto
            }
        };
        let time = |name: &str, low, high, default| {
            let value = variable(name).and_then(|text| bounded(name, &text, low, high)).unwrap_or(default);
            Duration::from_millis(value)
        };
        Knobs {
            base,
            first_id,
            rma,
            alive: time("DAPL_SM_ALIVE_MS", 100, 3_600_000, 5_000),
            silence: time("DAPL_SM_SILENCE_MS", 1_000, 86_400_000, 60_000),
        }
    }
}

fn bounded(name: &str, text: &str, low: u64, high: u64) -> Option<u64> {
    let value = text.parse().ok().filter(|value| (low..=high).contains(value));
    if value.is_none() {
        log::warn!("{name}: \"{text}\" is not a number from {low} to {high}; using the default");
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_before_the_environment() {
        let env = |name: &str| (name == "DAPL_SM_DIR").then(|| "/env".to_string());
        assert_eq!(Knobs::from("", env).base.as_deref(), Some("/env"));
        let both = Knobs::from("/params 7", env);
        assert_eq!((both.base.as_deref(), both.first_id), (Some("/params"), Some(7)));
        assert_eq!(Knobs::from("/params x", |_| None).first_id, None);
    }

    #[test]
    fn bad_values_fall_back() {
        let bad = Knobs::from("", |name| (name != "DAPL_SM_DIR").then(|| "12x".to_string()));
        assert_eq!((bad.rma, bad.alive.as_millis(), bad.silence.as_millis()), (RmaMethod::Auto, 5_000, 60_000));
        let mmap = Knobs::from("", |name| (name == "DAPL_SM_RMA").then(|| "mmap".to_string()));
        assert_eq!(mmap.rma, RmaMethod::Mmap);
    }
}
