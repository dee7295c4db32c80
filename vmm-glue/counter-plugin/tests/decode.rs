//! The plugin's modules that need no QEMU.

#[path = "../src/decode.rs"]
mod decode;
#[path = "../src/options.rs"]
mod options;

use decode::{Kind, MARK, kind};
use options::{Options, parse};

#[test]
fn the_mark_is_the_whole_seven_bytes() {
    assert_eq!(kind(&[0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x52, 0x4b]), Kind::Mark);
    assert_eq!(kind(&MARK[..6]), Kind::Other);
    // An ordinary long no-op of a compiler.
    assert_eq!(kind(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0]), Kind::Other);
    assert_eq!(kind(&[0x66, 0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x52, 0x4b]), Kind::Other);
}

#[test]
fn exits_are_told_apart() {
    assert_eq!(kind(&[0x0f, 0x30]), Kind::Wrmsr);
    assert_eq!(kind(&[0x0f, 0x32]), Kind::Rdmsr);
    assert_eq!(kind(&[0x0f, 0xa2]), Kind::Cpuid);
    assert_eq!(kind(&[0xf4]), Kind::Hlt);
    assert_eq!(kind(&[0xf3, 0x90]), Kind::Pause);
}

#[test]
fn every_form_of_port_io() {
    for opcode in (0xe4..=0xe7).chain(0xec..=0xef).chain(0x6c..=0x6f) {
        assert_eq!(kind(&[opcode, 0xf4]), Kind::PortIo, "{opcode:#x}");
    }
    assert_eq!(kind(&[0x66, 0xef]), Kind::PortIo, "out dx, ax");
    assert_eq!(kind(&[0xf3, 0x6e]), Kind::PortIo, "rep outsb");
    assert_eq!(kind(&[0xf3, 0x48, 0x6f]), Kind::PortIo, "rep outsd with REX");
}

#[test]
fn prefixes_and_operands_do_not_mislead() {
    assert_eq!(kind(&[0x90]), Kind::Other, "nop");
    assert_eq!(kind(&[0xf3, 0x41, 0x90]), Kind::Other, "xchg r8, rax");
    assert_eq!(kind(&[0xf3, 0x48, 0x90]), Kind::Pause);
    assert_eq!(kind(&[0xb0, 0xf4]), Kind::Other, "mov al, 0xf4");
    assert_eq!(kind(&[0x40]), Kind::Other, "inc eax outside 64-bit mode");
    assert_eq!(kind(&[0x66]), Kind::Other);
    assert_eq!(kind(&[]), Kind::Other);
    assert_eq!(kind(&[0x48, 0x8b, 0x05, 0xf4, 0x0f, 0x30, 0x00]), Kind::Other, "a load");
}

#[test]
fn arguments() {
    let plain = Options {
        out: "/tmp/x".into(),
        mmio: false,
    };
    assert_eq!(parse(["out=/tmp/x"]), Ok(plain.clone()));
    assert_eq!(parse(["mmio=on", "out=/tmp/x", "mmio=off"]), Ok(plain));
    assert_eq!(
        parse(["mmio=1", "out=a=b"]),
        Ok(Options {
            out: "a=b".into(),
            mmio: true
        })
    );
    assert!(parse([]).unwrap_err().contains("out=FILE"));
    assert!(parse(["out="]).unwrap_err().contains("out="));
    assert!(parse(["out=x", "mmio=2"]).unwrap_err().contains("mmio=2"));
    assert!(parse(["out=x", "inline=on"]).unwrap_err().contains("inline=on"));
}
