//! `cargo xtask setup`: what the machine needs, found or installed.

mod apt;
mod qemu;
mod rust;

use anyhow::{Result, bail};

use crate::project::Project;
use crate::shell;

/// How much [`setup`] says when nothing is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// What is there.
    All,
    /// Nothing.
    WhenMissing,
}

/// What was found, and what was not.
struct Findings {
    present: Vec<String>,
    rust: Vec<String>,
    linker: bool,
    /// What is wrong with QEMU, if anything is.
    qemu: Option<String>,
}

impl Findings {
    fn look(project: &Project) -> Result<Self> {
        let mut present = Vec::new();
        let (toolchain, rust) = rust::look(project)?;
        if rust.is_empty() {
            present.push(toolchain);
        }
        let linker = shell::exists("cc");
        if linker {
            present.push("a C linker (cc)".into());
        }
        let qemu = match qemu::look()? {
            qemu::Found::Good(version) => {
                present.push(format!("QEMU {version}"));
                None
            }
            qemu::Found::Old(version) => Some(format!("this machine has {version}")),
            qemu::Found::Unknown(answer) => Some(format!("cannot tell the version from `{answer}`")),
            qemu::Found::None => Some("this machine has none".into()),
        };
        Ok(Self {
            present,
            rust,
            linker,
            qemu,
        })
    }

    /// One line for each thing that is missing.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.rust.is_empty() {
            missing.push(format!(
                "Rust: {} (by `rustup toolchain install`)",
                self.rust.join(", ")
            ));
        }
        if !self.linker {
            missing.push(format!(
                "a C linker, cc, which Rust needs (packages {})",
                apt::LINKER.join(" ")
            ));
        }
        if let Some(reason) = &self.qemu {
            missing.push(format!(
                "QEMU {} or later: {reason} (package {})",
                qemu::NEEDED,
                apt::QEMU
            ));
        }
        missing
    }
}

/// Says what is there and what is missing.
///
/// # Errors
/// Something is missing.
pub fn check(project: &Project) -> Result<()> {
    let findings = Findings::look(project)?;
    for thing in &findings.present {
        println!("present  {thing}");
    }
    let missing = findings.missing();
    for thing in &missing {
        println!("missing  {thing}");
    }
    if !missing.is_empty() {
        bail!("run `cargo xtask setup` to install what is missing");
    }
    Ok(())
}

/// Installs what is missing, after saying what that is.
///
/// # Errors
/// Something cannot be installed here; the message says what to do by hand.
pub fn setup(project: &Project, words: Words) -> Result<()> {
    let findings = Findings::look(project)?;
    let missing = findings.missing();
    if missing.is_empty() {
        if words == Words::All {
            println!("Everything is there: {}.", findings.present.join(", "));
        }
        return Ok(());
    }
    eprintln!("doorpost needs, and this machine lacks:");
    for thing in &missing {
        eprintln!("  - {thing}");
    }
    if !findings.rust.is_empty() {
        rust::install(project)?;
    }
    if !findings.linker || findings.qemu.is_some() {
        apt::install(project, !findings.linker, findings.qemu.is_some())?;
    }
    let still = Findings::look(project)?.missing();
    if !still.is_empty() {
        bail!("still missing after the installation: {}", still.join("; "));
    }
    Ok(())
}
