//! Fuzzes the dat.conf parser with arbitrary bytes.
#![no_main]

#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|text: &[u8]| properties::conf(text));
