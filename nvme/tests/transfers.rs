//! Reads and writes through PRPs of every shape, compared with what the backend holds.

mod common;

use std::io::Write;

use common::{Driver, Machine, Queue};
use nvme::{Command, Completion, Prps, Status};
use nvme_emulator::{Config, NamespaceConfig, RamBackend};
use proptest::prelude::*;

const BYTES: usize = 6 << 20;

fn machine(block_size: u32, config: Config) -> Machine {
    let blocks = BYTES as u64 / u64::from(block_size);
    Machine::new(
        config,
        [NamespaceConfig::new(1, blocks, block_size, RamBackend::new(BYTES))],
    )
}

fn run(queue: &mut Queue, command: &Command) -> Completion {
    let token = command.lba() as u32 ^ 0x5555;
    queue.write(command, token).unwrap();
    queue.commit();
    let completion = queue.poll().unwrap().expect("the device answers at the doorbell");
    queue.acknowledge();
    assert_eq!(completion.token, token);
    assert_eq!(queue.poll(), Ok(None));
    completion
}

/// A sequence of bytes that no shift of itself equals.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Writes a pattern from one buffer, reads it into another, compares both, and what lies around them.
fn round_trip(machine: &Machine, queue: &mut Queue, page_size: usize, offset: usize, length: usize, block_size: usize) {
    let dma = machine.dma();
    let data = pattern((offset * 31 + length) as u64, length);
    let mut source = dma.allocate(offset + length, page_size).unwrap();
    source.copy_in(offset, &data);
    let margin = 64;
    let mut target = dma.allocate(offset + length + margin, page_size).unwrap();
    target.copy_in(0, &vec![0xee; offset + length + margin]);

    let blocks = (length / block_size) as u32;
    let prps = Prps::new(&dma, &source, offset, length, page_size).unwrap();
    assert!(
        run(queue, &Command::write(1, 5, blocks, prps.data_pointer()))
            .status
            .is_success()
    );
    let prps = Prps::new(&dma, &target, offset, length, page_size).unwrap();
    assert!(
        run(queue, &Command::read(1, 5, blocks, prps.data_pointer()))
            .status
            .is_success()
    );

    let mut seen = vec![0; offset + length + margin];
    target.copy_out(0, &mut seen);
    assert!(
        seen[..offset]
            .iter()
            .chain(&seen[offset + length..])
            .all(|&byte| byte == 0xee),
        "wrote around the data"
    );
    assert!(seen[offset..offset + length] == data[..], "{length} bytes at {offset}");
    machine.assert_no_mistake();
}

fn each_length(block_size: usize, page_size: usize, lengths: &[usize]) {
    let config = Config {
        minimum_page_size: page_size,
        maximum_page_size: page_size.max(65536),
        ..Config::default()
    };
    let machine = machine(block_size as u32, config);
    let (driver, mut queue): (Driver, Queue) = machine.with_queue(4);
    assert_eq!(driver.page_size(), page_size);
    // Byte by byte, Miri would take hours for the large ones.
    let enough = if cfg!(miri) { 12 << 10 } else { usize::MAX };
    for &length in lengths.iter().filter(|length| **length <= enough) {
        // Large ones take their time; every offset matters most where few pages are.
        let offsets: &[usize] = if length > 100_000 {
            &[page_size - 512]
        } else {
            &[0, 4, 512, page_size - 512, page_size - 4]
        };
        for &offset in offsets {
            round_trip(&machine, &mut queue, page_size, offset, length, block_size);
        }
    }
}

#[test]
fn blocks_of_512_bytes() {
    // One block; up to and beyond one page, two pages; a list.
    each_length(512, 4096, &[512, 3584, 4096, 4608, 8192, 8704, 12288, 1 << 20]);
}

#[test]
fn blocks_of_4096_bytes() {
    each_length(4096, 4096, &[4096, 8192, 12288, 1 << 20]);
}

#[test]
fn lists_of_exactly_one_page_and_chained_ones() {
    let page = 4096;
    // 512 entries fill a list page; 513 chain; 1023 fill two pages; 1024 need a third.
    each_length(4096, page, &[512, 513, 514, 1023, 1024, 1025].map(|count| count * page));
}

#[test]
fn memory_pages_of_8_and_64_kib() {
    each_length(512, 8192, &[512, 8192, 16384, 16896, 1 << 20]);
    each_length(4096, 65536, &[4096, 65536, 131072, 1 << 20]);
}

#[test]
fn a_list_of_a_whole_page_has_no_chain() {
    let machine = machine(512, Config::default());
    let dma = machine.dma();
    // From the start of a page: 1 + 512 pages. The list is one page, and its last entry is the last page of data.
    let buffer = dma.allocate(513 * 4096, 4096).unwrap();
    let before = machine.bus.live();
    let prps = Prps::new(&dma, &buffer, 0, buffer.len(), 4096).unwrap();
    assert_eq!(machine.bus.live(), before + 1);
    let mut entry = [0; 8];
    let list = hal::dma::IoAddr::new(prps.data_pointer().prp2);
    machine.bus.read(list.offset(511 * 8), &mut entry).unwrap();
    assert_eq!(u64::from_le_bytes(entry), buffer.address().offset(512 * 4096).value());
    assert!(
        machine.bus.read(list.offset(512 * 8), &mut entry).is_err(),
        "the list is one page long"
    );
}

#[test]
fn parts_that_cannot_be_described_are_refused() {
    let machine = machine(512, Config::default());
    let dma = machine.dma();
    let buffer = dma.allocate(8192, 4096).unwrap();
    let error = |offset, length| Prps::new(&dma, &buffer, offset, length, 4096).unwrap_err().to_string();
    assert_eq!(
        error(0, 8193),
        "8193 bytes at offset 0 are no part of a buffer of 8192 bytes"
    );
    assert_eq!(
        error(8192, 1),
        "1 bytes at offset 8192 are no part of a buffer of 8192 bytes"
    );
    assert_eq!(
        error(usize::MAX, 2),
        format!("2 bytes at offset {} are no part of a buffer of 8192 bytes", usize::MAX)
    );
    assert_eq!(error(0, 0), "0 bytes at offset 0 are no part of a buffer of 8192 bytes");
    assert!(error(2, 512).ends_with("is not aligned to 4 bytes"));
}

#[test]
fn errors_of_the_device_come_with_the_command() {
    let small = NamespaceConfig::new(1, 100, 512, RamBackend::new(100 * 512));
    let read_only = NamespaceConfig {
        read_only: true,
        ..NamespaceConfig::new(2, 100, 512, RamBackend::new(100 * 512))
    };
    // Storage shorter than the namespace: the backend fails.
    let broken = NamespaceConfig::new(3, 100, 512, RamBackend::new(50 * 512));
    let machine = Machine::new(Config::default(), [small, read_only, broken]);
    let (_driver, mut queue) = machine.with_queue(8);
    let dma = machine.dma();
    let buffer = dma.allocate(4096, 4096).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 4096, 4096).unwrap();
    let data = prps.data_pointer();
    for (command, expected) in [
        (Command::read(1, 92, 8, data), Status::SUCCESS),
        (Command::read(1, 93, 8, data), Status::LBA_OUT_OF_RANGE),
        (Command::read(1, u64::MAX, 8, data), Status::LBA_OUT_OF_RANGE),
        (Command::write(2, 0, 8, data), Status::NAMESPACE_WRITE_PROTECTED),
        (Command::read(2, 0, 8, data), Status::SUCCESS),
        (Command::read(3, 60, 8, data), Status::UNRECOVERED_READ_ERROR),
        (Command::write(3, 60, 8, data), Status::WRITE_FAULT),
        (Command::read(4, 0, 8, data), Status::INVALID_NAMESPACE),
        (Command::flush(1), Status::SUCCESS),
        (Command::flush(u32::MAX), Status::SUCCESS),
        (Command::flush(9), Status::INVALID_NAMESPACE),
        (
            Command {
                opcode: 0x7f,
                ..Command::flush(1)
            },
            Status::INVALID_OPCODE,
        ),
    ] {
        let status = run(&mut queue, &command).status;
        assert!(status.is(expected), "{status} for {command:?}");
    }
    assert_eq!(queue.in_flight(), 0);
    machine.assert_no_mistake();
}

#[test]
fn a_file_holds_what_was_written() {
    let mut file = tempfile();
    file.write_all(&pattern(77, 64 << 10)).unwrap();
    let backend = nvme_emulator::FileBackend::new(file.try_clone().unwrap());
    let machine = Machine::new(Config::default(), [NamespaceConfig::new(1, 128, 512, backend)]);
    let (_driver, mut queue) = machine.with_queue(8);
    let dma = machine.dma();
    let mut buffer = dma.allocate(64 << 10, 4096).unwrap();
    let prps = Prps::new(&dma, &buffer, 0, 64 << 10, 4096).unwrap();
    assert!(
        run(&mut queue, &Command::read(1, 0, 128, prps.data_pointer()))
            .status
            .is_success()
    );
    let mut seen = vec![0; 64 << 10];
    buffer.copy_out(0, &mut seen);
    assert!(seen == pattern(77, 64 << 10));

    buffer.copy_in(512, &[0xa5; 1024]);
    let prps = Prps::new(&dma, &buffer, 512, 1024, 4096).unwrap();
    assert!(
        run(&mut queue, &Command::write(1, 3, 2, prps.data_pointer()))
            .status
            .is_success()
    );
    assert!(run(&mut queue, &Command::flush(1)).status.is_success());
    let mut expected = pattern(77, 64 << 10);
    expected[3 * 512..5 * 512].fill(0xa5);
    let mut held = vec![0; 64 << 10];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut held, 0).unwrap();
    assert!(held == expected);
}

/// A file without a name.
fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("doorpost-nvme-{}", std::process::id()));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// For any part of a buffer and any page size the PRPs cover exactly that part, in order.
    #[test]
    fn prps_cover_exactly_the_buffer(
        page_shift in 12u32..17,
        offset in (0usize..40_000).prop_map(|words| words * 4),
        length in prop_oneof![1usize..20_000, 1usize..6 << 20],
    ) {
        let page_size = 1 << page_shift;
        let bus = hal::fake::FakeDma::new(64 << 20);
        let dma = bus.dma();
        let buffer = dma.allocate(offset + length, page_size).unwrap();
        let prps = Prps::new(&dma, &buffer, offset, length, page_size).unwrap();
        prop_assert_eq!(prps.len(), length);

        // An own walk, by the words of the specification.
        let read = |address: u64| {
            let mut entry = [0; 8];
            bus.read(hal::dma::IoAddr::new(address), &mut entry).map(|()| u64::from_le_bytes(entry))
        };
        let page = page_size as u64;
        let pointer = prps.data_pointer();
        let first = (page - pointer.prp1 % page).min(length as u64);
        let mut pieces = vec![(pointer.prp1, first)];
        let mut left = length as u64 - first;
        if left == 0 {
            prop_assert_eq!(pointer.prp2, 0);
        } else if left <= page {
            pieces.push((pointer.prp2, left));
            left = 0;
        }
        let mut at = pointer.prp2;
        while left > 0 {
            let entry = read(at)?;
            prop_assert_eq!(entry % page, 0);
            if at % page == page - 8 && left > page {
                at = entry;
                continue;
            }
            pieces.push((entry, left.min(page)));
            left -= left.min(page);
            at += 8;
        }
        let start = buffer.address().value() + offset as u64;
        let mut expected = start;
        for (address, length) in pieces {
            prop_assert_eq!(address, expected);
            expected += length;
        }
        prop_assert_eq!(expected, start + length as u64);
    }

    /// The same through the whole stack, with data, as long as MDTS allows.
    #[test]
    fn any_transfer_carries_its_data(
        page_shift in 12u32..15,
        mdts in 0u8..6,
        offset in (0usize..5000).prop_map(|words| words * 4),
        blocks in 1usize..200,
    ) {
        let page_size = 1 << page_shift;
        let config = Config { minimum_page_size: page_size, maximum_transfer: mdts, ..Config::default() };
        let machine = machine(512, config);
        let (driver, mut queue) = machine.with_queue(4);
        prop_assert!(mdts == 0 || driver.max_transfer() == page_size << mdts);
        let length = (blocks * 512).min(driver.max_transfer());
        round_trip(&machine, &mut queue, page_size, offset, length, 512);
    }
}
