//! What each CPU keeps for itself: which of its interrupts have arrived, what it counted, and work handed to it.
//!
//! A CPU's counters are written by that CPU alone and read by others, so that a plain load and store do instead of a locked
//! addition.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use crate::arch::{self, SLOTS};
use crate::engine::Engine;

/// 64-bit words in a bitmap of interrupt slots.
pub const SLOT_WORDS: usize = SLOTS.div_ceil(64);

/// A counter with one writer.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it; only its own CPU may.
    #[inline(always)]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Sets it; only its own CPU may.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Its value.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// I/Os that a CPU has completed since the start of the run, for progress lines.
#[derive(Default)]
pub struct Totals {
    /// Reads.
    pub reads: Counter,
    /// Bytes read.
    pub read_bytes: Counter,
    /// Writes.
    pub writes: Counter,
    /// Bytes written.
    pub written_bytes: Counter,
}

/// One CPU. Aligned so that no two share a cache line, nor a pair of lines that is fetched together.
#[repr(align(128))]
pub struct Cpu {
    /// A bit for each slot whose interrupt has arrived and has not been looked at.
    ready: [AtomicU64; SLOT_WORDS],
    /// A bit for each slot that was routed to this CPU.
    routed: [AtomicU64; SLOT_WORDS],
    /// Interrupts taken, by slot.
    interrupts: [Counter; SLOTS],
    /// Device interrupts taken, all slots together.
    pub device_interrupts: Counter,
    /// Device interrupts of slots that were not routed here.
    pub wrong_cpu: Counter,
    /// Interrupts that nobody had asked for.
    pub unexpected: Counter,
    /// Watchdog timer interrupts.
    pub ticks: Counter,
    /// Wake-ups by other CPUs.
    pub wakes: Counter,
    /// Moves on while the engine's loop turns.
    pub heartbeat: Counter,
    /// The heartbeat that the watchdog saw last, and for how many ticks in a row.
    seen: [Counter; 2],
    /// The engine's loop runs, so that the heartbeat has to move.
    pub watched: AtomicBool,
    /// Job instances that it runs.
    pub jobs: Counter,
    /// For progress lines.
    pub totals: Totals,
    /// Work that another CPU handed over.
    work: AtomicPtr<Engine>,
    /// The same, once it is done.
    done: AtomicPtr<Engine>,
}

static CPUS: AtomicPtr<Cpu> = AtomicPtr::new(null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes room for `count` CPUs; called once, by the first CPU, before others start and before interrupts are on.
pub fn init(count: usize) {
    let cpus: Vec<Cpu> = (0..count).map(|_| Cpu::new()).collect();
    CPUS.store(Box::leak(cpus.into_boxed_slice()).as_mut_ptr(), Release);
    COUNT.store(count, Release);
}

/// All CPUs; none before [`init`].
pub fn all() -> &'static [Cpu] {
    let count = COUNT.load(Acquire);
    let first = CPUS.load(Acquire);
    if count == 0 {
        return &[];
    }
    // SAFETY: `init` stored a leaked slice of this length, before the count.
    unsafe { core::slice::from_raw_parts(first, count) }
}

/// The CPU that runs this code.
///
/// Only after [`init`], which comes before the first interrupt and before other CPUs.
#[inline(always)]
pub fn this() -> &'static Cpu {
    // SAFETY: after `init` there is an entry for each CPU that runs.
    unsafe { &*CPUS.load(Relaxed).add(arch::cpu_index()) }
}

impl Cpu {
    fn new() -> Self {
        Self {
            ready: Default::default(),
            routed: Default::default(),
            interrupts: [const { Counter(AtomicU64::new(0)) }; SLOTS],
            device_interrupts: Counter::default(),
            wrong_cpu: Counter::default(),
            unexpected: Counter::default(),
            ticks: Counter::default(),
            wakes: Counter::default(),
            heartbeat: Counter::default(),
            seen: Default::default(),
            watched: AtomicBool::new(false),
            jobs: Counter::default(),
            totals: Totals::default(),
            work: AtomicPtr::new(null_mut()),
            done: AtomicPtr::new(null_mut()),
        }
    }

    /// A device's interrupt arrived: count and mark, nothing else. Called with interrupts off, on the CPU itself.
    #[inline(always)]
    pub fn arrived(&self, slot: usize) {
        self.device_interrupts.add(1);
        if let Some(count) = self.interrupts.get(slot) {
            count.add(1);
            let (word, bit) = (slot / 64, 1 << (slot % 64));
            if self.routed[word].load(Relaxed) & bit == 0 {
                self.wrong_cpu.add(1);
            }
            // No other CPU writes here, and on this one nothing comes between load and store.
            self.ready[word].store(self.ready[word].load(Relaxed) | bit, Relaxed);
        }
    }

    /// Takes the marks of one word of slots, and clears them.
    #[inline(always)]
    pub fn take_ready(&self, word: usize) -> u64 {
        match self.ready[word].load(Relaxed) {
            0 => 0,
            _ => self.ready[word].swap(0, Acquire),
        }
    }

    /// Whether any slot is marked.
    pub fn any_ready(&self) -> bool {
        self.ready.iter().any(|word| word.load(Relaxed) != 0)
    }

    /// Says that a slot's interrupts belong here.
    pub fn route(&self, slot: usize) {
        self.routed[slot / 64].fetch_or(1 << (slot % 64), Relaxed);
    }

    /// Interrupts of a slot taken so far.
    pub fn interrupts(&self, slot: usize) -> u64 {
        self.interrupts[slot].get()
    }

    /// End-of-interrupt writes so far, as they follow from the counts: one for each interrupt that was asked for.
    pub fn eois(&self) -> u64 {
        self.device_interrupts.get() + self.ticks.get() + self.wakes.get()
    }

    /// A tick of the watchdog: whether the loop has stood still for `limit` ticks.
    pub fn is_stuck(&self, limit: u64) -> bool {
        self.ticks.add(1);
        let [last, still] = &self.seen;
        if !self.watched.load(Relaxed) || last.get() != self.heartbeat.get() {
            last.set(self.heartbeat.get());
            still.set(0);
            return false;
        }
        still.add(1);
        still.get() >= limit
    }

    /// Hands work to this CPU, which must be idle, and wakes it.
    pub fn give(&self, index: usize, engine: Box<Engine>) {
        self.work.store(Box::into_raw(engine), Release);
        arch::wake(index);
    }

    /// Takes back work that is done.
    pub fn collect(&self) -> Option<Box<Engine>> {
        let engine = self.done.swap(null_mut(), AcqRel);
        // SAFETY: `serve` stored a pointer that came from `Box::into_raw` in `give`, and the swap gives it to one caller only.
        (!engine.is_null()).then(|| unsafe { Box::from_raw(engine) })
    }
}

/// The life of every CPU but the first: wait for work, do it, give it back.
pub fn serve(_index: usize) -> ! {
    let cpu = this();
    loop {
        arch::interrupts_off();
        let engine = cpu.work.swap(null_mut(), AcqRel);
        if engine.is_null() {
            // A wake-up between the look and the halt stays pending and ends the halt at once.
            arch::halt();
            continue;
        }
        arch::interrupts_on();
        // SAFETY: `give` stored a pointer from `Box::into_raw`, and the swap took it out for this CPU only.
        unsafe { &mut *engine }.run();
        cpu.done.store(engine, Release);
        arch::wake(0);
    }
}
