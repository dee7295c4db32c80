//! Namespaces: which there are, and how they are formatted.

use alloc::borrow::Cow;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hal::clock::Clock;
use hal::mmio::Mmio;
use zerocopy::little_endian::U32;

use crate::controller::Controller;
use crate::error::Error;
use crate::spec::{
    Capabilities, CommandSet, IDENTIFY_BYTES, IdentifyKind, IdentifyNamespace, NAMESPACES_PER_LIST, Status, Version,
    described_command_set,
};

/// The most namespaces that are looked at: a device that claims billions must not keep us busy for ever.
const MAXIMUM_NAMESPACES: usize = 4096;
/// LBADS that can be: 512 bytes is the least (NVM, 4.1.5.1), and blocks beyond 64 KiB are not made.
const BLOCK_SHIFTS: core::ops::RangeInclusive<u8> = 9..=16;

/// A namespace: blocks that can be read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// NSID, for commands.
    pub id: u32,
    /// NSZE: number of blocks; not 0.
    pub blocks: u64,
    /// Bytes of data in a block: a power of two from 512 to 65536.
    pub block_size: u32,
    /// Metadata of each block; `None` for plain blocks.
    pub metadata: Option<Metadata>,
    /// Type of end-to-end protection, 1 to 3; 0 is none.
    pub protection: u8,
    /// NSATTR: the namespace is write protected.
    pub read_only: bool,
    /// The namespace is zoned: it is read as any other, but written in order, zone by zone, which this driver does not do.
    pub zoned: bool,
    controller: Arc<str>,
}

/// Metadata of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// MS: bytes per block.
    pub bytes: u16,
    /// Where it is transferred.
    pub placement: MetadataPlacement,
}

/// Where metadata is transferred (NVM, 4.1.5.1, FLBAS bit 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataPlacement {
    /// After the data of each block.
    Extended,
    /// In a buffer of its own.
    Separate,
}

impl Namespace {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Whether this driver can do I/O on it: formats with metadata or protection information are refused.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which names the namespace and the reason.
    pub fn supported(&self) -> Result<(), Error> {
        let what = match (self.metadata, self.protection) {
            (None, 0) => return Ok(()),
            (None, kind) => format!("namespace {} with protection information of type {kind}", self.id),
            (Some(Metadata { bytes, placement }), _) => {
                let place = match placement {
                    MetadataPlacement::Extended => "at the end of each block",
                    MetadataPlacement::Separate => "in a separate buffer",
                };
                format!(
                    "namespace {} with {bytes} bytes of metadata per block, {place}",
                    self.id
                )
            }
        };
        Err(Error::Unsupported {
            controller: self.controller.clone(),
            what: what.into(),
        })
    }
}

impl Namespace {
    /// Whether blocks may be written in any order: neither when the namespace is zoned, nor when it is write protected.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which names the namespace and the reason.
    pub fn writable(&self) -> Result<(), Error> {
        let what = match (self.zoned, self.read_only) {
            (false, false) => return Ok(()),
            (true, _) => format!("random writes to namespace {}, which is zoned,", self.id),
            (false, true) => format!("writing to namespace {}, which is write protected,", self.id),
        };
        Err(Error::Unsupported {
            controller: self.controller.clone(),
            what: what.into(),
        })
    }
}

impl<M: Mmio, C: Clock> Controller<M, C> {
    /// All active namespaces in ascending order of their ids, gaps or not (Base, 5.17.2.2). Those with a format that this
    /// driver cannot use are among them; [`Namespace::supported`] tells. Those without blocks (of the Key Value command set,
    /// say) are left out.
    ///
    /// # Errors
    /// See [`Error`]; one impossible value of one namespace is an error of the controller.
    pub fn namespaces(&mut self) -> Result<Vec<Namespace>, Error> {
        // The list came with 1.1, and some devices claim that version without it.
        let listed = if self.info.version >= Version::new(1, 1, 0) {
            match self.active_namespaces() {
                Ok(ids) => Some(ids),
                Err(Error::Status { status, .. })
                    if status.is(Status::INVALID_FIELD) || status.is(Status::INVALID_OPCODE) =>
                {
                    None
                }
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        match listed {
            Some(ids) => {
                let mut namespaces = Vec::with_capacity(ids.len());
                for id in ids {
                    let set = self.command_set(id)?;
                    if set != CommandSet::NVM && set != CommandSet::ZONED {
                        log::warn!(
                            "{} namespace {id}: I/O command set {:02x}h is not supported; left out",
                            self.name,
                            set.0
                        );
                        continue;
                    }
                    let data = self.identify(IdentifyKind::Namespace, id)?;
                    let namespace = self.namespace(id, &data)?;
                    let namespace = namespace.ok_or_else(|| self.impossible(field(id, "NSZE"), 0))?;
                    namespaces.push(Namespace {
                        zoned: set == CommandSet::ZONED,
                        ..namespace
                    });
                }
                Ok(namespaces)
            }
            None => self.try_every_namespace(),
        }
    }

    /// The I/O command set of a namespace (Base, 5.17.2.3). A controller without a choice of them has NVM alone.
    fn command_set(&mut self, id: u32) -> Result<CommandSet, Error> {
        if !self.info.capabilities.contains(Capabilities::IO_COMMAND_SETS) {
            return Ok(CommandSet::NVM);
        }
        match self.identify::<[u8; IDENTIFY_BYTES]>(IdentifyKind::NamespaceDescriptors, id) {
            Ok(list) => Ok(described_command_set(&list).unwrap_or(CommandSet::NVM)),
            Err(Error::Status { .. }) => Ok(CommandSet::NVM),
            Err(error) => Err(error),
        }
    }

    fn active_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        let mut ids: Vec<u32> = Vec::new();
        loop {
            let last = ids.last().copied().unwrap_or(0);
            let list: [U32; NAMESPACES_PER_LIST] = self.identify(IdentifyKind::ActiveNamespaces, last)?;
            let mut previous = last;
            for id in list.iter().map(|id| id.get()).take_while(|&id| id != 0) {
                // Ascending, valid, and without end only until the limit.
                if id <= previous || id > self.info.namespace_limit {
                    return Err(self.impossible("the active namespace ID list", id.into()));
                }
                previous = id;
                if ids.len() == MAXIMUM_NAMESPACES {
                    return Err(self.too_many_namespaces());
                }
                ids.push(id);
            }
            // The list ends at its first 0, whatever stands behind: only one without any goes on.
            let full = list.iter().all(|id| id.get() != 0);
            // FFFFFFFEh and above are no valid starting points.
            if !full || previous >= 0xffff_fffe {
                return Ok(ids);
            }
        }
    }

    /// NVMe 1.0: each id up to NN is tried; an inactive one reads as zeroes or fails.
    fn try_every_namespace(&mut self) -> Result<Vec<Namespace>, Error> {
        let limit = self.info.namespace_limit;
        if limit as usize > MAXIMUM_NAMESPACES {
            return Err(self.too_many_namespaces());
        }
        let mut namespaces = Vec::new();
        for id in 1..=limit {
            let data = match self.identify(IdentifyKind::Namespace, id) {
                Ok(data) => data,
                Err(Error::Status { status, .. }) if status.is(Status::INVALID_NAMESPACE) => continue,
                Err(error) => return Err(error),
            };
            namespaces.extend(self.namespace(id, &data)?);
        }
        Ok(namespaces)
    }

    /// Judges what a namespace says of itself; `None` when its size is 0.
    fn namespace(&self, id: u32, data: &IdentifyNamespace) -> Result<Option<Namespace>, Error> {
        let blocks = data.size.get();
        if blocks == 0 {
            return Ok(None);
        }
        let impossible = |name, value| self.impossible(field(id, name), value);
        let index = data.formatted_size.index(data.formats);
        let format = match data.lba_formats.get(usize::from(index)) {
            Some(format) if index <= data.formats => *format,
            _ => return Err(impossible("FLBAS", data.formatted_size.0.into())),
        };
        let shift = format.data_shift();
        if !BLOCK_SHIFTS.contains(&shift) {
            return Err(impossible("LBADS", shift.into()));
        }
        if blocks > u64::MAX >> shift {
            return Err(impossible("NSZE", blocks));
        }
        let protection = data.protection.kind();
        if protection > 3 {
            return Err(impossible("DPS", protection.into()));
        }
        let placement = if data.formatted_size.extended() {
            MetadataPlacement::Extended
        } else {
            MetadataPlacement::Separate
        };
        let metadata = format.metadata();
        Ok(Some(Namespace {
            id,
            blocks,
            block_size: 1 << shift,
            metadata: (metadata != 0).then_some(Metadata {
                bytes: metadata,
                placement,
            }),
            protection,
            read_only: data.write_protected(),
            zoned: false,
            controller: self.name.clone(),
        }))
    }

    fn too_many_namespaces(&self) -> Error {
        let what = format!("more than {MAXIMUM_NAMESPACES} namespaces");
        Error::Unsupported {
            controller: self.name.clone(),
            what: what.into(),
        }
    }
}

fn field(id: u32, name: &str) -> Cow<'static, str> {
    format!("{name} of namespace {id}").into()
}
