//! Where the project and its build results are.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand};

/// The workspace, as cargo sees it.
pub struct Project {
    /// The workspace's packages, without what they fetch.
    pub metadata: Metadata,
}

impl Project {
    /// The workspace that this program belongs to.
    ///
    /// # Errors
    /// `cargo metadata` fails.
    pub fn find() -> Result<Self> {
        // cargo sets the variable when it runs us.
        let manifest = env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
        let metadata = MetadataCommand::new()
            .manifest_path(PathBuf::from(manifest).join("Cargo.toml"))
            .no_deps()
            .exec()
            .context("cannot read the workspace")?;
        Ok(Self { metadata })
    }

    /// The project's top folder.
    pub fn root(&self) -> PathBuf {
        self.metadata.workspace_root.clone().into()
    }

    /// The folder of build results.
    pub fn target(&self) -> PathBuf {
        self.metadata.target_directory.clone().into()
    }

    /// A `program` that starts in the top folder.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.root());
        command
    }

    /// cargo, in the top folder: the rustup proxy of the toolchain that runs us.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(arguments);
        command
    }
}
