//! QEMU TCG plugin that counts guest instructions, MMIO and would-be exits between the guest's marks.
