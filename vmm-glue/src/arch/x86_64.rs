//! Runs a counted loop under KVM, to see whether the CPU or the host's software runs it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::accel::{KvmError, Speed};

/// Where the loop lies in the guest's memory.
const CODE_AT: u64 = 0x1000;
/// Rounds of one chunk; each round is two instructions.
const ROUNDS: u32 = 10_000;
/// Instructions of one chunk: the load of the counter, the rounds, and the port write that leaves the guest.
const CHUNK: u64 = 2 * ROUNDS as u64 + 2;
/// Chunks that make a whole measurement: about a million instructions.
const CHUNKS: u32 = 50;
/// No further chunk begins after this time.
const BUDGET: Duration = Duration::from_millis(100);
/// A chunk that takes longer than this never comes back.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs about a million instructions in a one-CPU virtual machine, or as many as fit into a tenth of a second.
///
/// # Errors
/// When there is no KVM, a step of it fails, or the guest does not come back.
pub(crate) fn kvm_speed() -> Result<Speed, KvmError> {
    let (sender, receiver) = mpsc::channel();
    // KVM_RUN cannot be bounded from inside; a thread that hangs in it ends with the process.
    thread::spawn(move || {
        let _ = sender.send(measure());
    });
    receiver.recv_timeout(PATIENCE).unwrap_or(Err(KvmError::Stuck))
}

/// Real-mode code: `mov ecx, ROUNDS; 1: dec ecx; jnz 1b; out 0x80, al; jmp start`.
fn code() -> Vec<u8> {
    let mut code = vec![0x66, 0xb9];
    code.extend(ROUNDS.to_le_bytes());
    code.extend([0x66, 0x49, 0x75, 0xfc, 0xe6, 0x80, 0xeb]);
    let back = code.len() as i8 + 1;
    code.push((-back) as u8);
    code
}

fn measure() -> Result<Speed, KvmError> {
    let failed = |step: &'static str| {
        move |error: kvm_ioctls::Error| KvmError::Failed {
            step,
            error: error.into(),
        }
    };
    let kvm = Kvm::new().map_err(|error| KvmError::Open(error.into()))?;
    let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
    let size = 0x2000;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), size)]).map_err(|_| KvmError::Memory)?;
    memory
        .write_slice(&code(), GuestAddress(CODE_AT))
        .map_err(|_| KvmError::Memory)?;
    let host = memory.get_host_address(GuestAddress(0)).map_err(|_| KvmError::Memory)?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        guest_phys_addr: 0,
        memory_size: size as u64,
        userspace_addr: host as u64,
        flags: 0,
    };
    // SAFETY: the region is `memory`, mapped at `host` for `size` bytes; `memory` is declared after `vm`, but the guest runs only
    // within this function, and KVM_RUN is not entered again once it returns.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    let mut sregs = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    vcpu.set_sregs(&sregs).map_err(failed("KVM_SET_SREGS"))?;
    let mut regs = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
    regs.rip = CODE_AT;
    regs.rflags = 2;
    vcpu.set_regs(&regs).map_err(failed("KVM_SET_REGS"))?;

    let start = Instant::now();
    let mut chunks = 0;
    while chunks < CHUNKS && start.elapsed() < BUDGET {
        match vcpu.run().map_err(failed("KVM_RUN"))? {
            VcpuExit::IoOut(0x80, _) => chunks += 1,
            VcpuExit::Intr => {}
            other => return Err(KvmError::Exit(format!("{other:?}"))),
        }
    }
    Ok(Speed {
        instructions: u64::from(chunks) * CHUNK,
        elapsed: start.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_jumps_to_its_beginning() {
        let code = code();
        let offset = code[code.len() - 1] as i8;
        assert_eq!(code.len() as i64 + i64::from(offset), 0);
        // And the inner branch to the decrement.
        assert_eq!(code[6..10], [0x66, 0x49, 0x75, 0xfc]);
    }

    #[test]
    fn a_measurement_is_bounded_and_counts_something() {
        let start = Instant::now();
        match kvm_speed() {
            Ok(speed) => assert!(speed.instructions >= CHUNK && speed.elapsed < PATIENCE, "{speed:?}"),
            // A machine without KVM says so.
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(start.elapsed() < PATIENCE + Duration::from_millis(500));
    }
}
