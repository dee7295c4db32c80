//! The fuzz targets on stable Rust, bounded: their corpus, and inputs from seeds. A failure names the seed or the file.

#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use nvme_emulator::Random;

fn smoke(name: &str, target: fn(&[u8]), inputs: u64) {
    let run = |what: &dyn std::fmt::Display, bytes: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(bytes))) {
            eprintln!("fuzz target {name} failed with {what}: {bytes:02x?}");
            resume_unwind(panic);
        }
    };
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus in {}", corpus.display());
    let files: Vec<_> = files.into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect();
    for (bytes, file) in &files {
        run(&file.display(), bytes);
    }
    for seed in 0..inputs {
        let mut random = Random::new(seed);
        // Bytes of the corpus with some changed get further than any bytes do.
        let mut bytes = files[random.below(files.len() as u64) as usize].0.clone();
        if seed & 1 == 0 {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let more = random.below(256);
            bytes.extend((0..more).map(|_| random.next() as u8));
        } else if !bytes.is_empty() {
            for _ in 0..=random.below(8) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
        }
        run(&format_args!("seed {seed}"), &bytes);
    }
}

#[test]
fn the_driver_survives_any_device() {
    smoke("driver", fuzz::driver, 500);
}

#[test]
fn the_emulator_survives_any_driver() {
    smoke("emulator", fuzz::emulator, 3_000);
}

#[test]
fn the_driver_survives_any_identify_data() {
    smoke("identify", fuzz::identify, 300);
}
