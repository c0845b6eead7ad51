//! The names and numbers of DAT.
#![forbid(unsafe_code)]

pub(crate) mod table;
