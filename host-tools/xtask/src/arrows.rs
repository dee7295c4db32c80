//! The rules of the rooms: which package imports which, and what may stand in whose sources.

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};

use crate::project::Project;
use crate::sources;

/// A room: one package of the workspace, and what it may do.
pub struct Room {
    package: &'static str,
    /// Packages of ours that it may import.
    imports: &'static [&'static str],
    /// Packages of ours, with features, that its tests may import besides.
    test_imports: &'static [(&'static str, &'static [&'static str])],
    /// It may hold unsafe code; all others forbid it in their crate root.
    unsafe_code: bool,
}

/// The table of docs/architecture.md.
const ROOMS: &[Room] = &[
    Room {
        package: "doorpost-hal",
        imports: &[],
        test_imports: &[],
        unsafe_code: true,
    },
    Room {
        package: "doorpost-workload",
        imports: &[],
        test_imports: &[],
        unsafe_code: false,
    },
    Room {
        package: "doorpost-nvme",
        imports: &["doorpost-hal"],
        test_imports: &[("doorpost-hal", &["fake"]), ("doorpost-nvme-emulator", &[])],
        unsafe_code: false,
    },
    Room {
        package: "doorpost-nvme-emulator",
        imports: &["doorpost-nvme"],
        test_imports: &[("doorpost-hal", &["fake"])],
        unsafe_code: false,
    },
    Room {
        package: "doorpost-irq",
        imports: &["doorpost-hal"],
        test_imports: &[("doorpost-hal", &["fake"])],
        unsafe_code: true,
    },
    Room {
        package: "doorpost-guest",
        imports: &["doorpost-hal", "doorpost-workload", "doorpost-nvme", "doorpost-irq"],
        test_imports: &[],
        unsafe_code: true,
    },
    Room {
        package: "doorpost-vmm",
        imports: &["doorpost-workload"],
        test_imports: &[],
        unsafe_code: true,
    },
    Room {
        package: "doorpost-counter-plugin",
        imports: &[],
        test_imports: &[],
        unsafe_code: true,
    },
    Room {
        package: "doorpost",
        imports: &["doorpost-vmm", "doorpost-workload"],
        test_imports: &[],
        unsafe_code: false,
    },
    Room {
        package: "xtask",
        imports: &[],
        test_imports: &[],
        unsafe_code: false,
    },
    Room {
        package: "doorpost-tests",
        imports: &[],
        test_imports: &[],
        unsafe_code: false,
    },
];

/// Where `target_arch` may stand besides folders named `arch`: manifests have none to put it in.
const ARCHITECTURES: &[&str] = &[
    "guest-os/hal",
    "guest-os/Cargo.toml",
    "vmm-glue/Cargo.toml",
    "host-tools/xtask",
];

/// Checks the tree, and lists what breaks a rule.
///
/// # Errors
/// Something does, or a file cannot be read.
pub fn check(project: &Project) -> Result<()> {
    let mut broken = imports(&project.metadata);
    broken.extend(sources::check(&project.root(), &rules(&project.metadata))?);
    for line in &broken {
        eprintln!("{line}");
    }
    match broken.len() {
        0 => {
            println!(
                "{} packages keep the rules of the rooms",
                project.metadata.packages.len()
            );
            Ok(())
        }
        1 => bail!("a rule of the rooms is broken (docs/architecture.md)"),
        number => bail!("{number} rules of the rooms are broken (docs/architecture.md)"),
    }
}

/// What breaks the table of imports.
fn imports(metadata: &Metadata) -> Vec<String> {
    let ours =
        |name: &str| ROOMS.iter().any(|room| room.package == name) || metadata.packages.iter().any(|p| p.name == name);
    let mut broken = Vec::new();
    for package in &metadata.packages {
        let manifest = relative(metadata, package.manifest_path.as_str());
        let Some(room) = room(package) else {
            broken.push(format!("{manifest}: {} is not in the table of rooms", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| ours(&dependency.name)) {
            let name = dependency.name.as_str();
            let features: Vec<&str> = dependency.features.iter().map(String::as_str).collect();
            let plain = room.imports.contains(&name) && !features.contains(&"fake");
            let (allowed, how) = match dependency.kind {
                DependencyKind::Normal => (plain, "import"),
                DependencyKind::Development => (
                    plain || room.test_imports.contains(&(name, features.as_slice())),
                    "import in its tests",
                ),
                _ => (false, "import in its build script"),
            };
            if !allowed {
                let features = if features.is_empty() {
                    String::new()
                } else {
                    format!(" with {}", features.join(", "))
                };
                broken.push(format!("{manifest}: {} must not {how} {name}{features}", package.name));
            }
        }
    }
    broken
}

/// The rules of sources, from the packages that there are.
fn rules(metadata: &Metadata) -> sources::Rules {
    let mut unsafe_folders = Vec::new();
    let mut safe_roots = Vec::new();
    for package in &metadata.packages {
        let folder = package.manifest_path.parent().map_or("", |folder| folder.as_str());
        let allowed = room(package).is_some_and(|room| room.unsafe_code);
        unsafe_folders.push((relative(metadata, folder), allowed));
        if !allowed {
            let roots = package.targets.iter().filter(|target| {
                target
                    .kind
                    .iter()
                    .any(|kind| matches!(kind, TargetKind::Lib | TargetKind::RLib | TargetKind::Bin))
            });
            safe_roots.extend(roots.map(|target| relative(metadata, target.src_path.as_str())));
        }
    }
    sources::Rules {
        architectures: ARCHITECTURES,
        unsafe_folders,
        safe_roots,
    }
}

fn room(package: &Package) -> Option<&'static Room> {
    ROOMS.iter().find(|room| package.name == room.package)
}

fn relative(metadata: &Metadata, path: &str) -> String {
    path.strip_prefix(metadata.workspace_root.as_str())
        .unwrap_or(path)
        .trim_start_matches('/')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn dependency(name: &str, kind: Option<&str>, features: &[&str]) -> Value {
        json!({
            "name": name, "source": null, "req": "*", "kind": kind, "rename": null, "optional": false,
            "uses_default_features": true, "features": features, "target": null, "registry": null
        })
    }

    fn package(name: &str, folder: &str, dependencies: &[Value]) -> Value {
        json!({
            "name": name, "version": "0.1.0", "id": format!("path+file:///p/{folder}#{name}@0.1.0"), "license": null,
            "license_file": null, "description": null, "source": null, "dependencies": dependencies,
            "targets": [{
                "kind": ["lib"], "crate_types": ["lib"], "name": name, "src_path": format!("/p/{folder}/src/lib.rs"),
                "edition": "2024", "doc": true, "doctest": true, "test": true
            }],
            "features": {}, "manifest_path": format!("/p/{folder}/Cargo.toml")
        })
    }

    fn metadata(packages: &[Value]) -> Metadata {
        serde_json::from_value(json!({
            "packages": packages, "workspace_members": [], "workspace_default_members": [], "resolve": null,
            "target_directory": "/p/target", "version": 1, "workspace_root": "/p", "metadata": null
        }))
        .unwrap()
    }

    #[test]
    fn what_the_table_allows_passes() {
        let tree = metadata(&[
            package("doorpost-hal", "guest-os/hal", &[dependency("bitflags", None, &[])]),
            package(
                "doorpost-nvme",
                "nvme",
                &[
                    dependency("doorpost-hal", None, &[]),
                    dependency("doorpost-hal", Some("dev"), &["fake"]),
                    dependency("doorpost-nvme-emulator", Some("dev"), &[]),
                    dependency("proptest", Some("dev"), &[]),
                ],
            ),
            package("doorpost-guest", "guest-os", &[dependency("doorpost-irq", None, &[])]),
        ]);
        assert_eq!(imports(&tree), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        for (from, to) in [
            ("doorpost-nvme", "doorpost-irq"),
            ("doorpost-irq", "doorpost-nvme"),
            ("doorpost-vmm", "doorpost-guest"),
            ("doorpost-workload", "doorpost-hal"),
            ("doorpost-tests", "doorpost"),
            ("xtask", "doorpost"),
        ] {
            let tree = metadata(&[package(from, "room", &[dependency(to, None, &[])])]);
            assert_eq!(
                imports(&tree),
                [format!("room/Cargo.toml: {from} must not import {to}")]
            );
        }
    }

    #[test]
    fn fakes_and_emulators_are_for_the_tests_that_the_table_names() {
        let found = |from: &str, to: Value| imports(&metadata(&[package(from, "room", &[to])]));
        let broken = "room/Cargo.toml: doorpost-nvme must not import doorpost-hal with fake";
        assert_eq!(
            found("doorpost-nvme", dependency("doorpost-hal", None, &["fake"])),
            [broken]
        );
        let broken = "room/Cargo.toml: doorpost-nvme must not import doorpost-nvme-emulator";
        assert_eq!(
            found("doorpost-nvme", dependency("doorpost-nvme-emulator", None, &[])),
            [broken]
        );
        let broken = "room/Cargo.toml: doorpost-irq must not import in its tests doorpost-nvme";
        assert_eq!(
            found("doorpost-irq", dependency("doorpost-nvme", Some("dev"), &[])),
            [broken]
        );
        let broken = "room/Cargo.toml: doorpost must not import in its build script doorpost-workload";
        assert_eq!(
            found("doorpost", dependency("doorpost-workload", Some("build"), &[])),
            [broken]
        );
    }

    #[test]
    fn a_room_that_nobody_planned_is_found() {
        let tree = metadata(&[
            package("doorpost-attic", "attic", &[]),
            package("doorpost-vmm", "vmm-glue", &[dependency("doorpost-attic", None, &[])]),
        ]);
        let broken = imports(&tree);
        assert_eq!(
            broken[0],
            "attic/Cargo.toml: doorpost-attic is not in the table of rooms"
        );
        assert_eq!(
            broken[1],
            "vmm-glue/Cargo.toml: doorpost-vmm must not import doorpost-attic"
        );
    }

    #[test]
    fn rules_of_sources_follow_the_table() {
        let rules = rules(&metadata(&[
            package("doorpost-nvme", "nvme", &[]),
            package("doorpost-irq", "irq", &[]),
        ]));
        assert_eq!(
            rules.unsafe_folders,
            [("nvme".to_owned(), false), ("irq".to_owned(), true)]
        );
        assert_eq!(rules.safe_roots, ["nvme/src/lib.rs"]);
    }
}
