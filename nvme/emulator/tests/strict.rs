//! A driver's mistakes, one by one: each is recorded and fatal. Here the driver is the test, so that it can make them.

mod common;

use common::{CSTS, Driver, disabled, enabled, with_queue};
use hal::dma::IoAddr;
use nvme::spec::{
    Command, CommandId, ControllerConfiguration, ControllerStatus, CreateCompletionQueue, CreateSubmissionQueue,
    DataPointer, IdentifyKind, QueueCounts, ShutdownNotification, Status,
};
use nvme_emulator::{Config, DriverError, QueueName, Unmapped};

/// A wrong way to enable the controller.
type Mistake = fn(&mut Driver);

#[test]
fn registers_that_cannot_be_written() {
    for (offset, value) in [(0, 1), (8, 1), (CSTS, 1), (0x38, 0), (0x0c, 1), (0x10, 1)] {
        let mut driver = enabled();
        driver.device.write32(offset, value);
        assert!(
            matches!(driver.errors(), [DriverError::RegisterWrite { .. }]),
            "{offset:#x}"
        );
    }
    for offset in [2, 1 << 20] {
        let mut driver = enabled();
        driver.device.read32(offset);
        driver.assert_mistake(DriverError::NoRegister { offset });
        let mut driver = enabled();
        driver.device.write32(offset, 0);
        driver.assert_mistake(DriverError::NoRegister { offset });
    }
    for offset in [0x24, 0x28, 0x2c, 0x30, 0x34] {
        let mut driver = enabled();
        driver.device.write32(offset, 0);
        let reason = "the admin queues cannot change while CC.EN is 1";
        driver.assert_mistake(DriverError::RegisterWrite {
            offset,
            value: 0,
            reason,
        });
    }
}

#[test]
fn enabling_what_cannot_work() {
    let cases: [(&str, Mistake); 6] = [
        ("an admin queue of one entry (AQA)", |driver| {
            driver.device.write32(0x24, 0);
            driver.enable();
        }),
        ("an admin queue that does not begin at a page (ASQ, ACQ)", |driver| {
            let low = driver.cq.address().value() as u32;
            driver.device.write32(0x30, low + 64);
            driver.enable();
        }),
        ("a memory page size that it does not support (CC.MPS)", |driver| {
            driver.configure(ControllerConfiguration::nvm(1 << 20) | ControllerConfiguration::ENABLE);
        }),
        ("a command set that it does not support (CC.CSS)", |driver| {
            let cc = ControllerConfiguration::nvm(4096) | ControllerConfiguration::ENABLE;
            driver.configure(ControllerConfiguration(cc.0 | 1 << 4));
        }),
        (
            "queue entry sizes that it does not support (CC.IOSQES, CC.IOCQES)",
            |driver| {
                driver.configure(ControllerConfiguration::ENABLE);
            },
        ),
        ("", |driver| {
            driver.device.write32(0x2c, 0);
            driver.enable();
        }),
    ];
    for (expected, mistake) in cases {
        let mut driver = disabled(Config::default());
        driver.prepare();
        mistake(&mut driver);
        match driver.errors() {
            [DriverError::Enabled { what }] => assert_eq!(*what, expected),
            [DriverError::Unmapped { .. }] => assert_eq!(expected, ""),
            other => panic!("{expected}: {other:?}"),
        }
        assert_eq!(driver.device.read32(CSTS), ControllerStatus::FATAL.bits(), "not ready");
    }
}

#[test]
fn a_completion_queue_that_is_not_cleared() {
    let mut driver = disabled(Config::default());
    driver.cq.copy_in(3 * 16 + 14, &[1]);
    driver.prepare();
    driver.enable();
    driver.assert_mistake(DriverError::CompletionQueueNotCleared { queue: 0, entry: 3 });

    let mut driver = enabled();
    driver.io_cq.copy_in(7 * 16 + 14, &[1]);
    let queue = driver.completions();
    driver.admin(Command::create_completion_queue(&queue));
    driver.assert_mistake(DriverError::CompletionQueueNotCleared { queue: 1, entry: 7 });
}

#[test]
fn doorbells_of_nothing() {
    let name = QueueName::Submission(0);
    let mut driver = disabled(Config::default());
    driver.device.write32(0x1000, 1);
    driver.assert_mistake(DriverError::NoSuchDoorbell {
        queue: name,
        reason: "the controller is not ready",
    });

    for (offset, queue) in [(0x1008, QueueName::Submission(1)), (0x100c, QueueName::Completion(1))] {
        let mut driver = enabled();
        driver.device.write32(offset, 1);
        driver.assert_mistake(DriverError::NoSuchDoorbell {
            queue,
            reason: "there is no such queue",
        });
    }

    let mut driver = enabled();
    let cc = ControllerConfiguration::nvm(4096) | ControllerConfiguration::ENABLE;
    driver.configure(cc.with_shutdown(ShutdownNotification::Normal));
    driver.device.write32(0x1000, 1);
    driver.assert_mistake(DriverError::NoSuchDoorbell {
        queue: name,
        reason: "the controller was shut down",
    });

    // Between two doorbells of a wide stride.
    let mut driver = disabled(Config {
        doorbell_stride: 16,
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    driver.device.write32(0x1004, 1);
    driver.assert_mistake(DriverError::NoRegister { offset: 0x1004 });
}

#[test]
fn doorbells_beyond_their_queue() {
    let queue = QueueName::Submission(1);
    for value in [8, 9, 0x1_0000, u32::MAX] {
        let mut driver = with_queue();
        driver.device.write32(0x1008, value);
        driver.assert_mistake(DriverError::DoorbellBeyondQueue {
            queue,
            value,
            entries: 8,
        });
    }
    // Again the same value.
    let mut driver = with_queue();
    driver.device.write32(0x1008, 0);
    driver.assert_mistake(DriverError::DoorbellUnchanged { queue, value: 0 });
    // Four entries, then five more: there is room for three.
    let mut driver = with_queue();
    driver.device.write32(0x1008, 4);
    driver.device.write32(0x1008, 1);
    driver.assert_mistake(DriverError::DoorbellTooFar {
        queue,
        from: 4,
        to: 1,
        room: 3,
    });
    // Completions acknowledged that were never posted.
    let mut driver = with_queue();
    driver.device.write32(0x100c, 1);
    driver.assert_mistake(DriverError::DoorbellTooFar {
        queue: QueueName::Completion(1),
        from: 0,
        to: 1,
        room: 0,
    });
}

#[test]
fn an_identifier_in_flight_again() {
    let mut driver = with_queue();
    for i in 0..2 {
        driver.put(i, 5, Command::flush(1));
    }
    driver.device.write32(0x1008, 2);
    // The first is fetched and not completed when the second comes.
    assert!(driver.device.fetch().is_some());
    assert!(driver.device.fetch().is_none());
    driver.assert_mistake(DriverError::CommandIdInFlight {
        queue: 1,
        id: CommandId(5),
    });

    // One after the other is fine.
    let mut driver = with_queue();
    for i in 0..2 {
        driver.put(i, 5, Command::flush(1));
    }
    driver.device.write32(0x1008, 2);
    assert_eq!(driver.device.process(), 2);
    driver.assert_well();
}

#[test]
fn memory_that_is_not_mapped() {
    let beyond = IoAddr::new(0x1000);
    let unmapped = |what, address, length| DriverError::Unmapped {
        what,
        source: Unmapped { address, length },
    };

    let mut driver = enabled();
    driver.admin(Command::identify(
        IdentifyKind::Controller,
        0,
        DataPointer::within_page(beyond),
    ));
    driver.assert_mistake(unmapped("data", 0x1000, 4096));

    let mut driver = enabled();
    let queue = CreateCompletionQueue {
        address: beyond,
        ..driver.completions()
    };
    driver.admin(Command::create_completion_queue(&queue));
    driver.assert_mistake(unmapped("a completion queue", 0x1000, 8 * 16));

    let mut driver = enabled();
    let (cq, sq) = (driver.completions(), driver.submissions());
    driver.admin(Command::create_completion_queue(&cq));
    driver.admin(Command::create_submission_queue(&CreateSubmissionQueue {
        address: beyond,
        ..sq
    }));
    driver.assert_mistake(unmapped("a submission queue", 0x1000, 8 * 64));

    // A queue freed while the device has it.
    let mut driver = with_queue();
    let address = driver.io_sq.address().value();
    driver.io_sq = driver.bus.dma().allocate(8, 8).unwrap();
    driver.device.write32(0x1008, 1);
    driver.device.process();
    driver.assert_mistake(unmapped("a submission queue", address, 64));

    // Data that runs on behind its buffer, and a list that is not there.
    let mut driver = with_queue();
    let data = DataPointer {
        prp1: driver.page.address().value(),
        prp2: 0x2000,
    };
    driver.put(0, 0, Command::read(1, 0, 16, &data));
    driver.device.write32(0x1008, 1);
    driver.device.process();
    driver.assert_mistake(unmapped("data", 0x2000, 4096));
    let mut driver = with_queue();
    driver.put(0, 0, Command::read(1, 0, 17, &data));
    driver.device.write32(0x1008, 1);
    driver.device.process();
    driver.assert_mistake(unmapped("a PRP list", 0x2000, 8));
}

#[test]
fn prps_that_point_inside_a_page() {
    let base = enabled().page.address().value();
    for (data, blocks, entry) in [
        (
            DataPointer {
                prp1: base + 2,
                prp2: 0,
            },
            1,
            base + 2,
        ),
        (
            DataPointer {
                prp1: base,
                prp2: base + 4,
            },
            16,
            base + 4,
        ),
        (
            DataPointer {
                prp1: base,
                prp2: base + 4,
            },
            17,
            base + 4,
        ),
    ] {
        let mut driver = with_queue();
        driver.put(0, 0, Command::read(1, 0, blocks, &data));
        driver.device.write32(0x1008, 1);
        driver.device.process();
        driver.assert_mistake(DriverError::PrpOffset { entry });
    }
    // An entry of a list.
    let mut driver = with_queue();
    let page = driver.page.address().value();
    driver.page.write64(0, page);
    driver.page.write64(8, page + 512);
    driver.put(0, 0, Command::read(1, 0, 24, &DataPointer { prp1: page, prp2: page }));
    driver.device.write32(0x1008, 1);
    driver.device.process();
    driver.assert_mistake(DriverError::PrpOffset { entry: page + 512 });
}

#[test]
fn transfers_beyond_mdts() {
    let mut driver = disabled(Config {
        maximum_transfer: 1,
        ..Config::default()
    });
    driver.prepare();
    driver.enable();
    let (cq, sq) = (driver.completions(), driver.submissions());
    driver.admin(Command::create_completion_queue(&cq));
    driver.admin(Command::create_submission_queue(&sq));
    let page = driver.page.address().value();
    driver.put(0, 0, Command::read(1, 0, 16, &DataPointer { prp1: page, prp2: page }));
    driver.device.write32(0x1008, 1);
    driver.device.process();
    driver.assert_well();
    driver.put(1, 1, Command::read(1, 0, 17, &DataPointer { prp1: page, prp2: page }));
    driver.device.write32(0x1008, 2);
    driver.device.process();
    driver.assert_mistake(DriverError::TransferTooLarge {
        length: 8704,
        limit: 8192,
    });
}

#[test]
fn requests_that_are_refused_and_no_mistake_of_the_protocol() {
    let mut driver = enabled();
    let (cq, sq) = (driver.completions(), driver.submissions());
    let make_cq = |queue: CreateCompletionQueue| Command::create_completion_queue(&queue);
    let make_sq = |queue: CreateSubmissionQueue| Command::create_submission_queue(&queue);
    let inside = cq.address.offset(16);
    for (command, expected) in [
        (
            Command::set_number_of_queues(QueueCounts {
                submission: 65536,
                completion: 1,
            }),
            Status::INVALID_FIELD,
        ),
        (make_sq(sq), Status::INVALID_COMPLETION_QUEUE),
        (
            make_cq(CreateCompletionQueue { qid: 0, ..cq }),
            Status::INVALID_QUEUE_IDENTIFIER,
        ),
        (
            make_cq(CreateCompletionQueue { qid: 65, ..cq }),
            Status::INVALID_QUEUE_IDENTIFIER,
        ),
        (
            make_cq(CreateCompletionQueue { entries: 1, ..cq }),
            Status::INVALID_QUEUE_SIZE,
        ),
        (
            make_cq(CreateCompletionQueue { entries: 1025, ..cq }),
            Status::INVALID_QUEUE_SIZE,
        ),
        (
            make_cq(CreateCompletionQueue { vector: Some(65), ..cq }),
            Status::INVALID_INTERRUPT_VECTOR,
        ),
        (
            make_cq(CreateCompletionQueue { address: inside, ..cq }),
            Status::INVALID_PRP_OFFSET,
        ),
        (make_cq(cq), Status::SUCCESS),
        (make_cq(cq), Status::INVALID_QUEUE_IDENTIFIER),
        (
            make_sq(CreateSubmissionQueue {
                completion_queue: 0,
                ..sq
            }),
            Status::INVALID_COMPLETION_QUEUE,
        ),
        (make_sq(sq), Status::SUCCESS),
        (
            Command::set_number_of_queues(QueueCounts {
                submission: 1,
                completion: 1,
            }),
            Status::COMMAND_SEQUENCE_ERROR,
        ),
        (Command::delete_completion_queue(1), Status::INVALID_QUEUE_DELETION),
        (Command::delete_submission_queue(2), Status::INVALID_QUEUE_IDENTIFIER),
        (Command::delete_submission_queue(0), Status::INVALID_QUEUE_IDENTIFIER),
        (Command::delete_submission_queue(1), Status::SUCCESS),
        (Command::delete_completion_queue(1), Status::SUCCESS),
        (Command::delete_completion_queue(1), Status::INVALID_QUEUE_IDENTIFIER),
        (
            Command {
                opcode: 0x7f,
                ..Command::default()
            },
            Status::INVALID_OPCODE,
        ),
    ] {
        let status = driver.admin(command).status();
        assert!(status.is(expected), "{status} instead of {expected} for {command:?}");
        assert_eq!(driver.errors(), []);
    }
}

#[test]
fn a_reset_clears_a_fatal_status() {
    let mut driver = enabled();
    driver.device.write32(0x1000, 100);
    assert_eq!(
        driver.device.read32(CSTS),
        (ControllerStatus::READY | ControllerStatus::FATAL).bits()
    );
    driver.configure(ControllerConfiguration::nvm(4096));
    assert_eq!(driver.device.read32(CSTS), 0);
    driver.enable();
    assert_eq!(driver.device.read32(CSTS), ControllerStatus::READY.bits());
    assert_eq!(driver.errors().len(), 1);
}
