//! An NVMe controller in software, with a fault injector.
