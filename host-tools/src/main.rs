//! Measures the interrupt path of passed-through NVMe, from the device's message to the vCPU.

fn main() {}
