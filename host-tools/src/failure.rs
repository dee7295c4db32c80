//! How an error ends the program: one line, and a status.

use std::io::{self, ErrorKind, Write};

use thiserror::Error;
use vmm_glue::run::{Failed, RunError};

/// The run failed, or a device error was counted.
pub const FAILED: u8 = 1;
/// What was asked for cannot be.
pub const USAGE: u8 = 2;

/// What was asked for cannot be; the line names it and the way out.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The run went through, but commands failed.
#[derive(Debug, Error)]
#[error("{0} (--ignore-errors makes this no failure)")]
pub struct DeviceErrors(pub String);

/// The exit status that an error deserves: 2 for usage, 128 + n after signal n, else 1.
pub fn status(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return USAGE;
    }
    match error.downcast_ref::<Failed>().map(|failed| &*failed.error) {
        Some(RunError::Interrupted(signal)) => u8::try_from(128 + signal).unwrap_or(FAILED),
        Some(error) if error.is_usage() => USAGE,
        _ => FAILED,
    }
}

/// Says what is wrong: one line, and what a guest and QEMU said last where that may explain it.
pub fn explain(error: &anyhow::Error, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "doorpost: {}", one_line(&format!("{error:#}")))?;
    if let Some(failed) = error.downcast_ref::<Failed>()
        && status(error) == FAILED
    {
        for (who, lines) in [("QEMU", &failed.qemu_text), ("the guest", &failed.guest_text)] {
            if !lines.is_empty() {
                writeln!(to, "last words of {who}:")?;
                for line in lines {
                    writeln!(to, "  {line}")?;
                }
            }
        }
    }
    Ok(())
}

/// Whether an error only says that the reader of our output has gone (`doorpost report … | head`).
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io_error = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error
        .chain()
        .any(|cause| io_error(cause) == Some(ErrorKind::BrokenPipe))
}

fn one_line(text: &str) -> String {
    text.split('\n')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use vmm_glue::plan::PlanError;
    use workload::report::{Failure, FailureKind};

    fn failed(error: RunError) -> anyhow::Error {
        Failed {
            error: Box::new(error),
            guest_text: vec!["cpu 1: page fault".to_string()],
            qemu_text: Vec::new(),
        }
        .into()
    }

    fn guest(kind: FailureKind) -> RunError {
        RunError::Guest(Failure {
            kind,
            message: "nvme0: no".to_string(),
        })
    }

    #[test]
    fn statuses() {
        assert_eq!(status(&anyhow!("disk full")), 1);
        assert_eq!(status(&Usage("no".to_string()).into()), 2);
        assert_eq!(status(&DeviceErrors("3 commands failed".to_string()).into()), 1);
        assert_eq!(status(&failed(RunError::Plan(PlanError::NoDrive))), 2);
        assert_eq!(status(&failed(guest(FailureKind::Usage))), 2);
        assert_eq!(status(&failed(guest(FailureKind::Run))), 1);
        for (signal, expected) in [(2, 130), (15, 143), (1, 129)] {
            assert_eq!(status(&failed(RunError::Interrupted(signal))), expected);
        }
    }

    #[test]
    fn usage_is_one_line_and_a_failed_run_shows_last_words() {
        let text = |error: &anyhow::Error| {
            let mut bytes = Vec::new();
            explain(error, &mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(text(&failed(guest(FailureKind::Usage))), "doorpost: nvme0: no\n");
        assert_eq!(
            text(&failed(guest(FailureKind::Run))),
            "doorpost: nvme0: no\nlast words of the guest:\n  cpu 1: page fault\n"
        );
        assert_eq!(text(&anyhow!("a\n  b\n")), "doorpost: a; b\n");
    }
}
