//! The toolchain that rust-toolchain.toml names, with its components and targets.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::project::Project;
use crate::shell;

/// Names the toolchain, and what it lacks of what rust-toolchain.toml lists.
///
/// # Errors
/// There is no rustc, or the file cannot be read.
pub fn look(project: &Project) -> Result<(String, Vec<String>)> {
    let file = project.root().join("rust-toolchain.toml");
    let wanted = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let rustc = |argument: &[&str]| -> Result<String> {
        let answer =
            shell::output(project.command("rustc").args(argument))?.context("rustc is not on the search path")?;
        Ok(answer.trim().to_owned())
    };
    let sysroot = rustc(&["--print", "sysroot"])?;
    let verbose = rustc(&["-vV"])?;
    let field = |name: &str| {
        verbose
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
    };
    let missing = lacks(&wanted, Path::new(&sysroot), field("host: "));
    let release = field("release: ");
    Ok((format!("Rust {release} with its targets"), missing))
}

/// Which of the components and targets in `toolchain` are not under `sysroot`.
fn lacks(toolchain: &str, sysroot: &Path, host: &str) -> Vec<String> {
    let library = sysroot.join("lib/rustlib");
    let components = list(toolchain, "components").into_iter().filter(|component| {
        let trace = match component.as_str() {
            "rust-src" => library.join("src/rust/library/core"),
            "rustfmt" => sysroot.join("bin/rustfmt"),
            "clippy" => sysroot.join("bin/cargo-clippy"),
            "llvm-tools" => library.join(host).join("bin/llvm-size"),
            // Not one that we know how to look for; rustup brings it with the others.
            _ => return false,
        };
        !trace.exists()
    });
    let targets = list(toolchain, "targets")
        .into_iter()
        .filter(|target| !library.join(target).join("lib").exists());
    let targets = targets.map(|target| format!("target {target}"));
    components.chain(targets).collect()
}

/// The strings that follow `key =` in a TOML file of simple tables: one, or an array.
fn list(toml: &str, key: &str) -> Vec<String> {
    let uncommented: Vec<&str> = toml
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .collect();
    let value = |line: &str| {
        Some(
            line.trim()
                .strip_prefix(key)?
                .trim_start()
                .strip_prefix('=')?
                .trim()
                .to_owned(),
        )
    };
    let Some(start) = uncommented.iter().position(|line| value(line).is_some()) else {
        return Vec::new();
    };
    let mut text = value(uncommented[start]).unwrap_or_default();
    for line in &uncommented[start + 1..] {
        if !text.starts_with('[') || text.contains(']') {
            break;
        }
        text.push_str(line);
    }
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Has rustup fetch what is missing.
///
/// # Errors
/// There is no rustup, or it fails.
pub fn install(project: &Project) -> Result<()> {
    if !shell::exists("rustup") {
        bail!(
            "rustup is not on the search path: install the missing parts of Rust by its own means, or Rust by rustup"
        );
    }
    let mut rustup: Command = project.command("rustup");
    // Without an argument it reads rust-toolchain.toml; the variable, which cargo's proxy sets, would hide that file.
    rustup.args(["toolchain", "install"]).env_remove("RUSTUP_TOOLCHAIN");
    eprintln!("$ {}", shell::line(&rustup));
    shell::run(&mut rustup)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLCHAIN: &str = "# a comment\n[toolchain]\nchannel = \"1.95.0\"\ncomponents = [\"rust-src\", \"llvm-tools\", \"new\"]\n\
                             targets = [\n    \"x86_64-unknown-none\", # the first\n    \"aarch64-unknown-none\",\n]\nprofile = \"minimal\"\n";

    #[test]
    fn lists() {
        assert_eq!(list(TOOLCHAIN, "channel"), ["1.95.0"]);
        assert_eq!(list(TOOLCHAIN, "components"), ["rust-src", "llvm-tools", "new"]);
        assert_eq!(
            list(TOOLCHAIN, "targets"),
            ["x86_64-unknown-none", "aarch64-unknown-none"]
        );
        assert!(list(TOOLCHAIN, "nothing").is_empty());
        assert!(list("", "channel").is_empty());
    }

    #[test]
    fn what_is_missing() {
        let sysroot = tempfile::tempdir().unwrap();
        let lib = sysroot.path().join("lib/rustlib");
        let all = [
            "rust-src",
            "llvm-tools",
            "target x86_64-unknown-none",
            "target aarch64-unknown-none",
        ];
        assert_eq!(lacks(TOOLCHAIN, sysroot.path(), "host"), all);
        fs::create_dir_all(lib.join("x86_64-unknown-none/lib")).unwrap();
        fs::create_dir_all(lib.join("src/rust/library/core")).unwrap();
        fs::create_dir_all(lib.join("host/bin")).unwrap();
        fs::write(lib.join("host/bin/llvm-size"), "").unwrap();
        assert_eq!(
            lacks(TOOLCHAIN, sysroot.path(), "host"),
            ["target aarch64-unknown-none"]
        );
    }
}
