//! What kind of controller is emulated.

use std::fmt;
use std::time::Duration;

use nvme::spec::{Capabilities, CommandSet, OptionalNvmCommands, QueueCounts, Version};

use crate::backend::Backend;

/// The controller's properties.
#[derive(Clone, Debug)]
pub struct Config {
    /// VS. Before 1.1 there is no list of active namespaces.
    pub version: Version,
    /// CAP.MQES + 1: the most entries of an I/O queue, 2 to 65536.
    pub queue_entries: u32,
    /// CAP.TO.
    pub ready_timeout: Duration,
    /// CAP.DSTRD in bytes: a power of two from 4 on.
    pub doorbell_stride: usize,
    /// CAP.MPSMIN in bytes.
    pub minimum_page_size: usize,
    /// CAP.MPSMAX in bytes.
    pub maximum_page_size: usize,
    /// MDTS as in Identify: a power of two of the smallest pages; 0 is no limit.
    pub maximum_transfer: u8,
    /// I/O queues that Set Features grants, whatever is asked for.
    pub io_queues: QueueCounts,
    /// Interrupt vectors.
    pub vectors: u16,
    /// NN: the largest namespace id that may be valid.
    pub namespace_limit: u32,
    /// VWC: report a volatile write cache.
    pub volatile_write_cache: bool,
    /// CRTO.CRWMT and CRTO.CRIMT; `None` for a controller without CRTO (CAP.CRMS = 0).
    pub ready_with_media: Option<Duration>,
    /// CAP.NSSRS: an NVM subsystem reset can be asked for.
    pub subsystem_reset: bool,
    /// OACS: Doorbell Buffer Config is supported.
    pub doorbell_buffer: bool,
    /// APSTA: there are autonomous power state transitions, and they are on until switched off.
    pub autonomous_power: bool,
    /// ONCS. Commands without their bit are refused.
    pub optional_commands: OptionalNvmCommands,
    /// AERL + 1: Asynchronous Event Requests that may be outstanding, 1 to 256.
    pub async_event_limit: u16,
    /// ELPE + 1: entries of the error log, 1 to 256.
    pub error_log_entries: u16,
    /// MN, ASCII, at most 40 characters.
    pub model: String,
    /// SN, ASCII, at most 20 characters.
    pub serial: String,
    /// FR, ASCII, at most 8 characters.
    pub firmware: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: Version::new(2, 0, 0),
            queue_entries: 1024,
            ready_timeout: Duration::from_secs(5),
            doorbell_stride: 4,
            minimum_page_size: 4096,
            maximum_page_size: 65536,
            maximum_transfer: 0,
            io_queues: QueueCounts {
                submission: 64,
                completion: 64,
            },
            vectors: 65,
            namespace_limit: 256,
            volatile_write_cache: true,
            ready_with_media: None,
            subsystem_reset: false,
            doorbell_buffer: false,
            autonomous_power: false,
            optional_commands: OptionalNvmCommands::COMPARE
                | OptionalNvmCommands::DATASET_MANAGEMENT
                | OptionalNvmCommands::WRITE_ZEROES
                | OptionalNvmCommands::VERIFY,
            async_event_limit: 4,
            error_log_entries: 64,
            model: "doorpost emulated NVMe".into(),
            serial: "DP0001".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

impl Config {
    /// CAP.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut flags = Capabilities::CONTIGUOUS_QUEUES_REQUIRED | Capabilities::NVM_COMMAND_SET;
        flags.set(Capabilities::SUBSYSTEM_RESET, self.subsystem_reset);
        flags.set(Capabilities::READY_WITH_MEDIA, self.ready_with_media.is_some());
        flags.with_fields(
            self.queue_entries,
            self.ready_timeout,
            self.doorbell_stride,
            self.minimum_page_size,
            self.maximum_page_size,
        )
    }

    /// CRTO; 0 when there is none.
    pub(crate) fn ready_timeouts(&self) -> u32 {
        let steps = self.ready_with_media.map_or(0, |time| time.as_millis().div_ceil(500));
        let steps = u32::from(u16::try_from(steps).unwrap_or(u16::MAX));
        steps << 16 | steps
    }

    /// The largest transfer in bytes.
    pub(crate) fn largest_transfer(&self) -> usize {
        match self.maximum_transfer {
            0 => usize::MAX,
            shift => self.minimum_page_size.saturating_mul(1 << shift.min(32)),
        }
    }
}

/// A namespace and its storage.
pub struct NamespaceConfig {
    /// NSID, from 1 on; ids may have gaps.
    pub id: u32,
    /// NSZE in blocks.
    pub blocks: u64,
    /// LBADS: the block size as a power of two.
    pub block_shift: u8,
    /// MS: bytes of metadata per block. The backend is larger by that: extended blocks lie one after the other, and separate
    /// metadata lies behind all blocks.
    pub metadata: u16,
    /// FLBAS bit 4: metadata at the end of each block.
    pub extended: bool,
    /// DPS: type of protection information. Such a namespace is identified, but does no I/O.
    pub protection: u8,
    /// CSI: a zoned namespace is identified, and refuses every write that does not follow the last one.
    pub command_set: CommandSet,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Where the blocks are.
    pub backend: Box<dyn Backend>,
    /// Behind the last write: where a zoned namespace, which is one zone, goes on.
    pub write_pointer: u64,
}

impl NamespaceConfig {
    /// A plain namespace of `blocks` blocks of `block_size` bytes (a power of two).
    pub fn new(id: u32, blocks: u64, block_size: u32, backend: impl Backend + 'static) -> Self {
        assert!(block_size.is_power_of_two(), "blocks of {block_size} bytes");
        Self {
            id,
            blocks,
            block_shift: block_size.trailing_zeros() as u8,
            metadata: 0,
            extended: false,
            protection: 0,
            command_set: CommandSet::NVM,
            read_only: false,
            backend: Box::new(backend),
            write_pointer: 0,
        }
    }

    /// Bytes that a block takes in the backend.
    pub(crate) fn stored(&self) -> u64 {
        (1 << self.block_shift) + u64::from(self.metadata)
    }

    /// Bytes that a block takes in a transfer by PRPs.
    pub(crate) fn transferred(&self) -> u64 {
        self.stored() - self.separate_metadata()
    }

    /// MS where metadata has a buffer of its own, else 0.
    pub(crate) fn separate_metadata(&self) -> u64 {
        if self.extended { 0 } else { self.metadata.into() }
    }
}

impl fmt::Debug for NamespaceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespaceConfig")
            .field("id", &self.id)
            .field("blocks", &self.blocks)
            .field("block_shift", &self.block_shift)
            .finish_non_exhaustive()
    }
}
