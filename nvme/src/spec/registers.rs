//! Controller properties, which PCIe controllers show as registers (Base, 3.1.3), and doorbells (PCIe, 3.1.2).

use core::fmt;
use core::time::Duration;

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Offsets of the controller's registers in bytes (Base, 3.1.3, "Property Definition").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Register {
    /// Controller Capabilities, 64 bits.
    Cap = 0x00,
    /// Version.
    Vs = 0x08,
    /// Interrupt Mask Set; not used with MSI-X.
    Intms = 0x0c,
    /// Interrupt Mask Clear; not used with MSI-X.
    Intmc = 0x10,
    /// Controller Configuration.
    Cc = 0x14,
    /// Controller Status.
    Csts = 0x1c,
    /// NVM Subsystem Reset; there with [`Capabilities::SUBSYSTEM_RESET`].
    Nssr = 0x20,
    /// Admin Queue Attributes.
    Aqa = 0x24,
    /// Admin Submission Queue Base Address, 64 bits.
    Asq = 0x28,
    /// Admin Completion Queue Base Address, 64 bits.
    Acq = 0x30,
    /// Controller Ready Timeouts.
    Crto = 0x68,
}

impl Register {
    /// The register's offset in bytes.
    pub const fn offset(self) -> usize {
        self as usize
    }
}

/// What to write to NSSR for a reset of the NVM subsystem, "NVMe" (Base, 3.1.3.7).
pub const SUBSYSTEM_RESET: u32 = 0x4e56_4d65;

/// Where the doorbells begin (PCIe, 3.1.2).
pub const DOORBELLS: usize = 0x1000;

/// Offset of the Submission Queue Tail Doorbell of queue `qid` (PCIe, 3.1.2.1); `stride` in bytes, from
/// [`Capabilities::doorbell_stride`].
pub const fn submission_tail_doorbell(qid: u16, stride: usize) -> usize {
    DOORBELLS + 2 * qid as usize * stride
}

/// Offset of the Completion Queue Head Doorbell of queue `qid` (PCIe, 3.1.2.2).
pub const fn completion_head_doorbell(qid: u16, stride: usize) -> usize {
    DOORBELLS + (2 * qid as usize + 1) * stride
}

/// CAP, Controller Capabilities (Base, 3.1.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Capabilities(pub u64);

bitflags! {
    impl Capabilities: u64 {
        /// CQR: queues must be physically contiguous.
        const CONTIGUOUS_QUEUES_REQUIRED = 1 << 16;
        /// NSSRS: NVM subsystem reset is supported.
        const SUBSYSTEM_RESET = 1 << 36;
        /// CSS bit 0: the NVM command set is supported.
        const NVM_COMMAND_SET = 1 << 37;
        /// CSS bit 6: one or more I/O command sets are supported, chosen by profile.
        const IO_COMMAND_SETS = 1 << 43;
        /// CSS bit 7: no I/O command set, admin commands only.
        const ADMIN_ONLY = 1 << 44;
        /// CRMS.CRWMS: Controller Ready With Media mode, and with it the register CRTO.
        const READY_WITH_MEDIA = 1 << 59;
        /// CRMS.CRIMS: Controller Ready Independent of Media mode.
        const READY_INDEPENDENT_OF_MEDIA = 1 << 60;
        const _ = !0;
    }
}

impl Capabilities {
    /// MQES: the most entries that an I/O queue may have. The register holds one less; at least 2 is required.
    pub const fn maximum_queue_entries(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// TO: the longest wait for CSTS.RDY to change, in steps of 500 ms.
    pub const fn timeout(self) -> Duration {
        Duration::from_millis(500 * (self.0 >> 24 & 0xff))
    }

    /// DSTRD: the distance from one doorbell to the next, in bytes.
    pub const fn doorbell_stride(self) -> usize {
        4 << (self.0 >> 32 & 0xf)
    }

    /// MPSMIN: the smallest memory page size, in bytes.
    pub const fn minimum_page_size(self) -> usize {
        1 << (12 + (self.0 >> 48 & 0xf))
    }

    /// MPSMAX: the largest memory page size, in bytes.
    pub const fn maximum_page_size(self) -> usize {
        1 << (12 + (self.0 >> 52 & 0xf))
    }

    /// Builds the fields that have no flag; sizes in entries and bytes as the getters return them.
    ///
    /// # Panics
    /// When a value does not fit its field.
    pub const fn with_fields(
        self,
        queue_entries: u32,
        timeout: Duration,
        stride: usize,
        minimum_page: usize,
        maximum_page: usize,
    ) -> Self {
        let to = timeout.as_millis().div_ceil(500);
        assert!(queue_entries >= 1 && queue_entries <= 0x1_0000 && to <= 0xff);
        assert!(stride.is_power_of_two() && stride >= 4 && stride <= 4 << 15);
        assert!(minimum_page.is_power_of_two() && minimum_page >= 1 << 12 && minimum_page <= 1 << 27);
        assert!(maximum_page.is_power_of_two() && maximum_page >= 1 << 12 && maximum_page <= 1 << 27);
        let mqes = queue_entries as u64 - 1;
        let dstrd = stride.trailing_zeros() as u64 - 2;
        let mpsmin = minimum_page.trailing_zeros() as u64 - 12;
        let mpsmax = maximum_page.trailing_zeros() as u64 - 12;
        let fields = 0xffff | 0xff << 24 | 0xf << 32 | 0xff << 48;
        Self(self.0 & !fields | mqes | (to as u64) << 24 | dstrd << 32 | mpsmin << 48 | mpsmax << 52)
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CAP {:#018x}", self.0)
    }
}

/// VS, Version (Base, 3.1.3.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Version(pub u32);

impl Version {
    /// The version `major.minor.tertiary`.
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        Self((major as u32) << 16 | (minor as u32) << 8 | tertiary as u32)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 >> 8 & 0xff)?;
        match self.0 & 0xff {
            0 => Ok(()),
            tertiary => write!(f, ".{tertiary}"),
        }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// CC, Controller Configuration (Base, 3.1.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ControllerConfiguration(pub u32);

bitflags! {
    impl ControllerConfiguration: u32 {
        /// EN: the controller processes commands.
        const ENABLE = 1 << 0;
        const _ = !0;
    }
}

/// CC.SHN, Shutdown Notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownNotification {
    /// No notification.
    None = 0,
    /// Normal shutdown.
    Normal = 1,
    /// Abrupt shutdown: power goes in a moment.
    Abrupt = 2,
}

impl ControllerConfiguration {
    const CSS: u32 = 7 << 4;
    const MPS: u32 = 0xf << 7;
    const SHN: u32 = 3 << 14;
    const IOSQES: u32 = 0xf << 16;
    const IOCQES: u32 = 0xf << 20;

    /// The NVM command set alone, round-robin arbitration, entries of 64 and 16 bytes, memory pages of `page_size` bytes;
    /// not enabled.
    ///
    /// # Panics
    /// When `page_size` is no power of two from 4 KiB to 128 MiB.
    pub const fn nvm(page_size: usize) -> Self {
        assert!(page_size.is_power_of_two() && page_size >= 1 << 12 && page_size <= 1 << 27);
        Self((page_size.trailing_zeros() - 12) << 7 | 6 << 16 | 4 << 20)
    }

    /// This configuration with SHN replaced.
    pub const fn with_shutdown(self, notification: ShutdownNotification) -> Self {
        Self(self.0 & !Self::SHN | (notification as u32) << 14)
    }

    /// CSS, I/O Command Set Selected; 0 is the NVM command set.
    pub const fn command_set(self) -> u32 {
        (self.0 & Self::CSS) >> 4
    }

    /// MPS: the memory page size in bytes.
    pub const fn page_size(self) -> usize {
        1 << (12 + ((self.0 & Self::MPS) >> 7))
    }

    /// SHN as the raw two bits.
    pub const fn shutdown(self) -> u32 {
        (self.0 & Self::SHN) >> 14
    }

    /// IOSQES: the size of an I/O submission queue entry in bytes.
    pub const fn submission_entry_size(self) -> usize {
        1 << ((self.0 & Self::IOSQES) >> 16)
    }

    /// IOCQES: the size of an I/O completion queue entry in bytes.
    pub const fn completion_entry_size(self) -> usize {
        1 << ((self.0 & Self::IOCQES) >> 20)
    }
}

impl fmt::Debug for ControllerConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CC {:#010x}", self.0)
    }
}

/// CSTS, Controller Status (Base, 3.1.3.6).
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ControllerStatus(pub u32);

bitflags! {
    impl ControllerStatus: u32 {
        /// RDY: the controller is ready to process commands.
        const READY = 1 << 0;
        /// CFS: a fatal error that the controller could not report otherwise.
        const FATAL = 1 << 1;
        /// NSSRO: an NVM subsystem reset happened.
        const SUBSYSTEM_RESET_OCCURRED = 1 << 4;
        /// PP: processing of commands is paused.
        const PROCESSING_PAUSED = 1 << 5;
        const _ = !0;
    }
}

/// CSTS.SHST, Shutdown Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// Normal operation.
    Normal,
    /// Shutdown processing is under way.
    Occurring,
    /// Shutdown processing is complete.
    Complete,
    /// The reserved value 3.
    Reserved,
}

impl ControllerStatus {
    const SHST: u32 = 3 << 2;

    /// What a read returns when no device answers any more: all bits are 1.
    pub const GONE: Self = Self(u32::MAX);

    /// SHST.
    pub const fn shutdown(self) -> ShutdownStatus {
        match (self.0 & Self::SHST) >> 2 {
            0 => ShutdownStatus::Normal,
            1 => ShutdownStatus::Occurring,
            2 => ShutdownStatus::Complete,
            _ => ShutdownStatus::Reserved,
        }
    }

    /// This status with SHST replaced.
    pub const fn with_shutdown(self, status: ShutdownStatus) -> Self {
        Self(self.0 & !Self::SHST | (status as u32) << 2)
    }
}

impl fmt::Debug for ControllerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CSTS {:#010x}", self.0)
    }
}

/// AQA, Admin Queue Attributes (Base, 3.1.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct AdminQueueAttributes(pub u32);

impl AdminQueueAttributes {
    /// The most entries of an admin queue.
    pub const MAXIMUM_ENTRIES: u16 = 4096;

    /// Both admin queues of `entries` entries.
    ///
    /// # Panics
    /// When there are not 2 to 4096 of them.
    pub const fn new(entries: u16) -> Self {
        assert!(entries >= 2 && entries <= Self::MAXIMUM_ENTRIES);
        let size = entries as u32 - 1;
        Self(size << 16 | size)
    }

    /// ASQS: entries of the admin submission queue.
    pub const fn submission_entries(self) -> u16 {
        (self.0 & 0xfff) as u16 + 1
    }

    /// ACQS: entries of the admin completion queue.
    pub const fn completion_entries(self) -> u16 {
        (self.0 >> 16 & 0xfff) as u16 + 1
    }
}

/// CRTO, Controller Ready Timeouts (Base, 3.1.3, offset 68h); there only with [`Capabilities::READY_WITH_MEDIA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ReadyTimeouts(pub u32);

impl ReadyTimeouts {
    /// CRWMT: the longest wait for CSTS.RDY with media ready, in steps of 500 ms.
    pub const fn with_media(self) -> Duration {
        Duration::from_millis(500 * (self.0 as u64 & 0xffff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_sit_where_the_specification_puts_them() {
        // QEMU 10's emulated controller: MQES 2047, CQR, TO 7.5 s, CSS NVM + sets + admin only, MPSMAX 16 pages.
        let cap = Capabilities(0x0000_1820_0f01_07ff | 4 << 52);
        assert_eq!(cap.maximum_queue_entries(), 2048);
        assert_eq!(cap.timeout(), Duration::from_millis(7500));
        assert_eq!(cap.doorbell_stride(), 4);
        assert_eq!((cap.minimum_page_size(), cap.maximum_page_size()), (4096, 65536));
        assert!(cap.contains(Capabilities::NVM_COMMAND_SET | Capabilities::CONTIGUOUS_QUEUES_REQUIRED));
        let built = Capabilities::CONTIGUOUS_QUEUES_REQUIRED
            | Capabilities::NVM_COMMAND_SET
            | Capabilities::IO_COMMAND_SETS
            | Capabilities::ADMIN_ONLY;
        assert_eq!(
            built.with_fields(2048, Duration::from_millis(7500), 4, 4096, 65536),
            cap
        );

        let cc = ControllerConfiguration::nvm(8192) | ControllerConfiguration::ENABLE;
        assert_eq!(cc.0, 0x0046_0081);
        assert_eq!(cc.with_shutdown(ShutdownNotification::Normal).0, 0x0046_4081);
        assert_eq!((cc.submission_entry_size(), cc.completion_entry_size()), (64, 16));
        assert_eq!(AdminQueueAttributes::new(4096).0, 0x0fff_0fff);
        assert_eq!(Version::new(1, 4, 0).0, 0x0001_0400);
        assert_eq!(ControllerStatus(0x9).shutdown(), ShutdownStatus::Complete);
    }

    #[test]
    fn doorbells_follow_the_stride() {
        assert_eq!(submission_tail_doorbell(0, 4), 0x1000);
        assert_eq!(completion_head_doorbell(0, 4), 0x1004);
        assert_eq!(submission_tail_doorbell(3, 16), 0x1060);
        assert_eq!(completion_head_doorbell(3, 16), 0x1070);
    }
}
