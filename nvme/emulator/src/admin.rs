//! Admin commands (Base, 5).

use nvme::spec::{
    AdminOpcode, Command, CreateCompletionQueue, CreateSubmissionQueue, DataProtection, FormattedSize, IDENTIFY_BYTES,
    IdentifyController, IdentifyKind, IdentifyNamespace, LbaFormat, NAMESPACES_PER_LIST, OptionalAdminCommands,
    OptionalAsyncEvents, Status, Version, command_set_descriptor,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::controller::{Controller, Outcome};
use crate::driver_error::DriverError;
use crate::memory::Memory;
use crate::queue::{CompletionQueue, SubmissionQueue};

type Result = std::result::Result<Outcome, DriverError>;

fn refused(status: Status) -> Result {
    Ok(status.do_not_retry().into())
}

impl<M: Memory> Controller<M> {
    pub(crate) fn admin(&mut self, command: &Command) -> Result {
        match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => self.identify(command),
            AdminOpcode::SET_FEATURES => self.set_features(command),
            AdminOpcode::GET_FEATURES => self.get_features(command),
            AdminOpcode::GET_LOG_PAGE => self.log_page(command),
            AdminOpcode::ABORT => Ok(self.abort(command)),
            AdminOpcode::DOORBELL_BUFFER_CONFIG => Ok(self.doorbell_buffer_config(command)),
            AdminOpcode::CREATE_COMPLETION_QUEUE => self.create_completion_queue(command),
            AdminOpcode::CREATE_SUBMISSION_QUEUE => self.create_submission_queue(command),
            AdminOpcode::DELETE_COMPLETION_QUEUE => self.delete_completion_queue(command),
            AdminOpcode::DELETE_SUBMISSION_QUEUE => self.delete_submission_queue(command),
            _ => refused(Status::INVALID_OPCODE),
        }
    }

    fn identify(&mut self, command: &Command) -> Result {
        let nsid = command.nsid.get();
        let kind = command.cdw10[0].get() & 0xff;
        self.data.clear();
        if kind == IdentifyKind::Controller as u32 {
            self.data.extend(self.controller_data().as_bytes());
        } else if kind == IdentifyKind::Namespace as u32 {
            if nsid == 0 || nsid > self.config.namespace_limit {
                return refused(Status::INVALID_NAMESPACE);
            }
            self.data.extend(self.namespace_data(nsid).as_bytes());
        } else if kind == IdentifyKind::ActiveNamespaces as u32 && self.config.version >= Version::new(1, 1, 0) {
            if nsid >= 0xffff_fffe {
                return refused(Status::INVALID_NAMESPACE);
            }
            for id in self
                .namespaces
                .range(nsid + 1..)
                .take(NAMESPACES_PER_LIST)
                .map(|(id, _)| *id)
            {
                self.data.extend(id.to_le_bytes());
            }
            self.data.resize(IDENTIFY_BYTES, 0);
        } else if kind == IdentifyKind::NamespaceDescriptors as u32 && self.config.version >= Version::new(1, 3, 0) {
            let Some(namespace) = self.namespaces.get(&nsid) else {
                return refused(Status::INVALID_NAMESPACE);
            };
            // Some identifier has to be there: a UUID that only tells the id.
            self.data.extend([3, 16, 0, 0]);
            self.data.extend(u128::from(nsid).to_be_bytes());
            if self.config.version >= Version::new(2, 0, 0) {
                self.data.extend(command_set_descriptor(namespace.command_set));
            }
            self.data.resize(IDENTIFY_BYTES, 0);
        } else {
            return refused(Status::INVALID_FIELD);
        }
        self.send(command.data(), IDENTIFY_BYTES)?;
        Ok(Status::SUCCESS.into())
    }

    fn controller_data(&self) -> IdentifyController {
        let config = &self.config;
        let mut data = IdentifyController::new_zeroed();
        for (field, text) in [
            (&mut data.serial[..], &config.serial),
            (&mut data.model[..], &config.model),
            (&mut data.firmware[..], &config.firmware),
        ] {
            field.fill(b' ');
            let length = text.len().min(field.len());
            field[..length].copy_from_slice(&text.as_bytes()[..length]);
        }
        data.maximum_transfer = config.maximum_transfer;
        data.version = U32::new(config.version.0);
        data.controller_type = u8::from(config.version >= Version::new(1, 4, 0));
        data.submission_entry_size = 0x66;
        data.completion_entry_size = 0x44;
        data.namespaces = U32::new(config.namespace_limit);
        data.volatile_write_cache = config.volatile_write_cache.into();
        data.optional_nvm_commands = U16::new(config.optional_commands.bits());
        if config.doorbell_buffer {
            data.optional_admin_commands = U16::new(OptionalAdminCommands::DOORBELL_BUFFER_CONFIG.bits());
        }
        let events = OptionalAsyncEvents::NAMESPACE_ATTRIBUTES | OptionalAsyncEvents::FIRMWARE_ACTIVATION;
        data.optional_async_events = U32::new(events.bits());
        data.abort_limit = 3;
        // Zero-based.
        data.async_event_limit = config.async_event_limit.saturating_sub(1).min(255) as u8;
        data.error_log_entries = config.error_log_entries.saturating_sub(1).min(255) as u8;
        // LPA bit 2: log pages by length and offset in full.
        data.log_attributes = 1 << 2;
        data.autonomous_power_states = config.autonomous_power.into();
        data
    }

    /// All zeroes for a namespace that is not active.
    fn namespace_data(&self, id: u32) -> IdentifyNamespace {
        let mut data = IdentifyNamespace::new_zeroed();
        let Some(namespace) = self.namespaces.get(&id) else {
            return data;
        };
        data.size = U64::new(namespace.blocks);
        data.capacity = data.size;
        data.utilization = data.size;
        data.formatted_size = FormattedSize(u8::from(namespace.extended) << 4);
        data.protection = DataProtection(namespace.protection);
        data.attributes = namespace.read_only.into();
        data.lba_formats[0] = LbaFormat::new(namespace.block_shift, namespace.metadata);
        data
    }

    fn create_completion_queue(&mut self, command: &Command) -> Result {
        let Ok(wanted) = CreateCompletionQueue::from_command(command) else {
            return refused(Status::INVALID_FIELD);
        };
        let status = self.queue_status(&self.completion, wanted.qid, wanted.entries, wanted.address.value());
        if !status.is_success() {
            return refused(status);
        }
        if wanted.vector.is_some_and(|vector| vector >= self.config.vectors) {
            return refused(Status::INVALID_INTERRUPT_VECTOR);
        }
        let queue = CompletionQueue::new(wanted.address.value(), wanted.entries.into(), wanted.vector);
        self.check_completion_memory(wanted.qid, &queue)?;
        self.completion[usize::from(wanted.qid)] = Some(queue);
        Ok(Status::SUCCESS.into())
    }

    fn create_submission_queue(&mut self, command: &Command) -> Result {
        let Ok(wanted) = CreateSubmissionQueue::from_command(command) else {
            return refused(Status::INVALID_FIELD);
        };
        let status = self.queue_status(&self.submission, wanted.qid, wanted.entries, wanted.address.value());
        if !status.is_success() {
            return refused(status);
        }
        let completions = usize::from(wanted.completion_queue);
        if completions == 0 || !matches!(self.completion.get(completions), Some(Some(_))) {
            return refused(Status::INVALID_COMPLETION_QUEUE);
        }
        let queue = SubmissionQueue::new(wanted.address.value(), wanted.entries.into(), wanted.completion_queue);
        self.check_submission_memory(&queue)?;
        self.submission[usize::from(wanted.qid)] = Some(queue);
        Ok(Status::SUCCESS.into())
    }

    /// What creating either kind of queue is refused for.
    fn queue_status<Q>(&self, queues: &[Option<Q>], qid: u16, entries: u16, address: u64) -> Status {
        if qid == 0 || !matches!(queues.get(usize::from(qid)), Some(None)) {
            Status::INVALID_QUEUE_IDENTIFIER
        } else if entries < 2 || u32::from(entries) > self.config.queue_entries {
            Status::INVALID_QUEUE_SIZE
        } else if !address.is_multiple_of(self.page_size() as u64) {
            Status::INVALID_PRP_OFFSET
        } else {
            Status::SUCCESS
        }
    }

    fn delete_completion_queue(&mut self, command: &Command) -> Result {
        let qid = command.cdw10[0].get() as u16;
        if self
            .submission
            .iter()
            .flatten()
            .any(|queue| queue.completion_queue == qid)
        {
            return refused(Status::INVALID_QUEUE_DELETION);
        }
        delete(&mut self.completion, qid)
    }

    /// Commands of the queue that were not fetched are dropped; completions of those that were find it gone.
    fn delete_submission_queue(&mut self, command: &Command) -> Result {
        delete(&mut self.submission, command.cdw10[0].get() as u16)
    }
}

fn delete<Q>(queues: &mut [Option<Q>], qid: u16) -> Result {
    match queues.get_mut(usize::from(qid)) {
        Some(queue) if qid != 0 && queue.is_some() => {
            *queue = None;
            Ok(Status::SUCCESS.into())
        }
        _ => refused(Status::INVALID_QUEUE_IDENTIFIER),
    }
}
