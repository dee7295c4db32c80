//! Links the guest by its architecture's linker script.

use std::env;
use std::path::Path;

fn main() {
    let room = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let script = Path::new(&room).join("../images").join(arch).join("guest.ld");
    println!("cargo::rerun-if-changed={}", script.display());
    println!("cargo::rustc-link-arg-bins=-T{}", script.display());
}
