//! Physical region pages: how a command says where its data lies (Base, 4.1.1).

use hal::dma::{Dma, DmaBuffer, DmaError};
use thiserror::Error;

use crate::spec::DataPointer;

/// Bytes of one PRP entry.
const ENTRY: usize = 8;

/// Why a part of a buffer cannot be described by PRPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PrpError {
    /// The part does not lie inside the buffer, or is empty.
    #[error("{length} bytes at offset {offset} are no part of a buffer of {buffer} bytes")]
    Outside {
        /// Where the part begins.
        offset: usize,
        /// Its length in bytes.
        length: usize,
        /// The buffer's length in bytes.
        buffer: usize,
    },
    /// PRPs can only point at multiples of 4 bytes.
    #[error("data at I/O address {address:#x} is not aligned to 4 bytes")]
    Misaligned {
        /// The address of the data's first byte.
        address: u64,
    },
    /// There is no memory for the PRP list.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// The PRPs of a part of a DMA buffer, with the list pages that they need.
///
/// Build one for each I/O buffer at set-up; it must live as long as a command that uses its [`data_pointer`](Self::data_pointer)
/// is in flight.
#[derive(Debug)]
pub struct Prps {
    pointer: DataPointer,
    length: usize,
    /// Held for the device, which reads it.
    _list: Option<DmaBuffer>,
}

impl Prps {
    /// Describes `length` bytes of `buffer` from `offset` on, for a controller whose memory pages have `page_size` bytes
    /// ([`Controller::page_size`](crate::Controller::page_size)).
    ///
    /// # Errors
    /// See [`PrpError`].
    ///
    /// # Panics
    /// When `page_size` is no power of two, or less than 4096.
    pub fn new(
        dma: &Dma,
        buffer: &DmaBuffer,
        offset: usize,
        length: usize,
        page_size: usize,
    ) -> Result<Self, PrpError> {
        assert!(
            page_size.is_power_of_two() && page_size >= 4096,
            "memory pages of {page_size} bytes"
        );
        if length == 0 || offset > buffer.len() || length > buffer.len() - offset {
            return Err(PrpError::Outside {
                offset,
                length,
                buffer: buffer.len(),
            });
        }
        let start = buffer.address().offset(offset);
        let address = start.value();
        if !address.is_multiple_of(4) {
            return Err(PrpError::Misaligned { address });
        }

        let into_page = (address & (page_size as u64 - 1)) as usize;
        let first = (page_size - into_page).min(length);
        let pages = (length - first).div_ceil(page_size);
        // Entry `i` is the page after the first one, and `i` further on; only the first page may begin inside.
        let page = |i: usize| start.offset(first + i * page_size).value();
        let (prp2, list) = match pages {
            0 => (0, None),
            1 => (page(0), None),
            _ => {
                let list = write_list(dma, pages, page_size, page)?;
                (list.address().value(), Some(list))
            }
        };
        Ok(Self {
            pointer: DataPointer { prp1: address, prp2 },
            length,
            _list: list,
        })
    }

    /// What goes into a command.
    pub fn data_pointer(&self) -> &DataPointer {
        &self.pointer
    }

    /// The number of bytes described.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.length
    }
}

/// Writes a list of `pages` entries. Where one page of entries is not enough, each page's last entry points to the next page
/// of the list; a list that fits its page exactly has no such pointer.
fn write_list(dma: &Dma, pages: usize, page_size: usize, page: impl Fn(usize) -> u64) -> Result<DmaBuffer, DmaError> {
    let per_page = page_size / ENTRY;
    let list_pages = (pages - 1).div_ceil(per_page - 1);
    let mut list = if list_pages == 1 {
        // A short list needs no whole page; aligned to its own size, it does not cross one.
        let bytes = pages * ENTRY;
        dma.allocate(bytes, bytes.next_power_of_two())?
    } else {
        dma.allocate(list_pages * page_size, page_size)?
    };
    let mut at = 0;
    for i in 0..pages {
        let last_of_page = (at + ENTRY).is_multiple_of(page_size);
        if last_of_page && i + 1 < pages {
            list.write64(at, list.address().offset(at + ENTRY).value());
            at += ENTRY;
        }
        list.write64(at, page(i));
        at += ENTRY;
    }
    Ok(list)
}
