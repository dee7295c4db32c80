//! Completions that no honest controller writes: each is a typed error with names, counted, and never acted upon.

mod common;

use common::{Driver, Machine, Queue};
use nvme::spec::CompletionEntry;
use nvme::{Command, CommandId, Error, ProtocolViolation, Prps, Status, ViolationKind};
use nvme_emulator::fault::{Fault, Rule};
use nvme_emulator::{Answer, Config, NamespaceConfig, NullBackend};
use proptest::prelude::*;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

struct Scene {
    machine: Machine,
    _driver: Driver,
    queue: Queue,
    command: Command,
    _memory: (hal::dma::DmaBuffer, Prps),
}

fn scene(entries: u16) -> Scene {
    let machine = Machine::new(Config::default(), [NamespaceConfig::new(1, 1 << 20, 512, NullBackend)]);
    let (driver, queue) = machine.with_queue(entries);
    let dma = machine.dma();
    let buffer = dma.allocate(4096, 4096).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 4096, 4096).unwrap();
    let command = Command::read(1, 0, 8, prps.data_pointer());
    Scene {
        machine,
        _driver: driver,
        queue,
        command,
        _memory: (buffer, prps),
    }
}

impl Scene {
    /// Submits one command that the fault hits, and returns what `poll` makes of it.
    fn hit(&mut self, fault: Fault) -> (CommandId, ProtocolViolation) {
        self.machine.add(Rule::next(1, fault));
        let id = self.queue.write(&self.command, 77).unwrap();
        self.queue.commit();
        (id, self.queue.poll().unwrap_err())
    }

    /// The queue works as before.
    fn works(&mut self) {
        let token = 1000 + self.queue.counters().submitted as u32;
        self.queue.write(&self.command, token).unwrap();
        self.queue.commit();
        let completion = self.queue.poll().unwrap().unwrap();
        assert_eq!((completion.token, completion.status), (token, Status::SUCCESS));
        self.queue.acknowledge();
    }
}

#[test]
fn an_unknown_command_identifier() {
    let mut scene = scene(8);
    // 7 commands use 3 bits for the slot, and slot 7 does not exist.
    let (_, violation) = scene.hit(Fault::CommandId(CommandId(0x1237)));
    assert_eq!(violation.kind, ViolationKind::UnknownCommand);
    assert_eq!(
        violation.to_string(),
        "nvme0 queue 1: unknown command identifier (completion of command 0x1237)"
    );
    assert_eq!(scene.queue.counters().violations, 1);
    // The command itself was never completed, and still has its slot.
    assert_eq!(scene.queue.in_flight(), 1);
    scene.works();
}

#[test]
fn an_identifier_that_is_not_in_flight() {
    let mut scene = scene(8);
    let (id, violation) = scene.hit(Fault::CommandId(CommandId(5)));
    assert_ne!(id, CommandId(5));
    assert_eq!(
        (violation.command, violation.kind),
        (CommandId(5), ViolationKind::NotInFlight)
    );
    assert!(violation.to_string().contains("no such command is in flight"));
    scene.works();
}

#[test]
fn a_completion_twice() {
    let mut scene = scene(8);
    scene.machine.add(Rule::next(1, Fault::Duplicate));
    let id = scene.queue.write(&scene.command, 77).unwrap();
    scene.queue.commit();
    assert_eq!(scene.queue.poll().unwrap().unwrap().token, 77);
    let violation = scene.queue.poll().unwrap_err();
    assert_eq!((violation.command, violation.kind), (id, ViolationKind::NotInFlight));
    assert_eq!(scene.queue.poll(), Ok(None));
    scene.queue.acknowledge();
    scene.works();
    assert_eq!(scene.queue.counters().completed, 2);
}

#[test]
fn a_completion_of_an_earlier_use_of_the_slot() {
    let mut scene = scene(2);
    let first = scene.queue.write(&scene.command, 1).unwrap();
    scene.queue.commit();
    scene.queue.poll().unwrap().unwrap();
    scene.queue.acknowledge();
    // The only slot again: the late second completion of its first command meets the second one in flight.
    scene.machine.add(Rule::next(1, Fault::CommandId(first)));
    let second = scene.queue.write(&scene.command, 2).unwrap();
    assert_ne!(first, second);
    scene.queue.commit();
    let violation = scene.queue.poll().unwrap_err();
    assert_eq!(violation.kind, ViolationKind::StaleSequence { in_flight: second });
    assert_eq!(
        violation.to_string(),
        "nvme0 queue 1: stale sequence, 0x0002 is in flight in its slot (completion of command 0x0000)"
    );
    assert_eq!(scene.queue.in_flight(), 1);
}

#[test]
fn another_submission_queue() {
    let mut scene = scene(8);
    let (id, violation) = scene.hit(Fault::SubmissionQueue(3));
    assert_eq!(
        (violation.command, violation.kind),
        (id, ViolationKind::WrongQueue { sq_id: 3 })
    );
    assert!(violation.to_string().contains("it names submission queue 3"));
    scene.works();
}

#[test]
fn a_submission_head_beyond_the_queue() {
    for head in [8, 9, 0xffff] {
        let mut scene = scene(8);
        let (_, violation) = scene.hit(Fault::SubmissionHead(head));
        assert_eq!(
            violation.kind,
            ViolationKind::HeadBeyondQueue {
                sq_head: head,
                entries: 8
            }
        );
        scene.works();
    }
}

#[test]
fn a_completion_without_any_command() {
    let mut scene = scene(8);
    let entry = CompletionEntry {
        sq_id: U16::new(1),
        ..CompletionEntry::default()
    };
    scene.machine.device().inject(Answer {
        queue: 1,
        entry,
        interrupt: false,
    });
    assert!(scene.queue.is_ready());
    assert_eq!(scene.queue.poll().unwrap_err().kind, ViolationKind::NotInFlight);
    assert_eq!((scene.queue.in_flight(), scene.queue.poll()), (0, Ok(None)));
}

#[test]
fn phase_tags_set_everywhere_end_in_bounded_time() {
    // The device fills the whole queue with entries of the right phase, again and again.
    let mut scene = scene(8);
    let address = scene.machine.device().controller().completion_queue_address(1).unwrap();
    let address = hal::dma::IoAddr::new(address);
    for round in 0..4u64 {
        let phase = u8::from(round & 1 == 0);
        for entry in 0..8 {
            let mut bytes = [0; 16];
            bytes[14] = phase;
            scene.machine.bus.write(address.offset(entry * 16), &bytes).unwrap();
        }
        for _ in 0..8 {
            assert!(scene.queue.poll().is_err());
        }
        assert_eq!(scene.queue.poll(), Ok(None));
        assert_eq!(scene.queue.counters().violations, 8 * (round + 1));
    }
}

#[test]
fn wrong_completions_on_the_admin_queue_end_bring_up_with_the_reason() {
    for (fault, reason) in [
        (
            Fault::CommandId(CommandId(0x41)),
            "nvme0 queue 0: no such command is in flight",
        ),
        (Fault::SubmissionQueue(1), "nvme0 queue 0: it names submission queue 1"),
        (
            Fault::SubmissionHead(32),
            "nvme0 queue 0: its submission queue head is 32 of 32 entries",
        ),
    ] {
        let machine = Machine::new(Config::default(), []);
        machine.add(Rule::next(0, fault));
        let error = machine.start().unwrap_err();
        assert!(matches!(error, Error::Protocol(_)));
        assert!(error.to_string().starts_with(reason), "{error}");
        machine.assert_nothing_allocated();
    }
}

#[test]
fn a_duplicate_on_the_admin_queue_ends_the_next_command() {
    let machine = Machine::new(Config::default(), []);
    let mut driver = machine.start().unwrap();
    machine.add(Rule::next(0, Fault::Duplicate));
    driver.request_queues(1).unwrap();
    assert!(matches!(driver.create_queue_pair(1, 8, None), Err(Error::Protocol(_))));
    assert!(matches!(driver.namespaces(), Err(Error::Stopped { .. })));
    assert_eq!(driver.admin_counters().violations, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 512 }))]

    /// Any sixteen bytes as a completion: never a panic, and only the identifier in flight is ever believed.
    #[test]
    fn any_completion_is_survived(entries in proptest::collection::vec(any::<[u8; 16]>(), 1..40), in_flight in 0u32..7) {
        let mut scene = scene(8);
        scene.machine.set_prompt(false);
        let ids: Vec<_> = (0..in_flight).map(|token| scene.queue.write(&scene.command, token).unwrap()).collect();
        let mut ended = 0;
        for bytes in entries {
            let mut entry = CompletionEntry::default();
            entry.as_mut_bytes().copy_from_slice(&bytes);
            scene.machine.device().inject(Answer { queue: 1, entry, interrupt: false });
            let believable = ids.iter().any(|id| id.0 == entry.command_id.get());
            match scene.queue.poll() {
                Ok(Some(_)) => {
                    prop_assert!(believable);
                    ended += 1;
                }
                Ok(None) => prop_assert!(false, "a completion was not seen"),
                Err(_) => {}
            }
            scene.queue.acknowledge();
        }
        prop_assert_eq!(u32::from(scene.queue.in_flight()), in_flight - ended);
        prop_assert!(ended <= in_flight);
    }
}
