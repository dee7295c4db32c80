//! The interleavings of a reset among the owners of a controller's queue pairs, tried by loom.
#![cfg(not(miri))]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use nvme::{Owner, Standstill, Word};

struct LoomWord(AtomicU64);

impl Word for LoomWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        self.0
            .compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn add(&self, difference: u64) {
        self.0.fetch_add(difference, Ordering::AcqRel);
    }
}

/// Looks for the others' part before a CPU gives up.
const LOOKS: usize = 2;

/// A controller, with one queue pair per owner: loom finds each access to one that another thread has at that time.
struct Shared {
    standstill: Standstill<LoomWord>,
    pairs: [UnsafeCell<u32>; 3],
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            standstill: Standstill::on(LoomWord(AtomicU64::new(0))),
            pairs: [(); 3].map(|()| UnsafeCell::new(0)),
        })
    }

    /// Uses the owner's own queue pair.
    fn touch(&self, own: usize) {
        self.pairs[own].with_mut(|_| ());
    }

    /// Looks a few times, and gives up then, as the guest does when its patience ends.
    fn wait(&self, done: impl Fn(&Standstill<LoomWord>) -> bool) -> bool {
        for _ in 0..LOOKS {
            if done(&self.standstill) {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// Conducts a reset, which takes all queue pairs away. False when another owner was first, or others did not do their
    /// part.
    fn reset(&self, owner: &Owner, own: usize) -> bool {
        if !self.standstill.conduct(owner) || !self.wait(Standstill::all_stopped) {
            return false;
        }
        for pair in &self.pairs {
            pair.with_mut(|_| ());
        }
        self.standstill.resume();
        self.touch(own);
        if !self.wait(Standstill::all_resumed) {
            return false;
        }
        self.standstill.end();
        true
    }

    /// Takes part in a reset, if there is one, and touches the own queue pair when that is allowed again.
    fn take_part(&self, mut owner: Owner, own: usize) {
        if self.standstill.join(&mut owner) && self.wait(Standstill::may_resume) {
            self.touch(own);
            self.standstill.resumed(&mut owner);
        }
        if !owner.is_stopped() {
            self.touch(own);
        }
        self.standstill.leave(owner);
    }
}

/// Two switches away from a thread that could go on find what there is to find here; three take minutes.
fn explore(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(check);
}

#[test]
fn queue_pairs_are_taken_away_only_while_their_owners_stand_still() {
    explore(|| {
        let shared = Shared::new();
        let owners = [(); 2].map(|()| shared.standstill.enter());
        let conductor = shared.standstill.enter();
        let mut own = 0..;
        let threads = owners.map(|owner| {
            let (shared, own) = (shared.clone(), own.next().unwrap());
            thread::spawn(move || {
                shared.touch(own);
                shared.take_part(owner, own);
            })
        });
        shared.reset(&conductor, 2);
        shared.standstill.leave(conductor);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn of_two_owners_that_both_want_a_reset_one_conducts_at_a_time() {
    explore(|| {
        let shared = Shared::new();
        let owners = [(); 2].map(|()| shared.standstill.enter());
        let mut own = 0..;
        let threads = owners.map(|owner| {
            let (shared, own) = (shared.clone(), own.next().unwrap());
            thread::spawn(move || {
                if shared.reset(&owner, own) {
                    shared.touch(own);
                    shared.standstill.leave(owner);
                } else {
                    shared.take_part(owner, own);
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn nobody_waits_for_ever() {
    explore(|| {
        let shared = Shared::new();
        let (conductor, mut owner) = (shared.standstill.enter(), shared.standstill.enter());
        let joins = {
            let shared = shared.clone();
            thread::spawn(move || {
                while !shared.standstill.join(&mut owner) {
                    thread::yield_now();
                }
                while !shared.standstill.may_resume() {
                    thread::yield_now();
                }
                shared.touch(0);
                shared.standstill.resumed(&mut owner);
                shared.standstill.leave(owner);
            })
        };
        assert!(shared.standstill.conduct(&conductor));
        while !shared.standstill.all_stopped() {
            thread::yield_now();
        }
        shared.touch(0);
        shared.standstill.resume();
        while !shared.standstill.all_resumed() {
            thread::yield_now();
        }
        shared.standstill.end();
        joins.join().unwrap();
        assert!(shared.standstill.conduct(&conductor), "the next one can begin");
        shared.standstill.leave(conductor);
    });
}
