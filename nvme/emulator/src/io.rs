//! Commands of the NVM command set (NVM, 3.2).

use nvme::spec::{Command, CommandSet, DEALLOCATE, DatasetRange, NvmOpcode, OptionalNvmCommands, Status};
use zerocopy::FromBytes;

use crate::config::NamespaceConfig;
use crate::controller::{Controller, Outcome};
use crate::driver_error::DriverError;
use crate::memory::Memory;
use crate::prp::Segment;

/// NSID that means all namespaces.
const ALL: u32 = u32::MAX;
/// Most bytes of data that are held at once, however large the transfer is.
const CHUNK: usize = 128 << 10;
/// Zone Invalid Write of the Zoned Namespace Command Set: not at the write pointer.
const ZONE_INVALID_WRITE: Status = Status::new(1, 0xbc);

type Result<T = Outcome> = std::result::Result<T, DriverError>;

fn refused(status: Status) -> Result {
    Ok(status.do_not_retry().into())
}

/// What a command does with the blocks it names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    Compare,
}

impl<M: Memory> Controller<M> {
    pub(crate) fn io(&mut self, command: &Command) -> Result {
        let opcode = NvmOpcode(command.opcode);
        let needed = match opcode {
            NvmOpcode::COMPARE => OptionalNvmCommands::COMPARE,
            NvmOpcode::WRITE_ZEROES => OptionalNvmCommands::WRITE_ZEROES,
            NvmOpcode::DATASET_MANAGEMENT => OptionalNvmCommands::DATASET_MANAGEMENT,
            NvmOpcode::VERIFY => OptionalNvmCommands::VERIFY,
            _ => OptionalNvmCommands::empty(),
        };
        if !self.config.optional_commands.contains(needed) {
            return refused(Status::INVALID_OPCODE);
        }
        match opcode {
            NvmOpcode::READ => self.transfer(command, Direction::Read),
            NvmOpcode::WRITE => self.transfer(command, Direction::Write),
            NvmOpcode::COMPARE => self.transfer(command, Direction::Compare),
            NvmOpcode::WRITE_ZEROES => self.write_zeroes(command),
            NvmOpcode::DATASET_MANAGEMENT => self.deallocate(command),
            NvmOpcode::VERIFY => self.verify(command),
            NvmOpcode::FLUSH => self.flush_namespaces(command.nsid.get()),
            _ => refused(Status::INVALID_OPCODE),
        }
    }

    /// The namespace that a command works on, unless it has to be refused. `blocks` begins at `lba`.
    fn target(
        &mut self,
        command: &Command,
        lba: u64,
        blocks: u64,
        write: bool,
    ) -> std::result::Result<&mut NamespaceConfig, Status> {
        let namespace = self
            .namespaces
            .get_mut(&command.nsid.get())
            .ok_or(Status::INVALID_NAMESPACE)?;
        if command.flags != 0 || namespace.protection != 0 {
            return Err(Status::INVALID_FIELD);
        }
        // No storage is larger than 2^64 bytes, whatever the namespace's size is said to be.
        let room = namespace.blocks.min(u64::MAX / namespace.stored());
        if lba.checked_add(blocks).is_none_or(|end| end > room) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        if write && namespace.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        if write && namespace.command_set == CommandSet::ZONED && lba != namespace.write_pointer {
            return Err(ZONE_INVALID_WRITE);
        }
        Ok(namespace)
    }

    fn transfer(&mut self, command: &Command, direction: Direction) -> Result {
        let write = direction == Direction::Write;
        let (lba, blocks) = (command.lba(), u64::from(command.blocks()));
        let namespace = match self.target(command, lba, blocks, write) {
            Ok(namespace) => namespace,
            Err(status) => return refused(status),
        };
        let block = namespace.transferred();
        let (data_bytes, metadata) = (namespace.blocks.wrapping_mul(block), namespace.separate_metadata());
        let length = (blocks * block) as usize;
        let limit = self.config.largest_transfer();
        if length > limit {
            return Err(DriverError::TransferTooLarge { length, limit });
        }
        self.walk(command.data(), length)?;
        let mut segments = std::mem::take(&mut self.segments);
        let mut status = self.copy(command, &segments, lba * block, direction);
        if metadata != 0 && matches!(&status, Ok(Status::SUCCESS)) {
            let address = command.metadata.get();
            if !address.is_multiple_of(4) {
                return Err(DriverError::MetadataPointer { address });
            }
            segments.clear();
            segments.push(Segment {
                address,
                length: (blocks * metadata) as usize,
            });
            status = self.copy(command, &segments, data_bytes + lba * metadata, direction);
        }
        self.segments = segments;
        let status = status?;
        if status.is_success() {
            let units = blocks * block / 512;
            match direction {
                Direction::Write => {
                    self.logs.writes += 1;
                    self.logs.blocks_written += units;
                    if let Some(namespace) = self.namespaces.get_mut(&command.nsid.get()) {
                        namespace.write_pointer = lba + blocks;
                    }
                }
                Direction::Read | Direction::Compare => {
                    self.logs.reads += 1;
                    self.logs.blocks_read += units;
                }
            }
        }
        Ok(status.into())
    }

    /// Moves data between the driver's memory and the namespace's storage from `offset` on, or compares them.
    fn copy(
        &mut self,
        command: &Command,
        segments: &[Segment],
        mut offset: u64,
        direction: Direction,
    ) -> Result<Status> {
        let Some(namespace) = self.namespaces.get_mut(&command.nsid.get()) else {
            return Ok(Status::INVALID_NAMESPACE);
        };
        let unmapped = |source| DriverError::Unmapped { what: "data", source };
        for segment in segments {
            let mut done = 0;
            while done < segment.length {
                let length = (segment.length - done).min(CHUNK);
                let address = segment.address.wrapping_add(done as u64);
                self.data.resize(length.max(self.data.len()), 0);
                let data = &mut self.data[..length];
                match direction {
                    Direction::Read => {
                        if namespace.backend.read(offset, data).is_err() {
                            return Ok(Status::UNRECOVERED_READ_ERROR);
                        }
                        self.memory.write(address, data).map_err(unmapped)?;
                    }
                    Direction::Write => {
                        self.memory.read(address, data).map_err(unmapped)?;
                        if namespace.backend.write(offset, data).is_err() {
                            return Ok(Status::WRITE_FAULT);
                        }
                    }
                    Direction::Compare => {
                        self.memory.read(address, data).map_err(unmapped)?;
                        self.compared.resize(length, 0);
                        if namespace.backend.read(offset, &mut self.compared).is_err() {
                            return Ok(Status::UNRECOVERED_READ_ERROR);
                        }
                        if *data != self.compared[..] {
                            return Ok(Status::COMPARE_FAILURE);
                        }
                    }
                }
                offset += length as u64;
                done += length;
            }
        }
        Ok(Status::SUCCESS)
    }

    /// Blocks read as zeroes afterwards, metadata too (NVM, 3.2.8).
    fn write_zeroes(&mut self, command: &Command) -> Result {
        let (lba, blocks) = (command.lba(), u64::from(command.blocks()));
        let namespace = match self.target(command, lba, blocks, true) {
            Ok(namespace) => namespace,
            Err(status) => return refused(status),
        };
        let (block, metadata) = (namespace.transferred(), namespace.separate_metadata());
        let behind = namespace.blocks.wrapping_mul(block);
        let mut result = namespace.backend.write_zeroes(lba * block, blocks * block);
        if metadata != 0 {
            result = result.and_then(|()| {
                namespace
                    .backend
                    .write_zeroes(behind + lba * metadata, blocks * metadata)
            });
        }
        namespace.write_pointer = lba + blocks;
        Ok(match result {
            Ok(()) => Status::SUCCESS.into(),
            Err(_) => Status::WRITE_FAULT.into(),
        })
    }

    /// Dataset Management (NVM, 3.2.3): deallocates where that is asked for; other attributes are hints.
    fn deallocate(&mut self, command: &Command) -> Result {
        const RANGE: usize = size_of::<DatasetRange>();
        if let Err(status) = self.target(command, 0, 0, false) {
            return refused(status);
        }
        let bytes = command.ranges() as usize * RANGE;
        self.receive(command.data(), bytes)?;
        let ranges: Vec<DatasetRange> = self.data[..bytes]
            .chunks_exact(RANGE)
            .filter_map(|range| DatasetRange::read_from_bytes(range).ok())
            .collect();
        if command.cdw10[1].get() & DEALLOCATE == 0 {
            return Ok(Status::SUCCESS.into());
        }
        // None is touched when one of them cannot be.
        for range in &ranges {
            if let Err(status) = self.target(command, range.slba.get(), range.blocks.get().into(), true) {
                return refused(status);
            }
        }
        for range in &ranges {
            let (lba, blocks) = (range.slba.get(), u64::from(range.blocks.get()));
            if let Ok(namespace) = self.target(command, lba, blocks, true) {
                let block = namespace.transferred();
                if namespace.backend.discard(lba * block, blocks * block).is_err() {
                    return Ok(Status::WRITE_FAULT.into());
                }
            }
        }
        Ok(Status::SUCCESS.into())
    }

    /// Verify (NVM, 3.2.5): the blocks are read, and nothing is transferred.
    fn verify(&mut self, command: &Command) -> Result {
        let (lba, blocks) = (command.lba(), u64::from(command.blocks()));
        let mut data = std::mem::take(&mut self.data);
        data.resize(CHUNK.max(data.len()), 0);
        let namespace = match self.target(command, lba, blocks, false) {
            Ok(namespace) => namespace,
            Err(status) => return refused(status),
        };
        let block = namespace.transferred();
        let (mut offset, end) = (lba * block, (lba + blocks) * block);
        let mut status = Status::SUCCESS;
        while offset < end && status.is_success() {
            let length = (end - offset).min(CHUNK as u64) as usize;
            if namespace.backend.read(offset, &mut data[..length]).is_err() {
                status = Status::UNRECOVERED_READ_ERROR;
            }
            offset += length as u64;
        }
        self.data = data;
        Ok(status.into())
    }

    fn flush_namespaces(&mut self, nsid: u32) -> Result {
        let mut found = nsid == ALL;
        for (_, namespace) in self.namespaces.iter_mut().filter(|(id, _)| nsid == ALL || **id == nsid) {
            found = true;
            if namespace.backend.flush().is_err() {
                return Ok(Status::WRITE_FAULT.into());
            }
        }
        if found {
            Ok(Status::SUCCESS.into())
        } else {
            refused(Status::INVALID_NAMESPACE)
        }
    }
}
