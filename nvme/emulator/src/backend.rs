//! What a namespace keeps its blocks in.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Storage of a namespace, by byte offset. Offsets are inside the namespace's size; it was checked before.
pub trait Backend: Send {
    /// Reads `target.len()` bytes.
    ///
    /// # Errors
    /// Any makes the command end with Unrecovered Read Error.
    fn read(&mut self, offset: u64, target: &mut [u8]) -> io::Result<()>;

    /// Writes `source`.
    ///
    /// # Errors
    /// Any makes the command end with Write Fault.
    fn write(&mut self, offset: u64, source: &[u8]) -> io::Result<()>;

    /// Makes durable what was written.
    ///
    /// # Errors
    /// Any makes the command end with Write Fault.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Lets `length` bytes read as zeroes.
    ///
    /// # Errors
    /// Any makes the command end with Write Fault.
    fn write_zeroes(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let zeroes = [0; 65536];
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(zeroes.len() as u64);
            self.write(offset + done, &zeroes[..piece as usize])?;
            done += piece;
        }
        Ok(())
    }

    /// `length` bytes are not needed any more; what they read as afterwards is open (DLFEAT = 0).
    ///
    /// # Errors
    /// Any makes the command end with Write Fault.
    fn discard(&mut self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps nothing: reads as zeroes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullBackend;

impl Backend for NullBackend {
    fn read(&mut self, _offset: u64, target: &mut [u8]) -> io::Result<()> {
        target.fill(0);
        Ok(())
    }

    fn write(&mut self, _offset: u64, _source: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&mut self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps blocks in memory.
#[derive(Clone, Debug)]
pub struct RamBackend(Vec<u8>);

impl RamBackend {
    /// Zeroed storage of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    fn range(&self, offset: u64, length: usize) -> io::Result<std::ops::Range<usize>> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        match start.checked_add(length) {
            Some(end) if end <= self.0.len() => Ok(start..end),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the storage")),
        }
    }
}

impl Backend for RamBackend {
    fn read(&mut self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        let range = self.range(offset, target.len())?;
        target.copy_from_slice(&self.0[range]);
        Ok(())
    }

    fn write(&mut self, offset: u64, source: &[u8]) -> io::Result<()> {
        let range = self.range(offset, source.len())?;
        self.0[range].copy_from_slice(source);
        Ok(())
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.write_zeroes(offset, length)
    }
}

/// Keeps blocks in a file (or block device), which is at least as long as the namespace.
#[derive(Debug)]
pub struct FileBackend(File);

impl FileBackend {
    /// Uses `file`, opened for reading, and for writing unless the namespace is read-only.
    pub fn new(file: File) -> Self {
        Self(file)
    }
}

impl Backend for FileBackend {
    fn read(&mut self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(target, offset)
    }

    fn write(&mut self, offset: u64, source: &[u8]) -> io::Result<()> {
        self.0.write_all_at(source, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
