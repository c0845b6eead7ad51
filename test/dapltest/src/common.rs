//! Options that every test accepts. Some tests do not use all of them.
#![forbid(unsafe_code)]

use std::time::Duration;

use dat_abi::DAT_QOS;

/// Values of the options that every test accepts.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) device: String,
    pub(crate) port: u64,
    pub(crate) debug: u8,
    pub(crate) qos: DAT_QOS,
    pub(crate) limit: Duration,
    pub(crate) greeting: Duration,
    pub(crate) tries: u32,
    pub(crate) is_json: bool,
}

#[cfg(test)]
impl Common {
    /// Default options for unit tests.
    pub(crate) fn of_test(is_json: bool) -> Self {
        let (limit, greeting) = (Duration::from_secs(30), Duration::from_secs(10));
        Common { device: "sm0".to_owned(), port: 1, debug: 0, qos: 0, limit, greeting, tries: 1, is_json }
    }
}
