//! Features, logs and events.

mod common;

use common::{Driver, Machine};
use nvme::spec::{AdminOpcode, AsyncEvent, AsyncEventKind, CriticalWarning, FeatureId, InterruptCoalescing, LogId};
use nvme::{Command, Error, Prps, Status};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Config, NamespaceConfig, NullBackend};

fn machine(config: Config) -> Machine {
    Machine::new(config, [NamespaceConfig::new(1, 1 << 20, 512, NullBackend)])
}

fn health(information: u8) -> AsyncEvent {
    AsyncEvent {
        kind: AsyncEventKind::Health,
        information,
        log: LogId::SMART,
    }
}

#[test]
fn features_are_set_and_set_again_after_a_reset() {
    let machine = machine(Config::default());
    let (mut driver, mut queue) = machine.with_queue(8);
    let coalescing = InterruptCoalescing { threshold: 7, time: 3 };
    driver.set_interrupt_coalescing(coalescing).unwrap();
    driver.set_vector_coalescing_disabled(0, true).unwrap();
    driver.set_vector_coalescing_disabled(0, false).unwrap();
    driver.set_vector_coalescing_disabled(0, true).unwrap();
    assert_eq!(driver.write_cache(), Ok(true));
    driver.set_write_cache(false).unwrap();
    driver.reset().unwrap();
    assert_eq!(driver.write_cache(), Ok(false));
    driver.recreate(&mut queue).unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_feature_that_is_refused_is_no_end() {
    let machine = machine(Config::default());
    let mut driver = machine.start().unwrap();
    let error = driver.set_vector_coalescing_disabled(u16::MAX, true).unwrap_err();
    assert!(matches!(error, Error::Status { status, .. } if status.is(Status::INVALID_FIELD)));
    // What was refused is not tried again.
    driver.reset().unwrap();
    let none = self::machine(Config {
        volatile_write_cache: false,
        ..Config::default()
    });
    let mut driver = none.start().unwrap();
    assert_eq!(driver.write_cache(), Ok(false));
    driver.set_write_cache(true).unwrap();
    machine.assert_no_mistake();
    none.assert_no_mistake();
}

#[test]
fn logs_tell_of_health_and_of_errors() {
    let machine = machine(Config::default());
    let (mut driver, mut queue) = machine.with_queue(8);
    assert_eq!(driver.error_log(), Ok(vec![]));
    let dma = machine.dma();
    let buffer = dma.allocate(4096, 4096).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 4096, 4096).unwrap();
    for lba in [0, 8, u64::MAX - 8] {
        queue.write(&Command::read(1, lba, 8, prps.data_pointer()), 0).unwrap();
        queue.commit();
        queue.poll().unwrap().unwrap();
        queue.acknowledge();
    }
    let smart = driver.smart_log().unwrap();
    assert_eq!((smart.critical_warning(), smart.spare), (CriticalWarning::empty(), 100));
    assert_eq!(smart.host_reads.get(), 2);
    let errors = driver.error_log().unwrap();
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].sq_id.get(), errors[0].count.get()), (1, 1));
    assert!(errors[0].status().is(Status::LBA_OUT_OF_RANGE));
    machine.assert_no_mistake();
}

#[test]
fn a_log_that_is_not_transferred_is_not_an_old_one() {
    let machine = machine(Config::default());
    let mut driver = machine.start().unwrap();
    assert_eq!(driver.smart_log().unwrap().spare, 100);
    machine.add(Rule::next(0, Fault::Status(Status::SUCCESS)));
    assert_eq!(driver.smart_log().unwrap().spare, 0);
}

/// Switches events on, and returns how many requests are outstanding.
fn with_events(limit: u16, entries: u16) -> (Machine, Driver, u16) {
    let machine = machine(Config {
        async_event_limit: limit,
        ..Config::default()
    });
    let config = nvme::Config {
        admin_entries: entries,
        ..nvme::Config::default()
    };
    let mut driver = machine.start_with(config).unwrap();
    let outstanding = driver.enable_async_events().unwrap();
    (machine, driver, outstanding)
}

#[test]
fn event_requests_stay_within_every_limit() {
    for (limit, entries, expected) in [(1, 32, 1), (3, 32, 3), (4, 32, 4), (256, 32, 4), (4, 4, 2), (4, 2, 0)] {
        let (machine, mut driver, outstanding) = with_events(limit, entries);
        assert_eq!(outstanding, expected, "AERL + 1 = {limit}, {entries} entries");
        // There is still room for a command, and nothing to tell.
        driver.smart_log().unwrap();
        assert_eq!(driver.poll_events(), Ok(vec![]));
        driver.shutdown().unwrap();
        machine.assert_no_mistake();
    }
}

#[test]
fn events_are_told_once_and_the_next_of_the_kind_can_come() {
    let (machine, mut driver, _) = with_events(4, 32);
    for round in 0..if cfg!(miri) { 3 } else { 10u8 } {
        let information = round % 3;
        machine.device().controller().raise_event(health(information));
        machine.device().process();
        assert_eq!(driver.poll_events(), Ok(vec![health(information)]), "round {round}");
        assert_eq!(driver.poll_events(), Ok(vec![]));
    }
    machine.assert_no_mistake();
}

#[test]
fn an_event_during_another_command_is_kept() {
    let (machine, mut driver, _) = with_events(2, 32);
    machine.set_prompt(false);
    machine.device().controller().raise_event(health(1));
    // The event's completion lies before the one that is waited for.
    assert_eq!(driver.smart_log().unwrap().spare, 100);
    assert_eq!(driver.poll_events(), Ok(vec![health(1)]));
    machine.assert_no_mistake();
}

#[test]
fn event_requests_come_back_after_a_reset() {
    let (machine, mut driver, _) = with_events(4, 32);
    machine.device().controller().raise_event(health(0));
    driver.poll_events().unwrap();
    driver.reset().unwrap();
    machine.device().controller().raise_event(health(2));
    machine.device().process();
    assert_eq!(driver.poll_events(), Ok(vec![health(2)]));
    machine.assert_no_mistake();
}

#[test]
fn a_device_that_takes_no_event_requests_is_asked_no_more() {
    let machine = machine(Config::default());
    machine.add(Rule::every(
        0,
        AdminOpcode::ASYNC_EVENT_REQUEST.0,
        Fault::Status(Status::INVALID_OPCODE),
    ));
    machine.add(Rule::every(
        0,
        AdminOpcode::SET_FEATURES.0,
        Fault::Status(Status::INVALID_FIELD),
    ));
    let mut driver = machine.start().unwrap();
    assert_eq!(driver.enable_async_events(), Ok(4));
    for _ in 0..3 {
        assert_eq!(driver.poll_events(), Ok(vec![]));
    }
    assert_eq!(driver.admin_counters().submitted, 1 + 1 + 4);
    driver.reset().unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_device_that_never_stops_telling_events_ends_no_loop() {
    let machine = machine(Config::default());
    // Each request is completed at once, with an event of a vendor's log.
    let event = AsyncEvent {
        kind: AsyncEventKind::Vendor,
        information: 9,
        log: LogId(0xc0),
    };
    machine.add(Rule::every(
        0,
        AdminOpcode::ASYNC_EVENT_REQUEST.0,
        Fault::Status(Status::SUCCESS),
    ));
    let mut driver = machine.start().unwrap();
    driver.enable_async_events().unwrap();
    for _ in 0..if cfg!(miri) { 3 } else { 100 } {
        let events = driver.poll_events().unwrap();
        assert!(events.len() <= 4, "{} events at once", events.len());
        assert!(events.iter().all(|told| *told != event));
        driver.smart_log().unwrap();
    }
    machine.assert_no_mistake();
}

#[test]
fn a_wrong_completion_among_events_ends_the_admin_queue() {
    let (machine, mut driver, _) = with_events(4, 32);
    machine.device().controller().raise_event(health(0));
    machine.device().process();
    let entry = nvme::spec::CompletionEntry::default();
    machine.device().inject(nvme_emulator::Answer {
        queue: 0,
        entry,
        interrupt: false,
    });
    let error = driver.poll_events().unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    assert!(matches!(driver.poll_events(), Err(Error::Stopped { .. })));
    driver.reset().unwrap();
    // The event that was taken before is still told.
    assert_eq!(driver.poll_events(), Ok(vec![health(0)]));
}

#[test]
fn abort_ends_a_command_or_says_that_it_could_not() {
    let machine = machine(Config::default());
    let (mut driver, mut queue) = machine.with_queue(8);
    machine.add(Rule::next(1, Fault::Stall));
    let id = queue.write(&Command::flush(1), 4).unwrap();
    queue.commit();
    assert_eq!(queue.poll(), Ok(None));
    assert_eq!(driver.abort(1, id), Ok(true));
    let completion = queue.poll().unwrap().unwrap();
    assert_eq!(completion.token, 4);
    assert!(completion.status.is(Status::ABORT_REQUESTED));
    queue.acknowledge();
    assert_eq!(driver.abort(1, id), Ok(false));
    machine.assert_no_mistake();
}

#[test]
fn feature_identifiers_are_those_of_the_specification() {
    assert_eq!(
        [
            FeatureId::VOLATILE_WRITE_CACHE,
            FeatureId::NUMBER_OF_QUEUES,
            FeatureId::INTERRUPT_COALESCING,
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION,
            FeatureId::ASYNC_EVENT_CONFIGURATION,
            FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION,
        ]
        .map(|feature| feature.0),
        [6, 7, 8, 9, 0xb, 0xc]
    );
}
