//! Queue pairs over thousands of rounds, in any interleaving, with every doorbell accounted for.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Machine, Queue};
use nvme::{Command, Prps, QueueFull};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Config, NamespaceConfig, NullBackend};
use proptest::prelude::*;

fn machine() -> Machine {
    Machine::new(Config::default(), [NamespaceConfig::new(1, 1 << 30, 512, NullBackend)])
}

fn read_command(machine: &Machine) -> (Command, (hal::dma::DmaBuffer, Prps)) {
    let dma = machine.dma();
    let buffer = dma.allocate(512, 512).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 512, 4096).unwrap();
    (Command::read(1, 0, 1, prps.data_pointer()), (buffer, prps))
}

#[test]
fn thousands_of_rounds_in_small_and_odd_queues() {
    let rounds: u64 = if cfg!(miri) { 20 } else { 10_000 };
    for entries in [2, 3, 5, 16, 33, 256] {
        let machine = machine();
        let (mut driver, mut queue) = machine.with_queue(entries);
        let (mut command, _memory) = read_command(&machine);
        let depth = u64::from(queue.capacity());
        let (mut next, mut done) = (0u64, 0u64);
        while done < rounds {
            while next - done < depth && next < rounds {
                command.set_lba(next * 8);
                queue.write(&command, next as u32).unwrap();
                next += 1;
            }
            assert_eq!(u64::from(queue.in_flight()), next - done);
            queue.commit();
            while let Some(completion) = queue.poll().unwrap() {
                // The emulated device completes in order.
                assert_eq!(u64::from(completion.token), done);
                assert!(completion.status.is_success());
                done += 1;
            }
            queue.acknowledge();
        }
        let counters = *queue.counters();
        assert_eq!(
            (counters.submitted, counters.completed, counters.violations),
            (rounds, rounds, 0)
        );
        // One doorbell of each kind for each batch.
        let batches = rounds.div_ceil(depth);
        assert_eq!((counters.sq_doorbells, counters.cq_doorbells), (batches, batches));
        driver.delete_queue_pair(queue).unwrap();
        machine.assert_no_mistake();
    }
}

#[test]
fn a_queue_pair_can_move_to_its_cpu() {
    fn assert_send<T: Send>() {}
    assert_send::<nvme::QueuePair<hal::mmio::MmioRegion>>();
    assert_send::<Prps>();
}

#[test]
fn a_full_queue_says_so_and_goes_on() {
    let machine = machine();
    let (_driver, mut queue) = machine.with_queue(4);
    let (command, _memory) = read_command(&machine);
    for token in 0..3 {
        queue.write(&command, token).unwrap();
    }
    assert_eq!(queue.write(&command, 9), Err(QueueFull));
    queue.commit();
    assert_eq!(queue.write(&command, 9), Err(QueueFull));
    assert_eq!(queue.poll().unwrap().unwrap().token, 0);
    queue.write(&command, 9).unwrap();
    assert_eq!(queue.write(&command, 10), Err(QueueFull));
    machine.assert_no_mistake();
}

#[test]
fn nothing_written_rings_no_doorbell() {
    let machine = machine();
    let (_driver, mut queue) = machine.with_queue(4);
    let (command, _memory) = read_command(&machine);
    queue.commit();
    queue.acknowledge();
    assert_eq!((queue.counters().sq_doorbells, queue.counters().cq_doorbells), (0, 0));
    queue.write(&command, 0).unwrap();
    queue.commit();
    queue.commit();
    assert_eq!(queue.counters().sq_doorbells, 1);
    assert!(queue.is_ready());
    queue.poll().unwrap().unwrap();
    assert!(!queue.is_ready());
    queue.acknowledge();
    queue.acknowledge();
    assert_eq!(queue.counters().cq_doorbells, 1);
    machine.assert_no_mistake();
}

#[test]
fn completions_not_acknowledged_hold_the_device_up_but_lose_nothing() {
    let machine = machine();
    let (_driver, mut queue) = machine.with_queue(4);
    let (command, _memory) = read_command(&machine);
    let mut tokens = Vec::new();
    // Six commands in two batches of three, and only then the first acknowledgement: the queue holds three.
    for batch in 0..2 {
        for i in 0..3 {
            queue.write(&command, batch * 3 + i).unwrap();
        }
        queue.commit();
        while let Some(completion) = queue.poll().unwrap() {
            tokens.push(completion.token);
        }
    }
    assert_eq!(tokens, [0, 1, 2]);
    queue.acknowledge();
    while let Some(completion) = queue.poll().unwrap() {
        tokens.push(completion.token);
    }
    assert_eq!(tokens, [0, 1, 2, 3, 4, 5]);
    machine.assert_no_mistake();
}

#[test]
fn vectors_are_raised_only_where_asked_for() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    driver.request_queues(3).unwrap();
    let mut queues: Vec<Queue> = [(1, Some(5)), (2, None), (3, Some(0))]
        .map(|(qid, vector)| driver.create_queue_pair(qid, 8, vector).unwrap())
        .into();
    let (command, _memory) = read_command(&machine);
    machine.device().take_interrupts();
    for queue in &mut queues {
        queue.write(&command, 1).unwrap();
        queue.commit();
        assert!(queue.poll().unwrap().is_some());
    }
    assert_eq!(machine.device().take_interrupts(), [5, 0]);

    // A lost interrupt loses no completion.
    machine.add(Rule::next(1, Fault::DropInterrupt));
    queues[0].write(&command, 2).unwrap();
    queues[0].commit();
    assert_eq!(machine.device().take_interrupts(), [] as [u16; 0]);
    assert_eq!(queues[0].poll().unwrap().unwrap().token, 2);
    machine.assert_no_mistake();
}

#[test]
fn identifiers_in_flight_are_unique_and_reuse_changes_them() {
    let machine = machine();
    machine.set_prompt(false);
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    let mut queue = driver.create_queue_pair(1, 32, None).unwrap();
    let (command, _memory) = read_command(&machine);
    let mut before = BTreeSet::new();
    for round in 0..if cfg!(miri) { 5 } else { 100 } {
        let ids: BTreeSet<_> = (0..31).map(|token| queue.write(&command, token).unwrap()).collect();
        assert_eq!(ids.len(), 31);
        assert!(
            ids.is_disjoint(&before),
            "round {round} reuses an identifier of the round before"
        );
        assert!(ids.iter().all(|id| id.0 != 0xffff));
        before = ids;
        queue.commit();
        machine.device().process();
        while queue.poll().unwrap().is_some() {}
        queue.acknowledge();
        machine.device().process();
    }
    machine.assert_no_mistake();
}

#[test]
fn a_queue_deleted_with_commands_in_flight_can_be_created_again() {
    let machine = machine();
    let (mut driver, mut queue) = machine.with_queue(8);
    let (command, _memory) = read_command(&machine);
    machine.add(Rule {
        times: 3,
        ..Rule::next(1, Fault::Delay(1_000_000))
    });
    for token in 0..3 {
        queue.write(&command, token).unwrap();
    }
    queue.commit();
    assert_eq!((queue.poll(), queue.in_flight()), (Ok(None), 3));
    driver.delete_queue_pair(queue).unwrap();
    let mut queue = driver.create_queue_pair(1, 8, None).unwrap();
    queue.write(&command, 7).unwrap();
    queue.commit();
    assert_eq!(queue.poll().unwrap().unwrap().token, 7);
    machine.assert_no_mistake();
}

/// One step of a test of interleavings.
#[derive(Clone, Debug)]
enum Step {
    Write(u8),
    Commit,
    Process,
    Poll(u8),
    Acknowledge,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1u8..9).prop_map(Step::Write),
        Just(Step::Commit),
        Just(Step::Process),
        (1u8..9).prop_map(Step::Poll),
        Just(Step::Acknowledge),
    ];
    proptest::collection::vec(step, 1..if cfg!(miri) { 30 } else { 300 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 96 }))]

    /// Whatever the order of steps, and with completions held back for different times, each command ends exactly once.
    #[test]
    fn every_command_ends_once_in_any_interleaving(entries in 2u16..20, delays in proptest::collection::vec(0u64..9, 1..40), steps in steps()) {
        let machine = machine();
        let (mut driver, mut queue) = machine.with_queue(entries);
        let (command, _memory) = read_command(&machine);
        machine.set_prompt(false);
        for (skip, delay) in delays.into_iter().enumerate() {
            // Every third one, so that later commands overtake.
            machine.add(Rule { skip: 2 * skip as u64, ..Rule::next(1, Fault::Delay(delay)) });
        }
        let mut in_flight = BTreeMap::new();
        let mut next = 0;
        let take = |queue: &mut Queue, in_flight: &mut BTreeMap<u32, ()>| {
            let Some(completion) = queue.poll().unwrap() else { return false };
            assert!(in_flight.remove(&completion.token).is_some(), "{} ended twice", completion.token);
            true
        };
        for step in steps {
            match step {
                Step::Write(count) => {
                    for _ in 0..count {
                        let full = in_flight.len() == usize::from(queue.capacity());
                        let written = queue.write(&command, next);
                        assert_eq!(written.is_err(), full);
                        if !full {
                            in_flight.insert(next, ());
                            next += 1;
                        }
                    }
                }
                Step::Commit => queue.commit(),
                Step::Process => { machine.device().process(); }
                Step::Poll(count) => {
                    for _ in 0..count {
                        take(&mut queue, &mut in_flight);
                    }
                }
                Step::Acknowledge => queue.acknowledge(),
            }
            prop_assert_eq!(usize::from(queue.in_flight()), in_flight.len());
        }
        queue.commit();
        for _ in 0..40 {
            machine.device().process();
            while take(&mut queue, &mut in_flight) {}
            queue.acknowledge();
        }
        prop_assert!(in_flight.is_empty(), "{in_flight:?} never ended");
        prop_assert_eq!(queue.counters().completed, u64::from(next));
        machine.set_prompt(true);
        driver.delete_queue_pair(queue).unwrap();
        let device = machine.device();
        prop_assert!(device.errors().is_empty(), "{:?}", device.errors());
    }
}
