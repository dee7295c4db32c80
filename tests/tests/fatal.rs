//! The guest never hangs silently: whatever goes wrong ends the run with a status and a reason.

use doorpost_tests::{qemu, run};

/// A run whose guest is told to fail by a self-test in its boot arguments: QEMU takes the last ones.
fn failing(test: &str) -> String {
    let append = qemu(&format!("-append test={test}"));
    let outcome = run(&format!("--drive null --timeout 30 {append}")).expect_status(1);
    assert_eq!(outcome.stdout, "");
    outcome.stderr
}

#[test]
fn a_panic_is_told() {
    let text = failing("panic");
    assert!(text.contains("PANIC") && text.contains("asked for"), "{text}");
}

#[test]
fn a_fault_prints_registers() {
    let text = failing("fault").to_lowercase();
    for part in ["fault", "rip", "cr2", "rsp", "rax"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_stack_overflow_is_a_fault() {
    let text = failing("stack");
    assert!(text.contains("FAULT"), "{text}");
}

#[test]
fn x2apic_is_required_in_one_line() {
    let outcome = run(&format!("--drive null {}", qemu("-cpu max,-x2apic"))).expect_status(1);
    outcome.expect_complaint(&["x2APIC", "-cpu max"]);
}

#[test]
fn a_machine_without_drives_is_told() {
    // The old PC has no PCI Express, where the guest looks.
    run(&format!("--drive null {}", qemu("-M pc"))).expect_refusal(&["PCI", "MCFG", "q35"]);
}

#[test]
fn a_guest_that_says_nothing_is_ended() {
    // Stopped before its first instruction.
    let outcome = run(&format!("--drive null --timeout 2 {}", qemu("-S"))).expect_status(1);
    outcome.expect_complaint(&["2 s", "--timeout"]);
}
