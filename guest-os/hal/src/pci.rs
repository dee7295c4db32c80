//! PCI functions.
