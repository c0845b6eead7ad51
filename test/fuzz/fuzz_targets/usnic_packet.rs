//! Any bytes as a datagram. The property is in the provider, whose tests replay the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| daplusnic::fuzz::packet(bytes));
