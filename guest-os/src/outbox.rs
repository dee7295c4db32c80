//! Frames to the host, over the console.

use alloc::string::String;

use spin::Mutex;
use workload::frame::{Frame, FrameWriter};
use workload::report::{Hello, SCHEMA};

use crate::arch;
use crate::console;

static WRITER: Mutex<FrameWriter> = Mutex::new(FrameWriter::new());

/// Sends a frame as a line of its own.
pub fn send(frame: &Frame) {
    let mut line = String::new();
    // A string takes whatever fits into memory, and a frame always can be written as JSON.
    if WRITER.lock().write(frame, &mut line).is_ok() {
        console::write(format_args!("{line}"));
    }
}

/// The first frame.
pub fn hello() {
    send(&Frame::Hello(Hello {
        schema: SCHEMA,
        architecture: arch::NAME.into(),
        version: env!("CARGO_PKG_VERSION").into(),
    }));
}
