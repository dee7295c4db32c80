//! Launchers of doorpost's guest, and what the host knows of the run.
//!
//! | module | what it does |
//! |---|---|
//! | [`plan`] | what to run, and the checks that need no guest |
//! | [`drive`] | what stands behind an NVMe controller: a file, nothing, or a scratch file |
//! | [`accel`] | KVM or TCG, decided by trying |
//! | [`qemu`] | finds QEMU and writes its command line |
//! | [`serial`] | takes the guest's serial line apart: frames and text |
//! | [`run`] | starts a guest, listens to it, and leaves nothing behind |
//!
//! Everything that can be refused is refused before the guest starts, in one line that names the thing and the way out.

pub mod accel;
mod arch;
mod attempt;
mod child;
pub mod drive;
pub mod guest;
mod in_use;
mod overwrite;
pub mod plan;
pub mod qemu;
pub mod run;
pub mod serial;
mod signals;
