//! Interrupt controllers (x2APIC, GICv3 and ITS, XICS) and vector fan-out.
