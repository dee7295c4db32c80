//! Shadow doorbells: doorbell values in memory, so that a device in software is only told when it asks to be (Base, 5.8 and
//! annex B.5).

use alloc::sync::Arc;

use hal::barrier::{dma_mb, dma_wmb};
use hal::dma::{Dma, DmaError, DmaWord, IoAddr, SharedDma};

use crate::spec::{DOORBELLS, completion_head_doorbell, submission_tail_doorbell};

/// The two pages that Doorbell Buffer Config hands to the controller. Both are laid out as the doorbell registers are.
pub(crate) struct ShadowPages {
    /// Where the driver leaves doorbell values.
    values: SharedDma,
    /// Where the controller says up to which value it does not want to be told.
    events: SharedDma,
    page_size: usize,
}

impl ShadowPages {
    pub fn new(dma: &Dma, page_size: usize) -> Result<Arc<Self>, DmaError> {
        Ok(Arc::new(Self {
            values: SharedDma::new(dma.allocate(page_size, page_size)?),
            events: SharedDma::new(dma.allocate(page_size, page_size)?),
            page_size,
        }))
    }

    /// Addresses of the values and of the events.
    pub fn addresses(&self) -> (IoAddr, IoAddr) {
        (self.values.address(), self.events.address())
    }

    /// Zeroes both pages: values of an earlier life would be taken for new commands.
    pub fn clear(&self) {
        self.values.clear();
        self.events.clear();
        dma_wmb();
    }

    /// The doorbells of queue pair `qid`; `None` when they lie beyond the page. Only I/O queues have any.
    pub fn doorbells(&self, qid: u16, stride: usize) -> Option<ShadowDoorbells> {
        let submission = submission_tail_doorbell(qid, stride) - DOORBELLS;
        let completion = completion_head_doorbell(qid, stride) - DOORBELLS;
        (qid != 0 && completion + 4 <= self.page_size).then(|| ShadowDoorbells {
            sq: self.doorbell(submission),
            cq: self.doorbell(completion),
        })
    }

    fn doorbell(&self, offset: usize) -> ShadowDoorbell {
        ShadowDoorbell {
            value: self.values.word(offset),
            event: self.events.word(offset),
        }
    }
}

/// The shadow doorbells of a queue pair.
pub(crate) struct ShadowDoorbells {
    pub sq: ShadowDoorbell,
    pub cq: ShadowDoorbell,
}

impl ShadowDoorbells {
    /// The queues begin anew, at index 0; whatever an earlier queue of this id left behind is gone.
    pub fn clear(&self) {
        for doorbell in [&self.sq, &self.cq] {
            doorbell.value.store(0);
            doorbell.event.store(0);
        }
        dma_wmb();
    }
}

/// A doorbell in memory.
pub(crate) struct ShadowDoorbell {
    value: DmaWord,
    event: DmaWord,
}

impl ShadowDoorbell {
    /// Moves the doorbell on from `old` to `new`. Returns whether the register has to be written as well: when the value
    /// moves past the controller's event index.
    #[inline(always)]
    pub fn ring(&self, old: u32, new: u32) -> bool {
        // Entries first, then the value that covers them.
        dma_wmb();
        self.value.store(new);
        // The controller sets its event index, and then looks at the value once more. Were our look at the index to overtake
        // our value, both could miss the other, and wait for ever.
        dma_mb();
        passes(self.event.load(), old, new)
    }
}

/// Whether a doorbell that moves from `old` to `new` moves past `event`: whether `event` lies in `old..new`, around the end
/// of the queue. In 16 bits, as indices have; values beyond the queue lie outside of every such range but one that wraps.
#[inline(always)]
const fn passes(event: u32, old: u32, new: u32) -> bool {
    let (event, old, new) = (event as u16, old as u16, new as u16);
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use hal::fake::FakeDma;

    use super::*;

    #[test]
    fn the_register_is_written_exactly_when_the_event_index_is_passed() {
        for entries in [2u32, 3, 8, 13] {
            for old in 0..entries {
                for count in 1..entries {
                    let new = (old + count) % entries;
                    for event in 0..entries {
                        let passed = (0..count).any(|i| (old + i) % entries == event);
                        assert_eq!(passes(event, old, new), passed, "{event} in {old}..{new} of {entries}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_page_is_laid_out_as_the_registers_are() {
        let bus = FakeDma::new(1 << 20);
        let pages = ShadowPages::new(&bus.dma(), 4096).unwrap();
        let (values, events) = pages.addresses();
        bus.write(events.offset(3 * 32 + 16), &5u32.to_le_bytes()).unwrap();
        let doorbells = pages.doorbells(3, 16).unwrap();
        assert!(!doorbells.cq.ring(0, 4));
        assert!(doorbells.cq.ring(4, 6));
        assert!(doorbells.sq.ring(0, 1));
        let mut seen = [0; 4];
        bus.read(values.offset(3 * 32 + 16), &mut seen).unwrap();
        assert_eq!(seen, [6, 0, 0, 0]);
        doorbells.clear();
        for address in [values.offset(3 * 32 + 16), events.offset(3 * 32 + 16)] {
            bus.read(address, &mut seen).unwrap();
            assert_eq!(seen, [0; 4]);
        }
    }

    #[test]
    fn admin_doorbells_and_those_beyond_the_page_have_no_shadow() {
        let pages = ShadowPages::new(&FakeDma::new(1 << 20).dma(), 4096).unwrap();
        assert!(pages.doorbells(0, 4).is_none());
        assert!(pages.doorbells(511, 4).is_some());
        assert!(pages.doorbells(512, 4).is_none());
        assert!(pages.doorbells(u16::MAX, 4 << 15).is_none());
    }
}
