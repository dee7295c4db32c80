//! A no_std NVMe driver without unsafe code.
