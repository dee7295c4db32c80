//! Bring-up, identify, queue creation and shutdown, honest devices and others.

mod common;

use std::time::Duration;

use common::{Machine, TICK};
use hal::clock::Clock;
use hal::mmio::Mmio;
use nvme::spec::{AdminOpcode, QueueCounts, Register, Version};
use nvme::{Error, Status};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Config, NamespaceConfig, NullBackend};

fn namespace(id: u32) -> NamespaceConfig {
    NamespaceConfig::new(id, 1 << 20, 512, NullBackend)
}

fn machine() -> Machine {
    Machine::new(Config::default(), [namespace(1)])
}

#[track_caller]
fn message(result: Result<impl std::fmt::Debug, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn an_honest_controller_comes_up_and_goes_down() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    let info = driver.info();
    assert_eq!(
        (info.model.as_str(), info.serial.as_str()),
        ("doorpost emulated NVMe", "DP0001")
    );
    assert_eq!(
        (info.version, info.page_size, info.max_transfer),
        (Version::new(2, 0, 0), 4096, 2 << 20)
    );
    assert_eq!(
        (info.mdts, info.volatile_write_cache, info.namespace_limit),
        (None, true, 256)
    );
    assert_eq!(
        (info.submission_entry_sizes, info.completion_entry_sizes),
        ((64, 64), (16, 16))
    );

    let namespaces = driver.namespaces().unwrap();
    assert_eq!(namespaces.len(), 1);
    assert_eq!(
        (namespaces[0].id, namespaces[0].blocks, namespaces[0].block_size),
        (1, 1 << 20, 512)
    );
    assert_eq!(namespaces[0].bytes(), 512 << 20);
    namespaces[0].supported().unwrap();

    assert_eq!(driver.request_queues(3), Ok(3));
    let pair = driver.create_queue_pair(2, 64, Some(2)).unwrap();
    assert_eq!(
        (pair.id(), pair.entries(), pair.capacity(), pair.vector()),
        (2, 64, 63, Some(2))
    );
    driver.delete_queue_pair(pair).unwrap();
    driver.shutdown().unwrap();
    driver.shutdown().unwrap();
    assert_eq!(
        message(driver.request_queues(1)),
        "nvme0: Set Features (09h) cannot be sent: the controller was shut down"
    );
    drop(driver);
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
}

#[test]
fn registers_are_written_in_the_order_of_the_book() {
    let machine = machine();
    machine.trace();
    let driver = machine.start().unwrap();
    let writes: Vec<_> = machine.take_trace().into_iter().filter(|(write, ..)| *write).collect();
    let offsets: Vec<_> = writes.iter().map(|(_, offset, _)| *offset).collect();
    // AQA, ASQ and ACQ in two halves each, CC, CC.EN, then the Identify command.
    assert_eq!(offsets, [0x24, 0x28, 0x2c, 0x30, 0x34, 0x14, 0x14, 0x1000, 0x1004]);
    assert_eq!(writes[0].2, 31 << 16 | 31);
    assert_eq!((writes[5].2, writes[6].2), (0x0046_0000, 0x0046_0001));
    drop(driver);
    machine.assert_no_mistake();
}

#[test]
fn a_controller_left_enabled_is_reset_first() {
    let machine = machine();
    let first = machine.start().unwrap();
    // The earlier driver vanishes without a word, as a boot loader does.
    std::mem::forget(first);
    let driver = machine.start().unwrap();
    drop(driver);
    machine.assert_no_mistake();
}

#[test]
fn a_controller_left_failed_is_reset_first() {
    let machine = machine();
    std::mem::forget(machine.start().unwrap());
    machine.device().controller().set_fatal();
    machine.start().unwrap().check_status().unwrap();
    machine.assert_no_mistake();
}

#[test]
fn a_controller_that_is_just_coming_up_is_not_disabled_before_it_is_ready() {
    let machine = machine();
    std::mem::forget(machine.start().unwrap());
    // Firmware resets it, enables it, and hands it over at once: RDY shows 0 for some more reads.
    machine.device().set_ready_lag(10);
    machine.device().write32(Register::Cc.offset(), 0x0046_0000);
    while machine.device().read32(Register::Csts.offset()) != 0 {}
    let acq = machine.registers().read64_halves(Register::Acq.offset());
    machine.bus.write(hal::dma::IoAddr::new(acq), &[0; 32 * 16]).unwrap();
    machine.device().write32(Register::Cc.offset(), 0x0046_0001);
    machine.trace();
    machine.start().unwrap();
    let trace = machine.take_trace();
    let disabled = trace
        .iter()
        .position(|(write, offset, _)| *write && *offset == Register::Cc.offset())
        .unwrap();
    let status = trace[..disabled]
        .iter()
        .rfind(|(_, offset, _)| *offset == Register::Csts.offset())
        .unwrap();
    assert_eq!(status.2, 1, "CC.EN was cleared while CSTS.RDY read 0");
    machine.assert_no_mistake();
}

#[test]
fn a_device_that_transfers_nothing_does_not_show_old_data() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    assert_eq!(driver.namespaces().unwrap().len(), 1);
    // "Done", but were the page not cleared, it would still hold the data of namespace 1.
    machine.add(Rule::next(0, Fault::Status(Status::SUCCESS)));
    assert_eq!(driver.namespaces(), Ok(vec![]));
}

#[test]
fn slow_ready_is_waited_for() {
    let machine = machine();
    machine.device().set_ready_lag(200);
    let driver = machine.start().unwrap();
    drop(driver);
    let again = machine.start().unwrap();
    drop(again);
    machine.assert_no_mistake();
}

#[test]
fn ready_that_never_comes_is_bounded_by_cap_to() {
    let config = Config {
        ready_timeout: Duration::from_millis(1500),
        ..Config::default()
    };
    let machine = Machine::new(config, []);
    machine.device().set_ready_lag(u64::MAX);
    let start = machine.clock.ticks();
    assert_eq!(message(machine.start()), "nvme0: CSTS.RDY did not become 1 within 1.5s");
    let waited = machine.clock.ticks() - start;
    // Once for RDY = 1; then, to be rid of it, once more, and RDY = 0 is there already.
    assert!((1_500_000_000..3_200_000_000).contains(&waited), "{waited} ns");
}

#[test]
fn ready_that_never_goes_is_bounded_by_cap_to() {
    let config = Config {
        ready_timeout: Duration::from_millis(500),
        ..Config::default()
    };
    let machine = Machine::new(config, []);
    std::mem::forget(machine.start().unwrap());
    machine.device().set_ready_lag(u64::MAX);
    assert_eq!(
        message(machine.start()),
        "nvme0: CSTS.RDY did not become 0 within 500ms"
    );
}

#[test]
fn memory_that_a_stuck_device_may_use_is_never_freed() {
    let machine = machine();
    let driver = machine.start().unwrap();
    machine.device().set_ready_lag(u64::MAX);
    drop(driver);
    assert_eq!(machine.bus.live(), 3);
    machine.assert_no_mistake();
}

#[test]
fn a_queue_pair_dropped_keeps_its_memory() {
    let machine = machine();
    let (driver, pair) = machine.with_queue(16);
    drop(pair);
    assert_eq!(machine.bus.live(), 5);
    drop(driver);
    machine.assert_no_mistake();
}

#[test]
fn fatal_status_during_enable_is_told() {
    let machine = machine();
    machine.device().set_register(Register::Csts.offset(), 2);
    assert_eq!(
        message(machine.start()),
        "nvme0: fatal controller error (CSTS.CFS, CSTS reads 0x00000002)"
    );
}

#[test]
fn a_device_that_is_gone_is_told_at_every_point() {
    let gone = "nvme0: the device is gone (its registers do not answer)";
    let machine = machine();
    machine.device().remove();
    assert_eq!(message(machine.start()), gone);

    // Removed while each of the first commands is executed.
    for skip in 0..6 {
        let machine = self::machine();
        machine.add(Rule {
            skip,
            ..Rule::next(0, Fault::Remove)
        });
        let result = machine.start().and_then(|mut driver| {
            driver.namespaces()?;
            driver.request_queues(1)?;
            driver.create_queue_pair(1, 16, None)
        });
        assert_eq!(message(result), gone, "after {skip} commands");
        assert!(
            machine.bus.live() <= 2,
            "only I/O queues whose fate is not known stay allocated"
        );
    }

    let machine = self::machine();
    let mut driver = machine.start().unwrap();
    machine.device().remove();
    assert_eq!(message(driver.check_status()), gone);
    assert_eq!(message(driver.shutdown()), gone);
    drop(driver);
    machine.assert_nothing_allocated();
}

#[test]
fn a_command_without_answer_times_out_and_ends_the_admin_queue() {
    let machine = machine();
    let config = nvme::Config {
        command_timeout: Duration::from_secs(2),
        ..nvme::Config::default()
    };
    let mut driver = machine.start_with(config).unwrap();
    machine.add(Rule::next(0, Fault::Stall));
    let (start, reads) = (machine.clock.ticks(), machine.register_reads());
    assert_eq!(
        message(driver.namespaces()),
        "nvme0: Identify (06h) was not completed within 2s"
    );
    let waited = machine.clock.ticks() - start;
    assert!(
        (2_000_000_000..2_000_000_000 + 100 * TICK).contains(&waited),
        "{waited} ns"
    );
    let reads = machine.register_reads() - reads;
    assert!(reads <= 22, "{reads} register reads: each leaves the guest");
    assert_eq!(
        message(driver.request_queues(1)),
        "nvme0: Set Features (09h) cannot be sent: an earlier admin command failed for good"
    );
    driver.shutdown().unwrap();
    drop(driver);
    machine.assert_no_mistake();
    machine.assert_nothing_allocated();
}

#[test]
fn a_late_answer_within_the_deadline_is_fine() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    machine.add(Rule::next(0, Fault::Delay(if cfg!(miri) { 50 } else { 5000 })));
    assert_eq!(driver.namespaces().unwrap().len(), 1);
    machine.assert_no_mistake();
}

#[test]
fn fatal_status_during_a_command_is_told_early() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    machine.add(Rule::next(0, Fault::Fatal));
    let start = machine.clock.ticks();
    assert_eq!(
        message(driver.namespaces()),
        "nvme0: fatal controller error (CSTS.CFS, CSTS reads 0x00000003)"
    );
    assert!(machine.clock.ticks() - start < 1_000_000_000);
}

#[test]
fn an_error_status_names_command_and_status_and_is_no_end() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    machine.add(Rule::next(0, Fault::Status(Status::INTERNAL_ERROR)));
    assert_eq!(
        message(driver.request_queues(4)),
        "nvme0: Set Features (09h) failed: Internal Error (SCT 0h, SC 06h)"
    );
    assert_eq!(driver.request_queues(4), Ok(4));
    machine.assert_no_mistake();
}

#[test]
fn queues_granted_are_the_least_of_all_limits() {
    for (submission, completion, wanted, granted) in [
        (64, 64, 8, 8),
        (3, 64, 8, 3),
        (64, 2, 8, 2),
        (1, 1, 500, 1),
        (64, 64, 0, 1),
        (64, 64, u16::MAX, 64),
    ] {
        let config = Config {
            io_queues: QueueCounts { submission, completion },
            ..Config::default()
        };
        let machine = Machine::new(config, []);
        let mut driver = machine.start().unwrap();
        assert_eq!(
            driver.request_queues(wanted),
            Ok(granted),
            "{submission}/{completion}, {wanted}"
        );
        assert_eq!(driver.queues(), granted);
        machine.assert_no_mistake();
    }
}

#[test]
fn more_queues_than_doorbells_are_not_used() {
    let machine = machine();
    let registers = machine.registers_of(0x1000 + 8 * 4);
    let clock = machine.device_clock();
    let mut driver =
        nvme::Controller::start("nvme0".into(), registers, machine.dma(), clock, nvme::Config::default()).unwrap();
    assert_eq!(driver.request_queues(16), Ok(3));
    let pair = driver.create_queue_pair(3, 16, None).unwrap();
    driver.delete_queue_pair(pair).unwrap();
}

#[test]
fn a_window_too_small_is_told() {
    let machine = machine();
    for (length, expected) in [
        (
            0x800,
            "nvme0: the register window of 0x800 bytes ends before 0x1008, which the admin queue needs",
        ),
        (
            0x1008,
            "nvme0: the register window of 0x1008 bytes ends before 0x1010, which the first I/O queue needs",
        ),
    ] {
        let registers = machine.registers_of(length);
        let clock = machine.device_clock();
        let result = nvme::Controller::start("nvme0".into(), registers, machine.dma(), clock, nvme::Config::default())
            .and_then(|mut driver| driver.request_queues(1));
        assert_eq!(message(result), expected);
    }
}

#[test]
fn queue_ids_are_checked_and_used_once() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    let refused = "nvme0: no I/O queue 1: ids 1 to 0 were granted, each once";
    assert_eq!(message(driver.create_queue_pair(1, 16, None)), refused);
    driver.request_queues(2).unwrap();
    let pair = driver.create_queue_pair(1, 16, None).unwrap();
    for qid in [0, 1, 3] {
        assert!(matches!(
            driver.create_queue_pair(qid, 16, None),
            Err(Error::NoSuchQueue { granted: 2, .. })
        ));
    }
    driver.delete_queue_pair(pair).unwrap();
    let pair = driver.create_queue_pair(1, 16, None).unwrap();
    driver.delete_queue_pair(pair).unwrap();
    machine.assert_no_mistake();
}

#[test]
fn entries_are_brought_into_what_the_controller_allows() {
    let config = Config {
        queue_entries: 48,
        ..Config::default()
    };
    let machine = Machine::new(config, []);
    let mut driver = machine.start().unwrap();
    driver.request_queues(4).unwrap();
    for (qid, (asked, got)) in (1..).zip([(0, 2), (47, 47), (48, 48), (u16::MAX, 48)]) {
        assert_eq!(driver.create_queue_pair(qid, asked, None).unwrap().entries(), got);
    }
    drop(driver);

    if cfg!(miri) {
        // Five megabytes of queue memory take it minutes.
        return;
    }
    // The largest queue there is; commands in flight stop earlier.
    let machine = Machine::new(
        Config {
            queue_entries: 65536,
            ..Config::default()
        },
        [],
    );
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    let pair = driver.create_queue_pair(1, u16::MAX, None).unwrap();
    assert_eq!((pair.entries(), pair.capacity()), (u16::MAX, nvme::MAXIMUM_IN_FLIGHT));
    machine.assert_no_mistake();
}

#[test]
fn a_submission_queue_refused_takes_the_completion_queue_with_it() {
    let machine = machine();
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    let before = machine.bus.live();
    machine.add(Rule {
        times: 1,
        ..Rule::every(
            0,
            AdminOpcode::CREATE_SUBMISSION_QUEUE.0,
            Fault::Status(Status::INVALID_QUEUE_SIZE),
        )
    });
    assert_eq!(
        message(driver.create_queue_pair(1, 16, None)),
        "nvme0: Create I/O Submission Queue (01h) failed: Invalid Queue Size (SCT 1h, SC 02h)"
    );
    assert_eq!(machine.bus.live(), before);
    // The id is free on both sides.
    driver.create_queue_pair(1, 16, None).unwrap();
    machine.assert_no_mistake();
}

#[test]
fn an_interrupt_vector_that_is_not_there_is_refused_by_the_device() {
    let machine = Machine::new(
        Config {
            vectors: 2,
            ..Config::default()
        },
        [],
    );
    let mut driver = machine.start().unwrap();
    driver.request_queues(1).unwrap();
    let before = machine.bus.live();
    assert!(message(driver.create_queue_pair(1, 16, Some(2))).contains("Invalid Interrupt Vector"));
    assert_eq!(machine.bus.live(), before);
    driver.create_queue_pair(1, 16, Some(1)).unwrap();
}

#[test]
fn doorbell_strides_and_memory_page_sizes() {
    for stride in [4, 8, 64, 4096] {
        for (minimum, maximum, page) in [(4096, 4096, 4096), (4096, 1 << 27, 4096), (8192, 65536, 8192)] {
            let config = Config {
                doorbell_stride: stride,
                minimum_page_size: minimum,
                maximum_page_size: maximum,
                io_queues: QueueCounts {
                    submission: 4,
                    completion: 4,
                },
                ..Config::default()
            };
            let machine = Machine::new(config, [namespace(1)]);
            let mut driver = machine.start().unwrap();
            assert_eq!(driver.page_size(), page);
            assert_eq!(driver.request_queues(4), Ok(4));
            let pair = driver.create_queue_pair(4, 16, None).unwrap();
            driver.delete_queue_pair(pair).unwrap();
            driver.shutdown().unwrap();
            machine.assert_no_mistake();
        }
    }
}

#[test]
fn impossible_capabilities_are_told() {
    // Low half: MQES; high half: CSS and memory page sizes.
    for (offset, value, expected) in [
        (0, 0x0f01_0000, "nvme0: CAP.MQES has the impossible value 0x0"),
        (4, 0x0004_0020, "nvme0: CAP.MPSMIN has the impossible value 0x4"),
        (
            4,
            0x0000_0000,
            "nvme0: a controller without the NVM command set (CAP.CSS) is not supported",
        ),
    ] {
        let machine = machine();
        machine.device().set_register(offset, value);
        assert_eq!(message(machine.start()), expected);
    }
}

#[test]
fn mdts_and_our_cap() {
    for (shift, cap, expected) in [
        (0, 2 << 20, 2 << 20),
        (1, 2 << 20, 8192),
        (7, 2 << 20, 512 << 10),
        (12, 1 << 20, 1 << 20),
        (40, 4096, 4096),
    ] {
        let machine = Machine::new(
            Config {
                maximum_transfer: shift,
                ..Config::default()
            },
            [],
        );
        let config = nvme::Config {
            max_transfer_cap: cap,
            ..nvme::Config::default()
        };
        assert_eq!(
            machine.start_with(config).unwrap().max_transfer(),
            expected,
            "MDTS {shift}"
        );
    }
}

#[test]
fn impossible_identify_controller_data_is_told() {
    for (offset, byte, expected) in [
        (77, 255, "nvme0: Identify returned the impossible value 0xff for MDTS"),
        (512, 0x77, "nvme0: Identify returned the impossible value 0x77 for SQES"),
        (513, 0x33, "nvme0: Identify returned the impossible value 0x33 for CQES"),
        (111, 2, "nvme0: a discovery controller is not supported"),
        (
            111,
            9,
            "nvme0: Identify returned the impossible value 0x9 for CNTRLTYPE",
        ),
    ] {
        let machine = machine();
        machine.add(Rule::next(
            0,
            Fault::Data {
                offset,
                bytes: vec![byte],
            },
        ));
        assert_eq!(message(machine.start()), expected);
        machine.assert_nothing_allocated();
    }
}

#[test]
fn crto_extends_the_wait() {
    // CAP.CRMS.CRWMS, and CRTO.CRWMT of 4 steps.
    let config = Config {
        ready_timeout: Duration::from_millis(500),
        ..Config::default()
    };
    let machine = Machine::new(config, []);
    let high = machine.device().read32(4);
    machine.device().set_register(4, high | 1 << 27);
    machine.device().set_register(Register::Crto.offset(), 4);
    assert_eq!(machine.start().unwrap().info().ready_timeout, Duration::from_secs(2));
}

#[test]
fn too_little_memory_is_told_and_given_back() {
    for capacity in [1000, 4000, 7000, 9000] {
        let machine = machine();
        let bus = hal::fake::FakeDma::new(capacity);
        let registers = machine.registers();
        let clock = machine.device_clock();
        let result = nvme::Controller::start("nvme0".into(), registers, bus.dma(), clock, nvme::Config::default());
        // The device cannot see this memory, so that the largest ends there.
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Dma { .. } | Error::FatalStatus { .. }),
            "{error}"
        );
        assert_eq!(bus.live(), 0, "{capacity}");
    }
}
