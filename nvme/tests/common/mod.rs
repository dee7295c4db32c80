//! A machine of one process: the driver's registers, memory and clock, with the emulated controller behind them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::{Arc, Mutex, MutexGuard};

use hal::clock::{Clock, TickRate};
use hal::dma::{Dma, IoAddr};
use hal::fake::{FakeClock, FakeDma};
use hal::mmio::Mmio;
use nvme::{Controller, Error, QueuePair};
use nvme_emulator::fault::{Faulty, Rule};
use nvme_emulator::{Config, DriverError, Memory, NamespaceConfig, Unmapped};

/// What the device reads and writes: only what the driver allocated.
#[derive(Clone)]
pub struct Bus(pub FakeDma);

impl Memory for Bus {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), Unmapped> {
        self.0.read(IoAddr::new(address), target).map_err(|_| Unmapped {
            address,
            length: target.len(),
        })
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), Unmapped> {
        self.0.write(IoAddr::new(address), source).map_err(|_| Unmapped {
            address,
            length: source.len(),
        })
    }
}

struct Shared {
    device: Faulty<Bus>,
    /// The device works at each doorbell; else only when the test or the clock says so.
    prompt: bool,
    /// Each register access, for tests of order: whether it was a write, offset, value.
    trace: Option<Vec<(bool, usize, u32)>>,
    reads: u64,
}

/// The driver's window of registers.
#[derive(Clone)]
pub struct Registers {
    shared: Arc<Mutex<Shared>>,
    offset: usize,
    length: usize,
}

impl Mmio for Registers {
    fn len(&self) -> usize {
        self.length
    }

    fn read32(&self, offset: usize) -> u32 {
        assert!(offset + 4 <= self.length, "read at {offset:#x} of {:#x}", self.length);
        let mut shared = self.shared.lock().unwrap();
        shared.reads += 1;
        let value = shared.device.read32(self.offset + offset);
        if let Some(trace) = &mut shared.trace {
            trace.push((false, self.offset + offset, value));
        }
        value
    }

    fn write32(&self, offset: usize, value: u32) {
        assert!(offset + 4 <= self.length, "write at {offset:#x} of {:#x}", self.length);
        let mut shared = self.shared.lock().unwrap();
        if let Some(trace) = &mut shared.trace {
            trace.push((true, self.offset + offset, value));
        }
        shared.device.write32(self.offset + offset, value);
        if shared.prompt {
            shared.device.process();
        }
    }

    fn window(&self, offset: usize, length: usize) -> Self {
        assert!(
            offset + length <= self.length,
            "window at {offset:#x} of {:#x}",
            self.length
        );
        Self {
            shared: self.shared.clone(),
            offset: self.offset + offset,
            length,
        }
    }
}

/// A clock that moves a little at each look, and lets the device work at each look too: time is the device's progress.
#[derive(Clone)]
pub struct DeviceClock {
    clock: FakeClock,
    shared: Arc<Mutex<Shared>>,
}

impl Clock for DeviceClock {
    fn ticks(&self) -> u64 {
        self.shared.lock().unwrap().device.process();
        self.clock.ticks()
    }

    fn rate(&self) -> TickRate {
        self.clock.rate()
    }
}

pub type Driver = Controller<Registers, DeviceClock>;
pub type Queue = QueuePair<Registers>;

/// Nanoseconds that pass at each look at the clock. Miri, which takes its time, looks less often.
pub const TICK: u64 = if cfg!(miri) { 10_000_000 } else { 100_000 };

pub struct Machine {
    pub bus: FakeDma,
    pub clock: FakeClock,
    shared: Arc<Mutex<Shared>>,
}

pub struct DeviceGuard<'a>(MutexGuard<'a, Shared>);

impl std::ops::Deref for DeviceGuard<'_> {
    type Target = Faulty<Bus>;
    fn deref(&self) -> &Self::Target {
        &self.0.device
    }
}

impl std::ops::DerefMut for DeviceGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.device
    }
}

impl Machine {
    pub fn new(config: Config, namespaces: impl IntoIterator<Item = NamespaceConfig>) -> Self {
        // Room for the queue memory of large memory pages.
        let bus = FakeDma::new(256 << 20);
        let device = Faulty::new(nvme_emulator::Controller::new(config, namespaces, Bus(bus.clone())));
        let shared = Shared {
            device,
            prompt: true,
            trace: None,
            reads: 0,
        };
        Self {
            bus,
            clock: FakeClock::stepping(TICK),
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    pub fn dma(&self) -> Dma {
        self.bus.dma()
    }

    pub fn device(&self) -> DeviceGuard<'_> {
        DeviceGuard(self.shared.lock().unwrap())
    }

    pub fn add(&self, rule: Rule) {
        self.device().add(rule);
    }

    /// Whether the device works at each doorbell.
    pub fn set_prompt(&self, prompt: bool) {
        self.shared.lock().unwrap().prompt = prompt;
    }

    pub fn trace(&self) {
        self.shared.lock().unwrap().trace = Some(Vec::new());
    }

    pub fn take_trace(&self) -> Vec<(bool, usize, u32)> {
        self.shared.lock().unwrap().trace.take().unwrap()
    }

    pub fn register_reads(&self) -> u64 {
        self.shared.lock().unwrap().reads
    }

    pub fn registers(&self) -> Registers {
        let length = self.device().window();
        self.registers_of(length)
    }

    pub fn registers_of(&self, length: usize) -> Registers {
        Registers {
            shared: self.shared.clone(),
            offset: 0,
            length,
        }
    }

    pub fn device_clock(&self) -> DeviceClock {
        DeviceClock {
            clock: self.clock.clone(),
            shared: self.shared.clone(),
        }
    }

    pub fn start(&self) -> Result<Driver, Error> {
        self.start_with(nvme::Config::default())
    }

    pub fn start_with(&self, config: nvme::Config) -> Result<Driver, Error> {
        Controller::start(
            "nvme0".into(),
            self.registers(),
            self.dma(),
            self.device_clock(),
            config,
        )
    }

    /// A started controller with one I/O queue pair.
    pub fn with_queue(&self, entries: u16) -> (Driver, Queue) {
        let mut driver = self.start().unwrap();
        driver.request_queues(1).unwrap();
        let queue = driver.create_queue_pair(1, entries, None).unwrap();
        (driver, queue)
    }

    /// The driver made no mistake that the device saw.
    #[track_caller]
    pub fn assert_no_mistake(&self) {
        assert_eq!(self.device().errors(), [] as [DriverError; 0]);
    }

    /// All DMA memory went back.
    #[track_caller]
    pub fn assert_nothing_allocated(&self) {
        assert_eq!(self.bus.live(), 0, "DMA allocations left");
    }
}
