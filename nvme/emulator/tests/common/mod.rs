//! A driver that does exactly what it is told, right or wrong, and the emulated controller.
#![allow(dead_code, reason = "each test program uses a part of it")]

use hal::dma::{DmaBuffer, IoAddr};
use hal::fake::FakeDma;
use nvme::spec::{
    AdminQueueAttributes, Command, CompletionEntry, ControllerConfiguration, ControllerStatus, CreateCompletionQueue,
    CreateSubmissionQueue, Register, Status,
};
use nvme_emulator::{Config, Controller, DriverError, Memory, NamespaceConfig, RamBackend, Unmapped};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

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

pub const ENTRIES: u16 = 8;

/// A driver that does exactly what it is told, right or wrong.
pub struct Driver {
    pub bus: FakeDma,
    pub device: Controller<Bus>,
    pub sq: DmaBuffer,
    pub cq: DmaBuffer,
    pub io_sq: DmaBuffer,
    pub io_cq: DmaBuffer,
    pub page: DmaBuffer,
    pub tail: u32,
    pub head: u32,
    pub next_id: u16,
    pub io_tail: u32,
    pub io_head: u32,
}

pub const CC: usize = Register::Cc.offset();
pub const CSTS: usize = Register::Csts.offset();

pub fn disabled(config: Config) -> Driver {
    let namespace = NamespaceConfig::new(1, 64, 512, RamBackend::new(64 * 512));
    disabled_with(config, [namespace])
}

pub fn disabled_with(config: Config, namespaces: impl IntoIterator<Item = NamespaceConfig>) -> Driver {
    let bus = FakeDma::new(1 << 20);
    let dma = bus.dma();
    let page = || dma.allocate(4096, 4096).unwrap();
    let device = Controller::new(config, namespaces, Bus(bus.clone()));
    let (sq, cq, io_sq, io_cq, page) = (page(), page(), page(), page(), page());
    Driver {
        bus,
        device,
        sq,
        cq,
        io_sq,
        io_cq,
        page,
        tail: 0,
        head: 0,
        next_id: 0,
        io_tail: 0,
        io_head: 0,
    }
}

pub fn enabled() -> Driver {
    let mut driver = disabled(Config::default());
    driver.prepare();
    driver.enable();
    driver.assert_well();
    driver
}

/// Enabled, with the I/O queue pair 1.
pub fn with_queue() -> Driver {
    let mut driver = enabled();
    driver.create_queue();
    driver
}

/// The same with another device.
pub fn started(config: Config, namespaces: impl IntoIterator<Item = NamespaceConfig>) -> Driver {
    let mut driver = disabled_with(config, namespaces);
    driver.prepare();
    driver.enable();
    driver.assert_well();
    driver.create_queue();
    driver
}

impl Driver {
    pub fn create_queue(&mut self) {
        let (cq, sq) = (self.completions(), self.submissions());
        assert_eq!(
            self.admin(Command::create_completion_queue(&cq)).status(),
            Status::SUCCESS
        );
        assert_eq!(
            self.admin(Command::create_submission_queue(&sq)).status(),
            Status::SUCCESS
        );
        self.assert_well();
    }

    pub fn prepare(&mut self) {
        self.device
            .write32(Register::Aqa.offset(), AdminQueueAttributes::new(ENTRIES).0);
        for (register, address) in [(Register::Asq, self.sq.address()), (Register::Acq, self.cq.address())] {
            self.device.write32(register.offset(), address.value() as u32);
            self.device
                .write32(register.offset() + 4, (address.value() >> 32) as u32);
        }
    }

    pub fn enable(&mut self) {
        self.configure(ControllerConfiguration::nvm(4096) | ControllerConfiguration::ENABLE);
    }

    pub fn configure(&mut self, cc: ControllerConfiguration) {
        self.device.write32(CC, cc.0);
    }

    pub fn completions(&self) -> CreateCompletionQueue {
        CreateCompletionQueue {
            qid: 1,
            entries: ENTRIES,
            address: self.io_cq.address(),
            vector: Some(1),
        }
    }

    pub fn submissions(&self) -> CreateSubmissionQueue {
        CreateSubmissionQueue {
            qid: 1,
            entries: ENTRIES,
            address: self.io_sq.address(),
            completion_queue: 1,
        }
    }

    /// An admin command, done right.
    pub fn admin(&mut self, mut command: Command) -> CompletionEntry {
        command.command_id = U16::new(self.next_id);
        self.next_id += 1;
        self.sq.copy_in(self.tail as usize * 64, command.as_bytes());
        self.tail = (self.tail + 1) % u32::from(ENTRIES);
        self.device.write32(0x1000, self.tail);
        self.device.process();
        let entry = self.cq.read(self.head as usize * 16);
        if self.errors().is_empty() {
            self.head = (self.head + 1) % u32::from(ENTRIES);
            self.device.write32(0x1004, self.head);
        }
        entry
    }

    /// Puts a command into entry `index` of I/O submission queue 1.
    pub fn put(&mut self, index: usize, id: u16, mut command: Command) {
        command.command_id = U16::new(id);
        self.io_sq.copy_in(index * 64, command.as_bytes());
    }

    pub fn errors(&self) -> &[DriverError] {
        self.device.errors()
    }

    #[track_caller]
    pub fn assert_well(&mut self) {
        assert_eq!(self.errors(), []);
        assert_eq!(self.device.read32(CSTS), ControllerStatus::READY.bits());
    }

    /// Exactly this mistake was recorded, and it was fatal.
    #[track_caller]
    pub fn assert_mistake(&mut self, expected: DriverError) {
        assert_eq!(self.errors(), [expected], "{expected}");
        assert_eq!(
            self.device.read32(CSTS) & ControllerStatus::FATAL.bits(),
            ControllerStatus::FATAL.bits()
        );
    }

    /// An I/O command on queue 1, done right, as long as there are fewer than 8; with what became of it.
    pub fn io(&mut self, command: Command) -> CompletionEntry {
        let id = self.next_id;
        self.next_id += 1;
        self.put(self.io_tail as usize, id, command);
        self.io_tail = (self.io_tail + 1) % u32::from(ENTRIES);
        self.device.write32(0x1008, self.io_tail);
        self.device.process();
        let entry: CompletionEntry = self.io_cq.read(self.io_head as usize * 16);
        assert_eq!(entry.command_id.get(), id, "{:?}", self.errors());
        self.io_head = (self.io_head + 1) % u32::from(ENTRIES);
        self.device.write32(0x100c, self.io_head);
        entry
    }
}
