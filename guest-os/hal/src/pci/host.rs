//! A host bridge and what hangs below it.

use alloc::vec::Vec;
use core::fmt;
use core::ops::{Range, RangeInclusive};

use thiserror::Error;
use virtio_drivers::transport::pci::bus::{BarInfo, Command, DeviceFunction, MemoryBarType, PciRoot};

use super::msix::CAPABILITY_ID as MSIX;
use super::{Ecam, MsixCapability};
use crate::mmio::Mmio;

/// More capabilities than fit into 192 bytes of configuration space: a list that does not end.
const MAX_CAPABILITIES: usize = 48;
/// Bridges below bridges, at most; deeper ones are left alone.
const MAX_DEPTH: usize = 8;
/// Memory windows of bridges come in these steps (PCI-to-PCI Bridge Architecture 1.2, 3.2.5.8).
const BRIDGE_GRANULE: u64 = 1 << 20;
/// Header type in the third byte, its bit 7: more than one function.
const HEADER_TYPE: u16 = 0x0c;
/// Type 1 header: primary, secondary and subordinate bus numbers.
const BUS_NUMBERS: u16 = 0x18;
/// Type 1 header: memory base and limit.
const MEMORY_WINDOW: u16 = 0x20;
/// Command register, not in virtio-drivers' set: no INTx.
const INTERRUPT_DISABLE: u16 = 1 << 10;

/// What keeps a function from being used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PciError {
    /// The layout of its BARs makes no sense.
    #[error("{0}: its BARs cannot be read")]
    Bars(Function),
    /// The firmware placed no BAR, and the host bridge has no room.
    #[error("{function}: no room for BAR {bar} of {size:#x} bytes in the host bridge's windows")]
    NoRoom {
        /// The function.
        function: Function,
        /// Its BAR.
        bar: u8,
        /// The BAR's length.
        size: u64,
    },
}

/// A function that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The segment of its host bridge.
    pub segment: u16,
    /// Bus, device and function number.
    pub at: DeviceFunction,
    /// Vendor and device id.
    pub id: (u16, u16),
    /// Base class, sub-class, programming interface.
    pub class: (u8, u8, u8),
    /// The bridges above it, from the root bus down.
    pub bridges: Vec<DeviceFunction>,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceFunction { bus, device, function } = self.at;
        write!(f, "{:04x}:{bus:02x}:{device:02x}.{function}", self.segment)
    }
}

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Where it lies.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// A function that decodes memory and may master the bus.
#[derive(Clone, Debug)]
pub struct OpenFunction {
    /// Its memory BARs, by number.
    pub bars: [Option<Bar>; 6],
    /// Its MSI-X capability, if it has one whose table lies inside a BAR.
    pub msix: Option<MsixCapability>,
}

/// A host bridge: configuration space of some buses, and windows of addresses for BARs.
pub struct HostBridge<M: Mmio + Clone> {
    segment: u16,
    buses: RangeInclusive<u8>,
    ecam: Ecam<M>,
    root: PciRoot<Ecam<M>>,
    window32: Range<u64>,
    window64: Range<u64>,
    /// Address ranges that BARs hold already.
    taken: Vec<Range<u64>>,
}

impl<M: Mmio + Clone> HostBridge<M> {
    /// The bridge of `segment` whose configuration space is `registers`, from the first bus of `buses` on; BARs that the
    /// firmware did not place go into one of the windows (an empty one takes none).
    pub fn new(
        segment: u16,
        buses: RangeInclusive<u8>,
        registers: M,
        window32: Range<u64>,
        window64: Range<u64>,
    ) -> Self {
        let ecam = Ecam::new(registers, *buses.start());
        let root = PciRoot::new(ecam.clone());
        Self {
            segment,
            buses,
            ecam,
            root,
            window32,
            window64,
            taken: Vec::new(),
        }
    }

    /// Configuration space.
    pub fn ecam(&self) -> &Ecam<M> {
        &self.ecam
    }

    /// Finds every function, numbering buses behind bridges where the firmware did not.
    pub fn scan(&mut self) -> Vec<Function> {
        let mut found = Vec::new();
        let mut last_bus = *self.buses.start();
        self.scan_bus(*self.buses.start(), &mut Vec::new(), &mut last_bus, &mut found);
        found
    }

    fn scan_bus(&mut self, bus: u8, bridges: &mut Vec<DeviceFunction>, last: &mut u8, found: &mut Vec<Function>) {
        // Collected first: numbering a bridge writes to configuration space while the iterator reads it.
        let functions: Vec<_> = self.root.enumerate_bus(bus).collect();
        for (at, info) in functions {
            if at.function > 0 && !self.is_multifunction(at) {
                continue;
            }
            if info.header_type == virtio_drivers::transport::pci::bus::HeaderType::PciPciBridge {
                if bridges.len() == MAX_DEPTH {
                    log::warn!("PCI bridge {at}: more than {MAX_DEPTH} levels deep, left alone");
                    continue;
                }
                let (below, end) = self.number(at, bus, *last);
                let Some(below) = below else {
                    log::warn!("PCI bridge {at}: no bus number left for what is behind it");
                    continue;
                };
                *last = (*last).max(below);
                bridges.push(at);
                self.scan_bus(below, bridges, last, found);
                bridges.pop();
                if end.is_none() {
                    // Ours: now it is known how many buses lie behind it.
                    let numbers = self.ecam.read(at, BUS_NUMBERS) & !0x00ff_0000;
                    self.ecam.write(at, BUS_NUMBERS, numbers | u32::from(*last) << 16);
                } else {
                    *last = (*last).max(end.unwrap_or(0));
                }
                continue;
            }
            found.push(Function {
                segment: self.segment,
                at,
                id: (info.vendor_id, info.device_id),
                class: (info.class, info.subclass, info.prog_if),
                bridges: bridges.clone(),
            });
        }
    }

    /// Functions above 0 exist only where function 0 says so; elsewhere a device may answer for them all the same.
    fn is_multifunction(&self, at: DeviceFunction) -> bool {
        let first = DeviceFunction { function: 0, ..at };
        self.ecam.read(first, HEADER_TYPE) >> 23 & 1 == 1
    }

    /// The bus behind a bridge, and the last bus behind it if the firmware numbered it.
    fn number(&mut self, bridge: DeviceFunction, bus: u8, last: u8) -> (Option<u8>, Option<u8>) {
        let numbers = self.ecam.read(bridge, BUS_NUMBERS);
        let (secondary, subordinate) = ((numbers >> 8) as u8, (numbers >> 16) as u8);
        // A bridge that leads back up would be walked for ever.
        if secondary > last && secondary > bus && subordinate >= secondary && self.buses.contains(&subordinate) {
            return (Some(secondary), Some(subordinate));
        }
        let Some(next) = last.checked_add(1).filter(|next| self.buses.contains(next)) else {
            return (None, None);
        };
        // Everything up to the end belongs to it while it is scanned.
        let open = u32::from(*self.buses.end()) << 16 | u32::from(next) << 8 | u32::from(bus);
        self.ecam.write(bridge, BUS_NUMBERS, numbers & 0xff00_0000 | open);
        (Some(next), None)
    }

    /// Makes a function usable: places its BARs if the firmware did not, switches on memory decoding and bus mastering along
    /// the way to it, and INTx off.
    ///
    /// # Errors
    /// See [`PciError`].
    pub fn open(&mut self, function: &Function) -> Result<OpenFunction, PciError> {
        let infos = self
            .root
            .bars(function.at)
            .map_err(|_| PciError::Bars(function.clone()))?;
        let mut bars = [None; 6];
        for (number, info) in infos.iter().enumerate() {
            let Some(BarInfo::Memory {
                address,
                size,
                address_type,
                ..
            }) = info
            else {
                continue;
            };
            if !size.is_power_of_two() {
                return Err(PciError::Bars(function.clone()));
            }
            let mut bar = Bar {
                address: *address,
                size: *size,
            };
            if bar.address == 0 {
                bar.address = self.place(function, number as u8, bar.size, *address_type)?;
                if *address_type == MemoryBarType::Width64 {
                    self.root.set_bar_64(function.at, number as u8, bar.address);
                } else {
                    self.root.set_bar_32(function.at, number as u8, bar.address as u32);
                }
            }
            if bar.address.checked_add(bar.size).is_none() {
                return Err(PciError::Bars(function.clone()));
            }
            self.taken.push(bar.address..bar.address + bar.size);
            bars[number] = Some(bar);
        }
        for bridge in &function.bridges {
            self.switch_on(*bridge, 0);
        }
        self.switch_on(function.at, INTERRUPT_DISABLE);
        let msix = self
            .root
            .capabilities(function.at)
            .take(MAX_CAPABILITIES)
            .find(|capability| capability.id == MSIX)
            .map(|capability| MsixCapability::read(&self.ecam, function.at, u16::from(capability.offset)))
            .filter(|msix| {
                let bar = bars.get(usize::from(msix.table_bar)).copied().flatten();
                bar.is_some_and(|bar: Bar| u64::from(msix.table_offset) + msix.table_bytes() as u64 <= bar.size)
            });
        Ok(OpenFunction { bars, msix })
    }

    fn switch_on(&mut self, at: DeviceFunction, more: u16) {
        let (_, command) = self.root.get_status_command(at);
        let command = command | Command::MEMORY_SPACE | Command::BUS_MASTER | Command::from_bits_retain(more);
        self.root.set_command(at, command & !Command::IO_SPACE);
    }

    /// Finds room for a BAR, and opens the windows of the bridges above it.
    fn place(&mut self, function: &Function, bar: u8, size: u64, kind: MemoryBarType) -> Result<u64, PciError> {
        let behind_bridge = !function.bridges.is_empty();
        // A bridge's window for non-prefetchable memory lies below 4 GiB; whole granules keep functions apart in it.
        let align = if behind_bridge {
            size.max(BRIDGE_GRANULE)
        } else {
            size.max(4096)
        };
        let no_room = || PciError::NoRoom {
            function: function.clone(),
            bar,
            size,
        };
        let wide = kind == MemoryBarType::Width64 && !behind_bridge;
        let address = self
            .gap(&self.window32, align)
            .or_else(|| self.gap(&self.window64, align).filter(|_| wide))
            .ok_or_else(no_room)?;
        self.taken.push(address..address + align);
        for bridge in &function.bridges {
            let window = self.ecam.read(*bridge, MEMORY_WINDOW);
            let (base, limit) = ((window & 0xfff0) as u16, (window >> 16 & 0xfff0) as u16);
            let (first, last) = (
                (address >> 16) as u16 & 0xfff0,
                ((address + align - 1) >> 16) as u16 & 0xfff0,
            );
            // Closed while base is above limit, or when never programmed.
            let closed = base > limit || (base == 0 && limit == 0);
            let (base, limit) = if closed {
                (first, last)
            } else {
                (base.min(first), limit.max(last))
            };
            self.ecam
                .write(*bridge, MEMORY_WINDOW, u32::from(limit) << 16 | u32::from(base));
        }
        Ok(address)
    }

    /// The lowest free range of `size` bytes, aligned to its size.
    fn gap(&self, window: &Range<u64>, size: u64) -> Option<u64> {
        let mut at = window.start.checked_next_multiple_of(size)?;
        loop {
            let end = at.checked_add(size).filter(|end| *end <= window.end)?;
            match self
                .taken
                .iter()
                .filter(|t| t.start < end && at < t.end)
                .map(|t| t.end)
                .max()
            {
                Some(busy) => at = busy.checked_next_multiple_of(size)?,
                None => return Some(at),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    /// Values of the words of a function's space, and which of their bits can be written.
    type Space = ([u32; 64], [u32; 64]);
    type At = (u8, u8, u8);

    /// Configuration space of made-up functions.
    #[derive(Clone, Default)]
    struct FakeConfig(Arc<Mutex<BTreeMap<At, Space>>>);

    impl FakeConfig {
        fn add(&self, at: At, words: &[(usize, u32, u32)]) {
            let mut space = ([0; 64], [0; 64]);
            for &(word, value, writable) in words {
                (space.0[word], space.1[word]) = (value, writable);
            }
            self.0.lock().unwrap().insert(at, space);
        }

        /// An NVMe function with a 16 KiB 64-bit BAR0 at `address`, MSI-X at 0x40 with 65 entries at offset 0x2000.
        fn add_nvme(&self, at: At, address: u64, multifunction: bool) {
            self.add(
                at,
                &[
                    (0, 0x0010_1b36, 0),
                    (1, 0x0010_0000, 0xffff),
                    (2, 0x0108_0202, 0),
                    (3, u32::from(multifunction) << 23, 0),
                    (4, address as u32 | 4, 0xffff_c000),
                    (5, (address >> 32) as u32, u32::MAX),
                    (13, 0x40, 0),
                    (16, 64 << 16 | 0x11, 0xc000_0000),
                    (17, 0x2000, 0),
                    (18, 0x3000, 0),
                ],
            );
        }

        fn add_bridge(&self, at: At, numbers: u32) {
            let numbers = (6, numbers, u32::MAX);
            self.add(
                at,
                &[
                    (0, 0x000c_1b36, 0),
                    (1, 0, 0xffff),
                    (2, 0x0604_0000, 0),
                    (3, 1 << 16, 0),
                    numbers,
                    (8, 0, 0xfff0_fff0),
                ],
            );
        }

        fn word(&self, at: At, word: usize) -> u32 {
            self.0.lock().unwrap()[&at].0[word]
        }

        fn locate(offset: usize) -> (At, usize) {
            (
                (
                    (offset >> 20) as u8,
                    (offset >> 15 & 31) as u8,
                    (offset >> 12 & 7) as u8,
                ),
                (offset & 0xfff) / 4,
            )
        }
    }

    impl Mmio for FakeConfig {
        fn len(&self) -> usize {
            16 << 20
        }

        fn read32(&self, offset: usize) -> u32 {
            let (at, word) = Self::locate(offset);
            self.0.lock().unwrap().get(&at).map_or(u32::MAX, |space| space.0[word])
        }

        fn write32(&self, offset: usize, value: u32) {
            let (at, word) = Self::locate(offset);
            if let Some((values, writable)) = self.0.lock().unwrap().get_mut(&at) {
                values[word] = values[word] & !writable[word] | value & writable[word];
            }
        }

        fn window(&self, _: usize, _: usize) -> Self {
            self.clone()
        }
    }

    fn bridge(config: &FakeConfig, window32: Range<u64>, window64: Range<u64>) -> HostBridge<FakeConfig> {
        HostBridge::new(0, 0..=15, config.clone(), window32, window64)
    }

    fn places(functions: &[Function]) -> Vec<String> {
        functions.iter().map(ToString::to_string).collect()
    }

    const NONE: Range<u64> = 0..0;

    #[test]
    fn what_firmware_placed_stays_and_is_switched_on() {
        let config = FakeConfig::default();
        config.add_nvme((0, 3, 0), 0xc0_0000_4000, true);
        config.add_nvme((0, 3, 5), 0xfe00_0000, false);
        // An echo of a device with a single function.
        config.add_nvme((0, 4, 0), 0xfe10_0000, false);
        config.add_nvme((0, 4, 1), 0xfe10_0000, false);
        let mut host = bridge(&config, NONE, NONE);
        let functions = host.scan();
        assert_eq!(places(&functions), ["0000:00:03.0", "0000:00:03.5", "0000:00:04.0"]);
        assert_eq!((functions[0].id, functions[0].class), ((0x1b36, 0x0010), (1, 8, 2)));
        let open = host.open(&functions[0]).unwrap();
        assert_eq!(
            open.bars[0],
            Some(Bar {
                address: 0xc0_0000_4000,
                size: 0x4000
            })
        );
        let msix = open.msix.unwrap();
        assert_eq!((msix.entries, msix.table_bar, msix.table_offset), (65, 0, 0x2000));
        assert_eq!(
            config.word((0, 3, 0), 1) & 0x407,
            0x406,
            "memory and bus master on, INTx off"
        );
        msix.enable(host.ecam(), functions[0].at, true);
        assert_eq!(config.word((0, 3, 0), 16) >> 30, 0b11);
        msix.unmask(host.ecam(), functions[0].at);
        assert_eq!(config.word((0, 3, 0), 16) >> 30, 0b10);
    }

    #[test]
    fn without_firmware_buses_are_numbered_and_windows_opened() {
        let config = FakeConfig::default();
        config.add_bridge((0, 1, 0), 0);
        config.add_bridge((1, 0, 0), 0);
        config.add_nvme((2, 0, 0), 0, false);
        config.add_nvme((2, 1, 0), 0, false);
        config.add_bridge((0, 2, 0), 0);
        config.add_nvme((3, 0, 0), 0, false);
        config.add_nvme((0, 9, 0), 0, false);
        let mut host = bridge(&config, 0xc000_0000..0xc040_0000, 0x80_0000_0000..0x81_0000_0000);
        let functions = host.scan();
        assert_eq!(
            places(&functions),
            ["0000:02:00.0", "0000:02:01.0", "0000:03:00.0", "0000:00:09.0"]
        );
        assert_eq!(config.word((0, 1, 0), 6) & 0xff_ffff, 0x02_0100);
        assert_eq!(config.word((1, 0, 0), 6) & 0xff_ffff, 0x02_0201);
        assert_eq!(config.word((0, 2, 0), 6) & 0xff_ffff, 0x03_0300);
        let addresses: Vec<u64> = functions
            .iter()
            .map(|function| host.open(function).unwrap().bars[0].unwrap().address)
            .collect();
        assert_eq!(addresses, [0xc000_0000, 0xc010_0000, 0xc020_0000, 0xc030_0000]);
        // Base and limit are inclusive, in units of 1 MiB.
        assert_eq!(config.word((0, 1, 0), 8), 0xc010_c000);
        assert_eq!(config.word((1, 0, 0), 8), 0xc010_c000);
        assert_eq!(config.word((0, 2, 0), 8), 0xc020_c020);
        assert_eq!(config.word((0, 1, 0), 1) & 6, 6);
    }

    #[test]
    fn a_full_window_spills_or_says_so() {
        let config = FakeConfig::default();
        config.add_nvme((0, 1, 0), 0, false);
        config.add_nvme((0, 2, 0), 0, false);
        let mut host = bridge(&config, 0xc000_0000..0xc000_4000, 0x80_0000_0000..0x80_0001_0000);
        let functions = host.scan();
        assert_eq!(host.open(&functions[0]).unwrap().bars[0].unwrap().address, 0xc000_0000);
        assert_eq!(
            host.open(&functions[1]).unwrap().bars[0].unwrap().address,
            0x80_0000_0000
        );
        let mut host = bridge(&config, NONE, NONE);
        config.add_nvme((0, 1, 0), 0, false);
        let functions = host.scan();
        assert_eq!(
            host.open(&functions[0]).unwrap_err().to_string(),
            "0000:00:01.0: no room for BAR 0 of 0x4000 bytes in the host bridge's windows"
        );
    }

    #[test]
    fn a_capability_list_that_runs_in_a_circle_ends() {
        let config = FakeConfig::default();
        config.add_nvme((0, 1, 0), 0xfe00_0000, false);
        config.add(
            (0, 1, 0),
            &[(0, 0x0010_1b36, 0), (2, 0x0108_0202, 0), (13, 0x40, 0), (16, 0x4005, 0)],
        );
        let mut host = bridge(&config, NONE, NONE);
        let functions = host.scan();
        assert!(host.open(&functions[0]).unwrap().msix.is_none());
    }

    #[test]
    fn a_bridge_that_leads_back_is_numbered_anew() {
        let config = FakeConfig::default();
        config.add_bridge((0, 1, 0), 0x00_0000);
        config.add_bridge((1, 0, 0), 0x00_0101);
        let functions = bridge(&config, NONE, NONE).scan();
        assert!(functions.is_empty());
        assert_eq!(config.word((1, 0, 0), 6) & 0xff_ffff, 0x02_0201);
    }
}
