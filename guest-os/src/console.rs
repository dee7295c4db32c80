//! Lines of text on the serial console.
//!
//! A line is written under one lock, so that lines of different CPUs never mix. The lock knows its owner: a CPU that is
//! interrupted in the middle of a line, and has something grave to say, says it; and waiting for another CPU has an end, so
//! that one that died with the lock in hand cannot silence the others.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use hal::clock::Clock;

use crate::arch::{self, MachineClock};

/// Nobody has the lock; otherwise it holds a CPU's index + 1.
const FREE: usize = 0;
static OWNER: AtomicUsize = AtomicUsize::new(FREE);

/// How long a CPU waits for another's line. A long report at 115200 baud is not waited for; it is written in pieces.
const PATIENCE: Duration = Duration::from_secs(2);

struct Lock {
    /// This guard took the lock, and gives it back. If not, a line may have been cut short.
    owned: bool,
}

impl Lock {
    fn take() -> Self {
        let me = arch::cpu_index() + 1;
        let mut deadline = None;
        loop {
            match OWNER.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Self { owned: true },
                Err(owner) if owner == me => return Self { owned: false },
                Err(_) => {}
            }
            if MachineClock.ticks() > *deadline.get_or_insert_with(|| MachineClock.deadline(PATIENCE)) {
                return Self { owned: false };
            }
            core::hint::spin_loop();
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.owned {
            OWNER.store(FREE, Ordering::Release);
        }
    }
}

/// Text gathered into pieces, so that the device is asked once for each.
struct Pieces {
    text: [u8; 64],
    used: usize,
}

impl Pieces {
    fn flush(&mut self) {
        arch::console_write(&self.text[..self.used]);
        self.used = 0;
    }
}

impl Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let count = rest.len().min(self.text.len() - self.used);
            self.text[self.used..self.used + count].copy_from_slice(&rest[..count]);
            self.used += count;
            rest = &rest[count..];
            if self.used == self.text.len() {
                self.flush();
            }
        }
        Ok(())
    }
}

/// Writes text as one whole; for the macros `print!` and `println!`.
pub fn write(text: fmt::Arguments<'_>) {
    let lock = Lock::take();
    let mut pieces = Pieces { text: [0; 64], used: 0 };
    if !lock.owned {
        let _ = pieces.write_str("\n");
    }
    // `Pieces` never fails, and a value that fails to format itself is cut short.
    let _ = pieces.write_fmt(text);
    pieces.flush();
}

/// Prints to the console, without a line's end.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::console::write(format_args!($($text)*)) };
}

/// Prints a line to the console.
#[macro_export]
macro_rules! println {
    () => { $crate::console::write(format_args!("\n")) };
    ($format:literal $($rest:tt)*) => { $crate::console::write(format_args!("{}\n", format_args!($format $($rest)*))) };
}

/// The `log` crate's messages on the console.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        write(format_args!("{}: {}\n", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Sends `log` messages to the console.
pub fn init() {
    // Fails only if it was done already.
    let _ = log::set_logger(&Logger);
    log::set_max_level(log::LevelFilter::Info);
}
