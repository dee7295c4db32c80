//! doorpost's guest: boots on a virtual machine, drives NVMe queues, and reports how their interrupts arrive.
//!
//! | module | what it does |
//! |---|---|
//! | `arch` | everything that differs from one CPU architecture to the next, behind one facade |
//! | `machine` | the machine as it was found at boot |
//! | `heap`, `console`, `fatal` | memory, text, and the end of a guest that cannot go on |
//! | `cpu`, `interrupts` | what each CPU keeps and counts, and what happens in an interrupt |
//! | `discover` | NVMe controllers on PCI |
//! | `run` | a run, from the job to the report |
//! | `engine` | the loop in which a CPU runs its jobs |
//! | `skew`, `progress` | clocks that agree, lines each second |
//! | `summary`, `outbox` | text for whoever watches, frames for the host |
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
#[macro_use]
mod console;
mod cpu;
mod discover;
mod engine;
mod fatal;
mod heap;
mod interrupts;
mod machine;
mod outbox;
mod progress;
mod run;
mod skew;
mod summary;

use alloc::string::ToString;

use machine::{ExitStatus, Machine};
use workload::frame::Frame;
use workload::job::JobSet;
use workload::report::{Failure, FailureKind};

/// The first CPU comes here from `arch`, with interrupts off and the machine described.
fn main(machine: Machine) -> ! {
    outbox::hello();
    let status = match work(&machine) {
        Ok(()) => ExitStatus::Done,
        Err(failure) => {
            println!("doorpost: {}", failure.message);
            let status = match failure.kind {
                FailureKind::Usage => ExitStatus::Usage,
                FailureKind::Run => ExitStatus::Failed,
            };
            outbox::send(&Frame::Failure(failure));
            status
        }
    };
    arch::exit(status)
}

fn work(machine: &Machine) -> Result<(), Failure> {
    let usage = |message| Failure {
        kind: FailureKind::Usage,
        message,
    };
    // A job too long for boot arguments comes as a file beside the guest, in the same words.
    let words = match machine.payload {
        Some(file) => core::str::from_utf8(file).map_err(|_| usage("the job file (initrd) is not text".to_string()))?,
        None => machine.arguments,
    };
    let set = JobSet::from_arguments(words).map_err(|error| usage(error.to_string()))?;
    println!(
        "doorpost {}: {} CPUs, {} MiB, {}",
        env!("CARGO_PKG_VERSION"),
        machine.cpus.len(),
        machine.memory_bytes >> 20,
        set.to_arguments()
    );
    cpu::init(machine.cpus.len());
    arch::start_cpus(machine, machine.cpus.len(), cpu::serve).map_err(engine::run_failure)?;
    arch::interrupts_on();
    run::run(machine, &set)
}
