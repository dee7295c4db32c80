//! Status of a completed command (Base, 3.3.3.2.1).

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The status field of a completion, 15 bits: DNR, M, CRD, SCT and SC (Base, 3.3.3.2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Status(u16);

const SCT_AND_SC: u16 = 0x7ff;
const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;

impl Status {
    /// The command did what it was asked to.
    pub const SUCCESS: Self = Self(0);

    /// The status made of a status code type (0 to 7) and a status code.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// The status with these 15 bits; bit 15 is dropped.
    #[inline(always)]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// The 15 bits.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// This status with Do Not Retry set.
    pub const fn do_not_retry(self) -> Self {
        Self(self.0 | DO_NOT_RETRY)
    }

    /// Whether the command succeeded.
    #[inline(always)]
    pub const fn is_success(self) -> bool {
        self.0 & SCT_AND_SC == 0
    }

    /// SCT, the status code type.
    pub const fn sct(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// SC, the status code within its type.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// DNR: the same command would fail again.
    pub const fn dnr(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// M: the error log page holds more.
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Whether both have the same type and code, whatever their other bits.
    pub const fn is(self, other: Self) -> bool {
        self.0 & SCT_AND_SC == other.0 & SCT_AND_SC
    }
}

macro_rules! statuses {
    ($($constant:ident = $sct:literal, $sc:literal, $name:literal;)*) => {
        impl Status {
            $(#[doc = concat!($name, ".")] pub const $constant: Self = Self::new($sct, $sc);)*

            /// The specification's name of the code, when it has one here.
            pub const fn name(self) -> Option<&'static str> {
                match (self.sct(), self.sc()) {
                    (0, 0) => Some("Successful Completion"),
                    $(($sct, $sc) => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

// Generic (type 0), command specific (1) and media and data integrity (2) codes: Base, 3.3.3.2.1.2 to .4, and NVM, 3.1.
statuses! {
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0, 0x09, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0, 0x0a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0, 0x0b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, "Command Sequence Error";
    INVALID_PRP_OFFSET = 0, 0x13, "PRP Offset Invalid";
    OPERATION_DENIED = 0, 0x15, "Operation Denied";
    SANITIZE_FAILED = 0, 0x1c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0, 0x1d, "Sanitize In Progress";
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0, 0x21, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    ADMIN_MEDIA_NOT_READY = 0, 0x24, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0, 0x84, "Format In Progress";
    INVALID_COMPLETION_QUEUE = 1, 0x00, "Completion Queue Invalid";
    INVALID_QUEUE_IDENTIFIER = 1, 0x01, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 1, 0x03, "Abort Command Limit Exceeded";
    AER_LIMIT_EXCEEDED = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_INTERRUPT_VECTOR = 1, 0x08, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    INVALID_QUEUE_DELETION = 1, 0x0c, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 1, 0x0d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, "Feature Not Changeable";
    CONFLICTING_ATTRIBUTES = 1, 0x80, "Conflicting Attributes";
    INVALID_PROTECTION_INFORMATION = 1, 0x81, "Invalid Protection Information";
    WRITE_TO_READ_ONLY_RANGE = 1, 0x82, "Attempted Write to Read Only Range";
    WRITE_FAULT = 2, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 2, 0x82, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 2, 0x83, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 2, 0x84, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    UNWRITTEN_BLOCK = 2, 0x87, "Deallocated or Unwritten Logical Block";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => {
                let kind = match self.sct() {
                    0 => "Generic Command Status",
                    1 => "Command Specific Status",
                    2 => "Media and Data Integrity Error",
                    3 => "Path Related Status",
                    7 => "Vendor Specific Status",
                    _ => "Reserved Status",
                };
                f.write_str(kind)?;
            }
        }
        write!(f, " (SCT {:x}h, SC {:02x}h", self.sct(), self.sc())?;
        if self.dnr() {
            f.write_str(", DNR")?;
        }
        if self.more() {
            f.write_str(", M")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn names_and_bits() {
        let status = Status::LBA_OUT_OF_RANGE.do_not_retry();
        assert_eq!(status.to_string(), "LBA Out of Range (SCT 0h, SC 80h, DNR)");
        assert!(status.is(Status::LBA_OUT_OF_RANGE) && status != Status::LBA_OUT_OF_RANGE);
        assert!(status.dnr() && !status.more() && !status.is_success());
        assert_eq!(
            Status::new(7, 0xc1).to_string(),
            "Vendor Specific Status (SCT 7h, SC c1h)"
        );
        // Bits beyond type and code do not make a failure.
        assert!(Status::from_bits(0x6000).is_success());
    }
}
