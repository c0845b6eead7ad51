//! The table of registered memory and bound memory windows.

pub(crate) mod regions;
