//! The part of QEMU's plugin interface that we use, behind safe types.
//!
//! The names and signatures are those of `qemu-plugin.h`, version 3 (QEMU 9.1 and later). The functions live in QEMU's own
//! executable and are found when it loads the library.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// Identifies a loaded plugin.
pub type PluginId = u64;

type TranslateCallback = extern "C" fn(PluginId, *mut TbHandle);
type ExitCallback = extern "C" fn(PluginId, *mut c_void);
type InstructionCallback = extern "C" fn(c_uint, *mut c_void);
type MemoryCallback = extern "C" fn(c_uint, u32, u64, *mut c_void);

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const INLINE_ADD: c_int = 0;
/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`.
const READS_AND_WRITES: c_int = 3;

/// `struct qemu_plugin_tb`.
#[repr(C)]
pub struct TbHandle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct InsnHandle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct ScoreboardHandle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct HwaddrHandle {
    _opaque: [u8; 0],
}

/// `qemu_plugin_u64`: one 64-bit member of every vCPU's entry.
#[repr(C)]
#[derive(Clone, Copy)]
struct Member {
    score: *mut ScoreboardHandle,
    offset: usize,
}

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: TranslateCallback);
    fn qemu_plugin_register_atexit_cb(id: PluginId, callback: ExitCallback, userdata: *mut c_void);
    fn qemu_plugin_scoreboard_new(element_size: usize) -> *mut ScoreboardHandle;
    fn qemu_plugin_u64_add(entry: Member, vcpu: c_uint, added: u64);
    fn qemu_plugin_u64_sum(entry: Member) -> u64;
    fn qemu_plugin_tb_n_insns(tb: *const TbHandle) -> usize;
    fn qemu_plugin_tb_get_insn(tb: *const TbHandle, index: usize) -> *mut InsnHandle;
    fn qemu_plugin_insn_data(insn: *const InsnHandle, destination: *mut c_void, length: usize) -> usize;
    fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        insn: *mut InsnHandle,
        op: c_int,
        entry: Member,
        immediate: u64,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut InsnHandle,
        callback: InstructionCallback,
        flags: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut InsnHandle,
        callback: MemoryCallback,
        flags: c_int,
        access: c_int,
        userdata: *mut c_void,
    );
    fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut HwaddrHandle;
    fn qemu_plugin_hwaddr_is_io(address: *const HwaddrHandle) -> bool;
    fn qemu_plugin_mem_is_store(info: u32) -> bool;
}

/// Has `callback` called for every block of instructions that QEMU translates.
pub fn on_translate(id: PluginId, callback: TranslateCallback) {
    // SAFETY: called with the id that QEMU gave this plugin; the callback is a function of this library, which stays loaded.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, callback) }
}

/// Has `callback` called when QEMU ends.
pub fn on_exit(id: PluginId, callback: ExitCallback) {
    // SAFETY: as in `on_translate`; the callback does not look at its user data.
    unsafe { qemu_plugin_register_atexit_cb(id, callback, ptr::null_mut()) }
}

/// Counters, one set per vCPU, kept by QEMU.
pub struct Scoreboard {
    handle: *mut ScoreboardHandle,
    members: usize,
}

// SAFETY: the handle is only passed back to QEMU, whose scoreboard functions may be called from every thread.
unsafe impl Send for Scoreboard {}
// SAFETY: as above.
unsafe impl Sync for Scoreboard {}

impl Scoreboard {
    /// A set of `members` counters at 0 for each vCPU.
    pub fn new(members: usize) -> Self {
        // SAFETY: takes a size only; QEMU aborts when memory is short, so the handle is valid, and we never free it.
        let handle = unsafe { qemu_plugin_scoreboard_new(members * size_of::<u64>()) };
        Self { handle, members }
    }

    fn member(&self, index: usize) -> Member {
        assert!(index < self.members, "counter {index} of {}", self.members);
        Member {
            score: self.handle,
            offset: index * size_of::<u64>(),
        }
    }

    /// Adds 1 to a counter of vCPU `vcpu`; called on that vCPU's thread.
    pub fn increment(&self, vcpu: c_uint, index: usize) {
        // SAFETY: the member lies within the entry, and QEMU itself names the vCPU.
        unsafe { qemu_plugin_u64_add(self.member(index), vcpu, 1) }
    }

    /// Sum of a counter over all vCPUs.
    pub fn sum(&self, index: usize) -> u64 {
        // SAFETY: the member lies within the entry.
        unsafe { qemu_plugin_u64_sum(self.member(index)) }
    }
}

/// A block of instructions under translation; lives as long as the callback that received it.
pub struct Block<'a> {
    handle: NonNull<TbHandle>,
    _callback: PhantomData<&'a ()>,
}

impl Block<'_> {
    /// Wraps the handle that a translation callback received.
    ///
    /// # Safety
    /// `handle` is that handle, and the value is dropped before the callback returns.
    pub unsafe fn new(handle: *mut TbHandle) -> Option<Self> {
        Some(Self {
            handle: NonNull::new(handle)?,
            _callback: PhantomData,
        })
    }

    /// Number of instructions.
    fn len(&self) -> usize {
        // SAFETY: the handle is valid for this callback.
        unsafe { qemu_plugin_tb_n_insns(self.handle.as_ptr()) }
    }

    /// Its instructions, in order.
    pub fn instructions(&self) -> impl Iterator<Item = Instruction<'_>> {
        (0..self.len()).filter_map(|index| {
            // SAFETY: the handle is valid for this callback, the index below the block's length.
            let handle = NonNull::new(unsafe { qemu_plugin_tb_get_insn(self.handle.as_ptr(), index) })?;
            Some(Instruction {
                handle,
                _block: PhantomData,
            })
        })
    }
}

/// One instruction of a [`Block`].
pub struct Instruction<'a> {
    handle: NonNull<InsnHandle>,
    _block: PhantomData<&'a ()>,
}

impl Instruction<'_> {
    /// Copies its bytes into `buffer`; x86 has at most 15.
    pub fn bytes<'b>(&self, buffer: &'b mut [u8; 16]) -> &'b [u8] {
        // SAFETY: the handle is valid for this callback; QEMU writes at most `buffer.len()` bytes.
        let length =
            unsafe { qemu_plugin_insn_data(self.handle.as_ptr(), buffer.as_mut_ptr().cast::<c_void>(), buffer.len()) };
        &buffer[..length.min(buffer.len())]
    }

    /// Adds 1 to a counter each time that it runs.
    pub fn count(&self, board: &Scoreboard, index: usize) {
        // SAFETY: handle valid for this callback; the member lies within an entry that lives for ever.
        unsafe {
            qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
                self.handle.as_ptr(),
                INLINE_ADD,
                board.member(index),
                1,
            );
        }
    }

    /// Has `callback` called with the vCPU's index before each run of it.
    pub fn on_run(&self, callback: InstructionCallback) {
        // SAFETY: handle valid for this callback; `callback` does not look at its user data.
        unsafe {
            qemu_plugin_register_vcpu_insn_exec_cb(self.handle.as_ptr(), callback, NO_REGISTERS, ptr::null_mut());
        }
    }

    /// Has `callback` called after each of its loads and stores.
    pub fn on_memory(&self, callback: MemoryCallback) {
        // SAFETY: handle valid for this callback; `callback` does not look at its user data.
        unsafe {
            qemu_plugin_register_vcpu_mem_cb(
                self.handle.as_ptr(),
                callback,
                NO_REGISTERS,
                READS_AND_WRITES,
                ptr::null_mut(),
            );
        }
    }
}

/// What a load or store touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Memory.
    Memory,
    /// A device register, read.
    MmioRead,
    /// A device register, written.
    MmioWrite,
}

/// Tells what the access of a running memory callback touched; `info` and `address` are that callback's.
pub fn access(info: u32, address: u64) -> Access {
    // SAFETY: called within a memory callback with what it received; a null handle is not passed on.
    let (io, store) = unsafe {
        let handle = qemu_plugin_get_hwaddr(info, address);
        (
            !handle.is_null() && qemu_plugin_hwaddr_is_io(handle),
            qemu_plugin_mem_is_store(info),
        )
    };
    match (io, store) {
        (false, _) => Access::Memory,
        (true, false) => Access::MmioRead,
        (true, true) => Access::MmioWrite,
    }
}

/// The arguments of the install call, those that are not UTF-8 with replacement characters.
///
/// # Safety
/// `argv` points to `argc` NUL-terminated strings, as QEMU passes them.
pub unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<String> {
    (0..usize::try_from(argc).unwrap_or(0))
        .map(|index| {
            // SAFETY: the caller promises `argc` valid strings.
            unsafe { std::ffi::CStr::from_ptr(*argv.add(index)) }
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}
