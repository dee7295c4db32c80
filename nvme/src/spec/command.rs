//! Submission queue entries (Base, 3.3.3.1): admin commands (Base, 5) and NVM commands (NVM, 3.2).

use core::fmt;

use hal::dma::IoAddr;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A command's identifier, unique among those in flight of one submission queue (Base, 3.3.3.1, CDW0.CID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u16);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Opcode of an admin command (Base, 5, "Opcodes for Admin Commands").
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct AdminOpcode(pub u8);

impl AdminOpcode {
    /// Delete I/O Submission Queue (Base, 5.7).
    pub const DELETE_SUBMISSION_QUEUE: Self = Self(0x00);
    /// Create I/O Submission Queue (Base, 5.5).
    pub const CREATE_SUBMISSION_QUEUE: Self = Self(0x01);
    /// Delete I/O Completion Queue (Base, 5.6).
    pub const DELETE_COMPLETION_QUEUE: Self = Self(0x04);
    /// Create I/O Completion Queue (Base, 5.4).
    pub const CREATE_COMPLETION_QUEUE: Self = Self(0x05);
    /// Identify (Base, 5.17).
    pub const IDENTIFY: Self = Self(0x06);
    /// Set Features (Base, 5.27).
    pub const SET_FEATURES: Self = Self(0x09);
    /// Get Features (Base, 5.15).
    pub const GET_FEATURES: Self = Self(0x0a);

    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DELETE_SUBMISSION_QUEUE => "Delete I/O Submission Queue",
            Self::CREATE_SUBMISSION_QUEUE => "Create I/O Submission Queue",
            Self::DELETE_COMPLETION_QUEUE => "Delete I/O Completion Queue",
            Self::CREATE_COMPLETION_QUEUE => "Create I/O Completion Queue",
            Self::IDENTIFY => "Identify",
            Self::SET_FEATURES => "Set Features",
            Self::GET_FEATURES => "Get Features",
            _ => "Admin Command",
        }
    }
}

impl fmt::Display for AdminOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:02x}h)", self.name(), self.0)
    }
}

impl fmt::Debug for AdminOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Opcode of a command of the NVM command set (NVM, 3.2, "Opcodes for NVM Commands").
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct NvmOpcode(pub u8);

impl NvmOpcode {
    /// Flush (Base, 7.1).
    pub const FLUSH: Self = Self(0x00);
    /// Write (NVM, 3.2.6).
    pub const WRITE: Self = Self(0x01);
    /// Read (NVM, 3.2.4).
    pub const READ: Self = Self(0x02);

    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FLUSH => "Flush",
            Self::WRITE => "Write",
            Self::READ => "Read",
            _ => "NVM Command",
        }
    }
}

impl fmt::Display for NvmOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:02x}h)", self.name(), self.0)
    }
}

impl fmt::Debug for NvmOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// CNS of an Identify command: which structure is asked for (Base, 5.17, "Identify - CNS Values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IdentifyKind {
    /// CNS 00h: the namespace of that id (NVM, 4.1.5.1).
    Namespace = 0x00,
    /// CNS 01h: the controller (Base, 5.17.2.1).
    Controller = 0x01,
    /// CNS 02h: up to 1024 ids of active namespaces, those greater than the NSID given (Base, 5.17.2.2).
    ActiveNamespaces = 0x02,
}

/// A feature's identifier (Base, 5.27.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct FeatureId(pub u8);

impl FeatureId {
    /// Number of Queues (Base, 5.27.1.5).
    pub const NUMBER_OF_QUEUES: Self = Self(0x07);
}

/// How many I/O queues are asked for or granted (Base, 5.27.1.5): CDW11 of Set Features, dword 0 of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Submission queues, 1 to 65536.
    pub submission: u32,
    /// Completion queues, 1 to 65536.
    pub completion: u32,
}

impl QueueCounts {
    /// Reads the two zero-based halves.
    pub const fn from_dword(value: u32) -> Self {
        Self {
            submission: (value & 0xffff) + 1,
            completion: (value >> 16) + 1,
        }
    }

    /// The two zero-based halves.
    ///
    /// # Panics
    /// When a count is not 1 to 65536.
    pub const fn to_dword(self) -> u32 {
        assert!(self.submission >= 1 && self.submission <= 1 << 16);
        assert!(self.completion >= 1 && self.completion <= 1 << 16);
        (self.completion - 1) << 16 | (self.submission - 1)
    }
}

/// Where a command's data lies, as PRPs (Base, 4.1.1): PRP1 with an offset into its page, PRP2 the second page or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DataPointer {
    /// PRP Entry 1.
    pub prp1: u64,
    /// PRP Entry 2; 0 when unused.
    pub prp2: u64,
}

impl DataPointer {
    /// Data that does not go beyond the memory page that `address` lies in.
    pub const fn within_page(address: IoAddr) -> Self {
        Self {
            prp1: address.value(),
            prp2: 0,
        }
    }
}

/// What Create I/O Completion Queue asks for (Base, 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateCompletionQueue {
    /// QID, 1 to 65535.
    pub qid: u16,
    /// QSIZE in entries (the field holds one less).
    pub entries: u16,
    /// PRP1: the queue's memory, contiguous.
    pub address: IoAddr,
    /// IV with IEN=1; `None` for IEN=0, a queue without interrupts.
    pub vector: Option<u16>,
}

/// What Create I/O Submission Queue asks for (Base, 5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSubmissionQueue {
    /// QID, 1 to 65535.
    pub qid: u16,
    /// QSIZE in entries (the field holds one less).
    pub entries: u16,
    /// PRP1: the queue's memory, contiguous.
    pub address: IoAddr,
    /// CQID: where completions go.
    pub completion_queue: u16,
}

/// A submission queue entry, 64 bytes (Base, 3.3.3.1).
///
/// It serves as a template: prepare one for each buffer, and set only what differs for each use. The queue fills in the
/// command identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Command {
    /// OPC.
    pub opcode: u8,
    /// FUSE and PSDT; 0 means neither fused nor SGLs.
    pub flags: u8,
    /// CID.
    pub command_id: U16,
    /// NSID.
    pub nsid: U32,
    /// CDW2 and CDW3.
    pub cdw2: [U32; 2],
    /// MPTR.
    pub metadata: U64,
    /// PRP Entry 1.
    pub prp1: U64,
    /// PRP Entry 2.
    pub prp2: U64,
    /// CDW10 to CDW15.
    pub cdw10: [U32; 6],
}

const _: () = assert!(size_of::<Command>() == 64);

/// Bit 0 of CDW11 when a queue is created: its memory is physically contiguous (PC).
const PHYSICALLY_CONTIGUOUS: u32 = 1;
/// Bit 1 of CDW11 when a completion queue is created: interrupts enabled (IEN).
const INTERRUPTS_ENABLED: u32 = 1 << 1;

impl Command {
    fn admin(opcode: AdminOpcode, nsid: u32, data: DataPointer, cdw10: u32, cdw11: u32) -> Self {
        let mut command = Self {
            opcode: opcode.0,
            nsid: U32::new(nsid),
            ..Self::default()
        };
        command.set_data(&data);
        command.cdw10[0] = U32::new(cdw10);
        command.cdw10[1] = U32::new(cdw11);
        command
    }

    /// Identify (Base, 5.17) into a page of 4096 bytes.
    pub fn identify(kind: IdentifyKind, nsid: u32, data: DataPointer) -> Self {
        Self::admin(AdminOpcode::IDENTIFY, nsid, data, kind as u32, 0)
    }

    /// Set Features, Number of Queues (Base, 5.27.1.5).
    pub fn set_number_of_queues(counts: QueueCounts) -> Self {
        let feature = u32::from(FeatureId::NUMBER_OF_QUEUES.0);
        Self::admin(
            AdminOpcode::SET_FEATURES,
            0,
            DataPointer::default(),
            feature,
            counts.to_dword(),
        )
    }

    /// Create I/O Completion Queue (Base, 5.4).
    pub fn create_completion_queue(queue: &CreateCompletionQueue) -> Self {
        let interrupt = queue
            .vector
            .map_or(0, |vector| u32::from(vector) << 16 | INTERRUPTS_ENABLED);
        Self::admin(
            AdminOpcode::CREATE_COMPLETION_QUEUE,
            0,
            DataPointer::within_page(queue.address),
            size_and_id(queue.entries, queue.qid),
            interrupt | PHYSICALLY_CONTIGUOUS,
        )
    }

    /// Create I/O Submission Queue (Base, 5.5).
    pub fn create_submission_queue(queue: &CreateSubmissionQueue) -> Self {
        Self::admin(
            AdminOpcode::CREATE_SUBMISSION_QUEUE,
            0,
            DataPointer::within_page(queue.address),
            size_and_id(queue.entries, queue.qid),
            u32::from(queue.completion_queue) << 16 | PHYSICALLY_CONTIGUOUS,
        )
    }

    /// Delete I/O Completion Queue (Base, 5.6).
    pub fn delete_completion_queue(qid: u16) -> Self {
        Self::admin(
            AdminOpcode::DELETE_COMPLETION_QUEUE,
            0,
            DataPointer::default(),
            qid.into(),
            0,
        )
    }

    /// Delete I/O Submission Queue (Base, 5.7).
    pub fn delete_submission_queue(qid: u16) -> Self {
        Self::admin(
            AdminOpcode::DELETE_SUBMISSION_QUEUE,
            0,
            DataPointer::default(),
            qid.into(),
            0,
        )
    }

    /// Read (NVM, 3.2.4) of `blocks` blocks from `slba` on.
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    pub fn read(nsid: u32, slba: u64, blocks: u32, data: &DataPointer) -> Self {
        Self::transfer(NvmOpcode::READ, nsid, slba, blocks, data)
    }

    /// Write (NVM, 3.2.6) of `blocks` blocks from `slba` on.
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    pub fn write(nsid: u32, slba: u64, blocks: u32, data: &DataPointer) -> Self {
        Self::transfer(NvmOpcode::WRITE, nsid, slba, blocks, data)
    }

    /// Flush (Base, 7.1): what was written to the namespace becomes durable.
    pub fn flush(nsid: u32) -> Self {
        Self {
            opcode: NvmOpcode::FLUSH.0,
            nsid: U32::new(nsid),
            ..Self::default()
        }
    }

    fn transfer(opcode: NvmOpcode, nsid: u32, slba: u64, blocks: u32, data: &DataPointer) -> Self {
        let mut command = Self {
            opcode: opcode.0,
            nsid: U32::new(nsid),
            ..Self::default()
        };
        command.set_data(data);
        command.set_lba(slba);
        command.set_blocks(blocks);
        command
    }

    /// Replaces the opcode.
    #[inline(always)]
    pub fn set_opcode(&mut self, opcode: NvmOpcode) {
        self.opcode = opcode.0;
    }

    /// Replaces the starting LBA (CDW10 and CDW11 of a read or write).
    #[inline(always)]
    pub fn set_lba(&mut self, slba: u64) {
        self.cdw10[0] = U32::new(slba as u32);
        self.cdw10[1] = U32::new((slba >> 32) as u32);
    }

    /// Replaces the number of blocks (CDW12.NLB of a read or write, which holds one less).
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    #[inline]
    pub fn set_blocks(&mut self, blocks: u32) {
        assert!(
            (1..=1 << 16).contains(&blocks),
            "a transfer of {blocks} blocks; 1 to 65536 can be asked for"
        );
        self.cdw10[2] = U32::new(self.cdw10[2].get() & !0xffff | (blocks - 1));
    }

    /// Replaces the data pointer.
    #[inline]
    pub fn set_data(&mut self, data: &DataPointer) {
        self.prp1 = U64::new(data.prp1);
        self.prp2 = U64::new(data.prp2);
    }

    /// The data pointer.
    pub const fn data(&self) -> DataPointer {
        DataPointer {
            prp1: self.prp1.get(),
            prp2: self.prp2.get(),
        }
    }

    /// The starting LBA of a read or write.
    pub const fn lba(&self) -> u64 {
        self.cdw10[0].get() as u64 | (self.cdw10[1].get() as u64) << 32
    }

    /// The number of blocks of a read or write, 1 to 65536.
    pub const fn blocks(&self) -> u32 {
        (self.cdw10[2].get() & 0xffff) + 1
    }
}

const fn size_and_id(entries: u16, qid: u16) -> u32 {
    (entries as u32 - 1) << 16 | qid as u32
}

impl CreateCompletionQueue {
    /// Reads the request back from its command; `Err` names what a controller has to refuse in it.
    pub fn from_command(command: &Command) -> Result<Self, &'static str> {
        let (qid, entries, cdw11) = created_queue(command)?;
        let vector = (cdw11 & INTERRUPTS_ENABLED != 0).then_some((cdw11 >> 16) as u16);
        Ok(Self {
            qid,
            entries,
            address: IoAddr::new(command.prp1.get()),
            vector,
        })
    }
}

impl CreateSubmissionQueue {
    /// Reads the request back from its command; `Err` names what a controller has to refuse in it.
    pub fn from_command(command: &Command) -> Result<Self, &'static str> {
        let (qid, entries, cdw11) = created_queue(command)?;
        Ok(Self {
            qid,
            entries,
            address: IoAddr::new(command.prp1.get()),
            completion_queue: (cdw11 >> 16) as u16,
        })
    }
}

fn created_queue(command: &Command) -> Result<(u16, u16, u32), &'static str> {
    let (cdw10, cdw11) = (command.cdw10[0].get(), command.cdw10[1].get());
    if cdw11 & PHYSICALLY_CONTIGUOUS == 0 {
        return Err("a queue that is not physically contiguous");
    }
    let entries = ((cdw10 >> 16) as u16)
        .checked_add(1)
        .ok_or("a queue of 65536 entries")?;
    Ok((cdw10 as u16, entries, cdw11))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_laid_out_as_specified() {
        let data = DataPointer {
            prp1: 0x1111_2222_3333_4444,
            prp2: 0x5555_6666_7777_8888,
        };
        let mut command = Command::read(7, 0x0102_0304_0506_0708, 65536, &data);
        command.command_id = U16::new(0xabcd);
        let bytes = command.as_bytes();
        assert_eq!(bytes[..8], [2, 0, 0xcd, 0xab, 7, 0, 0, 0]);
        assert_eq!(
            bytes[24..40],
            [data.prp1.to_le_bytes(), data.prp2.to_le_bytes()].concat()
        );
        assert_eq!(bytes[40..48], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[48..52], [0xff, 0xff, 0, 0]);
        command.set_opcode(NvmOpcode::WRITE);
        command.set_lba(9);
        command.set_blocks(1);
        assert_eq!((command.opcode, command.lba(), command.blocks()), (1, 9, 1));
    }

    #[test]
    fn queue_commands_read_back() {
        let address = IoAddr::new(0x12000);
        for vector in [None, Some(0), Some(2047)] {
            let queue = CreateCompletionQueue {
                qid: 3,
                entries: 1024,
                address,
                vector,
            };
            let command = Command::create_completion_queue(&queue);
            assert_eq!(command.cdw10[0].get(), 0x03ff_0003);
            assert_eq!(CreateCompletionQueue::from_command(&command), Ok(queue));
        }
        let queue = CreateSubmissionQueue {
            qid: 3,
            entries: 2,
            address,
            completion_queue: 9,
        };
        let mut command = Command::create_submission_queue(&queue);
        assert_eq!(command.cdw10[1].get(), 0x0009_0001);
        assert_eq!(CreateSubmissionQueue::from_command(&command), Ok(queue));
        command.cdw10[1] = U32::new(0);
        assert!(CreateSubmissionQueue::from_command(&command).is_err());
    }

    #[test]
    fn queue_counts_are_zero_based() {
        let counts = QueueCounts {
            submission: 4,
            completion: 65535,
        };
        assert_eq!(counts.to_dword(), 0xfffe_0003);
        assert_eq!(QueueCounts::from_dword(0xfffe_0003), counts);
    }

    #[test]
    #[should_panic(expected = "a transfer of 65537 blocks")]
    fn too_many_blocks_never_wrap() {
        let _ = Command::read(1, 0, 65537, &DataPointer::default());
    }
}
