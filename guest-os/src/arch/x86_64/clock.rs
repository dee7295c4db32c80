//! The time-stamp counter as the clock, and how fast it and the local APIC's timer run.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use hal::clock::{Clock, TickRate};
use irq::x2apic::Divide;
use spin::Once;
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use super::Hypervisor;
use super::interrupts::apic;

static RATE: Once<TickRate> = Once::new();
/// Ticks of the local APIC's timer per millisecond, divided by 16.
static TIMER_RATE: AtomicU32 = AtomicU32::new(0);

/// The time-stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every 64-bit CPU has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter, read after all earlier loads are done (SDM vol. 2B, RDTSC: LFENCE before it).
pub fn ordered_ticks() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: every 64-bit CPU has both.
    unsafe { core::arch::asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// The machine's clock: the time-stamp counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineClock;

impl Clock for MachineClock {
    #[inline(always)]
    fn ticks(&self) -> u64 {
        ticks()
    }

    /// Before it is known, a fast one is assumed: waits get longer, not shorter.
    fn rate(&self) -> TickRate {
        const FAST: TickRate = TickRate::from_hertz(5_000_000_000);
        RATE.get().copied().unwrap_or(FAST)
    }
}

/// A frequency, and who told it.
pub struct Frequency {
    /// Ticks per second.
    pub hertz: u64,
    /// The source.
    pub source: &'static str,
}

/// Whether the CPU promises one rate in all states (SDM vol. 3B, 18.17.1).
pub fn is_invariant() -> bool {
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
}

/// Finds out the rates of the clock and of the local APIC's timer.
///
/// # Errors
/// There is nothing to measure the clock against.
pub fn init(hypervisor: &Hypervisor, timer_port: Option<u16>) -> Result<Frequency, &'static str> {
    let told = (hypervisor.last_leaf >= 0x4000_0010).then(|| __cpuid(0x4000_0010));
    let frequency = cpuid_frequency()
        .or_else(|| from_kilohertz(told?.eax))
        .or_else(|| hypervisor.is_kvm().then(kvm_frequency)?)
        .or_else(|| timer_port.and_then(against_power_timer))
        .or_else(against_interval_timer)
        .ok_or(
            "nothing tells the clock's rate: no CPUID leaf 15h or 40000010h, no KVM clock, no ACPI timer, no interval timer (QEMU's microvm: pit=on)",
        )?;
    let rate = RATE.call_once(|| TickRate::from_hertz(frequency.hertz));
    let per_millisecond = match told {
        // Leaf 0x40000010, EBX: the timer's input clock in kHz.
        Some(told) if told.ebx >= 16_000 => told.ebx / 16,
        _ => measure_apic_timer(*rate),
    };
    TIMER_RATE.store(per_millisecond.max(1), Ordering::Relaxed);
    Ok(frequency)
}

/// The count for the local APIC's timer, divided by 16, that lasts for `period`; at most about 4 minutes.
pub fn apic_timer_count(period: Duration) -> u32 {
    let microseconds = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
    let count = u64::from(TIMER_RATE.load(Ordering::Relaxed)).saturating_mul(microseconds) / 1000;
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Not a rate that a counter has: hosts round, and errors show as 0 or as all ones.
fn plausible(hertz: u64) -> Option<u64> {
    (10_000_000..100_000_000_000).contains(&hertz).then_some(hertz)
}

/// CPUID leaf 0x15 (SDM vol. 2A, CPUID): EBX / EAX is the ratio to the crystal of ECX Hz.
fn cpuid_frequency() -> Option<Frequency> {
    if __cpuid(0).eax < 0x15 {
        return None;
    }
    let leaf = __cpuid_count(0x15, 0);
    let hertz = (u64::from(leaf.ecx) * u64::from(leaf.ebx)).checked_div(u64::from(leaf.eax))?;
    Some(Frequency {
        hertz: plausible(hertz)?,
        source: "TSC, rate from CPUID leaf 15h",
    })
}

/// CPUID leaf 0x40000010 EAX: the clock in kHz, as a hypervisor tells it.
fn from_kilohertz(kilohertz: u32) -> Option<Frequency> {
    Some(Frequency {
        hertz: plausible(u64::from(kilohertz) * 1000)?,
        source: "TSC, rate from CPUID leaf 40000010h",
    })
}

/// What KVM writes for a guest's clock (Linux, Documentation/virt/kvm/x86/msr.rst): version, padding, a 64-bit clock value,
/// nanoseconds, multiplier, shift, flags.
#[repr(C, align(32))]
struct KvmTime(UnsafeCell<[u32; 8]>);

// SAFETY: used once, by the first CPU; the hypervisor writes to it, and it is read by volatile accesses.
unsafe impl Sync for KvmTime {}

/// The factors by which KVM has its guests turn clock ticks into nanoseconds tell the rate, more exactly than any measurement:
/// ns = (ticks << shift) * multiplier >> 32, with a right shift if it is negative.
fn kvm_frequency() -> Option<Frequency> {
    /// MSR_KVM_SYSTEM_TIME_NEW: address of a [`KvmTime`], bit 0 switches the writing on.
    const SYSTEM_TIME: u32 = 0x4b56_4d01;
    /// KVM_FEATURE_CLOCKSOURCE2 of leaf 0x40000001: that register exists.
    const HAS_SYSTEM_TIME: u32 = 1 << 3;
    static TIME: KvmTime = KvmTime(UnsafeCell::new([0; 8]));

    if __cpuid(0x4000_0001).eax & HAS_SYSTEM_TIME == 0 {
        return None;
    }
    let words = TIME.0.get().cast::<u32>();
    let mut register = Msr::new(SYSTEM_TIME);
    // SAFETY: KVM writes to memory that is kept for it, and nowhere any more after the second write.
    let (version, multiplier, shift) = unsafe {
        register.write(words as u64 | 1);
        let [version, multiplier, shift] = [0, 6, 7].map(|word| words.add(word).read_volatile());
        register.write(0);
        (version, multiplier, shift as u8 as i8)
    };
    if version == 0 || multiplier == 0 || !(-31..=31).contains(&shift) {
        return None;
    }
    let unshifted = (1_000_000_000u128 << 32) / u128::from(multiplier);
    let hertz = if shift < 0 {
        unshifted << -shift
    } else {
        unshifted >> shift
    };
    Some(Frequency {
        hertz: plausible(u64::try_from(hertz).ok()?)?,
        source: "TSC, rate from KVM's clock",
    })
}

/// ACPI's power-management timer: 3.579545 MHz, 24 bits (ACPI 6.5, 4.8.3.3).
fn against_power_timer(port: u16) -> Option<Frequency> {
    let mut register = Port::<u32>::new(port);
    let mut read = || {
        // SAFETY: the port that ACPI names as the timer's; reading has no effect.
        unsafe { register.read() }
    };
    let hertz = measure(&mut read, 0xff_ffff, 3_579_545, 250)?;
    Some(Frequency {
        hertz,
        source: "TSC, measured against the ACPI timer",
    })
}

/// Channel 2 of the interval timer (Intel 8254), the one for the speaker: 1.193182 MHz, counting down from 65536.
fn against_interval_timer() -> Option<Frequency> {
    let (mut gate, mut command, mut counter) = (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: the timer of every PC, or nothing; channel 2 drives only the speaker, which is switched off here.
    unsafe {
        let before = gate.read();
        gate.write(before & !0b10 | 0b01);
        command.write(0b1011_0000); // channel 2, both bytes, mode 0
        counter.write(0xff);
        counter.write(0xff);
    }
    let mut read = || {
        // SAFETY: as above. The latch command freezes what the two reads return.
        let value = unsafe {
            command.write(0b1000_0000);
            u32::from(counter.read()) | u32::from(counter.read()) << 8
        };
        0xffff - value
    };
    let hertz = measure(&mut read, 0xffff, 1_193_182, 200)?;
    Some(Frequency {
        hertz,
        source: "TSC, measured against the interval timer",
    })
}

/// Measures the clock against a counter that runs upwards at `hertz`, for 1/`fraction` s.
fn measure(read: &mut impl FnMut() -> u32, mask: u32, hertz: u64, fraction: u64) -> Option<u64> {
    /// Reads of a counter that stands still.
    const PATIENCE: u32 = 1000;
    let target = (hertz / fraction) as u32;
    let (begin, first) = sample(read);
    let (mut last, mut still) = (first, 0);
    loop {
        let now = read() & mask;
        if now.wrapping_sub(first) & mask >= target {
            break;
        }
        still = if now == last { still + 1 } else { 0 };
        if still > PATIENCE {
            return None;
        }
        last = now;
        core::hint::spin_loop();
    }
    let (end, value) = sample(read);
    let passed = value.wrapping_sub(first) & mask;
    if passed == 0 {
        return None;
    }
    plausible((u128::from(end - begin) * u128::from(hertz) / u128::from(passed)) as u64)
}

/// A reading of a counter, and the clock at that moment: the best of some, as the host may take the CPU away in between.
fn sample(read: &mut impl FnMut() -> u32) -> (u64, u32) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..8 {
        let before = ticks();
        let value = read();
        let took = ticks() - before;
        if took < best.0 {
            best = (took, before + took / 2, value);
        }
    }
    (best.1, best.2)
}

/// Measures the local APIC's timer against the clock, for 1 ms; the result is divided by 16, and per millisecond.
fn measure_apic_timer(rate: TickRate) -> u32 {
    let apic = apic();
    let wait = rate.ticks(Duration::from_millis(1));
    apic.start_silent(Divide::By16, u32::MAX);
    let begin = ticks();
    while ticks() - begin < wait {
        core::hint::spin_loop();
    }
    let passed = u64::from(u32::MAX - apic.timer_left());
    let took = ticks() - begin;
    apic.stop_timer();
    (u128::from(passed) * u128::from(wait) / u128::from(took)) as u32
}
