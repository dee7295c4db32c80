//! Builds the guests that the binary carries.
//!
//! Each is a Cargo build of its own, for a target without an operating system. It shares nothing with the build that runs
//! this script: not the target folder (which is locked), and not the environment, for flags and wrappers of a host build
//! (coverage, clippy, another target) mean harm to a bare-metal one.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, exit};

/// A guest: the architecture's name, and Rust's target.
const GUESTS: &[(&str, &str)] = &[("x86_64", "x86_64-unknown-none")];

/// What a guest is made of; a change there makes it anew.
const SOURCES: &[&str] = &[
    ".cargo/config.toml",
    "Cargo.lock",
    "Cargo.toml",
    "guest-os",
    "images",
    "irq/Cargo.toml",
    "irq/src",
    "nvme/Cargo.toml",
    "nvme/src",
    "rust-toolchain.toml",
];

fn main() -> ExitCode {
    let room = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let Some(root) = room.parent() else {
        eprintln!("{} has no parent folder", room.display());
        return ExitCode::FAILURE;
    };
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    for (arch, target) in GUESTS {
        let image = build(root, &out.join("guest"), target);
        let embedded = out.join(format!("guest-{arch}"));
        if let Err(error) = std::fs::copy(&image, &embedded) {
            eprintln!(
                "{} cannot be copied to {}: {error}",
                image.display(),
                embedded.display()
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| {
        eprintln!("{name} is not set; build with cargo");
        exit(1)
    })
}

/// Builds the guest for one target and gives its path.
fn build(root: &Path, folder: &Path, target: &str) -> PathBuf {
    let mut cargo = Command::new(variable("CARGO"));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(belongs_to_the_host) {
            cargo.env_remove(name);
        }
    }
    // Symbols are for the bench, which builds a guest of its own; those that travel in the binary are dead weight.
    cargo.env("CARGO_PROFILE_GUEST_STRIP", "symbols");
    cargo.current_dir(root).args([
        "build",
        "--package",
        "doorpost-guest",
        "--features",
        "image",
        "--profile",
        "guest",
    ]);
    cargo.args(["--target", target, "--target-dir"]).arg(folder);
    // Cargo shows what a failed build script wrote to its standard error, so a mistake in the guest is seen as one.
    match cargo.status() {
        Ok(status) if status.success() => folder.join(target).join("guest").join("doorpost-guest"),
        Ok(status) => {
            eprintln!("the guest for {target} does not build ({status}); cargo's own words are above");
            exit(1)
        }
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            exit(1)
        }
    }
}

/// Whether a variable of the environment steers the build that runs this script, and would steer the guest's astray.
fn belongs_to_the_host(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "CARGO_ENCODED_RUSTDOCFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_INCREMENTAL",
        "CARGO_TARGET_DIR",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
        "RUSTC",
        "RUSTC_LINKER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOC",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
    ];
    // What says where crates come from (CARGO_HOME, CARGO_NET_*, CARGO_HTTP_*, CARGO_REGISTRIES_*, CARGO_SOURCE_*) stays.
    const BEGINNINGS: &[&str] = &[
        "CARGO_BIN_",
        "CARGO_BUILD_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_LLVM_COV",
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "CARGO_UNSTABLE_",
        "DEP_",
        "__CARGO_",
    ];
    NAMES.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}
