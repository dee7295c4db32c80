//! What an I/O costs on the driver's side, in instructions: 4 KiB reads at depth 32 against the emulator's null backend, in
//! batches of 1 and 32. `cargo bench -p doorpost-nvme --bench hot_path` counts them with Valgrind's callgrind, which sees the
//! functions [`submit`] and [`complete`] without [`Registers::tell`], and fails above [`LIMIT`].

use std::cell::RefCell;
use std::process::{Command as Process, ExitCode};
use std::rc::Rc;

use hal::dma::IoAddr;
use hal::fake::{FakeClock, FakeDma};
use hal::mmio::Mmio;
use nvme::{Command, Config, Controller, Prps, QueuePair};
use nvme_emulator::{Memory, NamespaceConfig, NullBackend, Unmapped};

/// Instructions that a read may take.
const LIMIT: u64 = 250;
const DEPTH: usize = 32;
const IOS: u64 = 16_000;
/// Set in the process that callgrind watches: the size of a batch, and whether doorbells are in memory.
const INNER: &str = "HOT_PATH";

struct Bus(FakeDma);

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

type Device = nvme_emulator::Controller<Bus>;

/// The driver's window of registers.
#[derive(Clone)]
struct Registers {
    device: Rc<RefCell<Device>>,
    offset: usize,
    length: usize,
}

impl Registers {
    /// The device hears of a register write. What that costs is the device's; callgrind does not look at it.
    #[inline(never)]
    fn tell(&self, offset: usize, value: u32) {
        self.device.borrow_mut().write32(offset, value);
    }
}

impl Mmio for Registers {
    fn len(&self) -> usize {
        self.length
    }

    fn read32(&self, offset: usize) -> u32 {
        self.device.borrow_mut().read32(self.offset + offset)
    }

    #[inline(always)]
    fn write32(&self, offset: usize, value: u32) {
        self.tell(self.offset + offset, value);
    }

    fn window(&self, offset: usize, length: usize) -> Self {
        Self {
            offset: self.offset + offset,
            length,
            ..self.clone()
        }
    }
}

/// Lets the device work whenever the driver looks at the time.
#[derive(Clone)]
struct Clock(FakeClock, Rc<RefCell<Device>>);

impl hal::clock::Clock for Clock {
    fn ticks(&self) -> u64 {
        self.1.borrow_mut().process();
        self.0.ticks()
    }

    fn rate(&self) -> hal::clock::TickRate {
        self.0.rate()
    }
}

#[inline(never)]
fn submit(queue: &mut QueuePair<Registers>, commands: &mut [Command], lba: &mut u64) {
    for (command, token) in commands.iter_mut().zip(0..) {
        command.set_lba(*lba & 0xffff);
        *lba += 8;
        if queue.write(command, token).is_err() {
            break;
        }
    }
    queue.commit();
}

#[inline(never)]
fn complete(queue: &mut QueuePair<Registers>) -> u64 {
    let mut done = 0;
    while let Ok(Some(completion)) = queue.poll() {
        done += u64::from(completion.status.is_success());
    }
    queue.acknowledge();
    done
}

/// Does the I/Os; returns how many succeeded.
fn run(batch: usize, shadow: bool) -> u64 {
    let bus = FakeDma::new(16 << 20);
    let dma = bus.dma();
    let config = nvme_emulator::Config {
        doorbell_buffer: shadow,
        ..nvme_emulator::Config::default()
    };
    let namespace = NamespaceConfig::new(1, 1 << 20, 512, NullBackend);
    let device = Device::new(config, [namespace], Bus(bus));
    let length = device.window();
    let device = Rc::new(RefCell::new(device));
    let registers = Registers {
        device: device.clone(),
        offset: 0,
        length,
    };
    let clock = Clock(FakeClock::stepping(1000), device.clone());
    let mut controller =
        Controller::start("nvme0".into(), registers, dma.clone(), clock, Config::default()).expect("starts");
    controller.request_queues(1).expect("grants queues");
    assert_eq!(controller.enable_shadow_doorbells().expect("answers"), shadow);
    let mut queue = controller.create_queue_pair(1, 1024, None).expect("creates a queue");
    let buffer = dma.allocate(4096, 4096).expect("has memory");
    let prps = Prps::new(&dma, &buffer, 0, 4096, controller.page_size()).expect("has memory");
    let mut commands = vec![Command::read(1, 0, 8, prps.data_pointer()); batch];

    let (mut done, mut lba) = (0, 0);
    // Depth 32: so many are in flight before the first is completed.
    for _ in 0..DEPTH / batch {
        submit(&mut queue, &mut commands, &mut lba);
    }
    while done < IOS {
        assert!(device.borrow_mut().process() > 0, "{:?}", device.borrow().errors());
        done += complete(&mut queue);
        let room = DEPTH - usize::from(queue.in_flight());
        let left = IOS - done - u64::from(queue.in_flight());
        for _ in 0..room.min(left as usize) / batch {
            submit(&mut queue, &mut commands, &mut lba);
        }
    }
    done
}

/// Has callgrind count a run; `None` without Valgrind.
fn count(batch: usize, shadow: bool) -> Option<u64> {
    let output = Process::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--callgrind-out-file=/dev/null",
        ])
        .args(["submit", "complete", "Registers::tell"].map(|name| format!("--toggle-collect=hot_path::{name}*")))
        .arg(std::env::current_exe().ok()?)
        .env(INNER, format!("{batch} {shadow}"))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.unwrap_or_else(|| panic!("callgrind counted nothing: {text}"));
    number.trim().parse().ok()
}

fn main() -> ExitCode {
    if let Ok(setup) = std::env::var(INNER) {
        let (batch, shadow) = setup.split_once(' ').expect("two values");
        let done = run(batch.parse().expect("a number"), shadow == "true");
        assert_eq!(done, IOS, "not every read succeeded");
        return ExitCode::SUCCESS;
    }
    let mut worst = 0;
    for (batch, shadow) in [(1, false), (32, false), (1, true), (32, true)] {
        let Some(instructions) = count(batch, shadow) else {
            println!("valgrind is not there: nothing to count with");
            return ExitCode::SUCCESS;
        };
        let doorbells = if shadow { "in memory" } else { "registers" };
        println!(
            "4 KiB read, depth {DEPTH}, batches of {batch:2}, doorbells {doorbells}: {:.1} instructions",
            instructions as f64 / IOS as f64
        );
        worst = worst.max(instructions / IOS);
    }
    if worst == 0 || worst > LIMIT {
        println!("more than {LIMIT}, or none: the hot path is broken");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
