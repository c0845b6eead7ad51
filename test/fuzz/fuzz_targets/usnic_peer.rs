//! Any bytes as what happens to a connection. The property stands in the provider, whose tests replay the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| daplusnic::fuzz::peer(script));
