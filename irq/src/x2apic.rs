//! The local APIC of x86 in x2APIC mode, and the messages that reach it.
//!
//! Its registers are model-specific registers (Intel SDM vol. 3A, 12.12; AMD APM vol. 2, 16.9-16.16), so that a driver needs no
//! mapped page. Message formats are those of SDM vol. 3A, 12.11, and the 15-bit extension that KVM offers to guests.

use bitflags::bitflags;
use hal::pci::MsiMessage;

/// Model-specific registers of the CPU that runs this code.
pub trait MsrBus {
    /// Reads a register.
    fn read(&self, msr: u32) -> u64;
    /// Writes a register.
    fn write(&self, msr: u32, value: u64);
}

/// `IA32_APIC_BASE` (SDM vol. 4, table 2-2).
pub const APIC_BASE: u32 = 0x1b;

/// Registers, by MSR number (SDM vol. 3A, table 12-6).
pub mod register {
    /// This CPU's x2APIC id.
    pub const ID: u32 = 0x802;
    /// Task priority.
    pub const TPR: u32 = 0x808;
    /// End of interrupt; only 0 may be written.
    pub const EOI: u32 = 0x80b;
    /// Spurious-interrupt vector, and the software enable.
    pub const SVR: u32 = 0x80f;
    /// First of eight words of in-service bits.
    pub const ISR: u32 = 0x810;
    /// First of eight words of pending (interrupt request) bits.
    pub const IRR: u32 = 0x820;
    /// Interrupt command: sends an interrupt to another CPU.
    pub const ICR: u32 = 0x830;
    /// Local vector table: timer.
    pub const LVT_TIMER: u32 = 0x832;
    /// Local vector table: pin LINT0.
    pub const LVT_LINT0: u32 = 0x835;
    /// Local vector table: pin LINT1.
    pub const LVT_LINT1: u32 = 0x836;
    /// Local vector table: errors of the APIC itself.
    pub const LVT_ERROR: u32 = 0x837;
    /// What the timer starts from; writing it starts the timer, 0 stops it.
    pub const TIMER_INITIAL: u32 = 0x838;
    /// What the timer has left.
    pub const TIMER_CURRENT: u32 = 0x839;
    /// The timer's divider.
    pub const TIMER_DIVIDE: u32 = 0x83e;
    /// Sends an interrupt to this CPU.
    pub const SELF_IPI: u32 = 0x83f;
}

bitflags! {
    /// Bits of [`APIC_BASE`] (SDM vol. 3A, 12.4.4 and 12.12.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ApicBase: u64 {
        /// This is the CPU that booted.
        const BSP = 1 << 8;
        /// x2APIC mode.
        const X2APIC = 1 << 10;
        /// The local APIC is on.
        const ENABLE = 1 << 11;
        /// The rest of the register, kept as found.
        const _ = !0;
    }

    /// An entry of the local vector table (SDM vol. 3A, figure 12-8); the vector is in bits 7:0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lvt: u64 {
        /// No interrupt is raised.
        const MASKED = 1 << 16;
        /// The timer starts again by itself.
        const PERIODIC = 1 << 17;
        /// The vector.
        const _ = 0xff;
    }
}

/// Bit 8 of [`register::SVR`]: the APIC delivers interrupts.
const SVR_ENABLE: u64 = 1 << 8;

/// How an interrupt command is delivered (SDM vol. 3A, 12.6.1, bits 10:8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Fixed = 0,
    Init = 5,
    StartUp = 6,
}

/// Bit 14 of the interrupt command: assert. Only an INIT level de-assert, which no current CPU knows, clears it.
const ICR_ASSERT: u64 = 1 << 14;

const fn command(destination: u32, delivery: Delivery, vector: u8) -> u64 {
    (destination as u64) << 32 | ICR_ASSERT | (delivery as u64) << 8 | vector as u64
}

/// What the timer's input clock is divided by (SDM vol. 3A, figure 12-10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divide {
    /// Not divided.
    By1 = 0b1011,
    /// By 16.
    By16 = 0b0011,
    /// By 128.
    By128 = 0b1010,
}

/// The page that a start-up interrupt begins at: a 4 KiB page below 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartUpPage(u8);

impl StartUpPage {
    /// The page at `address`, if a CPU can start there.
    pub const fn at(address: u64) -> Option<Self> {
        if address < 1 << 20 && address.is_multiple_of(4096) {
            Some(Self((address >> 12) as u8))
        } else {
            None
        }
    }
}

/// Some of the 256 vectors: those whose pending bits a CPU looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorSet {
    masks: [u32; 8],
    /// A bit for each word that holds any of them.
    words: u8,
}

impl VectorSet {
    /// Adds a vector.
    pub fn insert(&mut self, vector: u8) {
        let word = vector / 32;
        self.masks[usize::from(word)] |= 1 << (vector % 32);
        self.words |= 1 << word;
    }
}

/// The local APIC of the CPU that runs this code.
#[derive(Clone, Copy, Debug)]
pub struct X2Apic<B> {
    bus: B,
}

impl<B: MsrBus> X2Apic<B> {
    /// The local APIC behind these registers.
    pub const fn new(bus: B) -> Self {
        Self { bus }
    }

    /// Switches to x2APIC mode and lets interrupts in, with every source of the local vector table masked.
    ///
    /// From xAPIC mode the switch is direct; from the disabled state it goes through xAPIC mode, as the other way faults
    /// (SDM vol. 3A, 12.12.5).
    pub fn enable(&self, spurious: u8) {
        let base = ApicBase::from_bits_retain(self.bus.read(APIC_BASE));
        if !base.contains(ApicBase::ENABLE) {
            self.bus.write(APIC_BASE, (base | ApicBase::ENABLE).bits());
        }
        if !base.contains(ApicBase::ENABLE | ApicBase::X2APIC) {
            self.bus
                .write(APIC_BASE, (base | ApicBase::ENABLE | ApicBase::X2APIC).bits());
        }
        self.bus.write(register::SVR, SVR_ENABLE | u64::from(spurious));
        // A vector of 0 would be an error even in a masked entry; firmware may have left LINT0 as ExtINT.
        let masked = (Lvt::MASKED | Lvt::from_bits_retain(u64::from(spurious))).bits();
        for lvt in [
            register::LVT_TIMER,
            register::LVT_LINT0,
            register::LVT_LINT1,
            register::LVT_ERROR,
        ] {
            self.bus.write(lvt, masked);
        }
        self.bus.write(register::TIMER_INITIAL, 0);
        self.set_task_priority(0);
    }

    /// This CPU's id, all 32 bits.
    pub fn id(&self) -> u32 {
        self.bus.read(register::ID) as u32
    }

    /// Ends the interrupt of highest priority that is in service.
    #[inline(always)]
    pub fn end_of_interrupt(&self) {
        self.bus.write(register::EOI, 0);
    }

    /// Holds back interrupts whose vector is below `(class + 1) * 16`; class 0 holds back none that may be used.
    ///
    /// # Panics
    /// When the class is above 15.
    pub fn set_task_priority(&self, class: u8) {
        assert!(class < 16, "priority class {class}");
        self.bus.write(register::TPR, u64::from(class) << 4);
    }

    /// Resets a CPU, which then waits for [`start`](Self::start).
    pub fn init(&self, destination: u32) {
        self.bus.write(register::ICR, command(destination, Delivery::Init, 0));
    }

    /// Starts a CPU that waits, in real mode at the beginning of `page`.
    pub fn start(&self, destination: u32, page: StartUpPage) {
        self.bus
            .write(register::ICR, command(destination, Delivery::StartUp, page.0));
    }

    /// Raises `vector` on another CPU.
    pub fn send(&self, destination: u32, vector: u8) {
        self.bus
            .write(register::ICR, command(destination, Delivery::Fixed, vector));
    }

    /// Raises `vector` on this CPU.
    pub fn send_to_self(&self, vector: u8) {
        self.bus.write(register::SELF_IPI, u64::from(vector));
    }

    /// Starts the timer: it raises `vector` once, after `count` divided ticks of its input clock; 0 does not start it.
    pub fn start_one_shot(&self, vector: u8, divide: Divide, count: u32) {
        self.start_timer(Lvt::from_bits_retain(u64::from(vector)), divide, count);
    }

    /// Starts the timer: it raises `vector` again and again, each `count` divided ticks; 0 does not start it.
    pub fn start_periodic(&self, vector: u8, divide: Divide, count: u32) {
        self.start_timer(Lvt::PERIODIC | Lvt::from_bits_retain(u64::from(vector)), divide, count);
    }

    /// Starts the timer without an interrupt, to measure its clock.
    pub fn start_silent(&self, divide: Divide, count: u32) {
        self.start_timer(Lvt::MASKED | Lvt::from_bits_retain(0xff), divide, count);
    }

    fn start_timer(&self, lvt: Lvt, divide: Divide, count: u32) {
        self.bus.write(register::TIMER_DIVIDE, divide as u64);
        self.bus.write(register::LVT_TIMER, lvt.bits());
        self.bus.write(register::TIMER_INITIAL, u64::from(count));
    }

    /// Divided ticks that the timer has left.
    pub fn timer_left(&self) -> u32 {
        self.bus.read(register::TIMER_CURRENT) as u32
    }

    /// Stops the timer.
    pub fn stop_timer(&self) {
        self.bus
            .write(register::LVT_TIMER, (Lvt::MASKED | Lvt::from_bits_retain(0xff)).bits());
        self.bus.write(register::TIMER_INITIAL, 0);
    }

    /// 32 pending bits: bit b of word w is vector 32 * w + b.
    ///
    /// # Panics
    /// When `word` is above 7.
    #[inline(always)]
    pub fn pending(&self, word: u32) -> u32 {
        assert!(word < 8, "word {word} of 256 vectors");
        self.bus.read(register::IRR + word) as u32
    }

    /// How many vectors of a set are pending. Reads only the words that hold any of them, so that the cost does not depend on
    /// how many there are in a word.
    #[inline(always)]
    pub fn count_pending(&self, set: &VectorSet) -> u32 {
        let mut count = 0;
        let mut words = set.words;
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            let bits = self.pending(word) & set.masks[word as usize & 7];
            if bits != 0 {
                count += bits.count_ones();
            }
        }
        count
    }

    /// 32 in-service bits, as in [`pending`](Self::pending).
    ///
    /// # Panics
    /// When `word` is above 7.
    #[inline(always)]
    pub fn in_service(&self, word: u32) -> u32 {
        assert!(word < 8, "word {word} of 256 vectors");
        self.bus.read(register::ISR + word) as u32
    }
}

/// How many bits of an APIC id fit into a message (without an interrupt-remapping unit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationWidth {
    /// 8 bits, in address bits 19:12 (SDM vol. 3A, 12.11.1). Id 255 means every CPU, so 254 is the last.
    Bits8,
    /// 15 bits: bits 14:8 of the id in address bits 11:5. A hypervisor offers it
    /// (KVM: `KVM_FEATURE_MSI_EXT_DEST_ID`, CPUID 0x40000001 EAX bit 15).
    Bits15,
}

/// Address bits 31:20 of every interrupt message.
const MESSAGE_BASE: u64 = 0xfee0_0000;

/// The message that raises `vector` (edge-triggered, fixed delivery) on the CPU with this id; `None` if the id does not fit.
pub const fn encode_message(destination: u32, vector: u8, width: DestinationWidth) -> Option<MsiMessage> {
    let last = match width {
        DestinationWidth::Bits8 => 0xfe,
        DestinationWidth::Bits15 => 0x7fff,
    };
    if destination > last {
        return None;
    }
    let (low, high) = ((destination & 0xff) as u64, (destination >> 8) as u64);
    Some(MsiMessage {
        address: MESSAGE_BASE | low << 12 | high << 5,
        data: vector as u32,
    })
}

/// Destination id and vector of a message; `None` if it is no interrupt message, or not a fixed, edge-triggered one to one CPU's
/// physical id.
pub const fn decode_message(message: MsiMessage) -> Option<(u32, u8)> {
    // Redirection hint and destination mode (bits 3:2) are clear, as are bit 4 (remappable format) and bits 1:0.
    if message.address & !0xf_ffe0 != MESSAGE_BASE || message.data & !0xff != 0 {
        return None;
    }
    let (low, high) = (
        (message.address >> 12 & 0xff) as u32,
        (message.address >> 5 & 0x7f) as u32,
    );
    Some((high << 8 | low, message.data as u8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    /// Registers in software that fault where a CPU would.
    #[derive(Default)]
    struct FakeMsrs {
        values: RefCell<BTreeMap<u32, u64>>,
        log: RefCell<Vec<(u32, u64)>>,
        reads: RefCell<Vec<u32>>,
    }

    impl FakeMsrs {
        fn with(values: &[(u32, u64)]) -> Self {
            Self {
                values: RefCell::new(values.iter().copied().collect()),
                ..Self::default()
            }
        }

        fn base(&self) -> ApicBase {
            ApicBase::from_bits_retain(self.values.borrow().get(&APIC_BASE).copied().unwrap_or(0))
        }

        fn require_x2apic(&self, msr: u32) {
            assert!(
                msr == APIC_BASE || self.base().contains(ApicBase::ENABLE | ApicBase::X2APIC),
                "#GP: MSR {msr:#x} outside of x2APIC mode"
            );
        }
    }

    impl MsrBus for &FakeMsrs {
        fn read(&self, msr: u32) -> u64 {
            self.require_x2apic(msr);
            self.reads.borrow_mut().push(msr);
            self.values.borrow().get(&msr).copied().unwrap_or(0)
        }

        fn write(&self, msr: u32, value: u64) {
            self.require_x2apic(msr);
            match msr {
                APIC_BASE => {
                    let (old, new) = (self.base(), ApicBase::from_bits_retain(value));
                    let off_to_x2 = !old.contains(ApicBase::ENABLE) && new.contains(ApicBase::X2APIC);
                    assert!(!off_to_x2, "#GP: from disabled straight to x2APIC mode");
                }
                register::EOI => assert_eq!(value, 0, "#GP: EOI of {value}"),
                register::ID | register::TIMER_CURRENT | register::IRR..=0x827 | register::ISR..=0x817 => {
                    panic!("#GP: MSR {msr:#x} is read-only")
                }
                _ => {}
            }
            self.values.borrow_mut().insert(msr, value);
            self.log.borrow_mut().push((msr, value));
        }
    }

    #[test]
    fn enables_from_each_state() {
        for (before, writes) in [(0xfee0_0100, 2), (0xfee0_0900, 1), (0xfee0_0d00, 0)] {
            let msrs = FakeMsrs::with(&[(APIC_BASE, before)]);
            X2Apic::new(&msrs).enable(0xff);
            assert_eq!(msrs.values.borrow()[&APIC_BASE], 0xfee0_0d00, "from {before:#x}");
            assert_eq!(
                msrs.log.borrow().iter().filter(|(msr, _)| *msr == APIC_BASE).count(),
                writes
            );
            assert_eq!(msrs.values.borrow()[&0x80f], 0x1ff);
            for lvt in [0x832, 0x835, 0x836, 0x837] {
                assert_eq!(msrs.values.borrow()[&lvt], 0x100ff);
            }
        }
    }

    #[test]
    fn commands_have_the_bits_of_the_manual() {
        let msrs = FakeMsrs::with(&[(APIC_BASE, 0xfee0_0d00)]);
        let apic = X2Apic::new(&msrs);
        apic.init(0x0102_0304);
        apic.start(7, StartUpPage::at(0x9_8000).unwrap());
        apic.send(300, 0xf0);
        apic.send_to_self(0x30);
        apic.end_of_interrupt();
        apic.set_task_priority(15);
        let expected = [
            (0x830, 0x0102_0304_0000_4500),
            (0x830, 0x0000_0007_0000_4698),
            (0x830, 0x0000_012c_0000_40f0),
            (0x83f, 0x30),
            (0x80b, 0),
            (0x808, 0xf0),
        ];
        assert_eq!(*msrs.log.borrow(), expected);
    }

    #[test]
    fn cpus_start_only_in_whole_pages_of_the_first_mebibyte() {
        assert_eq!(StartUpPage::at(0xff000), Some(StartUpPage(0xff)));
        assert_eq!(StartUpPage::at(0x10_0000), None);
        assert_eq!(StartUpPage::at(0x8800), None);
    }

    #[test]
    fn timer_starts_with_its_count_last() {
        let msrs = FakeMsrs::with(&[(APIC_BASE, 0xfee0_0d00), (0x839, 41)]);
        let apic = X2Apic::new(&msrs);
        apic.start_one_shot(0xf1, Divide::By16, 1000);
        apic.start_periodic(0xf1, Divide::By1, 2000);
        assert_eq!(apic.timer_left(), 41);
        apic.stop_timer();
        let expected = [
            (0x83e, 0b0011),
            (0x832, 0xf1),
            (0x838, 1000),
            (0x83e, 0b1011),
            (0x832, 0x200f1),
            (0x838, 2000),
            (0x832, 0x100ff),
            (0x838, 0),
        ];
        assert_eq!(*msrs.log.borrow(), expected);
    }

    #[test]
    fn words_of_vectors_are_read_from_their_own_registers() {
        let msrs = FakeMsrs::with(&[
            (APIC_BASE, 0xfee0_0d00),
            (0x821, 1 << 16),
            (0x827, 2),
            (0x812, 4),
            (0x802, 300),
        ]);
        let apic = X2Apic::new(&msrs);
        assert_eq!((apic.pending(1), apic.pending(7), apic.pending(0)), (1 << 16, 2, 0));
        assert_eq!((apic.in_service(2), apic.id()), (4, 300));
    }

    #[test]
    fn only_words_with_vectors_of_the_set_are_looked_at() {
        let msrs = FakeMsrs::with(&[
            (APIC_BASE, 0xfee0_0d00),
            // 0x30, 0x31 and, of somebody else, 0x32; the timer's 0xf1 beside 0xe0.
            (0x821, 0b111 << 16),
            (0x824, 1),
            (0x827, 1 << 17 | 1),
        ]);
        let mut set = VectorSet::default();
        assert_eq!(X2Apic::new(&msrs).count_pending(&set), 0);
        assert_eq!(*msrs.reads.borrow(), []);
        for vector in [0x30, 0x31, 0x3f, 0xe0, 0xe1] {
            set.insert(vector);
        }
        assert_eq!(X2Apic::new(&msrs).count_pending(&set), 3);
        assert_eq!(*msrs.reads.borrow(), [0x821, 0x827]);
    }

    #[test]
    fn looking_at_one_vector_costs_as_many_reads_as_at_its_whole_word() {
        let msrs = FakeMsrs::with(&[(APIC_BASE, 0xfee0_0d00)]);
        let mut set = VectorSet::default();
        for vector in 0x40..0x60 {
            set.insert(vector);
            msrs.reads.borrow_mut().clear();
            X2Apic::new(&msrs).count_pending(&set);
            assert_eq!(msrs.reads.borrow().len(), 1);
        }
    }

    #[test]
    #[should_panic(expected = "word 8 of 256 vectors")]
    fn there_is_no_ninth_word() {
        let msrs = FakeMsrs::with(&[(APIC_BASE, 0xfee0_0d00)]);
        X2Apic::new(&msrs).pending(8);
    }

    #[test]
    fn messages_have_the_bits_of_the_manual() {
        let message = |id, vector, width| encode_message(id, vector, width).map(|m| (m.address, m.data));
        assert_eq!(message(0, 0x30, DestinationWidth::Bits8), Some((0xfee0_0000, 0x30)));
        assert_eq!(message(254, 0xee, DestinationWidth::Bits8), Some((0xfeef_e000, 0xee)));
        assert_eq!(message(255, 0x30, DestinationWidth::Bits8), None);
        assert_eq!(message(300, 0x41, DestinationWidth::Bits15), Some((0xfee2_c020, 0x41)));
        assert_eq!(
            message(0x7fff, 0x41, DestinationWidth::Bits15),
            Some((0xfeef_ffe0, 0x41))
        );
        assert_eq!(message(0x8000, 0x41, DestinationWidth::Bits15), None);
    }

    #[test]
    fn other_messages_are_not_taken_for_interrupts_of_one_cpu() {
        for (address, data) in [
            (0xfed0_0000, 0x30),
            (0x1_fee0_0000, 0x30),
            (0xfee0_0004, 0x30),
            (0xfee0_0010, 0x30),
            (0xfee0_0000, 0x4030),
        ] {
            assert_eq!(
                decode_message(MsiMessage { address, data }),
                None,
                "{address:#x} {data:#x}"
            );
        }
    }

    proptest! {
        #[test]
        fn messages_come_back_as_they_went(id in 0u32..0x9000, vector: u8, wide: bool) {
            let width = if wide { DestinationWidth::Bits15 } else { DestinationWidth::Bits8 };
            let fits = id <= if wide { 0x7fff } else { 254 };
            let message = encode_message(id, vector, width);
            prop_assert_eq!(message.is_some(), fits);
            if let Some(message) = message {
                prop_assert_eq!(decode_message(message), Some((id, vector)));
            }
        }
    }
}
