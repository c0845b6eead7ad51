//! Changes of a dat.conf.
#![forbid(unsafe_code)]

#[allow(dead_code)]
mod file;
#[allow(dead_code)]
mod text;
