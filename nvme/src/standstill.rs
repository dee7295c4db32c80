//! How the CPUs that own queue pairs of one controller come to a stop for a reset, and go on together.
//!
//! A reset takes all queue pairs away at once, and a [`QueuePair`](crate::QueuePair) belongs to one CPU. So each such CPU, an
//! *owner*, looks at the controller's [`Standstill`] now and then. One of them conducts a reset:
//!
//! | conductor | each other owner |
//! |---|---|
//! | [`conduct`](Standstill::conduct) | [`join`](Standstill::join): it touches no queue pair from here on |
//! | waits for [`all_stopped`](Standstill::all_stopped) | waits for [`may_resume`](Standstill::may_resume) |
//! | resets the controller, [`resume`](Standstill::resume) | |
//! | makes its own queue pairs anew | makes its queue pairs anew, [`resumed`](Standstill::resumed) |
//! | waits for [`all_resumed`](Standstill::all_resumed), [`end`](Standstill::end) | goes on |
//!
//! An owner may [`leave`](Standstill::leave) at any time, in the middle of a reset too. Waiting is the caller's, who knows
//! for how long; nothing here blocks.

use core::sync::atomic::{AtomicU64, Ordering};

/// The shared word of a [`Standstill`]: an atomic of 64 bits. A test that tries all interleavings brings its own.
pub trait Word {
    /// The value, with acquire ordering.
    fn load(&self) -> u64;
    /// Replaces `current` by `new`, with acquire and release ordering; false when the value is another one.
    fn replace(&self, current: u64, new: u64) -> bool;
    /// Adds, wrapping, with acquire and release ordering.
    fn add(&self, difference: u64);
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn add(&self, difference: u64) {
        self.fetch_add(difference, Ordering::AcqRel);
    }
}

/// Where a reset is: the upper bits of the word.
const STOPPING: u64 = 1 << 62;
const RESUMING: u64 = 1 << 63;
const PHASE: u64 = STOPPING | RESUMING;
/// One owner that stands still, and one owner: counts of 31 bits below the phase.
const STOPPED: u64 = 1 << 31;
const OWNER: u64 = 1;
const COUNT: u64 = STOPPED - 1;

/// What the owners of one controller's queue pairs share. All of it is one word, so that each look at it is of one moment.
#[derive(Debug, Default)]
pub struct Standstill<W = AtomicU64> {
    word: W,
}

/// A CPU that owns queue pairs of the controller.
#[derive(Debug)]
#[must_use = "a reset waits for each owner until it leaves"]
pub struct Owner {
    stopped: bool,
}

impl Owner {
    /// It has joined a standstill and not resumed: it must not touch its queue pairs.
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }
}

impl Standstill {
    /// Without owners.
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }
}

impl<W: Word> Standstill<W> {
    /// Without owners, on a word that is 0.
    pub const fn on(word: W) -> Self {
        Self { word }
    }

    /// One more owner. Before the run: nobody may enter during a standstill.
    pub fn enter(&self) -> Owner {
        self.word.add(OWNER);
        Owner { stopped: false }
    }

    /// The owner touches its queue pairs no more, and nobody waits for it from here on.
    pub fn leave(&self, owner: Owner) {
        // Both counts at once: a conductor that saw only one of them change could take a running owner for a stopped one.
        let both = OWNER + if owner.stopped { STOPPED } else { 0 };
        self.word.add(both.wrapping_neg());
    }

    /// Begins a standstill. False when another owner was first: then it is time to [`join`](Self::join).
    pub fn conduct(&self, owner: &Owner) -> bool {
        loop {
            let word = self.word.load();
            if owner.stopped || word & PHASE != 0 {
                return false;
            }
            if self.word.replace(word, word | STOPPING) {
                return true;
            }
        }
    }

    /// Joins a standstill if there is one that this owner has not joined. True when it did: it must not touch its queue pairs
    /// until [`may_resume`](Self::may_resume).
    pub fn join(&self, owner: &mut Owner) -> bool {
        // The conductor waits for this owner, so the phase is the same below.
        if owner.stopped || self.word.load() & PHASE != STOPPING {
            return false;
        }
        owner.stopped = true;
        self.word.add(STOPPED);
        true
    }

    /// All owners but the conductor stand still, or have left.
    pub fn all_stopped(&self) -> bool {
        let word = self.word.load();
        word >> 31 & COUNT >= (word & COUNT).saturating_sub(1)
    }

    /// The conductor has reset the controller: owners are to make their queue pairs anew.
    pub fn resume(&self) {
        self.word.add(RESUMING - STOPPING);
    }

    /// An owner that stands still may make its queue pairs anew.
    pub fn may_resume(&self) -> bool {
        self.word.load() & PHASE != STOPPING
    }

    /// The owner has made its queue pairs anew.
    pub fn resumed(&self, owner: &mut Owner) {
        if core::mem::take(&mut owner.stopped) {
            self.word.add(STOPPED.wrapping_neg());
        }
    }

    /// All owners have made their queue pairs anew, or have left.
    pub fn all_resumed(&self) -> bool {
        self.word.load() >> 31 & COUNT == 0
    }

    /// The conductor's last word: another standstill may begin.
    pub fn end(&self) {
        self.word.add(RESUMING.wrapping_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_alone_waits_for_nobody() {
        let standstill = Standstill::new();
        let owner = standstill.enter();
        assert!(standstill.conduct(&owner));
        assert!(standstill.all_stopped());
        standstill.resume();
        assert!(standstill.all_resumed());
        standstill.end();
        assert!(standstill.conduct(&owner));
    }

    #[test]
    fn an_owner_that_leaves_while_it_stands_still_does_not_stand_in_for_another() {
        let standstill = Standstill::new();
        let (conductor, mut quitter, mut other) = (standstill.enter(), standstill.enter(), standstill.enter());
        assert!(standstill.conduct(&conductor));
        assert!(standstill.join(&mut quitter));
        standstill.leave(quitter);
        assert!(!standstill.all_stopped());
        assert!(standstill.join(&mut other));
        assert!(!standstill.join(&mut other));
        assert!(standstill.all_stopped());
        standstill.resume();
        assert!(!standstill.all_resumed());
        standstill.resumed(&mut other);
        assert!(standstill.all_resumed());
    }
}
