//! Traps that other drivers and devices fell into, with the public report of each. What a test elsewhere here covers is not
//! repeated.

mod common;

use std::time::Duration;

use common::{Machine, Queue};
use hal::clock::Clock;
use hal::dma::IoAddr;
use nvme::spec::{AdminOpcode, CompletionEntry, QueueCounts, Register};
use nvme::{Command, CommandId, Error, Prps, Status, ViolationKind};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Answer, Config, NamespaceConfig, NullBackend};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

fn machine(config: Config) -> Machine {
    Machine::new(config, [NamespaceConfig::new(1, 1 << 20, 512, NullBackend)])
}

fn read(machine: &Machine) -> (Command, (hal::dma::DmaBuffer, Prps)) {
    let dma = machine.dma();
    let buffer = dma.allocate(4096, 4096).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 4096, 4096).unwrap();
    (Command::read(1, 0, 8, prps.data_pointer()), (buffer, prps))
}

#[track_caller]
fn one_io(queue: &mut Queue, command: &Command, token: u32) {
    queue.write(command, token).unwrap();
    queue.commit();
    let completion = queue.poll().unwrap().expect("completed at once");
    assert_eq!((completion.token, completion.status), (token, Status::SUCCESS));
    queue.acknowledge();
}

/// spdk#3645, kvmtool#13, openvmm#499: the numbers of queues and vectors are whatever they are.
#[test]
fn fewer_queues_than_asked_and_one_vector_for_all_or_none() {
    let config = Config {
        vectors: 1,
        io_queues: QueueCounts {
            submission: 3,
            completion: 2,
        },
        ..Config::default()
    };
    let machine = machine(config);
    let mut driver = machine.start().unwrap();
    assert_eq!(driver.request_queues(8), Ok(2));
    let (command, _memory) = read(&machine);
    machine.device().take_interrupts();
    for (qid, vector) in [(1, Some(0)), (2, None)] {
        let mut queue = driver.create_queue_pair(qid, 16, vector).unwrap();
        machine.device().take_interrupts();
        one_io(&mut queue, &command, 5);
        let raised: Vec<u16> = vector.into_iter().collect();
        assert_eq!(machine.device().take_interrupts(), raised);
    }
    machine.assert_no_mistake();
}

/// openvmm#505, openvmm#506: an entry whose phase is not there yet is none, whatever the rest of it says.
#[test]
fn a_completion_is_read_after_its_phase() {
    let machine = machine(Config::default());
    let (_driver, mut queue) = machine.with_queue(8);
    let (command, _memory) = read(&machine);
    machine.set_prompt(false);
    let id = queue.write(&command, 42).unwrap();
    let address = machine.device().controller().completion_queue_address(1).unwrap();
    let address = IoAddr::new(address);
    let entry = CompletionEntry {
        sq_id: U16::new(1),
        sq_head: U16::new(1),
        command_id: U16::new(id.0),
        ..CompletionEntry::default()
    };
    let entry = entry.with_status(Status::WRITE_FAULT, true);
    // All but the last two bytes, in any order.
    for part in [8..12, 0..8, 12..14] {
        assert_eq!(queue.poll(), Ok(None));
        machine
            .bus
            .write(address.offset(part.start), &entry.as_bytes()[part])
            .unwrap();
    }
    assert_eq!(queue.poll(), Ok(None));
    machine.bus.write(address.offset(14), &entry.as_bytes()[14..]).unwrap();
    let completion = queue.poll().unwrap().unwrap();
    assert_eq!((completion.token, completion.status), (42, Status::WRITE_FAULT));
    assert_eq!(queue.poll(), Ok(None));
}

/// Queue memory that still holds the completions of before shows phantoms, or hides what is new.
#[test]
fn completions_of_before_a_reset_are_no_phantoms() {
    let machine = machine(Config::default());
    let (mut driver, mut queue) = machine.with_queue(4);
    let (command, _memory) = read(&machine);
    // Once around and a half: the next phase is not the one of a fresh queue.
    for token in 0..6 {
        one_io(&mut queue, &command, token);
    }
    driver.reset().unwrap();
    driver.recreate(&mut queue).unwrap();
    assert!(!queue.is_ready());
    assert_eq!(queue.poll(), Ok(None));
    for token in 10..20 {
        one_io(&mut queue, &command, token);
        assert_eq!(queue.poll(), Ok(None));
    }
    machine.assert_no_mistake();
}

/// spdk#1828: a completion of a command that a reset took away, posted late.
#[test]
fn a_completion_of_before_a_reset_is_counted_and_never_trusted() {
    let machine = machine(Config::default());
    let (mut driver, mut queue) = machine.with_queue(2);
    let (command, _memory) = read(&machine);
    machine.add(Rule::next(1, Fault::Stall));
    let old = queue.write(&command, 1).unwrap();
    queue.commit();
    driver.reset().unwrap();
    driver.recreate(&mut queue).unwrap();
    assert_eq!(queue.take_lost(), [1]);
    // The same slot is in use again when the device remembers.
    machine.add(Rule::next(1, Fault::Stall));
    let new = queue.write(&command, 2).unwrap();
    queue.commit();
    let entry = CompletionEntry {
        sq_id: U16::new(1),
        command_id: U16::new(old.0),
        ..CompletionEntry::default()
    };
    machine.device().inject(Answer {
        queue: 1,
        entry,
        interrupt: true,
    });
    let violation = queue.poll().unwrap_err();
    assert_eq!(
        (violation.command, violation.kind),
        (old, ViolationKind::StaleSequence { in_flight: new })
    );
    assert_eq!((queue.in_flight(), queue.counters().violations), (1, 1));
}

/// genode#4684: a lost interrupt. What the watchdog needs is there: a look that costs nothing, and who is late.
#[test]
fn a_lost_interrupt_is_found_by_a_look_at_the_queue() {
    let machine = machine(Config::default());
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    let mut queue = driver.create_queue_pair(1, 16, Some(1)).unwrap();
    let (command, _memory) = read(&machine);
    machine.device().take_interrupts();
    machine.add(Rule::next(1, Fault::DropInterrupt));
    queue.set_epoch(u32::MAX);
    let id = queue.write(&command, 7).unwrap();
    queue.commit();
    queue.set_epoch(1);
    assert_eq!(machine.device().take_interrupts(), [0u16; 0]);
    assert_eq!(queue.overdue(0).collect::<Vec<_>>(), [(id, 7)]);
    assert!(queue.is_ready());
    assert_eq!(queue.poll().unwrap().unwrap().token, 7);
    assert_eq!(queue.overdue(1).count(), 0);
}

#[test]
fn overdue_is_by_the_epoch_of_each_command_even_where_it_wraps() {
    let machine = machine(Config::default());
    let (_driver, mut queue) = machine.with_queue(8);
    let (command, _memory) = read(&machine);
    machine.set_prompt(false);
    for (token, epoch) in (0..).zip([u32::MAX - 1, u32::MAX, 0, 1]) {
        queue.set_epoch(epoch);
        queue.write(&command, token).unwrap();
    }
    let overdue = |limit: u32| queue.overdue(limit).map(|(_, token)| token).collect::<Vec<_>>();
    assert_eq!(overdue(u32::MAX - 2), [0u32; 0]);
    assert_eq!(overdue(u32::MAX), [0, 1]);
    assert_eq!(overdue(0), [0, 1, 2]);
    assert_eq!(overdue(5), [0, 1, 2, 3]);
}

/// propolis#986: MDTS = 0 names no limit, and there is one all the same.
#[test]
fn without_mdts_transfers_are_capped_all_the_same() {
    let machine = machine(Config::default());
    let config = nvme::Config {
        max_transfer_cap: 1 << 20,
        ..nvme::Config::default()
    };
    let driver = machine.start_with(config).unwrap();
    assert_eq!((driver.info().mdts, driver.max_transfer()), (None, 1 << 20));
}

/// NLB is zero-based: 65536 blocks are ffffh, and no count wraps into a small one.
#[test]
fn the_largest_count_of_blocks_is_carried_out_whole() {
    let data = nvme::DataPointer::default();
    let command = Command::read(1, 0, 65536, &data);
    assert_eq!((command.cdw10[2].get(), command.blocks()), (0xffff, 65536));
    let machine = machine(Config::default());
    let (_driver, mut queue) = machine.with_queue(4);
    // 65536 of 1 Mi blocks are verified; beyond the end, the device sees all of them.
    for (lba, status) in [
        (0, Status::SUCCESS),
        ((1 << 20) - 65536, Status::SUCCESS),
        ((1 << 20) - 65535, Status::LBA_OUT_OF_RANGE),
    ] {
        queue.write(&Command::verify(1, lba, 65536), 0).unwrap();
        queue.commit();
        assert!(queue.poll().unwrap().unwrap().status.is(status), "{lba}");
        queue.acknowledge();
    }
}

/// openvmm#3022: CRTO can ask for hours; the wait stays within what CAP.TO can say.
#[test]
fn no_wait_for_ready_is_longer_than_cap_to_can_say() {
    let config = Config {
        ready_with_media: Some(Duration::from_millis(500 * 0xffff)),
        ..Config::default()
    };
    let machine = machine(config);
    assert_eq!(
        machine.start().unwrap().info().ready_timeout,
        Duration::from_millis(127_500)
    );
}

/// Power states change by themselves, and a controller memory buffer takes part, only when somebody asks for it.
#[test]
fn power_states_are_held_and_the_memory_buffer_is_left_alone() {
    let config = Config {
        autonomous_power: true,
        ..Config::default()
    };
    let machine = machine(config);
    machine.trace();
    let mut driver = machine.start().unwrap();
    assert!(machine.device().controller().has_autonomous_transitions());
    assert_eq!(driver.disable_apst(), Ok(true));
    assert!(!machine.device().controller().has_autonomous_transitions());
    driver.reset().unwrap();
    assert!(!machine.device().controller().has_autonomous_transitions());
    driver.shutdown().unwrap();
    // CMBLOC, CMBSZ, CMBMSC.
    let trace = machine.take_trace();
    assert!(trace.iter().all(|(_, offset, _)| !(0x38..0x60).contains(offset)));
    machine.assert_no_mistake();

    let machine = self::machine(Config::default());
    assert_eq!(machine.start().unwrap().disable_apst(), Ok(false));
}

/// A failure inside recovery ends with an error in bounded time, wherever it happens.
#[test]
fn a_failure_inside_recovery_is_no_hang() {
    let faults = [Fault::Stall, Fault::Fatal, Fault::Status(Status::INTERNAL_ERROR)];
    for fault in faults {
        for opcode in [
            AdminOpcode::IDENTIFY,
            AdminOpcode::SET_FEATURES,
            AdminOpcode::DOORBELL_BUFFER_CONFIG,
        ] {
            let machine = machine(Config {
                doorbell_buffer: true,
                ..Config::default()
            });
            let config = nvme::Config {
                max_resets: 2,
                command_timeout: Duration::from_secs(1),
                ..nvme::Config::default()
            };
            let mut driver = machine.start_with(config).unwrap();
            driver.request_queues(1).unwrap();
            assert_eq!(driver.enable_shadow_doorbells(), Ok(true));
            let mut queue = driver.create_queue_pair(1, 8, None).unwrap();
            machine.add(Rule::every(0, opcode.0, fault.clone()));
            let start = machine.clock.ticks();
            let error = driver.reset().unwrap_err();
            assert!(machine.clock.ticks() - start < 60_000_000_000, "{opcode} {fault:?}");
            let Error::ResetsExhausted {
                resets: 2,
                last: Some(last),
                ..
            } = &error
            else {
                panic!("{opcode} {fault:?}: {error}");
            };
            assert_eq!(error.to_string(), format!("nvme0: given up after 2 resets; {last}"));
            // Given up for good: everything says so at once.
            assert!(matches!(driver.recreate(&mut queue), Err(Error::Stopped { .. })));
            assert!(matches!(driver.abort(1, CommandId(0)), Err(Error::Stopped { .. })));
            assert_eq!(
                driver.reset().unwrap_err().to_string(),
                "nvme0: given up after 2 resets"
            );
            driver.delete_queue_pair(queue).unwrap();
            drop(driver);
            machine.assert_nothing_allocated();
            machine.assert_no_mistake();
        }
    }
}

/// A subsystem reset takes memory decoding with it: the registers read as ones until somebody restores it.
#[test]
fn a_subsystem_reset_has_the_bus_restored() {
    let config = Config {
        subsystem_reset: true,
        ready_timeout: Duration::from_millis(1000),
        ..Config::default()
    };
    let machine = machine(config);
    let (mut driver, mut queue) = machine.with_queue(8);
    let (command, _memory) = read(&machine);
    machine.device().set_ready_lag(u64::MAX);
    let mut restored = 0;
    driver.reset_with(|| restored += 1).unwrap();
    assert_eq!(restored, 1);
    assert_eq!(driver.resets(), 1);
    driver.recreate(&mut queue).unwrap();
    one_io(&mut queue, &command, 3);
    let csts = machine.device().read32(Register::Csts.offset());
    assert_eq!(csts & 1, 1);
    machine.assert_no_mistake();
}
