//! The emulated controller with a driver that does anything.

use hal::dma::{DmaBuffer, IoAddr};
use hal::fake::FakeDma;
use nvme::spec::{
    AdminQueueAttributes, Command, CommandId, CommandSet, ControllerConfiguration, ControllerStatus,
    CreateCompletionQueue, CreateSubmissionQueue, Register, Status, completion_head_doorbell, submission_tail_doorbell,
};
use nvme_emulator::fault::{Fault, Faulty, Rule};
use nvme_emulator::{Config, Controller, NamespaceConfig, NullBackend, RamBackend};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::device::Bus;
use super::input::Input;

/// Memory of the machine, of which some regions are queues: 0 and 1 the admin queues, then those of I/O queues.
const REGIONS: usize = 12;
const REGION: usize = 8192;
const ENTRIES: u16 = 16;
const QUEUES: u16 = 4;
/// Records of mistakes that the device keeps at most, whatever the driver does.
const MOST_RECORDS: usize = 256;

/// Drives the device as the bytes say: every so often right, else wrong in every way.
pub fn emulator(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setup = input.u8();
    let config = Config {
        maximum_transfer: setup & 7,
        doorbell_stride: if setup & 8 != 0 { 16 } else { 4 },
        minimum_page_size: if setup & 16 != 0 { 8192 } else { 4096 },
        queue_entries: 64,
        io_queues: nvme::spec::QueueCounts {
            submission: QUEUES.into(),
            completion: QUEUES.into(),
        },
        vectors: 4,
        doorbell_buffer: setup & 32 != 0,
        autonomous_power: setup & 32 != 0,
        subsystem_reset: setup & 64 != 0,
        ..Config::default()
    };
    let bus = FakeDma::new(1 << 20);
    let regions: Vec<_> = (0..REGIONS)
        .map(|_| bus.dma().allocate(REGION, REGION).expect("there is room"))
        .collect();
    let mut read_only = NamespaceConfig::new(7, 64, 512, RamBackend::new(64 * 512));
    read_only.read_only = true;
    let namespaces = [
        NamespaceConfig::new(1, 64, 512, RamBackend::new(64 * 512)),
        NamespaceConfig::new(3, 1 << 40, 4096, NullBackend),
        read_only,
        NamespaceConfig {
            metadata: 8,
            ..NamespaceConfig::new(8, 64, 512, RamBackend::new(64 * 520))
        },
        NamespaceConfig {
            metadata: 64,
            extended: true,
            command_set: CommandSet::ZONED,
            ..NamespaceConfig::new(9, 8, 4096, RamBackend::new(8 * 4160))
        },
        // A size that no storage has.
        NamespaceConfig::new(10, u64::MAX, 512, NullBackend),
    ];
    let device = Faulty::new(Controller::new(config.clone(), namespaces, Bus(bus.clone())));
    let mut machine = Machine {
        device,
        regions,
        bus,
        stride: config.doorbell_stride,
        page: config.minimum_page_size,
        tails: [0; QUEUES as usize + 1],
        heads: [0; QUEUES as usize + 1],
        next_id: 0,
    };
    while !input.is_empty() {
        machine.step(&mut input);
    }
    machine.check();
}

struct Machine {
    device: Faulty<Bus>,
    regions: Vec<DmaBuffer>,
    bus: FakeDma,
    stride: usize,
    page: usize,
    tails: [u16; QUEUES as usize + 1],
    heads: [u16; QUEUES as usize + 1],
    next_id: u16,
}

impl Machine {
    fn step(&mut self, input: &mut Input) {
        match input.u8() {
            0..0x10 => {
                let offset = usize::from(input.u16());
                self.device.read32(offset);
            }
            0x10..0x20 => {
                let offset = usize::from(input.u16());
                self.device.write32(offset, input.u32());
            }
            0x20..0x30 => self.enable(),
            0x30..0x38 => self.device.write32(Register::Cc.offset(), 0),
            0x38..0x40 => {
                let cc = ControllerConfiguration::nvm(self.page).0 | input.u32() & 0xc001;
                self.device.write32(Register::Cc.offset(), cc);
            }
            0x40..0x50 => {
                let address = self.address(input);
                let count = input.u8();
                let bytes = input.bytes(count.into());
                // Only what lies inside a region is memory.
                let _ = self.bus.write(address, &bytes);
            }
            0x50..0x70 => self.create(input),
            0x70..0x80 => {
                let command = self.command(input);
                self.submit(0, command);
            }
            0x80..0xb0 => {
                let queue = u16::from(input.u8()) % (QUEUES + 1);
                let command = self.command(input);
                self.submit(queue, command);
            }
            0xb0..0xc0 => {
                let queue = usize::from(input.u8()) % self.heads.len();
                self.heads[queue] = (self.heads[queue] + 1) % ENTRIES;
                let offset = completion_head_doorbell(queue as u16, self.stride);
                self.device.write32(offset, self.heads[queue].into());
            }
            0xc0..0xd0 => self.add_fault(input),
            0xd0..0xe0 => {
                self.device.controller().take_interrupts();
            }
            _ => self.process(),
        }
        self.check_records();
    }

    fn enable(&mut self) {
        for region in [1, 2, 3, 4, 5] {
            self.regions[region].clear();
        }
        self.tails.fill(0);
        self.heads.fill(0);
        self.device.write32(Register::Cc.offset(), 0);
        self.device
            .write32(Register::Aqa.offset(), AdminQueueAttributes::new(ENTRIES).0);
        for (register, region) in [(Register::Asq, 0), (Register::Acq, 1)] {
            let address = self.regions[region].address().value();
            self.device.write32(register.offset(), address as u32);
            self.device.write32(register.offset() + 4, (address >> 32) as u32);
        }
        let cc = ControllerConfiguration::nvm(self.page) | ControllerConfiguration::ENABLE;
        self.device.write32(Register::Cc.offset(), cc.0);
    }

    /// A pair of queues, completions in regions 2 to 5 and submissions in 6 to 9.
    fn create(&mut self, input: &mut Input) {
        let qid = u16::from(input.u8()) % QUEUES + 1;
        let vector = input.u8();
        let region = usize::from(qid) + 1;
        self.regions[region].clear();
        let completions = CreateCompletionQueue {
            qid,
            entries: ENTRIES,
            address: self.regions[region].address(),
            vector: (vector & 1 != 0).then_some(u16::from(vector >> 1) & 3),
        };
        self.submit(0, Command::create_completion_queue(&completions));
        let submissions = CreateSubmissionQueue {
            qid,
            entries: ENTRIES,
            address: self.regions[region + 4].address(),
            completion_queue: if vector & 0x80 != 0 { 1 } else { qid },
        };
        self.submit(0, Command::create_submission_queue(&submissions));
        self.tails[usize::from(qid)] = 0;
        self.heads[usize::from(qid)] = 0;
    }

    /// A command of which each field is as wrong as it likes.
    fn command(&mut self, input: &mut Input) -> Command {
        let shape = input.u8();
        let mut command = Command {
            opcode: input.u8(),
            ..Command::default()
        };
        command.nsid = U32::new(match shape & 3 {
            0 => 1,
            1 => 3,
            2 => u32::from(input.u8() % 12),
            _ => input.u32(),
        });
        if shape & 4 != 0 {
            command.flags = input.u8();
        }
        command.prp1 = U64::new(self.address(input).value());
        command.prp2 = U64::new(self.address(input).value());
        if shape & 8 != 0 {
            command.metadata = U64::new(self.address(input).value());
        }
        let dwords = usize::from(shape >> 5).min(command.cdw10.len());
        for dword in &mut command.cdw10[..dwords] {
            *dword = U32::new(if shape & 16 != 0 {
                input.u32()
            } else {
                input.u8().into()
            });
        }
        self.next_id = self.next_id.wrapping_add(1);
        command.command_id = U16::new(self.next_id);
        command
    }

    fn submit(&mut self, queue: u16, command: Command) {
        let index = usize::from(queue);
        let region = if queue == 0 { 0 } else { index + 5 };
        let at = usize::from(self.tails[index]) * 64;
        self.regions[region].copy_in(at, command.as_bytes());
        self.tails[index] = (self.tails[index] + 1) % ENTRIES;
        let offset = submission_tail_doorbell(queue, self.stride);
        self.device.write32(offset, self.tails[index].into());
        self.process();
    }

    fn process(&mut self) {
        let most = self.tails.len() * 64 * 2;
        let done = self.device.process();
        assert!(done <= most, "{done} commands at once");
    }

    /// An address inside memory or a little behind it, or any at all.
    fn address(&self, input: &mut Input) -> IoAddr {
        match input.u8() {
            0xff => IoAddr::new(u64::from_le_bytes(input.array())),
            region => {
                let offset = input.u8();
                let offset = match offset & 3 {
                    0 => 0,
                    1 => usize::from(offset >> 2) * 64,
                    2 => usize::from(offset >> 2) * 512,
                    _ => REGION - 8 * usize::from(offset >> 2),
                };
                self.regions[usize::from(region) % REGIONS].address().offset(offset)
            }
        }
    }

    fn add_fault(&mut self, input: &mut Input) {
        let queue = u16::from(input.u8()) % (QUEUES + 1);
        let fault = match input.u8() % 12 {
            0 => Fault::Stall,
            1 => Fault::Status(Status::from_bits(input.u16())),
            2 => Fault::DropCompletion,
            3 => Fault::DropInterrupt,
            4 => Fault::Duplicate,
            5 => Fault::Delay(input.u8().into()),
            6 => Fault::CommandId(CommandId(input.u16())),
            7 => Fault::SubmissionQueue(input.u16()),
            8 => Fault::SubmissionHead(input.u16()),
            9 => Fault::Result(input.u32()),
            10 => Fault::Data {
                offset: input.u16(),
                bytes: input.bytes(16),
            },
            _ => Fault::Fatal,
        };
        self.device.add(Rule::next(queue, fault));
    }

    /// What the device keeps does not grow with the driver's mistakes.
    fn check_records(&mut self) {
        let errors = self.device.controller().errors().len();
        assert!(errors <= MOST_RECORDS, "{errors} mistakes kept");
    }

    /// After a mistake the device is in its fatal state, or was reset since.
    fn check(&mut self) {
        let before = self.device.controller().errors().len();
        // No register is there.
        self.device.write32(2, 0);
        let status = ControllerStatus(self.device.read32(Register::Csts.offset()));
        assert!(status.contains(ControllerStatus::FATAL));
        assert!(self.device.controller().errors().len() > before || before == MOST_RECORDS);
        assert_eq!(self.device.process(), 0, "a controller that failed does nothing");
    }
}
