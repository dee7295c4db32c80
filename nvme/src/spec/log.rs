//! Log pages (Base, 5.16.1).

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Status;

/// A log page's identifier (Base, 5.16.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct LogId(pub u8);

impl LogId {
    /// Error Information (Base, 5.16.1.2): [`ErrorEntry`]s, the newest first.
    pub const ERROR_INFORMATION: Self = Self(0x01);
    /// SMART / Health Information (Base, 5.16.1.3): [`SmartLog`].
    pub const SMART: Self = Self(0x02);
    /// Firmware Slot Information (Base, 5.16.1.4).
    pub const FIRMWARE_SLOT: Self = Self(0x03);
    /// Changed Namespace List (Base, 5.16.1.5).
    pub const CHANGED_NAMESPACES: Self = Self(0x04);
}

/// An entry of the error log, 64 bytes (Base, 5.16.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error count: unique over the controller's life; 0 is an entry without an error.
    pub count: U64,
    /// SQID; FFFFh when it is not of one command.
    pub sq_id: U16,
    /// CID; FFFFh when it is not of one command.
    pub command_id: U16,
    /// The status field, with bit 0 the phase tag, which may be 0.
    pub status_and_phase: U16,
    /// Where in the command the error is.
    pub parameter_location: U16,
    /// The first LBA with the error.
    pub lba: U64,
    /// NSID.
    pub nsid: U32,
    /// Vendor specific log page that tells more; 0 for none.
    pub vendor_log: u8,
    /// TRTYPE.
    pub transport: u8,
    /// Reserved.
    pub reserved_30: [u8; 2],
    /// Command specific information.
    pub command_specific: U64,
    /// Transport specific information.
    pub transport_specific: U16,
    /// Reserved.
    pub reserved_42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

impl ErrorEntry {
    /// The status field.
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }
}

bitflags! {
    /// Critical Warning of the SMART / Health log (Base, 5.16.1.3).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct CriticalWarning: u8 {
        /// The spare fell below its threshold.
        const SPARE = 1 << 0;
        /// A temperature is beyond a threshold.
        const TEMPERATURE = 1 << 1;
        /// Reliability is degraded by media errors or internal errors.
        const RELIABILITY = 1 << 2;
        /// The media is read-only.
        const READ_ONLY = 1 << 3;
        /// The volatile memory backup device failed.
        const BACKUP = 1 << 4;
        /// The persistent memory region is read-only or unreliable.
        const PERSISTENT_MEMORY = 1 << 5;
        const _ = !0;
    }
}

/// SMART / Health Information, 512 bytes (Base, 5.16.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SmartLog {
    /// [`CriticalWarning`] as its bits.
    pub critical_warning: u8,
    /// Composite temperature in kelvins.
    pub temperature: U16,
    /// Available spare in percent.
    pub spare: u8,
    /// Available spare threshold in percent.
    pub spare_threshold: u8,
    /// Percentage used; may exceed 100.
    pub percentage_used: u8,
    /// Endurance group critical warning summary.
    pub endurance_group_warning: u8,
    /// Reserved.
    pub reserved_7: [u8; 25],
    /// Data units read, of 1000 times 512 bytes.
    pub data_units_read: U128,
    /// Data units written, of 1000 times 512 bytes.
    pub data_units_written: U128,
    /// Read commands completed.
    pub host_reads: U128,
    /// Write commands completed.
    pub host_writes: U128,
    /// Controller busy time in minutes.
    pub busy_minutes: U128,
    /// Power cycles.
    pub power_cycles: U128,
    /// Power-on hours.
    pub power_on_hours: U128,
    /// Unsafe shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and data integrity errors.
    pub media_errors: U128,
    /// Error log entries over the controller's life.
    pub error_entries: U128,
    /// Warning composite temperature time in minutes.
    pub warning_temperature_minutes: U32,
    /// Critical composite temperature time in minutes.
    pub critical_temperature_minutes: U32,
    /// Temperature sensors 1 to 8 in kelvins; 0 for none.
    pub sensors: [U16; 8],
    /// Thermal management transitions and times, and reserved bytes.
    pub bytes_216: [u8; 296],
}

const _: () = assert!(size_of::<SmartLog>() == 512);

impl SmartLog {
    /// Critical warning.
    pub const fn critical_warning(&self) -> CriticalWarning {
        CriticalWarning::from_bits_retain(self.critical_warning)
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_at_the_specified_bytes() {
        assert_eq!(offset_of!(SmartLog, temperature), 1);
        assert_eq!(offset_of!(SmartLog, data_units_read), 32);
        assert_eq!(offset_of!(SmartLog, media_errors), 160);
        assert_eq!(offset_of!(SmartLog, sensors), 200);
        assert_eq!(offset_of!(ErrorEntry, lba), 16);
        assert_eq!(offset_of!(ErrorEntry, nsid), 24);
        assert_eq!(offset_of!(ErrorEntry, command_specific), 32);
        let entry = ErrorEntry {
            status_and_phase: U16::new(Status::WRITE_FAULT.bits() << 1 | 1),
            ..ErrorEntry::default()
        };
        assert_eq!(entry.status(), Status::WRITE_FAULT);
    }
}
