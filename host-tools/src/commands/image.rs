//! `doorpost image`: write the guest, and say how to boot it.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use vmm_glue::guest::Arch;

use crate::cli::ImageArguments;
use crate::failure::Usage;
use crate::guest_image;
use crate::output;

/// Writes the guest's image.
pub fn image(arguments: &ImageArguments) -> anyhow::Result<()> {
    let arch = arguments.arch;
    let image = guest_image::of(arch).ok_or_else(|| Usage(format!("this program carries no guest for {arch}")))?;
    if arguments.output == Path::new("-") {
        let mut out = io::stdout().lock();
        return out
            .write_all(image)
            .and_then(|()| out.flush())
            .context("standard output");
    }
    output::write_whole(&arguments.output, image)?;
    let file = arguments.output.display().to_string();
    let bytes = image.len();
    write!(
        io::stderr(),
        "{file}: the {arch} guest, {bytes} bytes\n{}",
        how_to_boot(arch, &file)
    )
    .context("standard error")
}

/// Command lines that boot an image.
fn how_to_boot(arch: Arch, file: &str) -> String {
    match arch {
        Arch::X86_64 => {
            let machine = |accel: &str| {
                format!(
                    "qemu-system-x86_64 -nodefaults -display none -no-reboot -M q35 {accel} -smp 2 -m 256M \\\n    \
                     -kernel {file} -append 'rw=randread iodepth=32 numjobs=2 runtime=5' \\\n    \
                     -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=4"
                )
            };
            format!(
                "\nBoot it on an emulated NVMe:\n  {} \\\n    \
                 -blockdev driver=null-co,node-name=d0,size=8589934592,read-zeroes=on -device nvme,serial=d0,drive=d0\n\
                 \nOn a real one, passed through by VFIO (0000:01:00.0 is bound to vfio-pci):\n  {} \\\n    \
                 -device vfio-pci,host=0000:01:00.0\n\
                 \nWith `-serial file:serial.log` instead, `doorpost report serial.log` prints the report.\n",
                machine("-accel tcg,thread=multi -cpu max"),
                machine("-accel kvm -cpu host"),
            )
        }
    }
}
