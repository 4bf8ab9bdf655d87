#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cnimble_fuzz_targets::nodes(bytes));
