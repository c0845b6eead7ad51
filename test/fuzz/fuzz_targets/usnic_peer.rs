//! Fuzzes a usnic connection with a sequence of events decoded from arbitrary bytes. The checks are in the provider
//! (`src/tests/fuzz.rs`), whose tests replay the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| daplusnic::fuzz::peer(script));
