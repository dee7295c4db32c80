//! Commands of the NVM command set (NVM, 3.2).

use nvme::spec::{Command, NvmOpcode, Status};

use crate::controller::{Controller, Outcome};
use crate::driver_error::DriverError;
use crate::memory::Memory;

/// NSID that means all namespaces.
const ALL: u32 = u32::MAX;

type Result = std::result::Result<Outcome, DriverError>;

fn refused(status: Status) -> Result {
    Ok(status.do_not_retry().into())
}

impl<M: Memory> Controller<M> {
    pub(crate) fn io(&mut self, command: &Command) -> Result {
        match NvmOpcode(command.opcode) {
            NvmOpcode::READ | NvmOpcode::WRITE => self.transfer(command),
            NvmOpcode::FLUSH => self.flush_namespaces(command.nsid.get()),
            _ => refused(Status::INVALID_OPCODE),
        }
    }

    fn transfer(&mut self, command: &Command) -> Result {
        let write = NvmOpcode(command.opcode) == NvmOpcode::WRITE;
        let Some(namespace) = self.namespaces.get(&command.nsid.get()) else {
            return refused(Status::INVALID_NAMESPACE);
        };
        if command.flags != 0 || namespace.metadata != 0 {
            return refused(Status::INVALID_FIELD);
        }
        let shift = namespace.block_shift;
        let blocks = u64::from(command.blocks());
        match command.lba().checked_add(blocks) {
            Some(end) if end <= namespace.blocks => {}
            _ => return refused(Status::LBA_OUT_OF_RANGE),
        }
        if write && namespace.read_only {
            return refused(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let (offset, length) = (command.lba() << shift, (blocks as usize) << shift);
        let limit = self.config.largest_transfer();
        if length > limit {
            return Err(DriverError::TransferTooLarge { length, limit });
        }
        if write {
            self.receive(command.data(), length)?;
            let Some(namespace) = self.namespaces.get_mut(&command.nsid.get()) else {
                return refused(Status::INVALID_NAMESPACE);
            };
            match namespace.backend.write(offset, &self.data[..length]) {
                Ok(()) => Ok(Status::SUCCESS.into()),
                Err(_) => Ok(Status::WRITE_FAULT.into()),
            }
        } else {
            self.data.resize(length, 0);
            let Some(namespace) = self.namespaces.get_mut(&command.nsid.get()) else {
                return refused(Status::INVALID_NAMESPACE);
            };
            if namespace.backend.read(offset, &mut self.data[..length]).is_err() {
                return Ok(Status::UNRECOVERED_READ_ERROR.into());
            }
            self.send(command.data(), length)?;
            Ok(Status::SUCCESS.into())
        }
    }

    fn flush_namespaces(&mut self, nsid: u32) -> Result {
        let mut found = nsid == ALL;
        for (_, namespace) in self.namespaces.iter_mut().filter(|(id, _)| nsid == ALL || **id == nsid) {
            found = true;
            if namespace.backend.flush().is_err() {
                return Ok(Status::WRITE_FAULT.into());
            }
        }
        if found {
            Ok(Status::SUCCESS.into())
        } else {
            refused(Status::INVALID_NAMESPACE)
        }
    }
}
