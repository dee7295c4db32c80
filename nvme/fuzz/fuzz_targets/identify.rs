#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvme_fuzz::identify(bytes));
