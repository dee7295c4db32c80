//! Features: what can be set and asked (Base, 5.27.1).

use bitflags::bitflags;

/// A feature's identifier (Base, 5.27.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct FeatureId(pub u8);

impl FeatureId {
    /// Volatile Write Cache (Base, 5.27.1.4): bit 0 of CDW11 switches it on.
    pub const VOLATILE_WRITE_CACHE: Self = Self(0x06);
    /// Number of Queues (Base, 5.27.1.5).
    pub const NUMBER_OF_QUEUES: Self = Self(0x07);
    /// Interrupt Coalescing (Base, 5.27.1.6): [`InterruptCoalescing`].
    pub const INTERRUPT_COALESCING: Self = Self(0x08);
    /// Interrupt Vector Configuration (Base, 5.27.1.7): [`VectorConfiguration`].
    pub const INTERRUPT_VECTOR_CONFIGURATION: Self = Self(0x09);
    /// Asynchronous Event Configuration (Base, 5.27.1.8): [`AsyncEventConfiguration`].
    pub const ASYNC_EVENT_CONFIGURATION: Self = Self(0x0b);
    /// Autonomous Power State Transition (Base, 5.27.1.9): bit 0 of CDW11 switches it on; data of [`APST_BYTES`] bytes.
    pub const AUTONOMOUS_POWER_STATE_TRANSITION: Self = Self(0x0c);
}

/// How many I/O queues are asked for or granted (Base, 5.27.1.5): CDW11 of Set Features, dword 0 of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Submission queues, 1 to 65536.
    pub submission: u32,
    /// Completion queues, 1 to 65536.
    pub completion: u32,
}

impl QueueCounts {
    /// Reads the two zero-based halves.
    pub const fn from_dword(value: u32) -> Self {
        Self {
            submission: (value & 0xffff) + 1,
            completion: (value >> 16) + 1,
        }
    }

    /// The two zero-based halves.
    ///
    /// # Panics
    /// When a count is not 1 to 65536.
    pub const fn to_dword(self) -> u32 {
        assert!(self.submission >= 1 && self.submission <= 1 << 16);
        assert!(self.completion >= 1 && self.completion <= 1 << 16);
        (self.completion - 1) << 16 | (self.submission - 1)
    }
}

/// Size of the data of Autonomous Power State Transition in bytes: a 64-bit entry for each of 32 power states (Base, 5.27.1.9).
pub const APST_BYTES: usize = 256;

/// When an I/O completion queue's interrupt may be held back (Base, 5.27.1.6): until both limits are met, or one of them.
/// All zeroes is no coalescing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InterruptCoalescing {
    /// THR: completions that an interrupt may wait for, less one.
    pub threshold: u8,
    /// TIME: the longest that an interrupt may wait, in steps of 100 microseconds.
    pub time: u8,
}

impl InterruptCoalescing {
    /// Reads CDW11 of Set Features, or dword 0 of Get Features.
    pub const fn from_dword(value: u32) -> Self {
        Self {
            threshold: value as u8,
            time: (value >> 8) as u8,
        }
    }

    /// CDW11 of Set Features.
    pub const fn to_dword(self) -> u32 {
        (self.time as u32) << 8 | self.threshold as u32
    }
}

/// Whether one interrupt vector takes part in coalescing (Base, 5.27.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorConfiguration {
    /// IV: the vector.
    pub vector: u16,
    /// CD: its interrupts are not coalesced.
    pub coalescing_disabled: bool,
}

impl VectorConfiguration {
    /// Reads CDW11 of Set Features, or dword 0 of Get Features.
    pub const fn from_dword(value: u32) -> Self {
        Self {
            vector: value as u16,
            coalescing_disabled: value & 1 << 16 != 0,
        }
    }

    /// CDW11 of Set Features.
    pub const fn to_dword(self) -> u32 {
        (self.coalescing_disabled as u32) << 16 | self.vector as u32
    }
}

bitflags! {
    /// Which events may complete an Asynchronous Event Request (Base, 5.27.1.8). Errors come whatever is set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct AsyncEventConfiguration: u32 {
        /// SMART / health critical warning: spare below its threshold.
        const SPARE = 1 << 0;
        /// SMART / health critical warning: temperature.
        const TEMPERATURE = 1 << 1;
        /// SMART / health critical warning: reliability degraded.
        const RELIABILITY = 1 << 2;
        /// SMART / health critical warning: media read-only.
        const READ_ONLY = 1 << 3;
        /// SMART / health critical warning: volatile memory backup failed.
        const BACKUP = 1 << 4;
        /// Namespace attribute notices.
        const NAMESPACE_ATTRIBUTES = 1 << 8;
        /// Firmware activation notices.
        const FIRMWARE_ACTIVATION = 1 << 9;
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_zero_based() {
        let counts = QueueCounts {
            submission: 4,
            completion: 65535,
        };
        assert_eq!(counts.to_dword(), 0xfffe_0003);
        assert_eq!(QueueCounts::from_dword(0xfffe_0003), counts);
    }

    #[test]
    fn coalescing_sits_where_the_specification_puts_it() {
        let coalescing = InterruptCoalescing { threshold: 7, time: 10 };
        assert_eq!(coalescing.to_dword(), 0x0a07);
        assert_eq!(InterruptCoalescing::from_dword(0x0a07), coalescing);
        let vector = VectorConfiguration {
            vector: 3,
            coalescing_disabled: true,
        };
        assert_eq!(vector.to_dword(), 0x0001_0003);
        assert_eq!(VectorConfiguration::from_dword(0x0001_0003), vector);
    }
}
