//! A device that is honest until the fuzzer's bytes say otherwise: the emulated controller, whose steps are spoiled.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use hal::clock::{Clock, TickRate};
use hal::dma::IoAddr;
use hal::fake::FakeDma;
use hal::mmio::Mmio;
use nvme::spec::{AdminOpcode, AsyncEvent, CompletionEntry, IDENTIFY_BYTES, Register, Status};
use nvme_emulator::{Answer, Config, Controller, DriverError, Fetched, Memory, NamespaceConfig, Outcome, Unmapped};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::input::Input;

/// More accesses than any run needs whose waits end: what takes more is an endless loop.
const MOST_STEPS: u64 = 400_000;

/// What the device reads and writes: only what was allocated.
#[derive(Clone)]
pub struct Bus(pub FakeDma);

impl Memory for Bus {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<(), Unmapped> {
        let length = target.len();
        self.0
            .read(IoAddr::new(address), target)
            .map_err(|_| Unmapped { address, length })
    }

    fn write(&self, address: u64, source: &[u8]) -> Result<(), Unmapped> {
        let length = source.len();
        self.0
            .write(IoAddr::new(address), source)
            .map_err(|_| Unmapped { address, length })
    }
}

/// Bytes that lie over an identify data structure, by offset.
pub type Overlay = Vec<(usize, Vec<u8>)>;

struct State {
    controller: Controller<Bus>,
    bus: FakeDma,
    input: Input,
    /// Registers that keep showing a value.
    stuck: Vec<(usize, u32)>,
    /// Completions held back, with the number of looks until they come.
    held: Vec<(u8, Answer)>,
    /// For each CNS, what lies over the next answers; the last of them stays.
    overlays: Vec<(u8, VecDeque<Overlay>)>,
    removed: bool,
    /// The device did anything that an honest one does not.
    lied: bool,
    /// It lied so that a driver may free memory which the device still has, or transfer more than it has room for.
    forged: bool,
    steps: u64,
    now: u64,
    step: u64,
    looks: u32,
}

impl State {
    fn count_step(&mut self) {
        self.steps += 1;
        assert!(
            self.steps < MOST_STEPS,
            "the driver waits without end; {:?}",
            self.controller
        );
    }

    fn read32(&mut self, offset: usize) -> u32 {
        // While a failure unwinds, nothing is there any more: drops must not wait, nor fail again.
        if self.removed || std::thread::panicking() {
            return u32::MAX;
        }
        self.count_step();
        let honest = self.controller.read32(offset);
        if let Some((_, value)) = self.stuck.iter().find(|(at, _)| *at == offset) {
            return *value;
        }
        let action = self.input.u8();
        if action < 0xe0 {
            return honest;
        }
        self.lied = true;
        self.forged |= offset == Register::Csts.offset() || offset == Register::Cc.offset();
        match action {
            0xe0..0xf0 => self.input.u32(),
            0xf0..0xf4 => {
                let value = self.input.u32();
                self.stuck.push((offset, value));
                value
            }
            // One bit is wrong, once or for ever.
            0xf4..0xf8 => honest ^ 1 << (self.input.u8() & 31),
            0xf8..0xfd => {
                let value = honest ^ 1 << (self.input.u8() & 31);
                self.stuck.push((offset, value));
                value
            }
            _ => {
                self.removed = true;
                u32::MAX
            }
        }
    }

    fn write32(&mut self, offset: usize, value: u32) {
        self.looks = 0;
        if !self.removed && !std::thread::panicking() {
            self.count_step();
            self.controller.write32(offset, value);
            self.process();
        }
    }

    fn process(&mut self) {
        if self.removed {
            return;
        }
        self.controller.flush();
        for (looks, _) in &mut self.held {
            *looks = looks.saturating_sub(1);
        }
        for (_, answer) in self.held.extract_if(.., |(looks, _)| *looks == 0) {
            self.controller.post(answer);
        }
        while !self.removed
            && let Some(fetched) = self.controller.fetch()
        {
            self.count_step();
            self.serve(&fetched);
        }
    }

    fn execute(&mut self, fetched: &Fetched) -> Option<Answer> {
        let outcome = self.controller.execute(fetched)?;
        let command = &fetched.command;
        if fetched.queue == 0 && AdminOpcode(command.opcode) == AdminOpcode::IDENTIFY && outcome.status.is_success() {
            let cns = command.cdw10[0].get() as u8;
            if let Some((_, overlays)) = self.overlays.iter_mut().find(|(of, _)| *of == cns) {
                for (offset, bytes) in overlays.front().into_iter().flatten() {
                    let bytes = &bytes[..bytes.len().min(IDENTIFY_BYTES - offset % IDENTIFY_BYTES)];
                    let address = command.prp1.get() + (offset % IDENTIFY_BYTES) as u64;
                    self.bus
                        .write(IoAddr::new(address), bytes)
                        .expect("the driver's page is there");
                }
                if overlays.len() > 1 {
                    overlays.pop_front();
                }
            }
        }
        self.controller.answer(fetched, outcome)
    }

    fn serve(&mut self, fetched: &Fetched) {
        let action = self.input.u8();
        if action < 0xc0 {
            if let Some(answer) = self.execute(fetched) {
                self.controller.post(answer);
            }
            return;
        }
        self.lied = true;
        // A wrong completion of an admin command may be taken for that of a deletion, and a wrong transfer of an identify
        // command for its data.
        let admin = fetched.queue == 0;
        let change = |this: &mut Self, change: &dyn Fn(&mut CompletionEntry, u32)| {
            this.forged |= admin;
            let value = this.input.u32();
            if let Some(mut answer) = this.execute(fetched) {
                change(&mut answer.entry, value);
                this.controller.post(answer);
            }
        };
        match action & 15 {
            0 => {
                let event = AsyncEvent::from_dword(self.input.u32());
                let answer = self.execute(fetched);
                answer.into_iter().for_each(|answer| self.controller.post(answer));
                self.controller.raise_event(event);
            }
            1 => {
                let status = Status::from_bits(self.input.u16());
                self.forged |= status.is_success();
                let answer = self.controller.answer(fetched, Outcome::from(status));
                answer.into_iter().for_each(|answer| self.controller.post(answer));
            }
            2 => {
                self.execute(fetched);
            }
            3 => {
                self.forged |= admin;
                if let Some(answer) = self.execute(fetched) {
                    self.controller.post(answer);
                    self.controller.post(answer);
                }
            }
            4 => {
                let looks = self.input.u8();
                if let Some(answer) = self.execute(fetched) {
                    self.held.push((looks, answer));
                }
            }
            5 => change(self, &|entry, value| entry.command_id = U16::new(value as u16)),
            6 => change(self, &|entry, value| {
                entry.command_id = U16::new(entry.command_id.get() ^ 1 << (value & 15));
            }),
            7 => change(self, &|entry, value| entry.sq_id = U16::new(value as u16)),
            8 => change(self, &|entry, value| entry.sq_head = U16::new(value as u16)),
            9 => change(self, &|entry, value| entry.result = U32::new(value)),
            10 => change(self, &|entry, value| {
                *entry = entry.with_status(Status::from_bits(value as u16), false);
            }),
            11 => {
                self.forged |= admin;
                let answer = self.execute(fetched);
                let offset = u64::from(self.input.u16() % IDENTIFY_BYTES as u16);
                let count = self.input.u8();
                let bytes = self.input.bytes(count.into());
                // Not all of it may be the driver's: then nothing is written.
                let _ = self.bus.write(IoAddr::new(fetched.command.prp1.get() + offset), &bytes);
                answer.into_iter().for_each(|answer| self.controller.post(answer));
            }
            12 => {
                self.forged |= admin;
                let mut entry = CompletionEntry::default();
                entry.as_mut_bytes().copy_from_slice(&self.input.array::<16>());
                if let Some(mut answer) = self.execute(fetched) {
                    self.controller.post(answer);
                    answer.entry = entry;
                    self.controller.post(answer);
                }
            }
            13 => {
                // Phase tags flip all over the queue.
                self.forged |= admin;
                let byte = self.input.u8();
                if let Some(answer) = self.execute(fetched) {
                    if let Some(address) = self.controller.completion_queue_address(answer.queue) {
                        let _ = self.bus.write(IoAddr::new(address), &[byte; 128]);
                    }
                    self.controller.post(answer);
                }
            }
            14 => self.controller.set_fatal(),
            _ => self.removed = true,
        }
    }
}

/// The device, shared by the driver's view of it.
#[derive(Clone)]
pub struct Device(Rc<RefCell<State>>);

impl Device {
    /// A device that works on `bus` and lies as `input` says. Time moves on by `step` nanoseconds at each look at the
    /// clock, and faster once nothing else is done for long.
    pub fn new(
        config: Config,
        namespaces: impl IntoIterator<Item = NamespaceConfig>,
        bus: FakeDma,
        input: Input,
        step: u64,
    ) -> Self {
        let controller = Controller::new(config, namespaces, Bus(bus.clone()));
        Self(Rc::new(RefCell::new(State {
            controller,
            bus,
            input,
            stuck: Vec::new(),
            held: Vec::new(),
            overlays: Vec::new(),
            removed: false,
            lied: false,
            forged: false,
            steps: 0,
            now: 0,
            step,
            looks: 0,
        })))
    }

    /// Lets these bytes lie over answers to Identify with that CNS.
    pub fn set_overlays(&self, cns: u8, overlays: impl IntoIterator<Item = Overlay>) {
        self.0.borrow_mut().overlays.push((cns, overlays.into_iter().collect()));
    }

    /// The registers, `length` bytes of them.
    pub fn registers(&self, length: usize) -> Registers {
        Registers {
            device: self.clone(),
            offset: 0,
            length,
        }
    }

    pub fn window(&self) -> usize {
        self.0.borrow().controller.window()
    }

    pub fn clock(&self) -> DeviceClock {
        DeviceClock(self.clone())
    }

    /// Whether all that it did so far was honest.
    pub fn is_honest(&self) -> bool {
        !self.0.borrow().lied
    }

    /// Fails when the device saw a mistake that none of its lies excuses.
    pub fn check(&self) {
        let state = self.0.borrow();
        let errors = state.controller.errors();
        if !state.lied {
            assert_eq!(errors, [], "mistakes of the driver");
        }
        if !state.forged {
            let outside = errors
                .iter()
                .find(|error| matches!(error, DriverError::Unmapped { .. }));
            assert_eq!(outside, None, "the driver gave away memory that it does not have");
        }
    }
}

/// The driver's window of registers. An access outside of it is a panic.
#[derive(Clone)]
pub struct Registers {
    device: Device,
    offset: usize,
    length: usize,
}

impl Registers {
    fn at(&self, offset: usize) -> usize {
        assert!(offset + 4 <= self.length, "access at {offset:#x} of {:#x}", self.length);
        self.offset + offset
    }
}

impl Mmio for Registers {
    fn len(&self) -> usize {
        self.length
    }

    fn read32(&self, offset: usize) -> u32 {
        self.device.0.borrow_mut().read32(self.at(offset))
    }

    fn write32(&self, offset: usize, value: u32) {
        self.device.0.borrow_mut().write32(self.at(offset), value);
    }

    fn window(&self, offset: usize, length: usize) -> Self {
        assert!(
            offset + length <= self.length,
            "window at {offset:#x} of {:#x}",
            self.length
        );
        Self {
            device: self.device.clone(),
            offset: self.offset + offset,
            length,
        }
    }
}

/// A clock at whose looks the device works.
#[derive(Clone)]
pub struct DeviceClock(Device);

impl Clock for DeviceClock {
    fn ticks(&self) -> u64 {
        let state = &mut *self.0.0.borrow_mut();
        if !std::thread::panicking() {
            state.count_step();
            state.process();
        }
        // Waits of minutes end within some hundred looks.
        state.looks += 1;
        state.now = state.now.saturating_add(state.step << (state.looks / 64).min(24));
        state.now
    }

    fn rate(&self) -> TickRate {
        TickRate::from_hertz(1_000_000_000)
    }
}
