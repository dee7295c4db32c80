//! A shell script that stands in for QEMU.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Puts a stand-in into `folder` that executes `script` where QEMU would run the guest.
pub fn fake_qemu(folder: &Path, script: &str) -> PathBuf {
    let program = folder.join("qemu");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 10.0.2'; exit; fi\ncd '{}'\n{script}\n",
        folder.display()
    );
    // By another process: a descriptor of ours, open for writing in a sibling test's fork, would make the program busy.
    let mut writer = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
    program
}

/// `doorpost run` on that stand-in.
pub fn run_on(program: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorpost"));
    command.args(["run", "--accel", "tcg", "--qemu"]).arg(program);
    command
}
