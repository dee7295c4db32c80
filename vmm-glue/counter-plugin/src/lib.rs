//! QEMU TCG plugin that counts guest instructions, MMIO and would-be exits between the guest's marks.
//!
//! `qemu-system-x86_64 -accel tcg -plugin libdoorpost_counter_plugin.so,out=FILE[,mmio=1] …` writes one JSON line to FILE each
//! time that the guest executes its mark, the no-op `0F 1F 80 4D 41 52 4B`, and one when QEMU ends. A line holds all counts since power-on, summed over the
//! vCPUs; a reader takes differences:
//!
//! ```json
//! {"event":"mark","index":0,"instructions":9241,"wrmsr":3,"rdmsr":2,"hlt":0,"port_io":12,"cpuid":4,"pause":0,"mmio_reads":8,"mmio_writes":5}
//! ```
//!
//! `mmio_reads` and `mmio_writes` are there with `mmio=1` only. Instructions are counted one by one and not per translated block: an
//! access to a device leaves its block in the middle, and what follows would be counted twice.

mod api;
mod decode;
mod options;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Mutex, OnceLock, PoisonError};

use api::{Access, Block, PluginId, Scoreboard, TbHandle};
use decode::Kind;

/// Version of the plugin interface that we use; QEMU refuses the plugin where it has none such.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = 3;

/// The counters, by their names in the output; the two of MMIO come last.
const NAMES: [&str; 9] = [
    "instructions",
    "wrmsr",
    "rdmsr",
    "hlt",
    "port_io",
    "cpuid",
    "pause",
    "mmio_reads",
    "mmio_writes",
];
const INSTRUCTIONS: usize = 0;
const MMIO_READS: usize = 7;
const MMIO_WRITES: usize = 8;

struct State {
    board: Scoreboard,
    mmio: bool,
    output: Mutex<Output>,
}

struct Output {
    file: File,
    path: String,
    marks: u64,
}

static STATE: OnceLock<State> = OnceLock::new();

impl State {
    /// Writes a line with all counts so far.
    fn write(&self, event: &str) {
        // Nothing panics while it holds the lock; were it so, the file would still be good for another line.
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let index = output.marks;
        output.marks += 1;
        let names = if self.mmio { &NAMES[..] } else { &NAMES[..MMIO_READS] };
        let mut line = format!("{{\"event\":\"{event}\",\"index\":{index}");
        for (counter, name) in names.iter().enumerate() {
            // Writing to a String does not fail.
            let _ = write!(line, ",\"{name}\":{}", self.board.sum(counter));
        }
        line.push_str("}\n");
        if let Err(error) = output.file.write_all(line.as_bytes()) {
            complain(&format!("cannot write to {}: {error}", output.path));
        }
    }
}

fn complain(message: &str) {
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "doorpost-counter-plugin: {message}");
}

extern "C" fn translated(_id: PluginId, tb: *mut TbHandle) {
    // SAFETY: QEMU's handle for this callback; the block is dropped before we return.
    let (Some(state), Some(block)) = (STATE.get(), unsafe { Block::new(tb) }) else {
        return;
    };
    for instruction in block.instructions() {
        instruction.count(&state.board, INSTRUCTIONS);
        let mut buffer = [0; 16];
        let counter = match decode::kind(instruction.bytes(&mut buffer)) {
            Kind::Mark => {
                instruction.on_run(marked);
                None
            }
            Kind::Wrmsr => Some(1),
            Kind::Rdmsr => Some(2),
            Kind::Hlt => Some(3),
            Kind::PortIo => Some(4),
            Kind::Cpuid => Some(5),
            Kind::Pause => Some(6),
            Kind::Other => None,
        };
        if let Some(counter) = counter {
            instruction.count(&state.board, counter);
        }
        if state.mmio {
            instruction.on_memory(accessed);
        }
    }
}

extern "C" fn marked(_vcpu: c_uint, _userdata: *mut c_void) {
    if let Some(state) = STATE.get() {
        state.write("mark");
    }
}

extern "C" fn accessed(vcpu: c_uint, info: u32, address: u64, _userdata: *mut c_void) {
    let counter = match api::access(info, address) {
        Access::Memory => return,
        Access::MmioRead => MMIO_READS,
        Access::MmioWrite => MMIO_WRITES,
    };
    if let Some(state) = STATE.get() {
        state.board.increment(vcpu, counter);
    }
}

extern "C" fn ended(_id: PluginId, _userdata: *mut c_void) {
    if let Some(state) = STATE.get() {
        state.write("exit");
    }
}

/// QEMU calls this once, when it has loaded the plugin. Returns 0, or 1 after one line on standard error.
///
/// # Safety
/// For QEMU only: `argv` points to `argc` NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: passed on from QEMU.
    let arguments = unsafe { api::arguments(argc, argv) };
    match install(id, &arguments) {
        Ok(()) => 0,
        Err(message) => {
            complain(&message);
            1
        }
    }
}

fn install(id: PluginId, arguments: &[String]) -> Result<(), String> {
    let options = options::parse(arguments.iter().map(String::as_str))?;
    let file =
        File::create(&options.out).map_err(|error| format!("cannot open out={} for writing: {error}", options.out))?;
    let state = State {
        board: Scoreboard::new(NAMES.len()),
        mmio: options.mmio,
        output: Mutex::new(Output {
            file,
            path: options.out,
            marks: 0,
        }),
    };
    STATE
        .set(state)
        .map_err(|_| "is loaded twice: give -plugin once".to_owned())?;
    api::on_translate(id, translated);
    api::on_exit(id, ended);
    Ok(())
}
