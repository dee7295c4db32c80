//! The NVMe controllers of the machine: found on PCI, and brought up.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use hal::dma::Dma;
use hal::mmio::{Mmio, MmioRegion};
use hal::pci::{Ecam, Function, HostBridge, MsiMessage, MsixCapability, MsixTable};
use nvme::{Config, Controller, ControllerInfo, Namespace};
use workload::job::JobSet;
use workload::report::Failure;

use crate::arch::{self, MachineClock};
use crate::engine::recovery::SharedController;
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
    pub shared: Arc<SharedController>,
    /// What it says about itself.
    pub info: ControllerInfo,
    /// Doorbell values go through memory.
    pub shadow_doorbells: bool,
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

/// Our own limit of a transfer, where a controller names none: what most can do.
const USUAL_TRANSFER: usize = 2 << 20;
/// What a job may raise that limit to.
const LARGEST_TRANSFER: usize = 64 << 20;

/// Brings up every NVMe controller as the jobs want it: with `queues` queue pairs as far as it grants them, and with MSI-X if
/// there are to be interrupts.
///
/// # Errors
/// The first controller that cannot be used.
pub fn controllers(machine: &Machine, dma: &Dma, set: &JobSet, queues: u16) -> Result<Vec<Attached>, Failure> {
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
            attached.push(attach(name, &mut bridge, function, dma, set, queues).map_err(|e| *e)?);
        }
    }
    Ok(attached)
}

fn attach(
    name: String,
    bridge: &mut HostBridge<MmioRegion>,
    function: Function,
    dma: &Dma,
    set: &JobSet,
    wanted: u16,
) -> Result<Attached, Box<Failure>> {
    let failed = |what: String| Box::new(run_failure(what));
    let open = bridge
        .open(&function)
        .map_err(|error| failed(format!("{name}: {error}")))?;
    let Some(bar) = open.bars[0] else {
        return Err(failed(format!("{name} ({function}): it has no memory BAR 0")));
    };
    let registers = arch::map_device(bar.address, bar.size);
    let msix = open.msix.filter(|_| set.run.wait.uses_interrupts()).map(|capability| {
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
    let failed = |error: nvme::Error| Box::new(run_failure(error.to_string()));
    let config = Config {
        max_transfer_cap: usize::try_from(set.max_block())
            .map_or(LARGEST_TRANSFER, |bs| bs.clamp(USUAL_TRANSFER, LARGEST_TRANSFER)),
        ..Config::default()
    };
    let mut controller =
        Controller::start(name.clone(), registers, dma.clone(), MachineClock, config).map_err(failed)?;
    let namespaces = controller.namespaces().map_err(failed)?;
    let granted = controller.request_queues(wanted).map_err(failed)?;
    // A drive that changes its power state on its own would be measured doing so.
    controller.disable_apst().map_err(failed)?;
    controller.enable_async_events().map_err(failed)?;
    let shadow_doorbells = set.run.shadow_doorbells && controller.enable_shadow_doorbells().map_err(failed)?;
    let info = controller.info().clone();
    Ok(Attached {
        shared: Arc::new(SharedController::new(name.clone(), controller)),
        name,
        function,
        info,
        shadow_doorbells,
        namespaces,
        msix,
        queues: (wanted, granted),
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
