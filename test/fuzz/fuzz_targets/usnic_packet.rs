//! Fuzzes usnic's datagram parser with arbitrary bytes. The checks are in the provider (`src/tests/fuzz.rs`), whose
//! tests replay the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| daplusnic::fuzz::packet(bytes));
