//! The device's side of commands beyond reading and writing: what each does, and what it refuses.

mod common;

use common::{CC, CSTS, Driver, ENTRIES, disabled, disabled_with, enabled, started, with_queue};
use hal::dma::IoAddr;
use nvme::spec::{
    AsyncEvent, AsyncEventConfiguration, AsyncEventKind, Command, CommandId, CommandSet, CompletionEntry,
    ControllerConfiguration, ControllerStatus, CriticalWarning, DataPointer, DatasetRange, ErrorEntry, FeatureId,
    IDENTIFY_BYTES, IdentifyKind, InterruptCoalescing, LogId, OptionalNvmCommands, Register, SUBSYSTEM_RESET, SmartLog,
    Status, VectorConfiguration, Version, abort_succeeded, described_command_set,
};
use nvme_emulator::{Config, DriverError, NamespaceConfig, QueueName, RamBackend};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

const CONTROLLER: u32 = u32::MAX;

impl Driver {
    fn data(&self) -> DataPointer {
        DataPointer::within_page(self.page.address())
    }

    /// Sends an admin command that is not answered yet; its identifier.
    fn send_admin(&mut self, mut command: Command) -> CommandId {
        let id = self.next_id;
        self.next_id += 1;
        command.command_id = U16::new(id);
        self.sq.copy_in(self.tail as usize * 64, command.as_bytes());
        self.tail = (self.tail + 1) % u32::from(ENTRIES);
        self.device.write32(0x1000, self.tail);
        self.device.process();
        CommandId(id)
    }

    /// Takes the next admin completion, which is there.
    fn take_admin(&mut self) -> CompletionEntry {
        let entry = self.cq.read(self.head as usize * 16);
        self.head = (self.head + 1) % u32::from(ENTRIES);
        self.device.write32(0x1004, self.head);
        self.assert_well();
        entry
    }
}

fn health(information: u8) -> AsyncEvent {
    AsyncEvent {
        kind: AsyncEventKind::Health,
        information,
        log: LogId::SMART,
    }
}

#[test]
fn an_event_completes_one_request_and_waits_for_its_log_page() {
    let mut driver = enabled();
    let events = AsyncEventConfiguration::TEMPERATURE | AsyncEventConfiguration::SPARE;
    let none = DataPointer::default();
    let set = Command::set_feature(FeatureId::ASYNC_EVENT_CONFIGURATION, events.bits(), none);
    assert_eq!(driver.admin(set).status(), Status::SUCCESS);
    let first = driver.send_admin(Command::async_event_request());
    let second = driver.send_admin(Command::async_event_request());

    // Reliability is not switched on.
    driver.device.set_critical_warning(CriticalWarning::RELIABILITY);
    assert!(driver.device.is_in_flight(0, first));
    driver.device.set_critical_warning(CriticalWarning::TEMPERATURE);
    let entry = driver.take_admin();
    assert_eq!((entry.command_id.get(), entry.status()), (first.0, Status::SUCCESS));
    assert_eq!(AsyncEvent::from_dword(entry.result.get()), health(1));

    // Another of its kind only after the page was read; reading it so that the event stays does not count.
    driver
        .device
        .set_critical_warning(CriticalWarning::TEMPERATURE | CriticalWarning::SPARE);
    assert!(driver.device.is_in_flight(0, second));
    let (data, page) = (driver.data(), 512);
    let read = |retain| Command::get_log_page(LogId::SMART, CONTROLLER, page, retain, data);
    assert_eq!(driver.admin(read(true)).status(), Status::SUCCESS);
    assert!(driver.device.is_in_flight(0, second));
    let id = driver.send_admin(read(false));
    let entry = driver.take_admin();
    assert_eq!(
        (entry.command_id.get(), AsyncEvent::from_dword(entry.result.get())),
        (second.0, health(2))
    );
    assert_eq!(driver.take_admin().command_id.get(), id.0);
    let smart: SmartLog = driver.page.read(0);
    assert_eq!(
        smart.critical_warning(),
        CriticalWarning::TEMPERATURE | CriticalWarning::SPARE
    );
}

#[test]
fn event_requests_beyond_the_limit_are_refused_and_each_can_be_aborted() {
    let mut driver = enabled();
    let ids: Vec<_> = (0..4)
        .map(|_| driver.send_admin(Command::async_event_request()))
        .collect();
    let refused = driver.admin(Command::async_event_request());
    assert!(refused.status().is(Status::AER_LIMIT_EXCEEDED));
    // The aborted request comes first, then the answer to Abort.
    let abort = driver.send_admin(Command::abort(0, ids[1]));
    let entry = driver.take_admin();
    assert_eq!(
        (entry.command_id.get(), entry.status()),
        (ids[1].0, Status::ABORT_REQUESTED)
    );
    let entry = driver.take_admin();
    assert_eq!(entry.command_id.get(), abort.0);
    assert!(abort_succeeded(entry.result.get()));
    // A command that is not there.
    for (queue, id) in [(0, ids[1]), (1, CommandId(0)), (9, CommandId(0))] {
        let entry = driver.admin(Command::abort(queue, id));
        assert!(
            entry.status().is_success() && !abort_succeeded(entry.result.get()),
            "queue {queue}"
        );
    }
    // A reset forgets them all.
    driver.configure(ControllerConfiguration::nvm(4096));
    driver.device.raise_event(AsyncEvent {
        kind: AsyncEventKind::Error,
        information: AsyncEvent::PERSISTENT_ERROR,
        log: LogId::ERROR_INFORMATION,
    });
    assert_eq!(driver.errors(), []);
}

#[test]
fn an_io_command_that_was_taken_can_be_aborted() {
    let mut driver = with_queue();
    driver.put(0, 77, Command::flush(1));
    driver.device.write32(0x1008, 1);
    let fetched = driver.device.fetch().unwrap();
    assert!(driver.device.is_in_flight(1, CommandId(77)));
    let entry = driver.admin(Command::abort(1, CommandId(77)));
    assert!(abort_succeeded(entry.result.get()));
    let ended: CompletionEntry = driver.io_cq.read(0);
    assert_eq!((ended.command_id.get(), ended.status()), (77, Status::ABORT_REQUESTED));
    assert!(!driver.device.is_in_flight(fetched.queue, CommandId(77)));
}

#[test]
fn logs_tell_of_errors_and_traffic() {
    let mut driver = with_queue();
    let data = driver.data();
    assert!(driver.io(Command::write(1, 0, 8, &data)).status().is_success());
    assert!(driver.io(Command::read(1, 0, 8, &data)).status().is_success());
    let failed = driver.io(Command::read(1, 60, 8, &data));
    assert!(failed.status().is(Status::LBA_OUT_OF_RANGE));

    let entry = driver.admin(Command::get_log_page(LogId::SMART, CONTROLLER, 512, false, data));
    assert!(entry.status().is_success());
    let smart: SmartLog = driver.page.read(0);
    assert_eq!((smart.host_reads.get(), smart.host_writes.get()), (1, 1));
    assert_eq!((smart.error_entries.get(), smart.media_errors.get()), (1, 0));
    assert_eq!((smart.data_units_read.get(), smart.temperature.get()), (1, 303));

    driver.admin(Command::get_log_page(
        LogId::ERROR_INFORMATION,
        CONTROLLER,
        128,
        false,
        data,
    ));
    let errors: [ErrorEntry; 2] = [driver.page.read(0), driver.page.read(64)];
    assert_eq!(errors[0].command_id, failed.command_id);
    assert!(errors[0].status().is(Status::LBA_OUT_OF_RANGE));
    assert_eq!((errors[0].sq_id.get(), errors[1].count.get()), (1, 0));

    // An offset into a page, one behind it, a page that is not there, and one that would be endless.
    let mut part = Command::get_log_page(LogId::FIRMWARE_SLOT, CONTROLLER, 8, false, data);
    part.cdw10[2] = U32::new(8);
    driver.admin(part);
    let mut revision = [0; 8];
    driver.page.copy_out(0, &mut revision);
    assert!(revision.starts_with(env!("CARGO_PKG_VERSION").as_bytes()));
    part.cdw10[2] = U32::new(516);
    assert!(driver.admin(part).status().is(Status::INVALID_FIELD));
    let unknown = Command::get_log_page(LogId(0x7f), CONTROLLER, 4, false, data);
    assert!(driver.admin(unknown).status().is(Status::INVALID_LOG_PAGE));
    let endless = Command::get_log_page(LogId::SMART, CONTROLLER, 1 << 30, false, data);
    assert!(driver.admin(endless).status().is(Status::INVALID_FIELD));
}

#[test]
fn features_keep_their_values_until_a_reset() {
    let mut driver = disabled(Config {
        autonomous_power: true,
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    assert!(driver.device.has_autonomous_transitions());
    let coalescing = InterruptCoalescing { threshold: 3, time: 9 };
    let vector = VectorConfiguration {
        vector: 2,
        coalescing_disabled: true,
    };
    let data = driver.data();
    for (feature, value) in [
        (FeatureId::VOLATILE_WRITE_CACHE, 0),
        (FeatureId::INTERRUPT_COALESCING, coalescing.to_dword()),
        (FeatureId::INTERRUPT_VECTOR_CONFIGURATION, vector.to_dword()),
        (FeatureId::ASYNC_EVENT_CONFIGURATION, 0x101),
        (FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION, 0),
    ] {
        let set = driver.admin(Command::set_feature(feature, value, data));
        assert!(set.status().is_success(), "{feature:?}");
        let got = driver.admin(Command::get_feature(feature, 2));
        assert_eq!(
            (got.status(), got.result.get()),
            (Status::SUCCESS, value),
            "{feature:?}"
        );
    }
    assert!(!driver.device.has_autonomous_transitions());
    let refused = |driver: &mut Driver, command| driver.admin(command).status();
    let mut saved = Command::set_feature(FeatureId::INTERRUPT_COALESCING, 0, data);
    saved.cdw10[0] |= 1 << 31;
    assert!(refused(&mut driver, saved).is(Status::FEATURE_NOT_SAVEABLE));
    let no_vector = Command::set_feature(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, 65, data);
    assert!(refused(&mut driver, no_vector).is(Status::INVALID_FIELD));
    assert!(refused(&mut driver, Command::get_feature(FeatureId(0x7f), 0)).is(Status::INVALID_FIELD));

    driver.configure(ControllerConfiguration::nvm(4096));
    driver.cq.clear();
    (driver.tail, driver.head) = (0, 0);
    driver.enable();
    assert!(driver.device.has_autonomous_transitions());
    let got = driver.admin(Command::get_feature(FeatureId::INTERRUPT_COALESCING, 0));
    assert_eq!(got.result.get(), 0);
    // Without a cache there is nothing to switch.
    let mut driver = disabled(Config {
        volatile_write_cache: false,
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    let cache = Command::get_feature(FeatureId::VOLATILE_WRITE_CACHE, 0);
    assert!(driver.admin(cache).status().is(Status::INVALID_FIELD));
}

#[test]
fn coalesced_interrupts_come_for_several_completions_or_late() {
    let mut driver = with_queue();
    driver.device.take_interrupts();
    let none = DataPointer::default();
    let coalescing = InterruptCoalescing { threshold: 2, time: 1 }.to_dword();
    driver.admin(Command::set_feature(FeatureId::INTERRUPT_COALESCING, coalescing, none));
    assert_eq!(driver.device.take_interrupts(), [0]);
    for i in 0..4 {
        driver.put(i, i as u16, Command::flush(1));
    }
    driver.device.write32(0x1008, 4);
    driver.device.process();
    // One for three, and one for the last, whose time is over.
    assert_eq!(driver.device.take_interrupts(), [1, 1]);
    driver.device.write32(0x100c, 4);
    let alone = VectorConfiguration {
        vector: 1,
        coalescing_disabled: true,
    };
    let command = Command::set_feature(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, alone.to_dword(), none);
    driver.admin(command);
    driver.device.take_interrupts();
    for i in 4..7 {
        driver.put(i, i as u16, Command::flush(1));
    }
    driver.device.write32(0x1008, 7);
    driver.device.process();
    assert_eq!(driver.device.take_interrupts(), [1, 1, 1]);
}

/// With doorbell buffers, of which the values are in `page` and the event indices in the page behind it.
fn with_buffers() -> (Driver, hal::dma::DmaBuffer) {
    let mut driver = disabled(Config {
        doorbell_buffer: true,
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    let events = driver.bus.dma().allocate(4096, 4096).unwrap();
    let config = Command::doorbell_buffer_config(driver.page.address(), events.address());
    assert!(driver.admin(config).status().is_success());
    driver.create_queue();
    (driver, events)
}

#[test]
fn doorbell_buffers_are_looked_at_from_the_register_on_until_the_queue_is_empty() {
    let (mut driver, events) = with_buffers();
    let (tail, head) = (8, 12);
    driver.put(0, 0, Command::flush(1));
    driver.page.write32(tail, 1);
    // Nobody told the device.
    assert_eq!(driver.device.process(), 0);
    driver.device.write32(0x1008, 1);
    assert_eq!(driver.device.process(), 1);
    assert_eq!(events.read32(tail), 1, "wants to be told of the next command");
    // The register again, and a value that is there already, are fine; but the buffer comes first.
    driver.page.write32(head, 1);
    driver.device.write32(0x100c, 1);
    driver.device.write32(0x1008, 1);
    driver.assert_well();
    driver.device.write32(0x1008, 2);
    driver.assert_mistake(DriverError::ShadowDiffers {
        queue: QueueName::Submission(1),
        shadow: 1,
        value: 2,
    });
}

#[test]
fn values_in_doorbell_buffers_are_checked_as_those_in_registers() {
    let (mut driver, _events) = with_buffers();
    driver.page.write32(8, 9);
    driver.device.write32(0x1008, 9);
    driver.assert_mistake(DriverError::DoorbellBeyondQueue {
        queue: QueueName::Submission(1),
        value: 9,
        entries: 8,
    });
    // Completions that were never posted, found when the device looks for room.
    let (mut driver, _events) = with_buffers();
    for i in 0..7 {
        driver.put(i, i as u16, Command::flush(1));
    }
    driver.page.write32(8, 7);
    driver.device.write32(0x1008, 7);
    assert_eq!(driver.device.process(), 7);
    driver.put(7, 7, Command::flush(1));
    driver.page.write32(8, 0);
    driver.device.write32(0x1008, 0);
    assert_eq!(driver.device.process(), 0, "the completion queue is full");
    driver.page.write32(12, 3);
    assert_eq!(driver.device.process(), 0, "asked to be told by the register");
    driver.device.write32(0x100c, 3);
    assert_eq!(driver.device.process(), 1);
    driver.assert_well();
}

#[test]
fn doorbell_buffers_are_refused_where_they_cannot_be() {
    let mut driver = enabled();
    let pages = (driver.page.address(), driver.io_sq.address());
    let config = Command::doorbell_buffer_config(pages.0, pages.1);
    assert!(driver.admin(config).status().is(Status::INVALID_OPCODE));
    let mut driver = disabled(Config {
        doorbell_buffer: true,
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    let (page, other) = (driver.page.address(), driver.io_sq.address());
    for (shadow, events) in [(page.offset(64), other), (page, page), (IoAddr::new(0), other)] {
        let config = Command::doorbell_buffer_config(shadow, events);
        assert!(driver.admin(config).status().is(Status::INVALID_FIELD));
    }
    driver.assert_well();
}

#[test]
fn zeroes_discards_comparisons_and_verifications() {
    let mut driver = with_queue();
    let data = driver.data();
    driver.page.copy_in(0, &[0x5a; 4096]);
    assert!(driver.io(Command::write(1, 8, 8, &data)).status().is_success());
    assert!(driver.io(Command::compare(1, 8, 8, &data)).status().is_success());
    assert!(driver.io(Command::verify(1, 0, 64)).status().is_success());
    assert!(driver.io(Command::write_zeroes(1, 10, 1, false)).status().is_success());
    assert!(
        driver
            .io(Command::compare(1, 8, 8, &data))
            .status()
            .is(Status::COMPARE_FAILURE)
    );
    driver.io(Command::read(1, 8, 8, &data));
    let mut bytes = [0; 4096];
    driver.page.copy_out(0, &mut bytes);
    let zero = |block: usize| bytes[block * 512..][..512].iter().all(|byte| *byte == 0);
    assert_eq!((zero(1), zero(2), zero(3)), (false, true, false));
    driver.assert_well();
}

#[test]
fn a_discard_touches_all_its_ranges_or_none() {
    let mut driver = with_queue();
    let data = driver.data();
    driver.page.copy_in(0, &[0x5a; 4096]);
    driver.io(Command::write(1, 0, 8, &data));
    let ranges = |driver: &mut Driver, second: u64| {
        for (i, slba) in [1, second].into_iter().enumerate() {
            let range = DatasetRange {
                attributes: U32::new(0),
                blocks: U32::new(2),
                slba: U64::new(slba),
            };
            driver.page.copy_in(i * 16, range.as_bytes());
        }
    };
    let zero = |driver: &mut Driver| -> Vec<bool> {
        driver.io(Command::read(1, 0, 8, &data));
        (0..8).map(|block| driver.page.read64(block * 512) == 0).collect()
    };
    ranges(&mut driver, 63);
    let beyond = driver.io(Command::deallocate(1, 2, &data));
    assert!(beyond.status().is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(zero(&mut driver), [false; 8]);
    ranges(&mut driver, 5);
    assert!(driver.io(Command::deallocate(1, 2, &data)).status().is_success());
    assert_eq!(zero(&mut driver), [false, true, true, false, false, true, true, false]);
}

#[test]
fn commands_are_refused_by_what_the_controller_and_the_namespace_are() {
    let config = Config {
        optional_commands: OptionalNvmCommands::VERIFY,
        ..Config::default()
    };
    let ram = || RamBackend::new(64 * 512);
    let read_only = NamespaceConfig {
        read_only: true,
        ..NamespaceConfig::new(3, 64, 512, ram())
    };
    let zoned = NamespaceConfig {
        command_set: CommandSet::ZONED,
        ..NamespaceConfig::new(7, 64, 512, ram())
    };
    let protected = NamespaceConfig {
        metadata: 8,
        protection: 1,
        ..NamespaceConfig::new(9, 32, 512, ram())
    };
    let mut driver = started(config, [read_only, zoned, protected]);
    let data = driver.data();
    let zone_invalid_write = Status::new(1, 0xbc);
    for (command, expected) in [
        (Command::compare(3, 0, 1, &data), Status::INVALID_OPCODE),
        (Command::write(3, 0, 1, &data), Status::NAMESPACE_WRITE_PROTECTED),
        (Command::write(7, 4, 1, &data), zone_invalid_write),
        (Command::write(7, 0, 2, &data), Status::SUCCESS),
        (Command::write(7, 2, 1, &data), Status::SUCCESS),
        (Command::read(9, 0, 1, &data), Status::INVALID_FIELD),
        (Command::verify(5, 0, 1), Status::INVALID_NAMESPACE),
    ] {
        let status = driver.io(command).status();
        assert!(status.is(expected), "{status} for {command:?}");
    }
    driver.assert_well();
    // What kind of namespace it is stands in its descriptors.
    for (id, set) in [(3, CommandSet::NVM), (7, CommandSet::ZONED)] {
        driver.admin(Command::identify(IdentifyKind::NamespaceDescriptors, id, data));
        let mut list = [0; IDENTIFY_BYTES];
        driver.page.copy_out(0, &mut list);
        assert_eq!(described_command_set(&list), Some(set));
    }
}

#[test]
fn metadata_lies_behind_each_block_or_in_a_buffer_of_its_own() {
    let storage = || RamBackend::new(64 * 520);
    let extended = NamespaceConfig {
        metadata: 8,
        extended: true,
        ..NamespaceConfig::new(1, 64, 512, storage())
    };
    let separate = NamespaceConfig {
        metadata: 8,
        ..NamespaceConfig::new(2, 64, 512, storage())
    };
    let mut driver = started(Config::default(), [extended, separate]);
    let data = driver.data();
    let pattern: Vec<u8> = (0..4096).map(|i| (i / 8) as u8 ^ 0x33).collect();
    driver.page.copy_in(0, &pattern);
    // Two blocks of 520 bytes.
    assert!(driver.io(Command::write(1, 5, 2, &data)).status().is_success());
    driver.page.clear();
    assert!(driver.io(Command::read(1, 6, 1, &data)).status().is_success());
    let mut block = [0; 520];
    driver.page.copy_out(0, &mut block);
    assert_eq!(block[..], pattern[520..1040]);

    driver.page.copy_in(0, &pattern);
    let with_metadata = |command: Command, address: IoAddr| Command {
        metadata: U64::new(address.value()),
        ..command
    };
    let address = driver.page.address().offset(2048);
    let write = with_metadata(Command::write(2, 5, 2, &data), address);
    assert!(driver.io(write).status().is_success());
    driver.page.clear();
    let read = with_metadata(Command::read(2, 5, 2, &data), address);
    assert!(driver.io(read).status().is_success());
    let mut bytes = [0; 4096];
    driver.page.copy_out(0, &mut bytes);
    assert_eq!(bytes[..1024], pattern[..1024]);
    assert_eq!(bytes[2048..2064], pattern[2048..2064]);
    assert!(bytes[2064..].iter().all(|byte| *byte == 0));
    driver.assert_well();
    // A pointer that no metadata can have.
    let wrong = driver.page.address().offset(2);
    driver.put(4, 99, with_metadata(Command::read(2, 5, 1, &data), wrong));
    driver.device.write32(0x1008, 5);
    driver.device.process();
    driver.assert_mistake(DriverError::MetadataPointer { address: wrong.value() });
}

#[test]
fn a_subsystem_reset_is_as_power_on_but_tells() {
    const NSSR: usize = Register::Nssr.offset();
    let mut driver = disabled_with(
        Config {
            subsystem_reset: true,
            ..Config::default()
        },
        [],
    );
    driver.prepare();
    driver.enable();
    driver.device.write32(NSSR, 1);
    driver.assert_well();
    driver.device.set_fatal();
    driver.device.write32(NSSR, SUBSYSTEM_RESET);
    let occurred = ControllerStatus::SUBSYSTEM_RESET_OCCURRED.bits();
    assert_eq!((driver.device.read32(CSTS), driver.device.read32(CC)), (occurred, 0));
    assert_eq!(driver.device.read32(Register::Aqa.offset()), 0);
    driver.device.write32(CSTS, occurred);
    assert_eq!(driver.device.read32(CSTS), 0);
    assert_eq!(driver.errors(), []);
    // Where there is none, the register is reserved.
    let mut driver = enabled();
    driver.device.write32(NSSR, SUBSYSTEM_RESET);
    assert!(matches!(
        driver.errors(),
        [DriverError::RegisterWrite { offset: NSSR, .. }]
    ));
}

#[test]
fn descriptors_and_lists_came_with_later_versions() {
    let mut driver = disabled(Config {
        version: Version::new(1, 2, 0),
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    let data = driver.data();
    let descriptors = Command::identify(IdentifyKind::NamespaceDescriptors, 1, data);
    assert!(driver.admin(descriptors).status().is(Status::INVALID_FIELD));
    let list = Command::identify(IdentifyKind::ActiveNamespaces, 0, data);
    assert!(driver.admin(list).status().is_success());
}

#[test]
fn what_a_driver_may_do_wrong_without_end_is_kept_within_bounds() {
    let mut driver = enabled();
    for _ in 0..10_000 {
        driver.device.read32(2);
    }
    assert!(driver.errors().len() < 1000);
    // A large transfer takes no large memory: nothing of it is mapped behind the first pages.
    let mut driver = started(
        Config::default(),
        [NamespaceConfig::new(1, 1 << 40, 4096, nvme_emulator::NullBackend)],
    );
    let page = driver.page.address();
    driver.page.write64(0, page.value());
    let pointer = DataPointer {
        prp1: page.value(),
        prp2: page.value(),
    };
    driver.put(0, 0, Command::read(1, 0, 65536, &pointer));
    driver.device.write32(0x1008, 1);
    driver.device.process();
    assert!(matches!(
        driver.errors(),
        [DriverError::Unmapped { .. } | DriverError::PrpOffset { .. }]
    ));
}
