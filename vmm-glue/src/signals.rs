//! Signals that end us, taken while a guest runs so that it can be ended first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// While this lives, SIGINT, SIGTERM and SIGHUP are handed to a function; afterwards they end the process as ever.
pub(crate) struct Watch {
    idle: Arc<AtomicBool>,
    handle: Handle,
}

impl Watch {
    /// Hands signals to `on_signal`, on a thread of its own, until it returns false. A signal that this process was told to
    /// ignore (as nohup does with SIGHUP) stays ignored.
    pub(crate) fn start(mut on_signal: impl FnMut(i32) -> bool + Send + 'static) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let taken: Vec<i32> = [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .filter(|signal| !is_ignored(&status, *signal))
            .collect();
        let idle = Arc::new(AtomicBool::new(false));
        for signal in &taken {
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&idle))?;
        }
        let mut signals = Signals::new(&taken)?;
        let handle = signals.handle();
        thread::spawn(move || {
            for signal in signals.forever() {
                if !on_signal(signal) {
                    break;
                }
            }
        });
        Ok(Self { idle, handle })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.idle.store(true, Ordering::SeqCst);
        self.handle.close();
    }
}

/// Whether a signal is in the set of ignored ones of `/proc/self/status`.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The name of one of the signals above.
pub(crate) fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tdoorpost\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT) && !is_ignored("", SIGHUP));
        assert_eq!(name(SIGINT), "SIGINT");
    }
}
