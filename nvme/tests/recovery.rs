//! Resets in the middle of I/O: each command ends exactly once, with the data that it should have.

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use common::{Machine, Queue};
use hal::dma::DmaBuffer;
use nvme::spec::InterruptCoalescing;
use nvme::{Command, Error, NvmOpcode, Prps, Reissue, Status};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Config, NamespaceConfig, NullBackend, RamBackend};
use proptest::prelude::*;

const BLOCKS: u64 = 64;

fn machine() -> Machine {
    let storage = RamBackend::new(BLOCKS as usize * 512);
    Machine::new(Config::default(), [NamespaceConfig::new(1, BLOCKS, 512, storage)])
}

#[test]
fn a_controller_can_sit_behind_a_lock_of_all_cpus() {
    fn assert_send<T: Send>() {}
    assert_send::<nvme::Controller<hal::mmio::MmioRegion, hal::fake::FakeClock>>();
    assert_send::<Mutex<nvme::Controller<hal::mmio::MmioRegion, hal::fake::FakeClock>>>();
}

/// Not for Miri: a device's accesses are plain memory accesses to it, and races where CPUs and device share a queue.
#[cfg(not(miri))]
#[test]
fn queues_are_recreated_by_their_owners_on_other_cpus() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    driver.request_queues(3).unwrap();
    let pairs: Vec<Queue> = (1..=3)
        .map(|qid| driver.create_queue_pair(qid, 8, Some(qid)).unwrap())
        .collect();
    driver.reset().unwrap();
    let driver = Mutex::new(driver);
    let dma = machine.dma();
    std::thread::scope(|scope| {
        for mut pair in pairs {
            let (driver, dma) = (&driver, dma.clone());
            scope.spawn(move || {
                driver.lock().unwrap().recreate(&mut pair).unwrap();
                let buffer = dma.allocate(512, 512).unwrap();
                let prps = Prps::new(&dma, &buffer, 0, 512, 4096).unwrap();
                for token in 0..50 {
                    pair.write(&Command::read(1, 0, 1, prps.data_pointer()), token).unwrap();
                    pair.commit();
                    let completion = loop {
                        if let Some(completion) = pair.poll().unwrap() {
                            break completion;
                        }
                    };
                    assert_eq!((completion.token, completion.status), (token, Status::SUCCESS));
                    pair.acknowledge();
                }
                driver.lock().unwrap().delete_queue_pair(pair).unwrap();
            });
        }
    });
    drop(driver);
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
}

#[test]
fn pairs_are_recreated_once_and_only_by_their_own_controller() {
    let machine = machine();
    let (mut driver, mut queue) = machine.with_queue(8);
    let (mut other, mut foreign) = self::machine().with_queue(8);
    let refused = "nvme0: no I/O queue 1: ids 1 to 1 were granted, each once";
    // Nothing took it away yet.
    assert_eq!(driver.recreate(&mut queue).unwrap_err().to_string(), refused);
    driver.reset().unwrap();
    assert_eq!(driver.recreate(&mut foreign).unwrap_err().to_string(), refused);
    driver.recreate(&mut queue).unwrap();
    assert_eq!(driver.recreate(&mut queue).unwrap_err().to_string(), refused);
    assert!(driver.delete_queue_pair(foreign).is_err());
    assert!(other.check_status().is_ok());
    other.shutdown().unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_pair_that_a_reset_took_away_is_only_freed() {
    let machine = machine();
    let (mut driver, old) = machine.with_queue(8);
    driver.reset().unwrap();
    // A new pair of the same id: deleting the old one leaves it alone.
    let new = driver.create_queue_pair(1, 8, None).unwrap();
    driver.delete_queue_pair(old).unwrap();
    driver.delete_queue_pair(new).unwrap();
    drop(driver);
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
}

#[test]
fn resets_long_ago_do_not_count() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    let limit = nvme::Config::default().max_resets;
    for _ in 0..limit {
        driver.reset().unwrap();
    }
    machine.clock.advance(601_000_000_000);
    for _ in 0..limit {
        driver.reset().unwrap();
    }
    assert_eq!(driver.resets(), 2 * limit);
    // So many within that time are too many, and it was given up for good.
    assert!(matches!(driver.reset(), Err(Error::ResetsExhausted { resets: 3, .. })));
    machine.clock.advance(601_000_000_000);
    assert!(matches!(driver.reset(), Err(Error::ResetsExhausted { .. })));
    machine.assert_no_mistake();
}

#[test]
fn fewer_queues_after_a_reset_leave_pairs_without_queues_but_tell_what_was_lost() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    driver.request_queues(2).unwrap();
    let mut pair = driver.create_queue_pair(2, 8, None).unwrap();
    machine.add(Rule::next(2, Fault::Stall));
    pair.write(&Command::flush(1), 9).unwrap();
    pair.commit();
    machine.add(Rule {
        times: 1,
        ..Rule::every(0, nvme::spec::AdminOpcode::SET_FEATURES.0, Fault::Result(0))
    });
    driver.reset().unwrap();
    assert_eq!(driver.queues(), 1);
    assert_eq!(
        driver.recreate(&mut pair).unwrap_err().to_string(),
        "nvme0: no I/O queue 2: ids 1 to 1 were granted, each once"
    );
    assert_eq!((pair.take_lost(), pair.in_flight()), (vec![9], 0));
    driver.delete_queue_pair(pair).unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_timed_out_admin_command_is_cured_by_a_reset() {
    let machine = machine();
    let (mut driver, mut queue) = machine.with_queue(8);
    driver.set_interrupt_coalescing(InterruptCoalescing::default()).unwrap();
    machine.add(Rule::next(0, Fault::Stall));
    assert!(matches!(driver.smart_log(), Err(Error::Timeout { .. })));
    assert!(matches!(driver.smart_log(), Err(Error::Stopped { .. })));
    driver.reset().unwrap();
    driver.recreate(&mut queue).unwrap();
    driver.smart_log().unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_controller_that_was_shut_down_comes_up_again() {
    let machine = machine();
    let (mut driver, mut queue) = machine.with_queue(8);
    driver.shutdown().unwrap();
    driver.reset().unwrap();
    driver.recreate(&mut queue).unwrap();
    driver.delete_queue_pair(queue).unwrap();
    driver.shutdown().unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_device_that_is_gone_is_not_reset_again_and_again() {
    let machine = Machine::new(Config::default(), [NamespaceConfig::new(1, 8, 512, NullBackend)]);
    let mut driver = machine.start().unwrap();
    machine.device().remove();
    let reads = machine.register_reads();
    assert!(matches!(driver.reset(), Err(Error::Gone { .. })));
    assert!(machine.register_reads() - reads < 8);
    assert_eq!(driver.resets(), 1);
}

/// What happens to the device while commands are on their way.
#[derive(Clone, Debug)]
enum Trouble {
    None,
    Stall,
    Drop,
    Delay(u64),
    Fatal,
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        6 => Just(Trouble::None),
        1 => Just(Trouble::Stall),
        1 => Just(Trouble::Drop),
        2 => (0u64..6).prop_map(Trouble::Delay),
        1 => Just(Trouble::Fatal),
    ]
}

/// An I/O of the plan: whether it writes, and to which block. One I/O in flight a block, so that the order does not matter.
type Plan = Vec<(bool, u8, Trouble)>;

/// Does the I/Os one window after the other; whenever some do not end, resets and issues again what was lost. Returns how
/// often each ended.
fn play(machine: &Machine, shadow: bool, entries: u16, plan: &Plan) -> Result<Vec<u32>, TestCaseError> {
    let config = nvme::Config {
        max_resets: u32::MAX,
        ..nvme::Config::default()
    };
    let mut driver = machine.start_with(config).unwrap();
    driver.request_queues(1).unwrap();
    prop_assert_eq!(driver.enable_shadow_doorbells(), Ok(shadow));
    let mut queue = driver.create_queue_pair(1, entries, None).unwrap();
    prop_assert_eq!(queue.has_shadow_doorbells(), shadow);
    let dma = machine.dma();
    let mut ended = vec![0; plan.len()];
    let mut contents: BTreeMap<u8, u8> = BTreeMap::new();

    for (window, part) in plan.chunks(usize::from(queue.capacity())).enumerate() {
        let first = window * usize::from(queue.capacity());
        let mut ios: BTreeMap<u32, (u8, bool, Command, DmaBuffer, Prps)> = BTreeMap::new();
        for (index, (write, block, trouble)) in (first..).zip(part) {
            // One I/O for each block of a window.
            if ios.values().any(|(other, ..)| other == block) {
                ended[index] = 1;
                continue;
            }
            let fault = match trouble {
                Trouble::None => None,
                Trouble::Stall => Some(Fault::Stall),
                Trouble::Drop => Some(Fault::DropCompletion),
                Trouble::Delay(calls) => Some(Fault::Delay(*calls)),
                Trouble::Fatal => Some(Fault::Fatal),
            };
            fault.into_iter().for_each(|fault| machine.add(Rule::next(1, fault)));
            let mut buffer = dma.allocate(512, 512).unwrap();
            let value = (index as u8).wrapping_mul(37) | 1;
            buffer.copy_in(0, &[if *write { value } else { 0xee }; 512]);
            let prps = Prps::new(&dma, &buffer, 0, 512, driver.page_size()).unwrap();
            let mut command = Command::read(1, u64::from(*block), 1, prps.data_pointer());
            if *write {
                command.set_opcode(NvmOpcode::WRITE);
                contents.insert(*block, value);
            }
            queue.write(&command, index as u32).unwrap();
            queue.commit();
            ios.insert(index as u32, (*block, *write, command, buffer, prps));
        }
        // Each round without an end costs a reset, and each reset uses up at least one fault.
        for _ in 0..=2 * part.len() {
            for _ in 0..32 {
                while let Some(completion) = queue.poll().unwrap() {
                    ended[completion.token as usize] += 1;
                    prop_assert_eq!(completion.status, Status::SUCCESS);
                    let (block, write, _, buffer, _) = ios.remove(&completion.token).unwrap();
                    if !write {
                        let mut seen = [0; 512];
                        buffer.copy_out(0, &mut seen);
                        let expected = contents.get(&block).copied().unwrap_or(0);
                        prop_assert!(seen.iter().all(|byte| *byte == expected), "block {}", block);
                    }
                }
                queue.acknowledge();
                machine.device().process();
            }
            if ios.is_empty() {
                break;
            }
            driver.reset().unwrap();
            driver.recreate(&mut queue).unwrap();
            let mut lost = queue.take_lost();
            prop_assert!(queue.take_lost().is_empty());
            lost.sort_unstable();
            let waiting: Vec<u32> = ios.keys().copied().collect();
            prop_assert_eq!(&lost, &waiting);
            for token in lost {
                let command = &ios[&token].2;
                prop_assert!(Reissue::ReadsAndWrites.allows(NvmOpcode(command.opcode)));
                queue.write(command, token).unwrap();
            }
            queue.commit();
        }
        prop_assert!(ios.is_empty(), "{} commands never ended", ios.len());
    }
    let counters = *queue.counters();
    prop_assert_eq!(counters.submitted, counters.completed + counters.lost);
    driver.delete_queue_pair(queue).unwrap();
    driver.shutdown().unwrap();
    drop(driver);
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
    Ok(ended)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 128 }))]

    #[test]
    fn each_io_ends_once_with_its_data_whatever_resets_come(
        shadow in any::<bool>(),
        entries in 2u16..12,
        plan in proptest::collection::vec((any::<bool>(), 0u8..BLOCKS as u8, trouble()), 1..60),
    ) {
        let storage = RamBackend::new(BLOCKS as usize * 512);
        let config = Config { doorbell_buffer: shadow, ..Config::default() };
        let machine = Machine::new(config, [NamespaceConfig::new(1, BLOCKS, 512, storage)]);
        let ended = play(&machine, shadow, entries, &plan)?;
        prop_assert!(ended.iter().all(|times| *times == 1), "{:?}", ended);
    }
}
