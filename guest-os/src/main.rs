//! doorpost's guest: boots on a virtual CPU, drives NVMe queues, reports how their interrupts arrive.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod console;
mod fatal;
mod heap;
mod machine;

/// What the architecture calls in an interrupt.
mod interrupts {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use crate::arch::Trap;

    pub static DEVICE: AtomicU64 = AtomicU64::new(0);
    pub static TICKS: AtomicU64 = AtomicU64::new(0);
    pub static WAKES: AtomicU64 = AtomicU64::new(0);
    pub static UNEXPECTED: AtomicU64 = AtomicU64::new(0);

    #[inline(always)]
    pub fn on_device(_slot: usize) {
        DEVICE.fetch_add(1, Relaxed);
    }
    pub fn on_tick(_at: &Trap) {
        TICKS.fetch_add(1, Relaxed);
    }
    pub fn on_wake() {
        WAKES.fetch_add(1, Relaxed);
    }
    pub fn on_unexpected(_vector: u32) {
        UNEXPECTED.fetch_add(1, Relaxed);
    }
}

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use hal::clock::Clock;
use hal::mmio::Mmio;

static AWAKE: AtomicUsize = AtomicUsize::new(0);

fn serve(cpu: usize) -> ! {
    loop {
        arch::halt();
        if cpu == 1 && interrupts::DEVICE.load(Ordering::Relaxed) == 77 {
            panic!("never");
        }
        AWAKE.fetch_add(1, Ordering::SeqCst);
    }
}

/// The guest's own program, on the first CPU.
pub fn main(machine: machine::Machine) -> ! {
    arch::mark();
    println!(
        "memory {} cpus {} args {:?} payload {:?} hypervisor {} clock {} Hz ({}) invariant {}",
        machine.memory_bytes,
        machine.cpus.len(),
        machine.arguments,
        machine.payload.map(|p| (p.as_ptr(), p.len())),
        machine.hypervisor,
        machine.clock_hertz,
        machine.clock_source,
        machine.clock_invariant
    );
    let count = machine.cpus.len();
    let begin = arch::ticks();
    if let Err(why) = arch::start_cpus(&machine, count, serve) {
        println!("{why}");
        arch::exit(machine::ExitStatus::Failed);
    }
    let us = |t| hal::clock::TickRate::from_hertz(machine.clock_hertz).nanoseconds(t) / 1000;
    println!("cpus started in {} us", us(arch::ticks() - begin));
    arch::mark();
    for host in &machine.pci {
        println!(
            "pci segment {} buses {:?} window32 {:x?} window64 {:x?} first function {:08x}",
            host.segment,
            host.buses,
            host.window32,
            host.window64,
            host.ecam.read32(0)
        );
    }
    for cpu in 0..count {
        arch::wake(cpu);
    }
    let end = arch::MachineClock.deadline(Duration::from_secs(2));
    while AWAKE.load(Ordering::SeqCst) < count - 1 && arch::ticks() < end {
        core::hint::spin_loop();
    }
    arch::start_tick(Duration::from_millis(10));
    let begin = arch::ticks();
    while interrupts::TICKS.load(Ordering::SeqCst) < 5 {
        arch::halt();
    }
    println!("5 ticks of 10 ms in {} us", us(arch::ticks() - begin));
    arch::stop_tick();
    println!(
        "awake {} wakes {} ticks {} unexpected {}",
        AWAKE.load(Ordering::SeqCst),
        interrupts::WAKES.load(Ordering::SeqCst),
        interrupts::TICKS.load(Ordering::SeqCst),
        interrupts::UNEXPECTED.load(Ordering::SeqCst)
    );
    let big = alloc::vec![1u8; (machine.memory_bytes / 2).min(64 << 20) as usize];
    println!("{:p} {}; message {:x?}", big.as_ptr(), big.len(), arch::message(count - 1, 3));
    arch::exit(machine::ExitStatus::Done)
}
