//! Any bytes as a sequence of events of a connection. The property is in the provider, whose tests replay the corpus.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| daplusnic::fuzz::peer(script));
