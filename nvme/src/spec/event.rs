//! Asynchronous events (Base, 5.2).

use core::fmt;

use super::LogId;

/// What an Asynchronous Event Request was completed for: dword 0 of its completion (Base, 5.2.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Asynchronous Event Type.
    pub kind: AsyncEventKind,
    /// Asynchronous Event Information; its meaning depends on the type.
    pub information: u8,
    /// The log page that tells more, and that is to be read before such an event comes again.
    pub log: LogId,
}

/// Asynchronous Event Type (Base, 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEventKind {
    /// 0: an error that is not of one command.
    Error,
    /// 1: SMART / health status.
    Health,
    /// 2: a notice.
    Notice,
    /// 3: immediate.
    Immediate,
    /// 4: one shot.
    OneShot,
    /// 6: of the I/O command set.
    CommandSet,
    /// 7: of the vendor.
    Vendor,
    /// A reserved type.
    Reserved(u8),
}

impl AsyncEvent {
    /// Error, 03h: persistent internal error; the controller needs a reset.
    pub const PERSISTENT_ERROR: u8 = 0x03;
    /// Notice, 00h: a namespace's attributes changed.
    pub const NAMESPACE_CHANGED: u8 = 0x00;

    /// Reads dword 0 of a completion.
    pub const fn from_dword(value: u32) -> Self {
        let kind = match value as u8 & 7 {
            0 => AsyncEventKind::Error,
            1 => AsyncEventKind::Health,
            2 => AsyncEventKind::Notice,
            3 => AsyncEventKind::Immediate,
            4 => AsyncEventKind::OneShot,
            6 => AsyncEventKind::CommandSet,
            7 => AsyncEventKind::Vendor,
            other => AsyncEventKind::Reserved(other),
        };
        Self {
            kind,
            information: (value >> 8) as u8,
            log: LogId((value >> 16) as u8),
        }
    }

    /// Dword 0 of the completion that tells of this event.
    pub const fn to_dword(self) -> u32 {
        let kind = match self.kind {
            AsyncEventKind::Error => 0,
            AsyncEventKind::Health => 1,
            AsyncEventKind::Notice => 2,
            AsyncEventKind::Immediate => 3,
            AsyncEventKind::OneShot => 4,
            AsyncEventKind::CommandSet => 6,
            AsyncEventKind::Vendor => 7,
            AsyncEventKind::Reserved(other) => other & 7,
        };
        (self.log.0 as u32) << 16 | (self.information as u32) << 8 | kind as u32
    }

    /// The specification's name, when it has one here (Base, 5.2.1; NVM, 3.3).
    pub const fn name(self) -> Option<&'static str> {
        Some(match (self.kind, self.information) {
            (AsyncEventKind::Error, 0) => "Write to Invalid Doorbell Register",
            (AsyncEventKind::Error, 1) => "Invalid Doorbell Write Value",
            (AsyncEventKind::Error, 2) => "Diagnostic Failure",
            (AsyncEventKind::Error, Self::PERSISTENT_ERROR) => "Persistent Internal Error",
            (AsyncEventKind::Error, 4) => "Transient Internal Error",
            (AsyncEventKind::Error, 5) => "Firmware Image Load Error",
            (AsyncEventKind::Health, 0) => "NVM Subsystem Reliability",
            (AsyncEventKind::Health, 1) => "Temperature Threshold",
            (AsyncEventKind::Health, 2) => "Spare Below Threshold",
            (AsyncEventKind::Notice, Self::NAMESPACE_CHANGED) => "Namespace Attribute Changed",
            (AsyncEventKind::Notice, 1) => "Firmware Activation Starting",
            (AsyncEventKind::Notice, 2) => "Telemetry Log Changed",
            (AsyncEventKind::Notice, 3) => "Asymmetric Namespace Access Change",
            (AsyncEventKind::Immediate, 0) => "Normal NVM Subsystem Shutdown",
            (AsyncEventKind::CommandSet, 0) => "Reservation Log Page Available",
            (AsyncEventKind::CommandSet, 1) => "Sanitize Operation Completed",
            _ => return None,
        })
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:?} event {:02x}h", self.kind, self.information),
        }?;
        write!(f, " (log page {:02x}h)", self.log.0)
    }
}

impl fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn every_dword_reads_back() {
        for value in (0..0x0100_0000u32 >> 8).step_by(if cfg!(miri) { 257 } else { 1 }) {
            let value = value << 8 & 0x00ff_ff00 | value & 7;
            assert_eq!(AsyncEvent::from_dword(value).to_dword(), value);
        }
        let event = AsyncEvent::from_dword(0x0002_0101);
        assert_eq!((event.kind, event.log), (AsyncEventKind::Health, LogId::SMART));
        assert_eq!(event.to_string(), "Temperature Threshold (log page 02h)");
        assert_eq!(
            AsyncEvent::from_dword(0xff07).to_string(),
            "Vendor event ffh (log page 00h)"
        );
    }
}
