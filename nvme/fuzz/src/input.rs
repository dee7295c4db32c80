//! Values out of a fuzzer's bytes.

/// Bytes that are taken from the front. Behind the end there are zeroes: every target takes 0 for the ordinary case, so that
/// a short input is one that soon behaves well.
#[derive(Clone, Debug)]
pub struct Input {
    bytes: Vec<u8>,
    at: usize,
}

impl Input {
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.into(),
            at: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        for byte in &mut array {
            *byte = self.bytes.get(self.at).copied().unwrap_or(0);
            self.at += 1;
        }
        array
    }

    /// At most `count` bytes: fewer at the end.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let start = self.at.min(self.bytes.len());
        let end = (start + count).min(self.bytes.len());
        self.at = end;
        self.bytes[start..end].into()
    }
}
