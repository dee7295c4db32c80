//! Identify data: the controller (Base, 5.17.2.1) and a namespace of the NVM command set (NVM, 4.1.5.1).
//!
//! All of it is untrusted: the getters return what the device says, and the driver judges it.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Version;

/// Size of every identify data structure in bytes (Base, 5.17).
pub const IDENTIFY_BYTES: usize = 4096;

/// The most namespace ids that one list holds (Base, 4.4.2 "Namespace List").
pub const NAMESPACES_PER_LIST: usize = 1024;

/// Identify Controller data structure, CNS 01h (Base, 5.17.2.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: PCI vendor.
    pub vendor: U16,
    /// SSVID: PCI subsystem vendor.
    pub subsystem_vendor: U16,
    /// SN: serial number, ASCII padded with spaces.
    pub serial: [u8; 20],
    /// MN: model number, ASCII padded with spaces.
    pub model: [u8; 40],
    /// FR: firmware revision, ASCII padded with spaces.
    pub firmware: [u8; 8],
    /// RAB, IEEE, CMIC.
    pub bytes_72: [u8; 5],
    /// MDTS: the largest transfer as a power of two, in units of the smallest memory page; 0 is no limit.
    pub maximum_transfer: u8,
    /// CNTLID.
    pub controller_id: U16,
    /// VER: the version again; 0 before 1.2.
    pub version: U32,
    /// RTD3R in microseconds.
    pub resume_latency: U32,
    /// RTD3E: the typical time of a normal shutdown in microseconds; 0 is not reported.
    pub entry_latency: U32,
    /// OAES: optional asynchronous events.
    pub optional_async_events: U32,
    /// CTRATT, RRLS and reserved bytes.
    pub bytes_96: [u8; 15],
    /// CNTRLTYPE.
    pub controller_type: u8,
    /// FGUID up to byte 255.
    pub bytes_112: [u8; 144],
    /// OACS: optional admin commands.
    pub optional_admin_commands: U16,
    /// ACL: Abort commands that may be outstanding, less one.
    pub abort_limit: u8,
    /// AERL: Asynchronous Event Requests that may be outstanding, less one.
    pub async_event_limit: u8,
    /// FRMW.
    pub firmware_updates: u8,
    /// LPA.
    pub log_attributes: u8,
    /// ELPE: entries of the error log, less one.
    pub error_log_entries: u8,
    /// NPSS: power states, less one.
    pub power_states: u8,
    /// AVSCC.
    pub vendor_command_attributes: u8,
    /// APSTA: bit 0 says that there are autonomous power state transitions.
    pub autonomous_power_states: u8,
    /// WCTEMP up to byte 511.
    pub bytes_266: [u8; 246],
    /// SQES: required (low half) and largest (high half) submission entry size, as powers of two.
    pub submission_entry_size: u8,
    /// CQES: required (low half) and largest (high half) completion entry size, as powers of two.
    pub completion_entry_size: u8,
    /// MAXCMD.
    pub maximum_commands: U16,
    /// NN: the largest namespace id that may be valid.
    pub namespaces: U32,
    /// ONCS: optional NVM commands.
    pub optional_nvm_commands: U16,
    /// FUSES.
    pub fused_operations: U16,
    /// FNA.
    pub format_attributes: u8,
    /// VWC: volatile write cache.
    pub volatile_write_cache: u8,
    /// AWUN up to the end.
    pub bytes_526: [u8; 3570],
}

const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);

/// CNTRLTYPE (Base, 5.17.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerType {
    /// Not reported (before 1.4).
    NotReported,
    /// I/O controller.
    Io,
    /// Discovery controller: no namespaces.
    Discovery,
    /// Administrative controller: no namespaces.
    Administrative,
    /// A reserved value.
    Reserved(u8),
}

bitflags! {
    /// ONCS: optional commands of the NVM command set (Base, 5.17.2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OptionalNvmCommands: u16 {
        /// Compare.
        const COMPARE = 1 << 0;
        /// Write Uncorrectable.
        const WRITE_UNCORRECTABLE = 1 << 1;
        /// Dataset Management.
        const DATASET_MANAGEMENT = 1 << 2;
        /// Write Zeroes.
        const WRITE_ZEROES = 1 << 3;
        /// Save field of Set Features, Select field of Get Features.
        const SAVE_AND_SELECT = 1 << 4;
        /// Reservations.
        const RESERVATIONS = 1 << 5;
        /// Timestamp feature.
        const TIMESTAMP = 1 << 6;
        /// Verify.
        const VERIFY = 1 << 7;
        /// Copy.
        const COPY = 1 << 8;
        const _ = !0;
    }

    /// OACS: optional admin commands (Base, 5.17.2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OptionalAdminCommands: u16 {
        /// Security Send and Receive.
        const SECURITY = 1 << 0;
        /// Format NVM.
        const FORMAT = 1 << 1;
        /// Firmware Commit and Image Download.
        const FIRMWARE = 1 << 2;
        /// Namespace Management and Attachment.
        const NAMESPACE_MANAGEMENT = 1 << 3;
        /// Doorbell Buffer Config.
        const DOORBELL_BUFFER_CONFIG = 1 << 8;
        const _ = !0;
    }

    /// OAES: asynchronous events that have to be switched on (Base, 5.17.2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OptionalAsyncEvents: u32 {
        /// Namespace attribute notices.
        const NAMESPACE_ATTRIBUTES = 1 << 8;
        /// Firmware activation notices.
        const FIRMWARE_ACTIVATION = 1 << 9;
        const _ = !0;
    }

    /// VWC: volatile write cache (Base, 5.17.2.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct VolatileWriteCache: u8 {
        /// There is one; Flush makes written data durable.
        const PRESENT = 1 << 0;
        const _ = !0;
    }
}

impl IdentifyController {
    /// CNTRLTYPE.
    pub const fn controller_type(&self) -> ControllerType {
        match self.controller_type {
            0 => ControllerType::NotReported,
            1 => ControllerType::Io,
            2 => ControllerType::Discovery,
            3 => ControllerType::Administrative,
            other => ControllerType::Reserved(other),
        }
    }

    /// VER.
    pub const fn version(&self) -> Version {
        Version(self.version.get())
    }

    /// OACS.
    pub const fn optional_admin_commands(&self) -> OptionalAdminCommands {
        OptionalAdminCommands::from_bits_retain(self.optional_admin_commands.get())
    }

    /// OAES.
    pub const fn optional_async_events(&self) -> OptionalAsyncEvents {
        OptionalAsyncEvents::from_bits_retain(self.optional_async_events.get())
    }

    /// APSTA bit 0.
    pub const fn has_autonomous_power_states(&self) -> bool {
        self.autonomous_power_states & 1 != 0
    }

    /// ONCS.
    pub const fn optional_nvm_commands(&self) -> OptionalNvmCommands {
        OptionalNvmCommands::from_bits_retain(self.optional_nvm_commands.get())
    }

    /// VWC.
    pub const fn volatile_write_cache(&self) -> VolatileWriteCache {
        VolatileWriteCache::from_bits_retain(self.volatile_write_cache)
    }
}

/// Identify Namespace data structure of the NVM command set, CNS 00h (NVM, 4.1.5.1).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size in blocks.
    pub size: U64,
    /// NCAP: blocks that may be allocated.
    pub capacity: U64,
    /// NUSE: blocks allocated.
    pub utilization: U64,
    /// NSFEAT.
    pub features: u8,
    /// NLBAF: number of LBA formats, less one.
    pub formats: u8,
    /// FLBAS: the format in use.
    pub formatted_size: FormattedSize,
    /// MC: metadata capabilities.
    pub metadata_capabilities: u8,
    /// DPC: protection capabilities.
    pub protection_capabilities: u8,
    /// DPS: protection in use.
    pub protection: DataProtection,
    /// NMIC up to byte 98.
    pub bytes_30: [u8; 69],
    /// NSATTR.
    pub attributes: u8,
    /// NVMSETID up to byte 127.
    pub bytes_100: [u8; 28],
    /// LBAF0 to LBAF63.
    pub lba_formats: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor_specific: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);

impl IdentifyNamespace {
    /// NSATTR bit 0: the namespace is write protected.
    pub const fn write_protected(&self) -> bool {
        self.attributes & 1 != 0
    }
}

/// FLBAS, Formatted LBA Size (NVM, 4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct FormattedSize(pub u8);

impl FormattedSize {
    /// The index of the format in use; `formats` is NLBAF. Bits 6:5 extend it where there are more than 16 formats.
    pub const fn index(self, formats: u8) -> u8 {
        let low = self.0 & 0xf;
        if formats > 15 {
            low | (self.0 >> 5 & 3) << 4
        } else {
            low
        }
    }

    /// Whether metadata is transferred at the end of each block (an extended LBA), not in a buffer of its own.
    pub const fn extended(self) -> bool {
        self.0 & 1 << 4 != 0
    }
}

/// DPS, End-to-end Data Protection Type Settings (NVM, 4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct DataProtection(pub u8);

impl DataProtection {
    /// The protection type, 1 to 3; 0 is none.
    pub const fn kind(self) -> u8 {
        self.0 & 7
    }
}

/// An LBA format (NVM, 4.1.5.1, "LBA Format Data Structure").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct LbaFormat(pub U32);

impl LbaFormat {
    /// Blocks of `1 << data_shift` bytes with `metadata` bytes of metadata each.
    pub const fn new(data_shift: u8, metadata: u16) -> Self {
        Self(U32::new((data_shift as u32) << 16 | metadata as u32))
    }

    /// MS: bytes of metadata per block.
    pub const fn metadata(self) -> u16 {
        self.0.get() as u16
    }

    /// LBADS: the block size as a power of two.
    pub const fn data_shift(self) -> u8 {
        (self.0.get() >> 16) as u8
    }
}

/// CSI, an I/O command set (Base, 5.17.2.3, "Command Set Identifier").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct CommandSet(pub u8);

impl CommandSet {
    /// NVM: blocks.
    pub const NVM: Self = Self(0x00);
    /// Key Value.
    pub const KEY_VALUE: Self = Self(0x01);
    /// Zoned Namespace: blocks that are written in order, zone by zone.
    pub const ZONED: Self = Self(0x02);
}

/// NIDT of a descriptor that holds a namespace's CSI.
const COMMAND_SET_DESCRIPTOR: u8 = 0x04;
/// Bytes before a descriptor's identifier: NIDT, NIDL and two reserved ones.
const DESCRIPTOR_HEADER: usize = 4;

/// The I/O command set of a namespace, out of its list of identification descriptors, CNS 03h (Base, 5.17.2.3); `None`
/// where the list does not say.
pub fn described_command_set(list: &[u8; IDENTIFY_BYTES]) -> Option<CommandSet> {
    let mut rest = &list[..];
    while let [kind, length, _, _, ..] = *rest {
        let end = DESCRIPTOR_HEADER + usize::from(length);
        if length == 0 || end > rest.len() {
            return None;
        }
        if kind == COMMAND_SET_DESCRIPTOR {
            return Some(CommandSet(rest[DESCRIPTOR_HEADER]));
        }
        rest = &rest[end..];
    }
    None
}

/// The descriptor that tells of a namespace's I/O command set, for a list of identification descriptors.
pub const fn command_set_descriptor(set: CommandSet) -> [u8; 5] {
    [COMMAND_SET_DESCRIPTOR, 1, 0, 0, set.0]
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_at_the_specified_bytes() {
        assert_eq!(offset_of!(IdentifyController, maximum_transfer), 77);
        assert_eq!(offset_of!(IdentifyController, version), 80);
        assert_eq!(offset_of!(IdentifyController, entry_latency), 88);
        assert_eq!(offset_of!(IdentifyController, controller_type), 111);
        assert_eq!(offset_of!(IdentifyController, optional_async_events), 92);
        assert_eq!(offset_of!(IdentifyController, optional_admin_commands), 256);
        assert_eq!(offset_of!(IdentifyController, async_event_limit), 259);
        assert_eq!(offset_of!(IdentifyController, error_log_entries), 262);
        assert_eq!(offset_of!(IdentifyController, autonomous_power_states), 265);
        assert_eq!(offset_of!(IdentifyController, submission_entry_size), 512);
        assert_eq!(offset_of!(IdentifyController, namespaces), 516);
        assert_eq!(offset_of!(IdentifyController, optional_nvm_commands), 520);
        assert_eq!(offset_of!(IdentifyController, volatile_write_cache), 525);
        assert_eq!(offset_of!(IdentifyNamespace, formats), 25);
        assert_eq!(offset_of!(IdentifyNamespace, protection), 29);
        assert_eq!(offset_of!(IdentifyNamespace, attributes), 99);
        assert_eq!(offset_of!(IdentifyNamespace, lba_formats), 128);
    }

    #[test]
    fn the_format_index_has_upper_bits_only_with_many_formats() {
        assert_eq!(FormattedSize(0x63).index(15), 3);
        assert_eq!(FormattedSize(0x63).index(63), 0x33);
        assert!(FormattedSize(0x10).extended());
        let format = LbaFormat::new(12, 8);
        assert_eq!((format.data_shift(), format.metadata()), (12, 8));
        assert_eq!(format.0.get(), 0x000c_0008);
    }

    #[test]
    fn the_command_set_is_found_behind_other_descriptors() {
        let mut list = [0; IDENTIFY_BYTES];
        assert_eq!(described_command_set(&list), None);
        list[..2].copy_from_slice(&[3, 16]);
        assert_eq!(described_command_set(&list), None);
        list[20..25].copy_from_slice(&command_set_descriptor(CommandSet::ZONED));
        assert_eq!(described_command_set(&list), Some(CommandSet::ZONED));
        // Lengths that lead beyond the list, and a list without an end.
        list[1] = 255;
        assert_eq!(described_command_set(&list), None);
        assert_eq!(described_command_set(&[1; IDENTIFY_BYTES]), None);
        assert_eq!(described_command_set(&[4; IDENTIFY_BYTES]), Some(CommandSet(4)));
    }
}
