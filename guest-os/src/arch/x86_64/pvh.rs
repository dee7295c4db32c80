//! What a PVH loader hands over (Xen's public/arch-x86/hvm/start_info.h): memory map, modules, arguments, ACPI.

use core::ops::Range;

use super::memory::{Physical, Ranges};

const MAGIC: u32 = 0x336e_c578;
/// Memory map entries and modules beyond these are not believed.
const MOST_ENTRIES: u32 = 512;
const MOST_MODULES: u32 = 8;
/// Bytes of arguments beyond these are not believed.
const LONGEST_ARGUMENTS: u64 = 64 << 10;
/// Bytes of a job file at most.
const LONGEST_PAYLOAD: u64 = 64 << 10;

/// Kinds of memory, numbered as in E820.
pub const RAM: u32 = 1;

/// The start info, checked.
pub struct StartInfo {
    memory: Physical,
    map: Range<u64>,
    /// The root of ACPI; 0 if there is none.
    pub rsdp: u64,
    /// Boot arguments, with whatever encoding they have.
    pub arguments: &'static [u8],
    /// The first module.
    pub payload: Option<&'static [u8]>,
}

impl StartInfo {
    /// Reads the start info at `address`, and enters every range of memory that it uses into `used`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(memory: Physical, address: u64, used: &mut Ranges) -> Result<Self, &'static str> {
        let info = memory
            .bytes(address, 56)
            .ok_or("the loader's start info is not in memory")?;
        if info.u32(0) != MAGIC {
            return Err("the loader did not pass PVH start info");
        }
        if info.u32(4) < 1 {
            return Err("the loader's PVH start info has no memory map (it is version 0)");
        }
        let (modules, module_list, arguments) = (info.u32(12), info.u64(16), info.u64(24));
        let (map, entries) = (info.u64(40), info.u32(48));
        if entries == 0 || entries > MOST_ENTRIES || modules > MOST_MODULES {
            return Err("the loader's PVH start info has an impossible number of memory ranges or modules");
        }
        let map = map..map.saturating_add(u64::from(entries) * 24);
        memory
            .bytes(map.start, map.end - map.start)
            .ok_or("the loader's memory map is not in memory")?;
        used.add(address..address + 56);
        used.add(map.clone());

        let mut payload = None;
        for module in (0..u64::from(modules)).rev() {
            let at = module_list.saturating_add(module * 32);
            let entry = memory
                .bytes(at, 32)
                .ok_or("the loader's list of modules is not in memory")?;
            let (start, length) = (entry.u64(0), entry.u64(8));
            let bytes = memory
                .bytes(start, length)
                .ok_or("a module of the loader is not in memory below 4 GiB")?;
            if length > LONGEST_PAYLOAD {
                return Err("the job file (QEMU: -initrd) is longer than 64 KiB; give the options of one job");
            }
            used.add(at..at + 32);
            used.add(start..start + length);
            payload = Some(bytes.0);
        }

        let mut text: &'static [u8] = &[];
        if arguments != 0 {
            let longest = memory
                .bytes_up_to(arguments, LONGEST_ARGUMENTS)
                .ok_or("the boot arguments are not in memory")?;
            let length = longest
                .0
                .iter()
                .position(|byte| *byte == 0)
                .ok_or("the boot arguments have no end")?;
            text = &longest.0[..length];
            used.add(arguments..arguments + length as u64 + 1);
        }
        Ok(Self {
            memory,
            map,
            rsdp: info.u64(32),
            arguments: text,
            payload,
        })
    }

    /// Ranges of memory and their kinds, as the loader lists them.
    pub fn memory_map(&self) -> impl Iterator<Item = (Range<u64>, u32)> + Clone + '_ {
        (self.map.start..self.map.end).step_by(24).filter_map(|at| {
            let entry = self.memory.bytes(at, 24)?;
            let (start, length) = (entry.u64(0), entry.u64(8));
            Some((start..start.checked_add(length)?, entry.u32(16)))
        })
    }

    /// Ranges of usable memory.
    pub fn ram(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.memory_map()
            .filter(|(_, kind)| *kind == RAM)
            .map(|(range, _)| range)
    }
}
