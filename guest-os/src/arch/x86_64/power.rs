//! Ending the machine.

use spin::Once;
use x86_64::instructions::port::Port;

use hal::mmio::MmioRegion;

use super::acpi::{PowerOff, Register};
use super::{paging, serial};
use crate::machine::ExitStatus;

/// QEMU's `isa-debug-exit`: a value n written here makes QEMU exit with status 2n + 1.
const DEBUG_EXIT: u16 = 0xf4;

/// What to write where, made ready at boot so that it works from any state later.
enum Switch {
    Ports([(u16, u16); 2]),
    BytePort(u16, u8),
    Memory(MmioRegion, u8),
}

static SWITCH: Once<Switch> = Once::new();

/// Makes the way that ACPI names ready.
pub fn init(how: Option<PowerOff>) {
    let switch = match how {
        None => return,
        Some(PowerOff::Ports(writes)) => Switch::Ports(writes),
        Some(PowerOff::Register(Register::Port(port), value)) => Switch::BytePort(port, value),
        Some(PowerOff::Register(Register::Memory(address), value)) => {
            // Firmware that names memory here is not followed.
            if paging::map_registers(address..address.saturating_add(1)).is_err() {
                return;
            }
            let Some(base) = core::ptr::NonNull::new(paging::virtual_address(address) as *mut u8) else {
                return;
            };
            // SAFETY: mapped as a device's, for ever. Only bytes are accessed, which are always aligned.
            Switch::Memory(unsafe { MmioRegion::new(base, 1) }, value)
        }
    };
    SWITCH.call_once(|| switch);
}

/// Ends the whole machine, from any CPU and any state.
///
/// The exit device, if there is one, gets the status plus 1 (so that QEMU exits with 3 when the job was done, 5 when the run
/// failed, 7 when the job could not be run as asked for, 9 when the guest itself failed: none is a status that QEMU gives by
/// itself). Without the device ACPI switches the machine off, and the status is lost; the report has said it all before.
pub fn exit(status: ExitStatus) -> ! {
    super::interrupts_off();
    serial::drain();
    // SAFETY: the exit device, or nothing.
    unsafe { Port::new(DEBUG_EXIT).write(status as u32 + 1) };
    match SWITCH.get() {
        Some(Switch::Ports(writes)) => {
            for (port, value) in writes.iter().filter(|(port, _)| *port != 0) {
                // SAFETY: the ports that ACPI names for this.
                unsafe { Port::new(*port).write(*value) };
            }
        }
        // SAFETY: the port that ACPI names for this.
        Some(Switch::BytePort(port, value)) => unsafe { Port::new(*port).write(*value) },
        Some(Switch::Memory(register, value)) => register.write8(0, *value),
        None => {}
    }
    loop {
        super::wait_for_end();
    }
}
