//! ACPI tables (ACPI Specification 6.5, chapter 5): which CPUs there are, where PCI configuration space lies, and how to
//! switch the machine off.
//!
//! Firmware is as untrusted as a device: a table counts only if its checksum is right, and fields outside of it read as 0.

use alloc::vec::Vec;

use super::memory::{Bytes, Physical, Ranges};

/// Tables larger than this are not believed.
const LARGEST_TABLE: u64 = 1 << 20;
/// Bytes of a table's header (5.2.6).
const HEADER: usize = 36;

/// The tables that the guest looks at.
#[derive(Default)]
pub struct Tables {
    /// Interrupt controllers (5.2.12).
    madt: Option<Bytes>,
    /// PCI Express memory-mapped configuration space (PCI Firmware Specification 3.3, 4.1.2).
    mcfg: Option<Bytes>,
    /// Fixed hardware (5.2.9).
    fadt: Option<Bytes>,
    /// Byte code; only the package of sleep state S5 is looked at.
    dsdt: Option<Bytes>,
}

/// A range of PCI buses and the address of its configuration space.
pub struct ConfigurationSpace {
    /// Segment group.
    pub segment: u16,
    /// First and last bus.
    pub buses: (u8, u8),
    /// Physical address of bus 0, whether that is in the range or not.
    pub base: u64,
}

/// How the machine is switched off (sleep state S5: 7.4.2.6).
#[derive(Clone, Copy, Debug)]
pub enum PowerOff {
    /// Write these values to these 16-bit ports (PM1a and PM1b control; 4.8.4.2).
    Ports([(u16, u16); 2]),
    /// Write the value to the 8-bit sleep control register (hardware-reduced ACPI; 4.8.4.5) at this address or port.
    Register(Register, u8),
}

/// An 8-bit register.
#[derive(Clone, Copy, Debug)]
pub enum Register {
    /// In memory.
    Memory(u64),
    /// An I/O port.
    Port(u16),
}

fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// The table at `address`, if it is one and its checksum is right.
fn table(memory: Physical, address: u64) -> Option<Bytes> {
    let length = u64::from(memory.bytes(address, HEADER as u64)?.u32(4));
    if length < HEADER as u64 || length > LARGEST_TABLE {
        return None;
    }
    let table = memory.bytes(address, length)?;
    sums_to_zero(table.0).then_some(table)
}

impl Tables {
    /// Finds the tables from the root at `rsdp` on, and enters those that are kept into `used`.
    ///
    /// # Errors
    /// What is wrong with the root.
    pub fn find(memory: Physical, rsdp: u64, used: &mut Ranges) -> Result<Self, &'static str> {
        let root = memory
            .bytes(rsdp, 36)
            .ok_or("the loader passed no ACPI root (RSDP); use a machine with ACPI (QEMU's microvm: acpi=on)")?;
        if !root.0.starts_with(b"RSD PTR ") || !sums_to_zero(&root.0[..20]) {
            return Err("the ACPI root (RSDP) is damaged");
        }
        // Revision 0 knows 32-bit addresses only; from 2 on there is a table of 64-bit ones (5.2.5.3).
        let (address, size) = match (root.u8(15), root.u64(24)) {
            (2.., xsdt) if xsdt != 0 && sums_to_zero(root.0) => (xsdt, 8),
            _ => (u64::from(root.u32(16)), 4),
        };
        let list = table(memory, address).ok_or("ACPI's list of tables (RSDT or XSDT) is damaged")?;
        let mut tables = Self::default();
        for at in (HEADER..list.0.len().saturating_sub(size - 1)).step_by(size) {
            let address = if size == 8 {
                list.u64(at)
            } else {
                u64::from(list.u32(at))
            };
            let Some(table) = table(memory, address) else { continue };
            let place = match &table.0[..4] {
                b"APIC" => &mut tables.madt,
                b"MCFG" => &mut tables.mcfg,
                b"FACP" => &mut tables.fadt,
                _ => continue,
            };
            place.get_or_insert(table);
        }
        if let Some(fadt) = tables.fadt {
            let wide = fadt.u64(140);
            let address = if wide != 0 { wide } else { u64::from(fadt.u32(40)) };
            tables.dsdt = table(memory, address).filter(|table| table.0.starts_with(b"DSDT"));
        }
        for table in [tables.madt, tables.mcfg, tables.fadt, tables.dsdt]
            .into_iter()
            .flatten()
        {
            let start = table.0.as_ptr() as u64;
            used.add(start..start + table.0.len() as u64);
        }
        Ok(tables)
    }

    /// The APIC ids of all CPUs that can be used, in the table's order (5.2.12.2 and 5.2.12.12).
    pub fn cpus(&self) -> Vec<u32> {
        /// The CPU is there and may be started.
        const ENABLED: u32 = 1;
        let mut ids = Vec::new();
        let Some(madt) = self.madt else { return ids };
        let mut rest = madt.0.get(HEADER + 8..).unwrap_or_default();
        while let [kind, length, ..] = *rest {
            let Some((entry, after)) = rest.split_at_checked(usize::from(length)) else {
                break;
            };
            if entry.len() < 2 {
                break;
            }
            let fields = Bytes(entry);
            let id = match kind {
                0 if entry.len() >= 8 && fields.u32(4) & ENABLED != 0 => Some(u32::from(fields.u8(3))),
                9 if entry.len() >= 16 && fields.u32(8) & ENABLED != 0 => Some(fields.u32(4)),
                _ => None,
            };
            // A CPU with a small id may be listed in both ways.
            if let Some(id) = id.filter(|id| !ids.contains(id)) {
                ids.push(id);
            }
            rest = after;
        }
        ids
    }

    /// Configuration spaces of PCI.
    pub fn configuration_spaces(&self) -> impl Iterator<Item = ConfigurationSpace> {
        let entries = self.mcfg.and_then(|mcfg| mcfg.0.get(HEADER + 8..)).unwrap_or_default();
        entries.chunks_exact(16).map(|entry| {
            let fields = Bytes(entry);
            ConfigurationSpace {
                segment: fields.u16(8),
                buses: (fields.u8(10), fields.u8(11)),
                base: fields.u64(0),
            }
        })
    }

    /// The port of the power-management timer (4.8.3.3).
    pub fn timer_port(&self) -> Option<u16> {
        let fadt = self.fadt?;
        // PM_TMR_LEN is 4 if there is a timer.
        let port = fadt.u32(76);
        if fadt.u8(91) == 4 && port != 0 {
            u16::try_from(port).ok()
        } else {
            None
        }
    }

    /// How to switch the machine off, if the tables say it.
    pub fn power_off(&self) -> Option<PowerOff> {
        /// Flag of the FADT: there is no fixed hardware.
        const HARDWARE_REDUCED: u32 = 1 << 20;
        let fadt = self.fadt?;
        let (first, second) = self.sleep_types()?;
        if fadt.u32(112) & HARDWARE_REDUCED != 0 {
            // SLEEP_CONTROL_REG, a generic address: space id, width, offset, access size, address (5.2.3.2).
            let (space, address) = (fadt.u8(244), fadt.u64(248));
            let register = match space {
                0 if address != 0 => Register::Memory(address),
                1 => Register::Port(u16::try_from(address).ok().filter(|port| *port != 0)?),
                _ => return None,
            };
            // SLP_TYP in bits 4:2, SLP_EN bit 5.
            return Some(PowerOff::Register(register, first << 2 | 1 << 5));
        }
        // SLP_TYP in bits 12:10, SLP_EN bit 13.
        let value = |kind: u8| u16::from(kind) << 10 | 1 << 13;
        let port = |offset| u16::try_from(fadt.u32(offset)).unwrap_or(0);
        let (a, b) = (port(64), port(68));
        (a != 0).then_some(PowerOff::Ports([(a, value(first)), (b, value(second))]))
    }

    /// The two values of the package `\_S5` (7.4.2): AML bytes are NameOp, name, PackageOp, length, count, then constants
    /// (20.2.5.4 and 20.2.3). It is the only piece of AML that the guest understands.
    fn sleep_types(&self) -> Option<(u8, u8)> {
        let code = self.dsdt?.0;
        let name = code
            .windows(5)
            .position(|five| five[..4] == *b"_S5_" && five[4] == 0x12)?;
        let before = &code[..name];
        if !before.ends_with(&[0x08]) && !before.ends_with(&[0x08, b'\\']) {
            return None;
        }
        let package = &code[name + 5..];
        // Bits 7:6 of the first byte of a length tell how many more bytes it has; then comes the count of elements.
        let elements = package.get(usize::from(package.first()? >> 6) + 2..)?;
        let constant = |at: &[u8]| match *at {
            [0x00, ..] => Some((0, 1)),
            [0x01, ..] => Some((1, 1)),
            [0x0a, value, ..] => Some((value, 2)),
            _ => None,
        };
        let (first, length) = constant(elements)?;
        let second = elements
            .get(length..)
            .and_then(constant)
            .map_or(first, |(value, _)| value);
        Some((first & 7, second & 7))
    }
}
