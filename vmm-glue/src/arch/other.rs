//! Hosts on which KVM is not tried.

use crate::accel::{KvmError, Speed};

/// Says that KVM is not used here.
pub(crate) fn kvm_speed() -> Result<Speed, KvmError> {
    Err(KvmError::Foreign)
}
