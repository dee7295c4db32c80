//! x86_64: PVH boot, ACPI, x2APIC, TSC.
//!
//! | module | what it holds |
//! |---|---|
//! | `boot.s` | from the loader, or a start-up interrupt, to 64-bit Rust |
//! | `pvh`, `acpi` | what loader and firmware say about the machine |
//! | `memory`, `paging` | physical memory, and the page tables |
//! | `local` | a CPU's own memory: index, descriptor tables, fault stacks |
//! | `vectors.s`, `interrupts` | entries of interrupts and exceptions, local APIC, messages |
//! | `smp` | starting the other CPUs |
//! | `clock` | TSC, and how fast it runs |
//! | `serial` | the console |
//! | `power` | the end |
//!
//! Code here keeps to instructions that a hypervisor without hardware support can emulate too: no SSE or VEX, popcnt, rdtscp,
//! cmpxchg16b, or software interrupts.

mod acpi;
mod clock;
mod interrupts;
mod local;
mod memory;
mod paging;
mod power;
mod pvh;
mod serial;
mod smp;

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr::NonNull;

use hal::dma::{DmaAllocator, DmaError, IoAddr};
use hal::mmio::{Mmio, MmioRegion};
use irq::x2apic::DestinationWidth;
use x86_64::structures::paging::PageTableFlags;

use clock::ticks;

pub use clock::{MachineClock, ordered_ticks};
pub use interrupts::{
    PendingSet, SLOTS, Trap, accept_pending, halt, here, interrupts_off, interrupts_on, message, start_tick, stop_tick,
    take_pending, vector, wait_for_end, wake, without_interrupts,
};
pub use local::cpu_index;
pub use power::exit;
pub use serial::send as console_write;
pub use smp::start_cpus;

use crate::machine::{ExitStatus, Machine, PciHost};
use crate::{console, fatal, heap};
use memory::{FIRST_TABLES_END, Physical, Ranges};
use paging::MapError;

unsafe extern "C" {
    // Set by images/x86_64/guest.ld: addresses, not values.
    static __image_start: u8;
    static __rodata_start: u8;
    static __data_start: u8;
    static __image_end: u8;
    static __boot_guard: u8;
}

/// The architecture's name in reports.
pub const NAME: &str = "x86_64";
/// The interrupt controller's name in reports.
pub const INTERRUPT_CONTROLLER: &str = "x2apic";

/// Memory below this is the firmware's; of it, the guest uses one page, to start CPUs from.
const LOW_MEMORY_END: u64 = 1 << 20;
/// QEMU's microvm lists no configuration space if it has no firmware to tell; this is where its PCI Express bridge is.
const MICROVM_ECAM: u64 = 0xe000_0000;
/// Vendor and device of that bridge (Red Hat, 1b36:0008).
const MICROVM_BRIDGE: u32 = 0x0008_1b36;

struct FirstLocal(UnsafeCell<core::mem::MaybeUninit<local::Local>>);
// SAFETY: only the first CPU uses it.
unsafe impl Sync for FirstLocal {}
static FIRST_LOCAL: FirstLocal = FirstLocal(UnsafeCell::new(core::mem::MaybeUninit::zeroed()));

/// Ends the machine with one line: it is not one that the guest can run on.
fn refuse(why: &str) -> ! {
    fatal::end(why, ExitStatus::Failed)
}

/// The first CPU's first steps in Rust. `start_info` is the physical address that the loader passed.
extern "C" fn start(start_info: u64) -> ! {
    let entered_at = ticks();
    let guard = &raw const __boot_guard as u64;
    interrupts::init_gates();
    interrupts::load_gates();
    // SAFETY: zeroed memory of this CPU alone.
    unsafe { local::install(FIRST_LOCAL.0.get().cast(), 0, guard..guard + 4096) };
    serial::init();
    console::init();
    interrupts::silence_legacy_controllers();

    if __cpuid(1).ecx & 1 << 21 == 0 {
        refuse(
            "the guest's CPU model has no x2APIC; use one that has (QEMU 9 or later: -cpu max, or KVM with -cpu host)",
        );
    }
    interrupts::apic().enable(interrupts::SPURIOUS);

    // SAFETY: the first page tables stay until `build_page_tables`, after which only copies and memory are used.
    let physical = unsafe { Physical::new() };
    let mut used = Ranges::new();
    let info = pvh::StartInfo::read(physical, start_info, &mut used).unwrap_or_else(|why| refuse(why));
    let tables = acpi::Tables::find(physical, info.rsdp, &mut used).unwrap_or_else(|why| refuse(why));
    if let Some(page) = start_up_page(&info, &used) {
        smp::set_start_up_page(page);
    }
    used.add(0..LOW_MEMORY_END);
    used.add(&raw const __image_start as u64..&raw const __image_end as u64);

    // The heap begins with memory that the first page tables map. Everything that lies elsewhere is copied into it.
    add_memory(info.memory_map(), &used, 0..FIRST_TABLES_END);
    let arguments: &'static str = String::from_utf8_lossy(info.arguments).into_owned().leak();
    let map: Vec<(Range<u64>, u32)> = info.memory_map().collect();
    let ids = cpus(&tables);
    let spaces: Vec<_> = tables.configuration_spaces().collect();
    let (power_off, timer_port) = (tables.power_off(), tables.timer_port());
    // QEMU puts it where SeaBIOS may say that no usable memory is.
    let payload = info.payload.map(|file| &*file.to_vec().leak());
    let ram: Vec<Range<u64>> = info.ram().collect();
    build_page_tables(&ram, guard);
    add_memory(map.iter().cloned(), &used, FIRST_TABLES_END..u64::MAX);

    power::init(power_off);
    let hypervisor = Hypervisor::find();
    let frequency = clock::init(&hypervisor, timer_port).unwrap_or_else(|why| refuse(why));
    // KVM_FEATURE_MSI_EXT_DEST_ID.
    let wide = hypervisor.is_kvm() && __cpuid(0x4000_0001).eax & 1 << 15 != 0;
    let width = if wide {
        DestinationWidth::Bits15
    } else {
        DestinationWidth::Bits8
    };
    interrupts::set_destinations(ids.clone().leak(), width);

    fatal::self_test(arguments);
    crate::main(Machine {
        memory_bytes: ram.iter().map(|range| range.end - range.start).sum(),
        cpus: ids,
        arguments,
        payload,
        pci: pci_hosts(&spaces, &ram),
        hypervisor: hypervisor.signature,
        clock_hertz: frequency.hertz,
        clock_source: frequency.source,
        clock_invariant: clock::is_invariant(),
        entered_at,
    })
}

/// The highest free page of memory below 640 KiB, for CPUs to start from.
fn start_up_page(info: &pvh::StartInfo, used: &Ranges) -> Option<u64> {
    let mut best = None;
    for range in info.ram() {
        let low = range.start.max(4096)..range.end.min(0xa_0000);
        memory::without(low, used.iter(), |free| {
            let page = (free.end & !4095).saturating_sub(4096);
            if page >= free.start && page != 0 {
                best = best.max(Some(page));
            }
        });
    }
    best
}

/// Gives the heap all memory of the map within `limits` that nothing uses.
fn add_memory(map: impl Iterator<Item = (Range<u64>, u32)> + Clone, used: &Ranges, limits: Range<u64>) {
    // Should ranges of the map overlap, memory is what no other kind claims.
    let others = map
        .clone()
        .filter(|(_, kind)| *kind != pvh::RAM)
        .map(|(range, _)| range);
    let taken = used.iter().chain(others);
    for (range, _) in map.filter(|(_, kind)| *kind == pvh::RAM) {
        let whole = range.start.max(limits.start).next_multiple_of(4096)..range.end.min(limits.end) & !4095;
        memory::without(whole, taken.clone(), |free| {
            // SAFETY: usable memory, mapped up to the limit, that neither loader, firmware nor image uses.
            unsafe { heap::add(free) };
        });
    }
}

/// The CPUs' APIC ids, the one that runs this first.
fn cpus(tables: &acpi::Tables) -> Vec<u32> {
    let me = interrupts::apic().id();
    let mut ids = tables.cpus();
    ids.retain(|id| *id != me);
    ids.insert(0, me);
    ids
}

/// Builds the final page tables and switches to them.
fn build_page_tables(ram: &[Range<u64>], guard: u64) {
    let [image, rodata, data, end] = [
        &raw const __image_start,
        &raw const __rodata_start,
        &raw const __data_start,
        &raw const __image_end,
    ]
    .map(|symbol| symbol as u64);
    let no_execute = PageTableFlags::NO_EXECUTE;
    let map = |range, flags| {
        if let Err(why) = paging::map_memory(range, flags) {
            refuse(match why {
                MapError::OutOfReach => "the memory map has memory beyond 256 TiB",
                MapError::Overlap => "the memory map contradicts itself",
                MapError::OutOfMemory => "not enough memory for page tables; give the guest more (QEMU: -m)",
            });
        }
    };
    paging::init();
    // First, so that the memory around it fills up the rest and leaves it as it is.
    map(image..rodata, paging::READ);
    map(rodata..data, paging::READ | no_execute);
    map(data..end, paging::MEMORY | no_execute);
    for range in ram {
        // Page 0 stays away, so that a null pointer faults.
        map(range.start.max(4096)..range.end, paging::MEMORY | no_execute);
    }
    if paging::unmap_page(guard).is_err() {
        refuse("not enough memory for page tables; give the guest more (QEMU: -m)");
    }
    // SAFETY: image with stack, and all memory that the heap has, are mapped.
    unsafe { paging::activate() };
}

/// What a hypervisor tells of itself, from CPUID leaf 0x40000000 on.
struct Hypervisor {
    /// Its signature; empty if there is none.
    signature: String,
    /// Its last leaf; 0 if there is none.
    last_leaf: u32,
}

impl Hypervisor {
    fn find() -> Self {
        // Leaf 1, ECX bit 31, is what hypervisors set and CPUs do not.
        if __cpuid(1).ecx & 1 << 31 == 0 {
            return Self {
                signature: String::new(),
                last_leaf: 0,
            };
        }
        let leaf = __cpuid(0x4000_0000);
        let bytes = [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes);
        Self {
            signature: bytes.filter(u8::is_ascii_graphic).map(char::from).collect(),
            // KVM once gave 0, and meant 0x40000001.
            last_leaf: leaf.eax.max(0x4000_0001),
        }
    }

    /// Whether leaf 0x40000001 has KVM's features.
    fn is_kvm(&self) -> bool {
        self.signature.starts_with("KVM")
    }
}

/// PCI host bridges: those that ACPI lists, or the one that QEMU's microvm has.
fn pci_hosts(spaces: &[acpi::ConfigurationSpace], ram: &[Range<u64>]) -> Vec<PciHost> {
    let mut hosts: Vec<PciHost> = spaces
        .iter()
        .filter(|space| space.buses.0 <= space.buses.1)
        .filter_map(|space| pci_host(space.segment, space.buses, space.base, ram))
        .collect();
    let is_memory = ram.iter().any(|range| range.contains(&MICROVM_ECAM));
    if spaces.is_empty() && !is_memory {
        let found = pci_host(0, (0, 255), MICROVM_ECAM, ram);
        if let Some(mut host) = found.filter(|host| host.ecam.read32(0) == MICROVM_BRIDGE) {
            log::info!(
                "ACPI lists no PCI configuration space (MCFG); found QEMU's PCI Express bridge at {MICROVM_ECAM:#x}"
            );
            if physical_address_bits() > 47 {
                // Its window is the last quarter of all addresses, beyond the page tables' reach.
                host.window64 = 0..0;
            }
            hosts.push(host);
        }
    }
    hosts
}

/// Bits of a physical address (CPUID leaf 0x80000008, EAX bits 7:0).
fn physical_address_bits() -> u32 {
    if __cpuid(0x8000_0000).eax < 0x8000_0008 {
        return 36;
    }
    (__cpuid(0x8000_0008).eax & 0xff).clamp(32, 52)
}

fn pci_host(segment: u16, buses: (u8, u8), base: u64, ram: &[Range<u64>]) -> Option<PciHost> {
    let start = base.checked_add(u64::from(buses.0) << 20)?;
    let length = (u64::from(buses.1 - buses.0) + 1) << 20;
    let Some(ecam) = device_region(start, length) else {
        log::warn!(
            "PCI segment {segment}: configuration space at {start:#x} cannot be mapped; its devices are left out"
        );
        return None;
    };
    // Below 4 GiB, BARs go into what is free between memory and the interrupt controllers at 0xfec00000, above 3 GiB, where
    // every PC has room for them; configuration space may lie in it.
    const ROOM32: Range<u64> = 0xc000_0000..0xfe00_0000;
    let mut window32 = 0..0;
    let taken = ram.iter().cloned().chain(core::iter::once(start..start + length));
    memory::without(ROOM32, taken, |free| {
        if free.end - free.start > window32.end - window32.start {
            window32 = free;
        }
    });
    // Above 4 GiB: the last eighth of what the CPU can address, part of the window that QEMU's machines keep for BARs, and
    // which firmware uses from below; or of what the page tables reach.
    let bits = if __cpuid(0x8000_0000).eax >= 0x8000_0008 {
        __cpuid(0x8000_0008).eax & 0xff
    } else {
        36
    };
    let bits = bits.clamp(36, 47);
    let window64 = (7 << (bits - 3))..1 << bits;
    Some(PciHost {
        segment,
        buses: buses.0..=buses.1,
        ecam,
        window32,
        window64,
    })
}

fn device_region(address: u64, length: u64) -> Option<MmioRegion> {
    let end = address.checked_add(length)?;
    paging::map_registers(address..end).ok()?;
    let base = NonNull::new(paging::virtual_address(address) as *mut u8)?;
    // SAFETY: mapped as a device's registers just now, for ever, and not memory.
    Some(unsafe { MmioRegion::new(base, length as usize) })
}

/// Maps a device's registers: `length` bytes at physical address `address`, a multiple of 8. A range that cannot be mapped,
/// because it is memory or out of reach, ends the machine: firmware or device named an impossible address.
pub fn map_device(address: u64, length: u64) -> MmioRegion {
    match device_region(address, length) {
        Some(region) if address.is_multiple_of(8) => region,
        _ => refuse(&alloc::format!(
            "{length:#x} bytes of device registers at {address:#x} cannot be mapped: memory lies there, or it is out of reach"
        )),
    }
}

/// Memory for devices: from the heap. The address that a device uses is the physical one, which is also the CPU's.
pub struct DmaMemory;

// SAFETY: memory from the heap: nobody else's, zeroed, write-back, aligned, contiguous at its physical address. Devices see
// physical memory as it is.
unsafe impl DmaAllocator for DmaMemory {
    fn allocate(&self, length: usize, align: usize) -> Result<(NonNull<u8>, IoAddr), DmaError> {
        let failed = DmaError::OutOfMemory { length, align };
        let layout = Layout::from_size_align(length, align).map_err(|_| failed)?;
        if length == 0 {
            return Err(failed);
        }
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(failed)?;
        Ok((memory, IoAddr::new(memory.as_ptr() as u64)))
    }

    unsafe fn release(&self, memory: NonNull<u8>, _: IoAddr, length: usize, align: usize) {
        // SAFETY: the caller vouches that memory, length and alignment are those of `allocate`.
        unsafe { dealloc(memory.as_ptr(), Layout::from_size_align_unchecked(length, align)) }
    }
}

/// A sign for tools that count the guest's instructions: it executes the 7-byte no-operation `0F 1F 80 4D 41 52 4B`
/// (`nop dword ptr [rax + 0x4b52414d]`; the displacement reads `MARK`), which has no effect and occurs nowhere else.
#[inline(never)]
pub fn mark() {
    // SAFETY: a no-operation; its address is not accessed.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x52, 0x4b",
            options(nomem, nostack, preserves_flags)
        )
    };
}
