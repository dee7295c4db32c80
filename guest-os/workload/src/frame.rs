//! How reports travel over a serial line that also carries text.
//!
//! A frame is one line: `@doorpost NUMBER KIND LENGTH CRC JSON`, with the frame's number from 0 up, the length of the JSON in
//! bytes, and the CRC-32 (ISO-HDLC) of `NUMBER KIND JSON` in eight hexadecimal digits. Text may stand before, between and
//! after frames. A frame that text broke into, or that lost a byte, is an error and never a wrong figure; so is a gap in the
//! numbers.

use alloc::string::String;
use core::fmt;

use crc::{CRC_32_ISO_HDLC, Crc, Table};
use thiserror::Error;

use crate::report::{Failure, Hello, Progress, Report};

const MARK: &str = "@doorpost ";
const CRC: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISO_HDLC);

/// What a frame carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First of all.
    Hello(Hello),
    /// Once a second.
    Progress(Progress),
    /// At the end, when all went through.
    Report(alloc::boxed::Box<Report>),
    /// At the end, when it did not.
    Failure(Failure),
}

impl Frame {
    fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Progress(_) => "progress",
            Self::Report(_) => "report",
            Self::Failure(_) => "failure",
        }
    }
}

/// A line with the mark of a frame that is none, or not the next one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The line is cut short, mixed with text, or altered.
    #[error("frame {expected} from the guest is garbled ({what}): `{start}…`")]
    Garbled {
        /// The number that was due.
        expected: u32,
        /// What does not fit.
        what: &'static str,
        /// How the line begins.
        start: String,
    },
    /// One or more frames before this one never came whole.
    #[error("frame {expected} from the guest is missing (the next one has number {found})")]
    Missing {
        /// The number that was due.
        expected: u32,
        /// The number that came.
        found: u32,
    },
}

fn checksum(number: u32, kind: &str, json: &str) -> u32 {
    struct Digest<'a>(crc::Digest<'a, u32, Table<1>>);
    impl fmt::Write for Digest<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut digest = Digest(CRC.digest());
    let _ = fmt::write(&mut digest, format_args!("{number} {kind} {json}"));
    digest.0.finalize()
}

/// The guest's end of the line: numbers frames.
#[derive(Debug, Default)]
pub struct FrameWriter {
    next: u32,
}

impl FrameWriter {
    /// A writer that begins with frame 0.
    pub const fn new() -> Self {
        Self { next: 0 }
    }

    /// Writes a frame as one line, newline included.
    ///
    /// # Errors
    /// When the output fails; the number is used up then, so that the reader notices.
    pub fn write(&mut self, frame: &Frame, output: &mut impl fmt::Write) -> fmt::Result {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let json = match frame {
            Frame::Hello(body) => serde_json::to_string(body),
            Frame::Progress(body) => serde_json::to_string(body),
            Frame::Report(body) => serde_json::to_string(body),
            Frame::Failure(body) => serde_json::to_string(body),
        };
        let json = json.map_err(|_| fmt::Error)?;
        let kind = frame.kind();
        // On a line of its own, even if somebody's text did not end one.
        writeln!(
            output,
            "\n{MARK}{number} {kind} {} {:08x} {json}",
            json.len(),
            checksum(number, kind, &json)
        )
    }
}

/// The host's end of the line.
#[derive(Debug, Default)]
pub struct FrameReader {
    next: u32,
}

impl FrameReader {
    /// A reader that expects frame 0.
    pub const fn new() -> Self {
        Self { next: 0 }
    }

    /// Looks at one line (without its newline): a frame, or None for text.
    ///
    /// # Errors
    /// When the line holds the mark of a frame but no whole, unaltered frame with the number that is due.
    pub fn read(&mut self, line: &str) -> Result<Option<Frame>, FrameError> {
        let Some(at) = line.find(MARK) else { return Ok(None) };
        let frame = line[at..].trim_end_matches('\r');
        let garbled = |what| {
            let start = frame.chars().filter(|c| !c.is_control()).take(60).collect::<String>();
            FrameError::Garbled {
                expected: self.next,
                what,
                start,
            }
        };
        let mut parts = frame[MARK.len()..].splitn(5, ' ');
        let mut part = || parts.next().ok_or_else(|| garbled("it is cut short"));
        let (number, kind, length, crc, json) = (part()?, part()?, part()?, part()?, part()?);
        let number: u32 = number.parse().map_err(|_| garbled("its number is unreadable"))?;
        let length: usize = length.parse().map_err(|_| garbled("its length is unreadable"))?;
        let crc = u32::from_str_radix(crc, 16).map_err(|_| garbled("its checksum is unreadable"))?;
        if json.len() != length {
            return Err(garbled("its length differs"));
        }
        if checksum(number, kind, json) != crc {
            return Err(garbled("its checksum differs"));
        }
        let body = match kind {
            "hello" => serde_json::from_str(json).map(Frame::Hello),
            "progress" => serde_json::from_str(json).map(Frame::Progress),
            "report" => serde_json::from_str(json).map(Frame::Report),
            "failure" => serde_json::from_str(json).map(Frame::Failure),
            _ => return Err(garbled("its kind is unknown")),
        };
        let body = body.map_err(|_| garbled("its body does not fit its kind"))?;
        if number != self.next {
            return Err(FrameError::Missing {
                expected: self.next,
                found: number,
            });
        }
        self.next = number.wrapping_add(1);
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FailureKind;
    use proptest::prelude::*;
    use std::format;
    use std::string::ToString;
    use std::vec::Vec;

    fn failure(message: &str) -> Frame {
        Frame::Failure(Failure {
            kind: FailureKind::Run,
            message: message.to_string(),
        })
    }

    fn line(writer: &mut FrameWriter, frame: &Frame) -> String {
        let mut text = String::new();
        writer.write(frame, &mut text).unwrap();
        text.trim_matches('\n').to_string()
    }

    #[test]
    fn frames_pass_among_text() {
        let mut writer = FrameWriter::new();
        let progress = Frame::Progress(Progress {
            reads: 7,
            ..Progress::default()
        });
        let first = line(&mut writer, &progress);
        let second = line(&mut writer, &failure("the drive is gone"));
        let mut reader = FrameReader::new();
        assert_eq!(reader.read("SeaBIOS (version rel-1.16)"), Ok(None));
        assert_eq!(reader.read(&format!("{first}\r")), Ok(Some(progress)));
        assert_eq!(reader.read("nvme0: text"), Ok(None));
        // Text that did not end its own line, before a frame.
        assert_eq!(
            reader.read(&format!("half a li{second}")),
            Ok(Some(failure("the drive is gone")))
        );
    }

    #[test]
    fn a_lost_frame_is_noticed() {
        let mut writer = FrameWriter::new();
        line(&mut writer, &failure("a"));
        let second = line(&mut writer, &failure("b"));
        assert_eq!(
            FrameReader::new().read(&second),
            Err(FrameError::Missing { expected: 0, found: 1 })
        );
    }

    #[test]
    fn text_in_the_middle_is_an_error() {
        let whole = line(&mut FrameWriter::new(), &failure("a long enough message"));
        let (a, b) = whole.split_at(60);
        let mut reader = FrameReader::new();
        assert!(matches!(
            reader.read(&format!("{a}cpu 1: hello{b}")),
            Err(FrameError::Garbled { .. })
        ));
        assert!(matches!(reader.read(a), Err(FrameError::Garbled { .. })));
    }

    proptest! {
        #[test]
        fn no_altered_byte_goes_unnoticed(at in 0usize..100, value in 32u8..127, message in "[a-z \\\\\"]{20,60}") {
            let whole = line(&mut FrameWriter::new(), &failure(&message));
            let mut bytes: Vec<u8> = whole.clone().into_bytes();
            let at = MARK.len() + at % (bytes.len() - MARK.len());
            prop_assume!(bytes[at] != value);
            bytes[at] = value;
            let altered = String::from_utf8(bytes).unwrap();
            // A checksum digit in the other case is the same checksum.
            prop_assume!(!altered.eq_ignore_ascii_case(&whole));
            let read = FrameReader::new().read(&altered);
            prop_assert!(read.is_err(), "{altered} read as {read:?}");
        }

        #[test]
        fn any_line_is_read_without_panic(text in "\\PC{0,60}", frame in any::<bool>()) {
            let text = if frame { format!("{MARK}{text}") } else { text };
            let _ = FrameReader::new().read(&text);
        }
    }
}
