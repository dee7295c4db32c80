//! Submission queue entries (Base, 3.3.3.1): admin commands (Base, 5) and NVM commands (NVM, 3.2).

use core::fmt;

use hal::dma::IoAddr;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FeatureId, LogId, QueueCounts};

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
    /// Get Log Page (Base, 5.16).
    pub const GET_LOG_PAGE: Self = Self(0x02);
    /// Delete I/O Completion Queue (Base, 5.6).
    pub const DELETE_COMPLETION_QUEUE: Self = Self(0x04);
    /// Create I/O Completion Queue (Base, 5.4).
    pub const CREATE_COMPLETION_QUEUE: Self = Self(0x05);
    /// Identify (Base, 5.17).
    pub const IDENTIFY: Self = Self(0x06);
    /// Abort (Base, 5.1).
    pub const ABORT: Self = Self(0x08);
    /// Set Features (Base, 5.27).
    pub const SET_FEATURES: Self = Self(0x09);
    /// Get Features (Base, 5.15).
    pub const GET_FEATURES: Self = Self(0x0a);
    /// Asynchronous Event Request (Base, 5.2).
    pub const ASYNC_EVENT_REQUEST: Self = Self(0x0c);
    /// Doorbell Buffer Config (Base, 5.8).
    pub const DOORBELL_BUFFER_CONFIG: Self = Self(0x7c);

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
            Self::GET_LOG_PAGE => "Get Log Page",
            Self::ABORT => "Abort",
            Self::ASYNC_EVENT_REQUEST => "Asynchronous Event Request",
            Self::DOORBELL_BUFFER_CONFIG => "Doorbell Buffer Config",
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
    /// Compare (NVM, 3.2.1).
    pub const COMPARE: Self = Self(0x05);
    /// Write Zeroes (NVM, 3.2.8).
    pub const WRITE_ZEROES: Self = Self(0x08);
    /// Dataset Management (NVM, 3.2.3).
    pub const DATASET_MANAGEMENT: Self = Self(0x09);
    /// Verify (NVM, 3.2.5).
    pub const VERIFY: Self = Self(0x0c);

    /// The specification's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FLUSH => "Flush",
            Self::WRITE => "Write",
            Self::READ => "Read",
            Self::COMPARE => "Compare",
            Self::WRITE_ZEROES => "Write Zeroes",
            Self::DATASET_MANAGEMENT => "Dataset Management",
            Self::VERIFY => "Verify",
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
    /// CNS 03h: what identifies the namespace of that id, its I/O command set among it (Base, 5.17.2.3).
    NamespaceDescriptors = 0x03,
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
/// Bit 2 of CDW11 of Dataset Management: deallocate (AD).
pub const DEALLOCATE: u32 = 1 << 2;

/// A range of blocks of a Dataset Management command (NVM, 3.2.3, "Range Definition").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes; 0 says nothing.
    pub attributes: U32,
    /// Length in blocks.
    pub blocks: U32,
    /// Starting LBA.
    pub slba: U64,
}

/// Whether an Abort command aborted its command, by dword 0 of its completion (Base, 5.1).
pub const fn abort_succeeded(result: u32) -> bool {
    result & 1 == 0
}

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

    /// Set Features of `feature` with this CDW11 (Base, 5.27); `data` where the feature has some.
    pub fn set_feature(feature: FeatureId, cdw11: u32, data: DataPointer) -> Self {
        Self::admin(AdminOpcode::SET_FEATURES, 0, data, feature.0.into(), cdw11)
    }

    /// Get Features of `feature`, its current value (Base, 5.15); the value is dword 0 of the completion.
    pub fn get_feature(feature: FeatureId, cdw11: u32) -> Self {
        let none = DataPointer::default();
        Self::admin(AdminOpcode::GET_FEATURES, 0, none, feature.0.into(), cdw11)
    }

    /// Abort (Base, 5.1) of command `id` of submission queue `queue`. Bit 0 of dword 0 of the completion is 0 when the
    /// command was aborted: [`abort_succeeded`].
    pub fn abort(queue: u16, id: CommandId) -> Self {
        let cdw10 = u32::from(id.0) << 16 | u32::from(queue);
        Self::admin(AdminOpcode::ABORT, 0, DataPointer::default(), cdw10, 0)
    }

    /// Asynchronous Event Request (Base, 5.2): it completes when there is an event, maybe never.
    pub fn async_event_request() -> Self {
        Self::admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, DataPointer::default(), 0, 0)
    }

    /// Get Log Page (Base, 5.16): the first `bytes` bytes of a log page, which is the controller's when `nsid` is
    /// FFFFFFFFh. Unless `retain_event`, an event that told of this page may be sent again.
    ///
    /// # Panics
    /// When `bytes` is no multiple of 4, or 0.
    pub fn get_log_page(log: LogId, nsid: u32, bytes: usize, retain_event: bool, data: DataPointer) -> Self {
        assert!(
            bytes > 0 && bytes.is_multiple_of(4) && bytes <= 1 << 30,
            "a log page of {bytes} bytes"
        );
        let dwords = (bytes / 4 - 1) as u32;
        let cdw10 = (dwords & 0xffff) << 16 | u32::from(retain_event) << 15 | u32::from(log.0);
        Self::admin(AdminOpcode::GET_LOG_PAGE, nsid, data, cdw10, dwords >> 16)
    }

    /// Doorbell Buffer Config (Base, 5.8): where the driver leaves its doorbell values, and where the controller says from
    /// which value on it wants to be told. Each is one memory page, laid out as the doorbell registers are.
    pub fn doorbell_buffer_config(shadow: IoAddr, event_index: IoAddr) -> Self {
        let data = DataPointer {
            prp1: shadow.value(),
            prp2: event_index.value(),
        };
        Self::admin(AdminOpcode::DOORBELL_BUFFER_CONFIG, 0, data, 0, 0)
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

    /// Compare (NVM, 3.2.1) of `blocks` blocks from `slba` on with memory: ends with Compare Failure when they differ.
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    pub fn compare(nsid: u32, slba: u64, blocks: u32, data: &DataPointer) -> Self {
        Self::transfer(NvmOpcode::COMPARE, nsid, slba, blocks, data)
    }

    /// Verify (NVM, 3.2.5): the controller reads `blocks` blocks from `slba` on, and transfers nothing.
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    pub fn verify(nsid: u32, slba: u64, blocks: u32) -> Self {
        Self::transfer(NvmOpcode::VERIFY, nsid, slba, blocks, &DataPointer::default())
    }

    /// Write Zeroes (NVM, 3.2.8): `blocks` blocks from `slba` on read as zeroes afterwards. With `deallocate` the controller
    /// may drop them, if they still read as zeroes then (CDW12.DEAC).
    ///
    /// # Panics
    /// When `blocks` is not 1 to 65536.
    pub fn write_zeroes(nsid: u32, slba: u64, blocks: u32, deallocate: bool) -> Self {
        let mut command = Self::transfer(NvmOpcode::WRITE_ZEROES, nsid, slba, blocks, &DataPointer::default());
        command.cdw10[2] = U32::new(command.cdw10[2].get() | u32::from(deallocate) << 25);
        command
    }

    /// Dataset Management (NVM, 3.2.3) that deallocates (CDW11.AD) `ranges` ranges; `data` points at as many
    /// [`DatasetRange`]s.
    ///
    /// # Panics
    /// When `ranges` is not 1 to 256.
    pub fn deallocate(nsid: u32, ranges: u32, data: &DataPointer) -> Self {
        assert!(
            (1..=256).contains(&ranges),
            "{ranges} ranges; 1 to 256 can be asked for"
        );
        let mut command = Self {
            opcode: NvmOpcode::DATASET_MANAGEMENT.0,
            nsid: U32::new(nsid),
            ..Self::default()
        };
        command.set_data(data);
        command.cdw10[0] = U32::new(ranges - 1);
        command.cdw10[1] = U32::new(DEALLOCATE);
        command
    }

    /// The number of ranges of a Dataset Management command, 1 to 256.
    pub const fn ranges(&self) -> u32 {
        (self.cdw10[0].get() & 0xff) + 1
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

    /// The first 64-bit word (opcode, flags, identifier, NSID) with `id` for its identifier, in the CPU's byte order.
    #[inline(always)]
    pub const fn first_word(&self, id: CommandId) -> u64 {
        self.opcode as u64 | (self.flags as u64) << 8 | (id.0 as u64) << 16 | (self.nsid.get() as u64) << 32
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
        assert_eq!(command.first_word(CommandId(0xabcd)).to_le_bytes(), bytes[..8]);
        assert_eq!(command.first_word(CommandId(0x1234)).to_le_bytes()[2..4], [0x34, 0x12]);
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
    fn admin_commands_are_laid_out_as_specified() {
        let none = DataPointer::default();
        let dwords = |command: Command| command.cdw10.map(|dword| dword.get());
        assert_eq!(dwords(Command::abort(3, CommandId(0x1234)))[0], 0x1234_0003);
        assert!(abort_succeeded(0) && !abort_succeeded(1));
        let log = Command::get_log_page(LogId::SMART, u32::MAX, 512, true, none);
        assert_eq!((log.opcode, dwords(log)), (2, [0x007f_8002, 0, 0, 0, 0, 0]));
        let log = Command::get_log_page(LogId::ERROR_INFORMATION, u32::MAX, 64 * 8192, false, none);
        assert_eq!(dwords(log)[..2], [0xffff_0001, 1]);
        let buffers = Command::doorbell_buffer_config(IoAddr::new(0x1000), IoAddr::new(0x2000));
        assert_eq!(
            (buffers.opcode, buffers.prp1.get(), buffers.prp2.get()),
            (0x7c, 0x1000, 0x2000)
        );
        let feature = Command::set_feature(FeatureId::INTERRUPT_COALESCING, 0x0a07, none);
        assert_eq!(dwords(feature)[..2], [8, 0x0a07]);
    }

    #[test]
    fn commands_without_transfer_are_laid_out_as_specified() {
        let zeroes = Command::write_zeroes(1, 5, 16, true);
        assert_eq!(
            (zeroes.opcode, zeroes.cdw10[2].get(), zeroes.blocks()),
            (8, 1 << 25 | 15, 16)
        );
        let data = DataPointer { prp1: 0x4000, prp2: 0 };
        let discard = Command::deallocate(1, 256, &data);
        assert_eq!((discard.opcode, discard.ranges(), discard.data()), (9, 256, data));
        assert_eq!((discard.cdw10[0].get(), discard.cdw10[1].get()), (255, 4));
        assert_eq!(size_of::<DatasetRange>(), 16);
        assert_eq!(Command::verify(1, 0, 1).opcode, 0xc);
        assert_eq!(Command::compare(1, 0, 1, &data).opcode, 5);
    }

    #[test]
    #[should_panic(expected = "a transfer of 65537 blocks")]
    fn too_many_blocks_never_wrap() {
        let _ = Command::read(1, 0, 65537, &DataPointer::default());
    }
}
