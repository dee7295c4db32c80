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

/// Command lines that boot an image, and what to do then.
fn how_to_boot(arch: Arch, file: &str) -> String {
    let [emulated, passed_through] = command_lines(arch, file).map(|line| indented(&line, "  "));
    format!(
        "\nBoot it on an emulated NVMe:\n{emulated}\n\
         \nOn a real one, bound to vfio-pci (here 0000:01:00.0):\n{passed_through}\n\
         \n`doorpost report serial.log` then prints the report.\n"
    )
}

/// A command line for an emulated drive, and one for a drive that is passed through.
fn command_lines(arch: Arch, file: &str) -> [String; 2] {
    let file = quoted(file);
    match arch {
        Arch::X86_64 => [
            (
                "-accel tcg,thread=multi -cpu max",
                "-blockdev driver=null-co,node-name=d0,size=8589934592,read-zeroes=on -device nvme,serial=d0,drive=d0",
            ),
            ("-accel kvm -cpu host", "-device vfio-pci,host=0000:01:00.0"),
        ]
        .map(|(accel, drive)| {
            format!(
                "qemu-system-x86_64 -nodefaults -display none -no-reboot -M q35 {accel} -smp 2 -m 256M \\\n  \
                 -kernel {file} -append 'rw=randread bs=4k iodepth=32 numjobs=2 runtime=5' \\\n  \
                 -serial file:serial.log -device isa-debug-exit,iobase=0xf4,iosize=4 \\\n  \
                 {drive}"
            )
        }),
    }
}

fn indented(text: &str, by: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("{by}{line}")).collect();
    lines.join("\n")
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,=:@%".contains(c);
    if word.chars().all(is_plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_the_lines_that_are_printed() {
        let readme = include_str!("../../../README.md");
        for line in command_lines(Arch::X86_64, "guest.elf") {
            assert!(readme.contains(&indented(&line, "    ")), "README.md lacks\n{line}");
            assert!(how_to_boot(Arch::X86_64, "guest.elf").contains(&indented(&line, "  ")));
        }
    }

    #[test]
    fn names_are_quoted_for_the_shell() {
        assert_eq!(quoted("/tmp/guest-1.elf"), "/tmp/guest-1.elf");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
