//! Takes the guest's serial line apart: frames, and the text between them.
//!
//! The guest is untrusted: its bytes need not be text, its lines need not end, and there may be any number of them. What is
//! kept is bounded.

use std::collections::VecDeque;

use workload::frame::{Frame, FrameError, FrameReader};

/// Bytes of the longest line; what goes beyond is dropped, so that such a frame counts as garbled.
pub const LONGEST_LINE: usize = 64 << 20;
/// Characters kept of a line of text.
const TEXT_WIDTH: usize = 500;
/// Lines of text kept.
const TEXT_LINES: usize = 1000;

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { pending: Vec::new() }
    }

    /// Takes bytes, and gives each line that they complete, without its line end.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(String)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LONGEST_LINE - self.pending.len();
            self.pending.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                line(self.take());
            }
        }
    }

    /// Gives the last line, if it never ended.
    pub fn finish(&mut self) -> Option<String> {
        (!self.pending.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.pending);
        let line = line.trim_end_matches(['\n', '\r']).to_string();
        // A huge line must not keep its memory.
        self.pending = Vec::new();
        line
    }
}

/// What the guest has said so far.
#[derive(Debug, Default)]
pub struct Transcript {
    reader: FrameReader,
    text: VecDeque<String>,
}

impl Transcript {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            reader: FrameReader::new(),
            text: VecDeque::new(),
        }
    }

    /// Takes one line: a frame, or None for text, which is kept.
    ///
    /// # Errors
    /// When a frame is garbled or missing.
    pub fn line(&mut self, line: &str) -> Result<Option<Frame>, FrameError> {
        let frame = self.reader.read(line);
        if !matches!(frame, Ok(Some(_))) {
            self.keep(line);
        }
        frame
    }

    /// Takes one line of a log that may hold several runs, one after the other: frame 0 begins a new one.
    ///
    /// # Errors
    /// When a frame is garbled or missing.
    pub fn logged_line(&mut self, line: &str) -> Result<Option<Frame>, FrameError> {
        let mut fresh = FrameReader::new();
        if let Ok(Some(frame @ Frame::Hello(_))) = fresh.read(line) {
            self.reader = fresh;
            return Ok(Some(frame));
        }
        self.line(line)
    }

    fn keep(&mut self, line: &str) {
        // Control characters of a guest are nothing for a terminal.
        let line: String = line
            .chars()
            .filter(|c| !c.is_control() || *c == '\t')
            .take(TEXT_WIDTH)
            .collect();
        if line.trim().is_empty() {
            return;
        }
        if self.text.len() == TEXT_LINES {
            self.text.pop_front();
        }
        self.text.push_back(line);
    }

    /// The lines of text, oldest first.
    pub fn text(&self) -> impl Iterator<Item = &str> {
        self.text.iter().map(String::as_str)
    }

    /// The last lines of text, oldest first.
    pub fn last_text(&self, lines: usize) -> Vec<String> {
        let skip = self.text.len().saturating_sub(lines);
        self.text.iter().skip(skip).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::frame::FrameWriter;
    use workload::report::{Hello, Progress};

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::new();
        let mut out = Vec::new();
        for chunk in chunks {
            lines.push(chunk, |line| out.push(line));
        }
        out.extend(lines.finish());
        out
    }

    fn hello() -> Frame {
        Frame::Hello(Hello {
            schema: 1,
            architecture: "x86_64".to_string(),
            version: "0.1.0".to_string(),
        })
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        assert_eq!(lines(&[b"one\r\ntwo\n", b"\nthr", b"ee"]), ["one", "two", "", "three"]);
        assert_eq!(lines(&[b"\xff\xfe\n"]), ["\u{fffd}\u{fffd}"]);
        assert_eq!(lines(&[]), [""; 0]);
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut splitter = Lines::new();
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..70 {
            splitter.push(&chunk, |_| panic!("no line has ended"));
        }
        assert_eq!(splitter.pending.len(), LONGEST_LINE);
        let mut seen = 0;
        splitter.push(b"x\nnext\n", |line| seen += line.len());
        assert_eq!(seen, LONGEST_LINE + 4);
    }

    #[test]
    fn frames_are_told_from_text_across_chunks() {
        let mut stream = String::from("SeaBIOS\n");
        let mut writer = FrameWriter::new();
        writer.write(&hello(), &mut stream).unwrap();
        stream.push_str("booting\x1b[2J\r\n");
        writer
            .write(&Frame::Progress(Progress::default()), &mut stream)
            .unwrap();
        let mut frames = Vec::new();
        let mut transcript = Transcript::new();
        let mut splitter = Lines::new();
        for chunk in stream.as_bytes().chunks(7) {
            splitter.push(chunk, |line| frames.extend(transcript.line(&line).unwrap()));
        }
        assert_eq!(frames, [hello(), Frame::Progress(Progress::default())]);
        assert_eq!(transcript.text().collect::<Vec<_>>(), ["SeaBIOS", "booting[2J"]);
    }

    #[test]
    fn a_second_boot_in_a_log_begins_anew() {
        let mut first = String::new();
        FrameWriter::new().write(&hello(), &mut first).unwrap();
        let line = first.trim();
        let mut transcript = Transcript::new();
        assert_eq!(transcript.logged_line(line), Ok(Some(hello())));
        assert_eq!(transcript.logged_line(line), Ok(Some(hello())));
        // While in a live run a second hello is out of order.
        assert!(transcript.line(line).is_err());
    }

    #[test]
    fn text_is_bounded() {
        let mut transcript = Transcript::new();
        for i in 0..TEXT_LINES + 10 {
            transcript
                .line(&format!("line {i} {}", "y".repeat(2 * TEXT_WIDTH)))
                .unwrap();
        }
        assert_eq!(transcript.text().count(), TEXT_LINES);
        assert!(transcript.text().all(|line| line.chars().count() == TEXT_WIDTH));
        assert_eq!(transcript.last_text(1)[0].split(' ').nth(1), Some("1009"));
    }
}
