//! PCI functions: finding them, giving them addresses, and their MSI-X tables.
//!
//! Enumeration of a bus and the sizing of BARs come from the virtio-drivers crate, over our configuration access ([`Ecam`]).
//! What it leaves to its user is here: walking bridges, numbering buses and placing BARs where no firmware did, and MSI-X.
//! Capability lists are the device's own words and are walked with a bound.

mod ecam;
mod host;
mod msix;

pub use ecam::Ecam;
pub use host::{Bar, Function, HostBridge, OpenFunction, PciError};
pub use msix::{MsixCapability, MsixTable};
pub use virtio_drivers::transport::pci::bus::DeviceFunction;

/// What a device writes to raise an interrupt: this joins device drivers and interrupt controllers, which never see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MsiMessage {
    /// Where the device writes: a doorbell of the interrupt controller, as the device sees it.
    pub address: u64,
    /// What it writes there.
    pub data: u32,
}
