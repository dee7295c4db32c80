//! Features that are set, and log pages that are read (Base, 5.16 and 5.27).

use alloc::vec::Vec;

use hal::clock::Clock;
use hal::mmio::Mmio;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::controller::Controller;
use crate::error::Error;
use crate::shadow::ShadowPages;
use crate::spec::{
    AdminOpcode, Command, DataPointer, ErrorEntry, FeatureId, IDENTIFY_BYTES, InterruptCoalescing, LogId,
    OptionalAdminCommands, SmartLog, VectorConfiguration,
};

/// NSID of what is the controller's own.
const CONTROLLER: u32 = u32::MAX;

/// What was set, so that it can be set again after a reset.
#[derive(Default)]
pub(crate) struct Settings {
    /// I/O queue pairs that were asked for; 0 before.
    pub queues: u16,
    /// Whether events were switched on.
    pub events: bool,
    coalescing: Option<InterruptCoalescing>,
    vectors: Vec<VectorConfiguration>,
    write_cache: Option<bool>,
    apst_disabled: bool,
}

impl<M: Mmio, C: Clock> Controller<M, C> {
    /// Sets when interrupts of I/O queues may be held back (Base, 5.27.1.6); all zeroes is never.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_interrupt_coalescing(&mut self, coalescing: InterruptCoalescing) -> Result<(), Error> {
        self.set_feature(FeatureId::INTERRUPT_COALESCING, coalescing.to_dword())?;
        self.settings.coalescing = Some(coalescing);
        Ok(())
    }

    /// Takes interrupt `vector` out of coalescing, or puts it back (Base, 5.27.1.7). To be called once a completion queue
    /// uses the vector: some controllers know of no others.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_vector_coalescing_disabled(&mut self, vector: u16, disabled: bool) -> Result<(), Error> {
        let configuration = VectorConfiguration {
            vector,
            coalescing_disabled: disabled,
        };
        self.set_feature(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, configuration.to_dword())?;
        self.settings.vectors.retain(|other| other.vector != vector);
        self.settings.vectors.push(configuration);
        Ok(())
    }

    /// Switches off autonomous power state transitions (Base, 5.27.1.9), which would add their latencies to a measurement.
    /// Returns whether the controller has any.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn disable_apst(&mut self) -> Result<bool, Error> {
        if !self.info.autonomous_power_states {
            return Ok(false);
        }
        // A table without transitions, zeroes all over.
        let table = self.data_page(AdminOpcode::SET_FEATURES)?;
        let feature = FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION;
        self.submit(&Command::set_feature(feature, 0, table))?;
        self.settings.apst_disabled = true;
        Ok(true)
    }

    /// Whether the volatile write cache is on (Base, 5.27.1.4); false where there is none.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn write_cache(&mut self) -> Result<bool, Error> {
        if !self.info.volatile_write_cache {
            return Ok(false);
        }
        let value = self.submit(&Command::get_feature(FeatureId::VOLATILE_WRITE_CACHE, 0))?;
        Ok(value & 1 != 0)
    }

    /// Switches the volatile write cache on or off. Where there is none, does nothing.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set_write_cache(&mut self, on: bool) -> Result<(), Error> {
        if self.info.volatile_write_cache {
            self.set_feature(FeatureId::VOLATILE_WRITE_CACHE, on.into())?;
            self.settings.write_cache = Some(on);
        }
        Ok(())
    }

    /// Hands shadow doorbells to the controller (Base, 5.8), for the I/O queue pairs created from now on: a doorbell then
    /// moves in memory, and its register is only written when the controller asked for it. Returns false where the
    /// controller has no such command: devices in hardware have none. Only a reset ends it.
    ///
    /// # Errors
    /// [`Error::QueuesExist`] when it is too late; else see [`Error`].
    pub fn enable_shadow_doorbells(&mut self) -> Result<bool, Error> {
        if !self.created.is_empty() {
            return Err(Error::QueuesExist {
                controller: self.name.clone(),
            });
        }
        let optional = self.info.optional_admin_commands;
        if !optional.contains(OptionalAdminCommands::DOORBELL_BUFFER_CONFIG) {
            return Ok(false);
        }
        if self.shadow.is_none() {
            self.shadow = Some(ShadowPages::new(&self.dma, self.info.page_size).map_err(self.dma_error())?);
            if let Err(error) = self.configure_doorbell_buffers() {
                // Refused, the pages are not the controller's; otherwise nobody knows.
                let pages = self.shadow.take();
                if !matches!(error, Error::Status { .. } | Error::Stopped { .. }) {
                    core::mem::forget(pages);
                }
                return Err(error);
            }
        }
        Ok(true)
    }

    fn configure_doorbell_buffers(&mut self) -> Result<(), Error> {
        if let Some(pages) = &self.shadow {
            pages.clear();
            let (values, events) = pages.addresses();
            self.submit(&Command::doorbell_buffer_config(values, events))?;
        }
        Ok(())
    }

    /// SMART / Health Information of the controller (Base, 5.16.1.3).
    ///
    /// # Errors
    /// See [`Error`].
    pub fn smart_log(&mut self) -> Result<SmartLog, Error> {
        self.log_page(LogId::SMART, size_of::<SmartLog>())?;
        self.logged(0)
    }

    /// The errors in the controller's log (Base, 5.16.1.2), the newest first; at most 64.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn error_log(&mut self) -> Result<Vec<ErrorEntry>, Error> {
        let entries = usize::from(self.info.error_log_entries).min(IDENTIFY_BYTES / size_of::<ErrorEntry>());
        self.log_page(LogId::ERROR_INFORMATION, entries * size_of::<ErrorEntry>())?;
        let mut errors = Vec::new();
        for index in 0..entries {
            let entry: ErrorEntry = self.logged(index * size_of::<ErrorEntry>())?;
            if entry.count.get() != 0 {
                errors.push(entry);
            }
        }
        Ok(errors)
    }

    /// Reads the first `bytes` bytes, at most 4096, of a log page into the page for data. Events of it may come again.
    pub(crate) fn log_page(&mut self, log: LogId, bytes: usize) -> Result<(), Error> {
        let data = self.data_page(AdminOpcode::GET_LOG_PAGE)?;
        self.submit(&Command::get_log_page(log, CONTROLLER, bytes, false, data))
            .map(drop)
    }

    fn logged<T: FromBytes + IntoBytes + KnownLayout>(&mut self, offset: usize) -> Result<T, Error> {
        let (_, page) = self.admin(AdminOpcode::GET_LOG_PAGE)?;
        Ok(page.read(offset))
    }

    fn set_feature(&mut self, feature: FeatureId, value: u32) -> Result<(), Error> {
        self.submit(&Command::set_feature(feature, value, DataPointer::default()))
            .map(drop)
    }

    /// Sets all again that was set before a reset, but what belongs to a queue pair: see
    /// [`restore_vector`](Self::restore_vector).
    pub(crate) fn restore_settings(&mut self) -> Result<(), Error> {
        if self.settings.queues != 0 {
            self.request_queues(self.settings.queues)?;
        }
        self.configure_doorbell_buffers()?;
        if let Some(coalescing) = self.settings.coalescing {
            self.set_interrupt_coalescing(coalescing)?;
        }
        if let Some(on) = self.settings.write_cache {
            self.set_write_cache(on)?;
        }
        if self.settings.apst_disabled {
            self.disable_apst()?;
        }
        if self.settings.events {
            self.configure_events()?;
            self.request_events()?;
        }
        Ok(())
    }

    /// Sets again what was set for a queue pair's interrupt vector.
    pub(crate) fn restore_vector(&mut self, vector: Option<u16>) -> Result<(), Error> {
        let known = |other: &&VectorConfiguration| Some(other.vector) == vector;
        match self.settings.vectors.iter().find(known).copied() {
            Some(found) => self.set_vector_coalescing_disabled(found.vector, found.coalescing_disabled),
            None => Ok(()),
        }
    }
}
