//! The NVMe controllers of the machine: found on PCI, and brought up.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use hal::dma::Dma;
use hal::mmio::{Mmio, MmioRegion};
use hal::pci::{Ecam, Function, HostBridge, MsiMessage, MsixCapability, MsixTable};
use nvme::{Config, Controller, Namespace};
use workload::report::Failure;

use crate::arch::{self, MachineClock};
use crate::engine::run_failure;
use crate::machine::Machine;

/// Mass storage, non-volatile memory, NVM Express I/O controller (PCI Code and ID Assignment 1.11, 1.2).
const NVME_CLASS: (u8, u8, u8) = (0x01, 0x08, 0x02);

/// A controller that is up, and where its interrupts can go.
pub struct Attached {
    /// `nvme0`, `nvme1`, … in the order of discovery.
    pub name: String,
    /// Its place on PCI.
    pub function: Function,
    /// The controller.
    pub controller: Controller<MmioRegion, MachineClock>,
    /// Its active namespaces.
    pub namespaces: Vec<Namespace>,
    /// MSI-X, on and masked, if it has any and interrupts are used.
    msix: Option<Msix>,
    /// I/O queue pairs asked for and granted.
    pub queues: (u16, u16),
}

struct Msix {
    capability: MsixCapability,
    table: MsixTable<MmioRegion>,
    ecam: Ecam<MmioRegion>,
}

/// Brings up every NVMe controller, with `queues` I/O queue pairs each as far as it grants them, and MSI-X if `interrupts`.
///
/// # Errors
/// The first controller that cannot be used.
pub fn controllers(machine: &Machine, dma: &Dma, queues: u16, interrupts: bool) -> Result<Vec<Attached>, Failure> {
    let mut attached = Vec::new();
    for host in &machine.pci {
        let mut bridge = HostBridge::new(
            host.segment,
            host.buses.clone(),
            host.ecam.clone(),
            host.window32.clone(),
            host.window64.clone(),
        );
        for function in bridge
            .scan()
            .into_iter()
            .filter(|function| function.class == NVME_CLASS)
        {
            let name = format!("nvme{}", attached.len());
            attached.push(attach(name, &mut bridge, function, dma, queues, interrupts).map_err(|e| *e)?);
        }
    }
    Ok(attached)
}

fn attach(
    name: String,
    bridge: &mut HostBridge<MmioRegion>,
    function: Function,
    dma: &Dma,
    queues: u16,
    interrupts: bool,
) -> Result<Attached, Box<Failure>> {
    let failed = |what: String| Box::new(run_failure(what));
    let open = bridge
        .open(&function)
        .map_err(|error| failed(format!("{name}: {error}")))?;
    let Some(bar) = open.bars[0] else {
        return Err(failed(format!("{name} ({function}): it has no memory BAR 0")));
    };
    let registers = arch::map_device(bar.address, bar.size);
    let msix = open.msix.filter(|_| interrupts).map(|capability| {
        let table = if capability.table_bar == 0 {
            registers.window(capability.table_offset as usize, capability.table_bytes())
        } else {
            // `open` saw that the table lies inside that BAR.
            let bar = open.bars[usize::from(capability.table_bar)].unwrap_or(bar);
            arch::map_device(
                bar.address + u64::from(capability.table_offset),
                capability.table_bytes() as u64,
            )
        };
        Msix {
            capability,
            table: MsixTable::new(table),
            ecam: bridge.ecam().clone(),
        }
    });
    if let Some(msix) = &msix {
        // On before CC.EN, as some controllers decide then how the admin queue interrupts; masked until there are messages.
        msix.capability.enable(&msix.ecam, function.at, true);
    }
    let failed = |error: nvme::Error| Box::new(run_failure(format!("{error}")));
    let mut controller =
        Controller::start(name.clone(), registers, dma.clone(), MachineClock, Config::default()).map_err(failed)?;
    let namespaces = controller.namespaces().map_err(failed)?;
    let granted = controller.request_queues(queues).map_err(failed)?;
    Ok(Attached {
        name,
        function,
        controller,
        namespaces,
        msix,
        queues: (queues, granted),
    })
}

impl Attached {
    /// MSI-X entries that can be used.
    pub fn entries(&self) -> usize {
        self.msix.as_ref().map_or(0, |msix| msix.table.entries())
    }

    /// Gives entries their messages, in ascending order, and lets them go.
    pub fn program(&self, mut messages: Vec<(usize, MsiMessage)>) {
        let Some(msix) = &self.msix else { return };
        messages.sort_by_key(|message| message.0);
        messages.dedup_by_key(|message| message.0);
        if messages.first().is_none_or(|message| message.0 > 0) {
            // The admin queue raises entry 0; it is polled, and whatever stood there before is not to be written to memory.
            msix.table.mask(0);
        }
        for (entry, message) in messages {
            msix.table.program(entry, message);
        }
        msix.capability.unmask(&msix.ecam, self.function.at);
    }
}
