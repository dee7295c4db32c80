//! Shadow doorbells against a device that only looks when it was told to, and asks when it wants to be told.

mod common;

use common::{Machine, Queue};
use nvme::spec::AdminOpcode;
use nvme::{Command, Error, Prps, Status};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Config, NamespaceConfig, NullBackend};
use proptest::prelude::*;

fn machine(doorbell_stride: usize) -> Machine {
    let config = Config {
        doorbell_buffer: true,
        doorbell_stride,
        ..Config::default()
    };
    Machine::new(config, [NamespaceConfig::new(1, 1 << 20, 512, NullBackend)])
}

fn read(machine: &Machine) -> (Command, (hal::dma::DmaBuffer, Prps)) {
    let dma = machine.dma();
    let buffer = dma.allocate(512, 512).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 512, 4096).unwrap();
    (Command::read(1, 0, 1, prps.data_pointer()), (buffer, prps))
}

fn finish(queue: &mut Queue, machine: &Machine) {
    for _ in 0..8 {
        machine.device().process();
        while let Some(completion) = queue.poll().unwrap() {
            assert!(completion.status.is_success());
        }
        queue.acknowledge();
    }
    assert_eq!(queue.in_flight(), 0, "the device stalls");
}

#[test]
fn doorbells_are_saved_while_the_device_is_at_work() {
    let machine = machine(4);
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    assert_eq!(driver.enable_shadow_doorbells(), Ok(true));
    assert_eq!(driver.enable_shadow_doorbells(), Ok(true));
    let mut queue = driver.create_queue_pair(1, 64, None).unwrap();
    let (command, memory) = read(&machine);
    machine.set_prompt(false);
    for token in 0..40 {
        queue.write(&command, token).unwrap();
        queue.commit();
    }
    // The first woke the device, and it has not looked since.
    assert_eq!(
        (queue.counters().sq_doorbells, queue.counters().doorbells_saved),
        (1, 39)
    );
    finish(&mut queue, &machine);
    // It has, and sleeps.
    queue.write(&command, 0).unwrap();
    queue.commit();
    assert_eq!(queue.counters().sq_doorbells, 2);
    finish(&mut queue, &machine);
    driver.delete_queue_pair(queue).unwrap();
    drop((driver, memory));
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
}

#[test]
fn a_device_without_them_is_rung_as_ever() {
    let machine = Machine::new(Config::default(), [NamespaceConfig::new(1, 8, 512, NullBackend)]);
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    assert_eq!(driver.enable_shadow_doorbells(), Ok(false));
    let queue = driver.create_queue_pair(1, 8, None).unwrap();
    assert!(!queue.has_shadow_doorbells());
    assert_eq!(machine.bus.live(), 5);
}

#[test]
fn they_are_set_up_before_queues_or_not_at_all() {
    let machine = machine(4);
    let (mut driver, queue) = machine.with_queue(8);
    assert!(!queue.has_shadow_doorbells());
    let error = driver.enable_shadow_doorbells().unwrap_err();
    assert!(matches!(error, Error::QueuesExist { .. }));
    driver.delete_queue_pair(queue).unwrap();
    assert_eq!(driver.enable_shadow_doorbells(), Ok(true));
    machine.assert_no_mistake();
}

#[test]
fn pages_that_were_refused_are_freed_and_those_in_doubt_are_not() {
    for (fault, live) in [(Fault::Status(Status::INTERNAL_ERROR), 3), (Fault::Stall, 5)] {
        let machine = machine(4);
        let mut driver = machine.start().unwrap();
        machine.add(Rule::every(0, AdminOpcode::DOORBELL_BUFFER_CONFIG.0, fault));
        driver.enable_shadow_doorbells().unwrap_err();
        assert_eq!(machine.bus.live(), live);
        driver.request_queues(1).ok();
    }
}

/// openvmm PR 4080, propolis#1008: values of an earlier queue, or of an earlier life, would be taken for new commands.
#[test]
fn nothing_of_an_earlier_queue_is_left_in_them() {
    let machine = machine(8);
    let mut driver = machine.start().unwrap();
    driver.request_queues(2).unwrap();
    driver.enable_shadow_doorbells().unwrap();
    let (command, memory) = read(&machine);
    for round in 0..6 {
        let mut queue = driver.create_queue_pair(2, 16, None).unwrap();
        for token in 0..5 {
            queue.write(&command, token).unwrap();
            queue.commit();
        }
        finish(&mut queue, &machine);
        if round % 2 == 0 {
            driver.delete_queue_pair(queue).unwrap();
        } else {
            if round == 3 {
                driver.reset().unwrap();
            } else {
                // Commands on their way when the reset comes.
                machine.set_prompt(false);
                for token in 0..7 {
                    queue.write(&command, token).unwrap();
                    queue.commit();
                }
                driver.reset().unwrap();
                machine.set_prompt(true);
            }
            driver.recreate(&mut queue).unwrap();
            assert!(queue.has_shadow_doorbells());
            assert_eq!(queue.take_lost().len(), if round == 3 { 0 } else { 7 });
            queue.write(&command, 0).unwrap();
            queue.commit();
            finish(&mut queue, &machine);
            driver.delete_queue_pair(queue).unwrap();
        }
    }
    drop((driver, memory));
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u8),
    Commit,
    /// One command of the device's, so that its event index lies anywhere.
    Device,
    Poll(u8),
    Acknowledge,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u8..6).prop_map(Step::Write),
        Just(Step::Commit),
        Just(Step::Device),
        (1u8..6).prop_map(Step::Poll),
        Just(Step::Acknowledge),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// Whatever the order of the driver's and the device's steps, no doorbell is missed: everything ends.
    #[test]
    fn no_interleaving_stalls(entries in 2u16..10, steps in proptest::collection::vec(step(), 0..120)) {
        let machine = machine(4);
        let mut driver = machine.start().unwrap();
        driver.request_queues(1).unwrap();
        driver.enable_shadow_doorbells().unwrap();
        let mut queue = driver.create_queue_pair(1, entries, None).unwrap();
        let (command, _memory) = read(&machine);
        machine.set_prompt(false);
        let (mut token, mut ended) = (0, Vec::new());
        for step in steps {
            match step {
                Step::Write(count) => for _ in 0..count {
                    if queue.has_room() {
                        queue.write(&command, token).unwrap();
                        token += 1;
                    } else {
                        prop_assert!(queue.write(&command, token).is_err());
                    }
                },
                Step::Commit => queue.commit(),
                Step::Device => { machine.device().process(); }
                Step::Poll(count) => for _ in 0..count {
                    ended.extend(queue.poll().unwrap().map(|completion| completion.token));
                },
                Step::Acknowledge => queue.acknowledge(),
            }
        }
        queue.commit();
        for _ in 0..4 {
            machine.device().process();
            while let Some(completion) = queue.poll().unwrap() {
                ended.push(completion.token);
            }
            queue.acknowledge();
        }
        prop_assert_eq!(ended, (0..token).collect::<Vec<_>>());
        machine.assert_no_mistake();
    }
}
