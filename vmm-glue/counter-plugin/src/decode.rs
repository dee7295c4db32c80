//! Which x86-64 instruction is it? Only those that cost an exit under a hypervisor are told apart.
//!
//! Opcodes: Intel SDM volume 2, appendix A (opcode maps).

/// The guest's mark: `nop dword [rax + 0x4b52414d]`, whose displacement reads `MARK`. The processor does nothing on it.
pub const MARK: [u8; 7] = [0x0f, 0x1f, 0x80, b'M', b'A', b'R', b'K'];

/// What an instruction is to a hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`MARK`].
    Mark,
    /// `wrmsr`.
    Wrmsr,
    /// `rdmsr`.
    Rdmsr,
    /// `hlt`.
    Hlt,
    /// `in`, `out`, `ins`, `outs`.
    PortIo,
    /// `cpuid`.
    Cpuid,
    /// `pause`.
    Pause,
    /// Any other.
    Other,
}

/// Tells the kind of the one instruction that `bytes` hold (1 to 15 bytes, prefixes included).
pub fn kind(bytes: &[u8]) -> Kind {
    if bytes == MARK {
        return Kind::Mark;
    }
    let mut rest = bytes;
    let mut repeat = false;
    while let [
        prefix @ (0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3),
        tail @ ..,
    ] = rest
    {
        repeat |= *prefix == 0xf3;
        rest = tail;
    }
    // A REX prefix comes last. Outside 64-bit mode these bytes are whole instructions (inc, dec), with nothing behind them.
    let mut rex = 0;
    if let [prefix @ 0x40..=0x4f, tail @ ..] = rest {
        rex = *prefix;
        rest = tail;
    }
    match rest {
        [0x0f, 0x30, ..] => Kind::Wrmsr,
        [0x0f, 0x32, ..] => Kind::Rdmsr,
        [0x0f, 0xa2, ..] => Kind::Cpuid,
        [0xf4, ..] => Kind::Hlt,
        // in/out by immediate and by dx; ins/outs.
        [0xe4..=0xe7 | 0xec..=0xef | 0x6c..=0x6f, ..] => Kind::PortIo,
        // With REX.B it is an exchange with r8.
        [0x90, ..] if repeat && rex & 1 == 0 => Kind::Pause,
        _ => Kind::Other,
    }
}
