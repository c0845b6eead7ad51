//! Registered memory of this process, and access to registered memory of peers.

pub(crate) mod backing;
pub(crate) mod calibration;
pub(crate) mod cma;
pub(crate) mod exchange;
pub(crate) mod imports;
pub(crate) mod kernel_copy;
pub(crate) mod knem;
#[cfg(not(loom))]
pub(crate) mod map;
#[cfg(loom)]
#[path = "map/fake.rs"]
pub(crate) mod map;
pub(crate) mod mapped;
pub(crate) mod regions;
pub(crate) mod window;
