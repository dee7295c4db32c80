//! Completion queue entries (Base, 3.3.3.2).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Status;

/// A completion queue entry, 16 bytes (Base, 3.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionEntry {
    /// Dword 0: the command's own result.
    pub result: U32,
    /// Dword 1, of some I/O command sets.
    pub dword1: U32,
    /// SQHD: where the head of the submission queue stands.
    pub sq_head: U16,
    /// SQID: the submission queue of the command.
    pub sq_id: U16,
    /// CID: the command's identifier.
    pub command_id: U16,
    /// Bit 0 is the phase tag, the rest the status field.
    pub status_and_phase: U16,
}

impl CompletionEntry {
    /// The bit of the entry's second 64-bit word that is the phase tag (Base, 3.3.3.2.2).
    pub const PHASE_BIT: u64 = 1 << 48;

    /// The entry made of its two 64-bit words, as read from memory in the CPU's byte order.
    #[inline(always)]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self {
            result: U32::new(words[0] as u32),
            dword1: U32::new((words[0] >> 32) as u32),
            sq_head: U16::new(words[1] as u16),
            sq_id: U16::new((words[1] >> 16) as u16),
            command_id: U16::new((words[1] >> 32) as u16),
            status_and_phase: U16::new((words[1] >> 48) as u16),
        }
    }

    /// The status field, without the phase tag.
    #[inline(always)]
    pub const fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }

    /// The phase tag.
    pub const fn phase(&self) -> bool {
        self.status_and_phase.get() & 1 != 0
    }

    /// This entry with that status and phase tag.
    pub const fn with_status(mut self, status: Status, phase: bool) -> Self {
        self.status_and_phase = U16::new(status.bits() << 1 | phase as u16);
        self
    }
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_are_the_same_entry() {
        let bytes: [u8; 16] = core::array::from_fn(|i| i as u8 + 1);
        let from_bytes = CompletionEntry::read_from_bytes(&bytes).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(CompletionEntry::from_words([word(0), word(8)]), from_bytes);
        assert_eq!(from_bytes.sq_head.get(), 0x0a09);
        assert_eq!(from_bytes.command_id.get(), 0x0e0d);
        assert!(from_bytes.phase());
        assert_eq!(from_bytes.phase(), word(8) & CompletionEntry::PHASE_BIT != 0);
    }
}
