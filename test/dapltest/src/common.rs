//! Options that all tests have.
#![forbid(unsafe_code)]

use std::time::Duration;

use dat_abi::DAT_QOS;

/// Options of all tests.
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
