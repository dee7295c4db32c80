//! The driver with a device that lies.

use std::collections::BTreeSet;
use std::time::Duration;

use hal::clock::Clock;
use hal::dma::{Dma, DmaBuffer};
use hal::fake::FakeDma;
use nvme::spec::InterruptCoalescing;
use nvme::{Command, Controller, Error, NvmOpcode, Prps, QueuePair};
use nvme_emulator::{Config, NamespaceConfig, RamBackend};

use super::device::{Device, DeviceClock, Registers};
use super::input::Input;

/// Bytes that say what the driver is asked for; those behind them are the device's.
const SCRIPT: usize = 32;
const BLOCKS: u64 = 64;
const QUEUES: u16 = 3;
/// Pieces of memory that the driver may give up at most, when the device may still write to them: two for each queue pair,
/// the page for admin data, and two pages of shadow doorbells.
const MOST_GIVEN_UP: usize = 2 * (QUEUES as usize + 1) + 3;

/// Runs the driver as the first bytes say, with a device that lies as the rest says.
pub fn driver(bytes: &[u8]) {
    let (script, lies) = bytes.split_at(bytes.len().min(SCRIPT));
    let mut script = Input::new(script);
    let setup = script.u8();
    let shape = script.u8();
    let extras = script.u8();

    let large_pages = setup & 1 != 0;
    let config = Config {
        minimum_page_size: if large_pages { 8192 } else { 4096 },
        doorbell_stride: if setup & 2 != 0 { 16 } else { 4 },
        maximum_transfer: setup >> 2 & 3,
        version: if setup & 16 != 0 {
            nvme::spec::Version::new(1, 0, 0)
        } else {
            nvme::spec::Version::new(2, 0, 0)
        },
        namespace_limit: 8,
        queue_entries: 2 << (shape & 7),
        io_queues: nvme::spec::QueueCounts {
            submission: u32::from(shape >> 3 & 3) + 1,
            completion: 2,
        },
        doorbell_buffer: extras & 1 != 0,
        autonomous_power: extras & 2 != 0,
        subsystem_reset: extras & 4 != 0,
        ready_with_media: (extras & 8 != 0).then_some(Duration::from_secs(20)),
        ..Config::default()
    };
    // Some machines have too little memory.
    let bus = FakeDma::new(if setup & 32 != 0 { 24 << 10 } else { 1 << 20 });
    let block = if setup & 64 != 0 { 4096 } else { 512 };
    let namespace = |id| {
        let storage = RamBackend::new(BLOCKS as usize * block as usize);
        NamespaceConfig::new(id, BLOCKS, block, storage)
    };
    let step = 1_000_000 << (script.u8() & 15);
    let device = Device::new(
        config,
        [namespace(2), namespace(5)],
        bus.clone(),
        Input::new(lies),
        step,
    );
    let window = if setup & 128 != 0 {
        0x1000 + 8 * usize::from(script.u8())
    } else {
        device.window()
    };
    let enough = window == device.window() && setup & 32 == 0;

    let result = Run::start(&device, window, bus.dma(), &mut script).and_then(|mut run| {
        let result = run.play(extras, &mut script);
        run.stop(result.is_ok());
        result
    });
    // What it tells can be told, whatever is in it.
    if let Err(error) = &result {
        assert!(error.to_string().starts_with("nvme0"), "{error}");
    }
    device.check();
    assert!(bus.live() <= MOST_GIVEN_UP, "{} pieces of memory given up", bus.live());
    if device.is_honest() && enough {
        let given_up = matches!(result, Err(Error::ResetsExhausted { .. }));
        assert!(result.is_ok() || given_up, "an honest device: {result:?}");
        assert!(given_up || bus.live() == 0, "memory left behind");
    }
}

struct Run {
    device: Device,
    dma: Dma,
    controller: Controller<Registers, DeviceClock>,
    queues: Vec<QueuePair<Registers>>,
    /// Tokens in flight, by queue.
    tokens: Vec<BTreeSet<u32>>,
    next_token: u32,
    buffers: Vec<(DmaBuffer, Prps)>,
    /// A read of as many blocks as the buffer holds, for each namespace.
    commands: Vec<Command>,
}

impl Run {
    fn start(device: &Device, window: usize, dma: Dma, script: &mut Input) -> Result<Self, Error> {
        let config = nvme::Config {
            admin_entries: u16::from(script.u8()),
            command_timeout: Duration::from_secs(1),
            ..nvme::Config::default()
        };
        let controller = Controller::start(
            "nvme0".into(),
            device.registers(window),
            dma.clone(),
            device.clock(),
            config,
        )?;
        Ok(Self {
            device: device.clone(),
            dma,
            controller,
            queues: Vec::new(),
            tokens: Vec::new(),
            next_token: 0,
            buffers: Vec::new(),
            commands: Vec::new(),
        })
    }

    fn play(&mut self, extras: u8, script: &mut Input) -> Result<(), Error> {
        let namespaces = self.controller.namespaces()?;
        let granted = self.controller.request_queues(QUEUES)?;
        assert!((1..=QUEUES).contains(&granted), "{granted} queues of {QUEUES}");
        if extras & 16 != 0 {
            self.controller.enable_async_events()?;
        }
        if extras & 32 != 0 {
            self.controller.enable_shadow_doorbells()?;
        }
        if extras & 64 != 0 {
            self.controller.disable_apst()?;
        }
        let entries = u16::from(script.u8());
        for qid in 1..=granted {
            let vector = (qid & 1 == 0).then_some(qid);
            let queue = self.controller.create_queue_pair(qid, entries, vector)?;
            self.queues.push(queue);
            self.tokens.push(BTreeSet::new());
        }
        for namespace in namespaces
            .iter()
            .take(4)
            .filter(|namespace| namespace.supported().is_ok())
        {
            let bytes = self.controller.max_transfer().min(32 << 10) & !(namespace.block_size as usize - 1);
            let blocks = (bytes / namespace.block_size as usize).min(BLOCKS as usize) as u32;
            let bytes = blocks as usize * namespace.block_size as usize;
            let Ok(buffer) = self.dma.allocate(bytes.max(1), 512) else {
                break;
            };
            let Ok(prps) = Prps::new(&self.dma, &buffer, 0, bytes, self.controller.page_size()) else {
                break;
            };
            self.commands
                .push(Command::read(namespace.id, 0, blocks, prps.data_pointer()));
            self.buffers.push((buffer, prps));
        }
        while !script.is_empty() {
            self.act(script.u8())?;
        }
        Ok(())
    }

    fn act(&mut self, action: u8) -> Result<(), Error> {
        let which = usize::from(action >> 4 & 3) % self.queues.len();
        match action & 15 {
            0..6 => self.submit(which, action),
            6 => self.queues[which].commit(),
            7 => self.complete(which),
            8 => self.controller.check_status()?,
            9 => self.replace(which)?,
            10 => self.reset()?,
            11 => {
                self.queues[which].set_epoch(100);
                let overdue: Vec<_> = self.queues[which].overdue(50).collect();
                for (command, token) in overdue {
                    assert!(self.tokens[which].contains(&token), "overdue, but not in flight");
                    self.controller.abort(self.queues[which].id(), command)?;
                }
            }
            12 => {
                self.controller.smart_log()?;
                assert!(self.controller.error_log()?.len() <= 256);
            }
            13 => {
                let events = self.controller.poll_events()?;
                assert!(events.iter().all(|event| !event.to_string().is_empty()));
            }
            14 => {
                let coalescing = InterruptCoalescing { threshold: 3, time: 1 };
                self.controller.set_interrupt_coalescing(coalescing)?;
                self.controller.set_vector_coalescing_disabled(2, action & 16 != 0)?;
            }
            _ => {
                let on = self.controller.write_cache()?;
                self.controller.set_write_cache(!on)?;
            }
        }
        Ok(())
    }

    fn replace(&mut self, which: usize) -> Result<(), Error> {
        let queue = self.queues.swap_remove(which);
        let (qid, entries, vector) = (queue.id(), queue.entries(), queue.vector());
        self.tokens.swap_remove(which);
        self.controller.delete_queue_pair(queue)?;
        let queue = self.controller.create_queue_pair(qid, entries, vector)?;
        self.queues.push(queue);
        self.tokens.push(BTreeSet::new());
        Ok(())
    }

    /// Resets the controller, and finds every command that was in flight among the lost ones.
    fn reset(&mut self) -> Result<(), Error> {
        let before = self.controller.resets();
        let result = self.controller.reset();
        assert!(
            self.controller.resets() - before <= nvme::Config::default().max_resets,
            "resets without end"
        );
        if let Err(error) = result {
            assert!(
                !self.device.is_honest() || matches!(error, Error::ResetsExhausted { .. }),
                "an honest device: {error}"
            );
            return Err(error);
        }
        for (queue, tokens) in self.queues.iter_mut().zip(&mut self.tokens) {
            self.controller.recreate(queue)?;
            let lost: BTreeSet<_> = queue.take_lost().into_iter().collect();
            assert_eq!(lost, std::mem::take(tokens), "what a reset lost");
            assert_eq!(queue.in_flight(), 0);
        }
        Ok(())
    }

    fn submit(&mut self, which: usize, action: u8) {
        let queue = &mut self.queues[which];
        let Some(command) = self.commands.get_mut(usize::from(action & 1)) else {
            return;
        };
        command.set_opcode(match action & 6 {
            0 => NvmOpcode::READ,
            2 => NvmOpcode::WRITE,
            _ if action & 64 != 0 => NvmOpcode::VERIFY,
            _ => NvmOpcode::WRITE_ZEROES,
        });
        let token = self.next_token;
        let room = queue.in_flight() < queue.capacity();
        match queue.write(command, token) {
            Ok(_) => {
                assert!(room, "more commands than the queue has room for");
                assert!(self.tokens[which].insert(token));
                self.next_token += 1;
            }
            Err(_) => assert!(!room, "room for a command that was refused"),
        }
    }

    /// Looks for completions as long as there are commands in flight, but not for ever.
    fn complete(&mut self, which: usize) {
        let (queue, tokens) = (&mut self.queues[which], &mut self.tokens[which]);
        queue.commit();
        for _ in 0..64 {
            while let Some(found) = queue.poll().transpose() {
                let honest = self.device.is_honest();
                match found {
                    Ok(completion) => {
                        assert!(tokens.remove(&completion.token), "a command ended twice");
                        assert!(
                            completion.status.is_success() || !honest,
                            "an honest device: {}",
                            completion.status
                        );
                    }
                    Err(violation) => assert!(!honest, "an honest device: {violation}"),
                }
                queue.acknowledge();
            }
            if tokens.is_empty() {
                break;
            }
            self.device.clock().ticks();
        }
        assert_eq!(tokens.len(), usize::from(queue.in_flight()));
        assert!(
            tokens.is_empty() || !self.device.is_honest(),
            "an honest device answers everything"
        );
    }

    /// Ends in order, as far as the device lets it.
    fn stop(mut self, well: bool) {
        // After an error a queue pair may only be deleted.
        for which in 0..if well { self.queues.len() } else { 0 } {
            self.complete(which);
        }
        let mut result = Ok(());
        for queue in self.queues.drain(..) {
            result = result.and(self.controller.delete_queue_pair(queue));
        }
        result = result.and(self.controller.shutdown());
        assert!(
            !well || result.is_ok() || !self.device.is_honest(),
            "an honest device: {result:?}"
        );
    }
}
