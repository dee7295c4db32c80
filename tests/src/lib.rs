//! End-to-end tests: spawn doorpost, boot the guest, read its report.
