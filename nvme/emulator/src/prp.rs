//! Walks the PRPs of a command, strictly (Base, 4.1.1).

use crate::driver_error::DriverError;
use crate::memory::Memory;
use nvme::spec::DataPointer;

/// A contiguous piece of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub address: u64,
    pub length: usize,
}

/// Appends the pieces of `length` bytes of data to `segments`, one for each PRP.
pub(crate) fn walk(
    memory: &impl Memory,
    page_size: usize,
    data: DataPointer,
    length: usize,
    segments: &mut Vec<Segment>,
) -> Result<(), DriverError> {
    let in_page = |address: u64| (address & (page_size as u64 - 1)) as usize;
    if !data.prp1.is_multiple_of(4) {
        return Err(DriverError::PrpOffset { entry: data.prp1 });
    }
    let first = (page_size - in_page(data.prp1)).min(length);
    segments.push(Segment {
        address: data.prp1,
        length: first,
    });
    let mut left = length - first;
    if left == 0 {
        return Ok(());
    }
    if left <= page_size {
        return page(data.prp2, left, in_page).map(|segment| segments.push(segment));
    }

    let mut list = data.prp2;
    if !list.is_multiple_of(8) {
        return Err(DriverError::PrpOffset { entry: list });
    }
    while left > 0 {
        let mut entry = [0; 8];
        memory.read(list, &mut entry).map_err(|source| DriverError::Unmapped {
            what: "a PRP list",
            source,
        })?;
        let entry = u64::from_le_bytes(entry);
        let last_of_page = in_page(list) == page_size - 8;
        if last_of_page && left > page_size {
            if in_page(entry) != 0 {
                return Err(DriverError::PrpOffset { entry });
            }
            list = entry;
            continue;
        }
        let segment = page(entry, left.min(page_size), in_page)?;
        segments.push(segment);
        left -= segment.length;
        list += 8;
    }
    Ok(())
}

fn page(entry: u64, length: usize, in_page: impl Fn(u64) -> usize) -> Result<Segment, DriverError> {
    if in_page(entry) == 0 {
        Ok(Segment { address: entry, length })
    } else {
        Err(DriverError::PrpOffset { entry })
    }
}
