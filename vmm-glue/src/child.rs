//! A child process that never outlives us.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};

/// A child in a process group of its own. The group is killed, and the child reaped, when this is dropped, also in a panic; and
/// the kernel kills the child, but not what it started, when the thread that started it is gone, also after SIGKILL.
#[derive(Debug)]
pub(crate) struct Child {
    inner: std::process::Child,
}

impl Child {
    /// Starts a command that inherits the descriptors `inherited` under their numbers here.
    pub(crate) fn spawn(mut command: Command, inherited: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let numbers: Vec<i32> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        let parent = rustix::process::getpid();
        command.process_group(0);
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // We may have died before that call.
            if getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            for number in &numbers {
                // SAFETY: the caller's borrow keeps these descriptors open until `spawn` returns, which is after this ran.
                let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
                fcntl_setfd(descriptor, FdFlags::empty())?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec, `prepare` only makes system calls (prctl, getppid, fcntl) and reads memory that it owns.
        unsafe { command.pre_exec(prepare) };
        Ok(Self {
            inner: command.spawn()?,
        })
    }

    /// The standard library's view, for its pipes.
    pub(crate) fn pipes(&mut self) -> &mut std::process::Child {
        &mut self.inner
    }

    /// Waits for the end, at most for `patience`; None when it goes on.
    pub(crate) fn wait_at_most(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.inner.try_wait()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the child and whatever it started, and reaps it. Harmless when it has ended.
    pub(crate) fn kill(&mut self) {
        // After it was reaped, its number may be somebody else's.
        if let Ok(None) = self.inner.try_wait() {
            if let Some(pid) = Pid::from_raw(self.inner.id() as i32) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.inner.kill();
            let _ = self.inner.wait();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::process::Stdio;

    #[test]
    fn the_child_and_its_children_end_with_us() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped());
        let mut child = Child::spawn(command, &[]).unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.pipes().stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let grandchild = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        rustix::process::test_kill_process(grandchild).unwrap();
        drop(child);
        // The pipe ends when both are gone.
        output.read_line(&mut line).unwrap();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", grandchild.as_raw_nonzero()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        assert!((0..200).any(|_| {
            thread::sleep(Duration::from_millis(10));
            gone()
        }));
    }

    #[test]
    fn descriptors_are_inherited_by_number_only_if_named() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        file.rewind().unwrap();
        let script = format!("cat /proc/self/fd/{}", file.as_raw_fd());
        for named in [true, false] {
            let mut command = Command::new("sh");
            command
                .args(["-c", &script])
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let inherited = [file.as_fd()];
            let mut child = Child::spawn(command, if named { &inherited } else { &[] }).unwrap();
            let mut text = String::new();
            child.pipes().stdout.take().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, if named { "hello" } else { "" });
            let status = child.wait_at_most(Duration::from_secs(10)).unwrap().unwrap();
            assert_eq!(status.success(), named);
        }
    }

    #[test]
    fn waiting_ends() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut child = Child::spawn(command, &[]).unwrap();
        assert!(child.wait_at_most(Duration::from_millis(20)).unwrap().is_none());
        child.kill();
        assert!(child.wait_at_most(Duration::ZERO).unwrap().is_some());
    }
}
