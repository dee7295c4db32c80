//! A controller's life: bring-up by the book, and shutdown.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use hal::barrier::mmio_wmb;
use hal::clock::Clock;
use hal::dma::{Dma, DmaBuffer, DmaError, IoAddr};
use hal::mmio::Mmio;

use crate::error::Error;
use crate::events::Events;
use crate::features::Settings;
use crate::queue::{QueueCounters, QueuePair, QueueParameters};
use crate::shadow::ShadowPages;
use crate::spec::{
    AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus, ControllerType, IDENTIFY_BYTES,
    IdentifyController, IdentifyKind, OptionalAdminCommands, OptionalAsyncEvents, OptionalNvmCommands, ReadyTimeouts,
    Register, ShutdownNotification, ShutdownStatus, Version, VolatileWriteCache, completion_head_doorbell,
};

/// The memory page size that is asked for, where the controller can.
const PREFERRED_PAGE_SIZE: usize = 4096;
/// log2 of the size of a submission and of a completion queue entry.
const ENTRY_SHIFTS: (u8, u8) = (6, 4);
/// The longest wait for CSTS.RDY that CAP.TO can ask for; CRTO could ask for hours.
const READY_LIMIT: Duration = Duration::from_millis(500 * 0xff);
/// Bounds of the wait for shutdown processing, whatever RTD3E says.
const SHUTDOWN_WAIT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// What the user of a controller chooses.
#[derive(Clone, Debug)]
pub struct Config {
    /// Entries of the two admin queues, brought into 2 to 4096. 32 by default.
    pub admin_entries: u16,
    /// How long an admin command may take. 10 s by default.
    pub command_timeout: Duration,
    /// The largest transfer in bytes that is used even if the controller allows more, or names no limit (MDTS = 0).
    /// 2 MiB by default.
    pub max_transfer_cap: usize,
    /// How often the controller may be reset before it is given up. 3 by default.
    pub max_resets: u32,
    /// Resets do not count any more once the controller has worked for so long since the last of them. 10 minutes by default.
    pub resets_forgotten_after: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            admin_entries: 32,
            command_timeout: Duration::from_secs(10),
            max_transfer_cap: 2 << 20,
            max_resets: 3,
            resets_forgotten_after: Duration::from_secs(600),
        }
    }
}

/// What a controller says about itself.
#[derive(Clone, Debug)]
pub struct ControllerInfo {
    /// MN, model number; trimmed, unprintable bytes as `?`.
    pub model: String,
    /// SN, serial number; likewise.
    pub serial: String,
    /// FR, firmware revision; likewise.
    pub firmware: String,
    /// VID, the PCI vendor.
    pub vendor: u16,
    /// SSVID, the PCI subsystem vendor.
    pub subsystem_vendor: u16,
    /// The specification version it claims.
    pub version: Version,
    /// The largest transfer in bytes: the smaller of MDTS and [`Config::max_transfer_cap`].
    pub max_transfer: usize,
    /// MDTS in bytes; `None` when it names no limit.
    pub mdts: Option<usize>,
    /// NN: the largest namespace id that may be valid.
    pub namespace_limit: u32,
    /// VWC: whether there is a volatile write cache, so that Flush matters.
    pub volatile_write_cache: bool,
    /// ONCS: optional commands.
    pub optional_commands: OptionalNvmCommands,
    /// OACS: optional admin commands.
    pub optional_admin_commands: OptionalAdminCommands,
    /// OAES: events that can be switched on.
    pub optional_async_events: OptionalAsyncEvents,
    /// AERL + 1: Asynchronous Event Requests that may be outstanding.
    pub async_event_limit: u16,
    /// ELPE + 1: entries of the error log.
    pub error_log_entries: u16,
    /// APSTA: the controller can change power states by itself.
    pub autonomous_power_states: bool,
    /// SQES: required and largest submission queue entry size in bytes.
    pub submission_entry_sizes: (usize, usize),
    /// CQES: required and largest completion queue entry size in bytes.
    pub completion_entry_sizes: (usize, usize),
    /// CAP, with MQES, DSTRD and TO in it.
    pub capabilities: Capabilities,
    /// The memory page size in use, in bytes (CC.MPS).
    pub page_size: usize,
    /// How long changes of CSTS.RDY may take: CAP.TO, or CRTO.CRWMT where that is longer.
    pub ready_timeout: Duration,
    /// How long shutdown processing may take: RTD3E, brought into 5 to 60 s.
    pub shutdown_timeout: Duration,
}

/// An NVMe controller that is up and running.
///
/// It owns the admin queues and polls them: nothing of it is meant for the hot path. I/O goes through
/// [`QueuePair`]s, which it creates and deletes.
///
/// Dropping it disables the controller (CC.EN = 0) and waits until that is done, at most CAP.TO.
pub struct Controller<M: Mmio, C: Clock> {
    pub(crate) name: Arc<str>,
    pub(crate) registers: M,
    pub(crate) dma: Dma,
    pub(crate) clock: C,
    pub(crate) config: Config,
    pub(crate) info: ControllerInfo,
    /// The admin queue pair and the page that admin commands transfer; `None` once freed.
    pub(crate) admin: Option<(QueuePair<M>, DmaBuffer)>,
    /// I/O queues granted.
    pub(crate) granted: u16,
    /// The I/O queue pairs that the device may know of: id, and where the submission queue is, which tells apart pairs of
    /// one id.
    pub(crate) created: Vec<(u16, IoAddr)>,
    /// What was set, and is set again after a reset.
    pub(crate) settings: Settings,
    pub(crate) shadow: Option<Arc<ShadowPages>>,
    pub(crate) events: Events,
    /// Resets since the start, those of them that still count against the limit, and until when these do.
    pub(crate) resets: u32,
    pub(crate) recent_resets: u32,
    pub(crate) resets_count_until: u64,
    /// Why no command can be sent any more.
    pub(crate) stopped: Option<&'static str>,
    /// CC.EN was set by us: the device knows our memory.
    enabled: bool,
}

impl<M: Mmio, C: Clock> Controller<M, C> {
    /// Resets the controller, brings it up, and identifies it (Base, 3.5.1).
    ///
    /// `name` ("nvme0") goes into every error. `registers` is BAR 0, at least up to the first two doorbells; memory decoding
    /// and bus mastering are on. MSI-X is to be enabled before this call, if it is going to be used.
    ///
    /// # Errors
    /// Whatever the device does wrong, in bounded time: see [`Error`].
    pub fn start(name: String, registers: M, dma: Dma, clock: C, config: Config) -> Result<Self, Error> {
        let name: Arc<str> = name.into();
        let first_doorbells = completion_head_doorbell(0, 4) + 4;
        if registers.len() < first_doorbells {
            return Err(Error::WindowTooSmall {
                controller: name,
                what: "the admin queue",
                needed: first_doorbells,
                length: registers.len(),
            });
        }
        let capabilities = Capabilities(registers.read64_halves(Register::Cap.offset()));
        if registers.read32(Register::Csts.offset()) == ControllerStatus::GONE.0 || capabilities.0 == u64::MAX {
            return Err(Error::Gone { controller: name });
        }
        let page_size = check_capabilities(&name, capabilities)?;
        let needed = completion_head_doorbell(0, capabilities.doorbell_stride()) + 4;
        if registers.len() < needed {
            let length = registers.len();
            return Err(Error::WindowTooSmall {
                controller: name,
                what: "the admin queue",
                needed,
                length,
            });
        }
        let mut ready_timeout = capabilities.timeout();
        if capabilities.contains(Capabilities::READY_WITH_MEDIA) {
            let crto = ReadyTimeouts(registers.read32(Register::Crto.offset()));
            ready_timeout = ready_timeout.max(crto.with_media());
        }
        // A controller that claims to need no time at all still gets one step.
        ready_timeout = ready_timeout.clamp(Duration::from_millis(500), READY_LIMIT);

        let info = ControllerInfo::before_identify(capabilities, page_size, ready_timeout);
        let mut controller = Self {
            name,
            registers,
            dma,
            clock,
            config,
            info,
            admin: None,
            granted: 0,
            created: Vec::new(),
            settings: Settings::default(),
            shadow: None,
            events: Events::default(),
            resets: 0,
            recent_resets: 0,
            resets_count_until: 0,
            stopped: None,
            enabled: false,
        };
        controller.disable()?;
        controller.allocate_admin_queues()?;
        controller.enable()?;
        controller.identify_controller()?;
        Ok(controller)
    }

    /// The name given at start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the controller says about itself.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// The memory page size in use, in bytes; [`Prps`](crate::Prps) need it.
    pub fn page_size(&self) -> usize {
        self.info.page_size
    }

    /// The largest transfer in bytes, our own cap included.
    pub fn max_transfer(&self) -> usize {
        self.info.max_transfer
    }

    /// The number of I/O queue pairs granted by [`request_queues`](Self::request_queues); 0 before.
    pub fn queues(&self) -> u16 {
        self.granted
    }

    /// What the admin queue did so far.
    pub fn admin_counters(&self) -> QueueCounters {
        self.admin
            .as_ref()
            .map_or_else(QueueCounters::default, |(pair, _)| *pair.counters())
    }

    /// How often the controller was reset since it was started.
    pub fn resets(&self) -> u32 {
        self.resets
    }

    /// Looks whether the controller is still there and well: one register read, or two.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::FatalStatus`].
    pub fn check_status(&self) -> Result<(), Error> {
        let status = self.status()?;
        if status.contains(ControllerStatus::FATAL) {
            Err(self.fatal(status))
        } else {
            Ok(())
        }
    }

    /// Tells the controller to shut down in an orderly way, and waits for it (Base, 3.6.1). Delete the I/O queues first.
    /// After that no command can be sent; calling it again does nothing.
    ///
    /// # Errors
    /// [`Error::ShutdownTimeout`], [`Error::Gone`], [`Error::FatalStatus`].
    pub fn shutdown(&mut self) -> Result<(), Error> {
        const REASON: &str = "the controller was shut down";
        if self.stopped == Some(REASON) {
            return Ok(());
        }
        self.status()?;
        let configuration = self.configuration().with_shutdown(ShutdownNotification::Normal);
        self.write_configuration(configuration);
        self.stopped = Some(REASON);
        let limit = self.info.shutdown_timeout;
        self.wait_status(limit, |status| {
            if status.shutdown() == ShutdownStatus::Complete {
                Some(Ok(()))
            } else if status.contains(ControllerStatus::FATAL) {
                Some(Err(self.fatal(status)))
            } else {
                None
            }
        })
        .unwrap_or_else(|status| {
            Err(Error::ShutdownTimeout {
                controller: self.name.clone(),
                after: limit,
                csts: status.0,
            })
        })
    }

    /// CSTS, unless the device is gone.
    pub(crate) fn status(&self) -> Result<ControllerStatus, Error> {
        let status = ControllerStatus(self.registers.read32(Register::Csts.offset()));
        // Where no device answers, buses read as all ones, and those of some hypervisors as all zeros. No version is 0.
        let silent = status.0 == 0 && self.registers.read32(Register::Vs.offset()) == 0;
        if status == ControllerStatus::GONE || silent {
            return Err(Error::Gone {
                controller: self.name.clone(),
            });
        }
        Ok(status)
    }

    fn configuration(&self) -> ControllerConfiguration {
        ControllerConfiguration(self.registers.read32(Register::Cc.offset()))
    }

    fn write_configuration(&self, configuration: ControllerConfiguration) {
        self.registers.write32(Register::Cc.offset(), configuration.0);
    }

    pub(crate) fn fatal(&self, status: ControllerStatus) -> Error {
        Error::FatalStatus {
            controller: self.name.clone(),
            csts: status.0,
        }
    }

    pub(crate) fn dma_error(&self) -> impl Fn(DmaError) -> Error {
        let controller = self.name.clone();
        move |source| Error::Dma {
            controller: controller.clone(),
            source,
        }
    }

    /// Reads CSTS until `verdict` has one, at most for `limit`; the device gone ends the wait as well. `Err` is the status
    /// at the end of a wait without a verdict. The last look always comes after the time is up.
    fn wait_status(
        &self,
        limit: Duration,
        verdict: impl Fn(ControllerStatus) -> Option<Result<(), Error>>,
    ) -> Result<Result<(), Error>, ControllerStatus> {
        let deadline = self.clock.deadline(limit);
        loop {
            let late = self.clock.ticks() >= deadline;
            let status = match self.status() {
                Ok(status) => status,
                Err(gone) => return Ok(Err(gone)),
            };
            if let Some(verdict) = verdict(status) {
                return Ok(verdict);
            }
            if late {
                return Err(status);
            }
            core::hint::spin_loop();
        }
    }

    fn wait_ready(&self, ready: bool) -> Result<(), Error> {
        let after = self.info.ready_timeout;
        self.wait_status(after, |status| {
            if status.contains(ControllerStatus::READY) == ready {
                // Not yet fatal, or no longer: a reset clears an old error.
                return Some(if ready && status.contains(ControllerStatus::FATAL) {
                    Err(self.fatal(status))
                } else {
                    Ok(())
                });
            }
            (ready && status.contains(ControllerStatus::FATAL)).then(|| Err(self.fatal(status)))
        })
        .unwrap_or_else(|status| {
            Err(if status.contains(ControllerStatus::FATAL) {
                self.fatal(status)
            } else {
                Error::NotReady {
                    controller: self.name.clone(),
                    ready,
                    after,
                }
            })
        })
    }

    /// CC.EN = 0, and RDY = 0 waited for; whatever state firmware or an earlier driver left behind.
    pub(crate) fn disable(&self) -> Result<(), Error> {
        self.status()?;
        let configuration = self.configuration();
        if configuration.contains(ControllerConfiguration::ENABLE) {
            // EN must not be cleared before RDY is 1 (Base, 3.1.3.5). One that never becomes ready, or failed, is reset all
            // the same.
            match self.wait_ready(true) {
                Ok(()) => {}
                Err(gone @ Error::Gone { .. }) => return Err(gone),
                Err(error) => log::warn!("{error}; resetting it"),
            }
            let disabled = configuration.difference(ControllerConfiguration::ENABLE);
            self.write_configuration(disabled.with_shutdown(ShutdownNotification::None));
        }
        self.wait_ready(false)
    }

    fn admin_entries(&self) -> u16 {
        self.config
            .admin_entries
            .clamp(2, AdminQueueAttributes::MAXIMUM_ENTRIES)
    }

    fn allocate_admin_queues(&mut self) -> Result<(), Error> {
        let parameters = QueueParameters {
            controller: self.name.clone(),
            id: 0,
            entries: self.admin_entries(),
            vector: Some(0),
            page_size: self.info.page_size,
            doorbell_stride: self.info.capabilities.doorbell_stride(),
            shadow: None,
        };
        let pair = QueuePair::new(&self.registers, &self.dma, parameters).map_err(self.dma_error())?;
        // Aligned to its own size, it lies within one memory page.
        match self.dma.allocate(IDENTIFY_BYTES, IDENTIFY_BYTES) {
            Ok(page) => {
                self.admin = Some((pair, page));
                Ok(())
            }
            Err(error) => {
                pair.release();
                Err(self.dma_error()(error))
            }
        }
    }

    /// Hands the admin queues, which are empty, to the controller and sets CC.EN = 1.
    pub(crate) fn enable(&mut self) -> Result<(), Error> {
        let Some((pair, _)) = &self.admin else {
            return Ok(());
        };
        let (asq, acq) = (pair.submission_address(), pair.completion_address());
        let attributes = AdminQueueAttributes::new(self.admin_entries());
        self.registers.write32(Register::Aqa.offset(), attributes.0);
        self.registers.write64_halves(Register::Asq.offset(), asq.value());
        self.registers.write64_halves(Register::Acq.offset(), acq.value());
        let configuration = ControllerConfiguration::nvm(self.info.page_size);
        self.write_configuration(configuration);
        mmio_wmb();
        self.enabled = true;
        self.write_configuration(configuration | ControllerConfiguration::ENABLE);
        self.wait_ready(true)
    }

    pub(crate) fn identify_controller(&mut self) -> Result<(), Error> {
        let data: IdentifyController = self.identify(IdentifyKind::Controller, 0)?;
        let unsupported = |what| Error::Unsupported {
            controller: self.name.clone(),
            what: Cow::Borrowed(what),
        };
        match data.controller_type() {
            ControllerType::NotReported | ControllerType::Io => {}
            ControllerType::Discovery => return Err(unsupported("a discovery controller")),
            ControllerType::Administrative => return Err(unsupported("an administrative controller")),
            ControllerType::Reserved(kind) => return Err(self.impossible("CNTRLTYPE", kind.into())),
        }
        let sizes = |value: u8| (value & 0xf, value >> 4);
        for (field, value, shift) in [
            ("SQES", data.submission_entry_size, ENTRY_SHIFTS.0),
            ("CQES", data.completion_entry_size, ENTRY_SHIFTS.1),
        ] {
            let (required, largest) = sizes(value);
            if required > shift || largest < shift {
                return Err(self.impossible(field, value.into()));
            }
        }
        let capabilities = self.info.capabilities;
        let mdts = match data.maximum_transfer {
            0 => None,
            shift => {
                // Up to 2^52 pages fit; beyond there is no such transfer.
                let bytes = (capabilities.minimum_page_size() as u128) << shift.min(64);
                let bytes = usize::try_from(bytes).map_err(|_| self.impossible("MDTS", shift.into()))?;
                Some(bytes)
            }
        };
        let version = Version(self.registers.read32(Register::Vs.offset()));
        let in_bytes = |(required, largest): (u8, u8)| (1 << required, 1 << largest);
        let shutdown_timeout =
            Duration::from_micros(data.entry_latency.get().into()).clamp(SHUTDOWN_WAIT.0, SHUTDOWN_WAIT.1);
        self.info = ControllerInfo {
            model: printable(&data.model),
            serial: printable(&data.serial),
            firmware: printable(&data.firmware),
            vendor: data.vendor.get(),
            subsystem_vendor: data.subsystem_vendor.get(),
            version,
            max_transfer: mdts.unwrap_or(usize::MAX).min(self.config.max_transfer_cap),
            mdts,
            namespace_limit: data.namespaces.get(),
            volatile_write_cache: data.volatile_write_cache().contains(VolatileWriteCache::PRESENT),
            optional_commands: data.optional_nvm_commands(),
            optional_admin_commands: data.optional_admin_commands(),
            optional_async_events: data.optional_async_events(),
            async_event_limit: u16::from(data.async_event_limit) + 1,
            error_log_entries: u16::from(data.error_log_entries) + 1,
            autonomous_power_states: data.has_autonomous_power_states(),
            submission_entry_sizes: in_bytes(sizes(data.submission_entry_size)),
            completion_entry_sizes: in_bytes(sizes(data.completion_entry_size)),
            shutdown_timeout,
            ..self.info.clone()
        };
        Ok(())
    }

    pub(crate) fn impossible(&self, field: impl Into<Cow<'static, str>>, value: u64) -> Error {
        Error::ImpossibleIdentify {
            controller: self.name.clone(),
            field: field.into(),
            value,
        }
    }
}

impl<M: Mmio, C: Clock> Drop for Controller<M, C> {
    fn drop(&mut self) {
        let idle = !self.enabled
            || match self.disable() {
                Ok(()) | Err(Error::Gone { .. }) => true,
                Err(error) => {
                    log::warn!("{error}; the memory of its queues is given up");
                    false
                }
            };
        if let Some((pair, page)) = self.admin.take() {
            if idle {
                pair.release();
            } else {
                // The device may still write there.
                core::mem::forget(page);
                core::mem::forget(self.shadow.take());
            }
        }
    }
}

impl<M: Mmio, C: Clock> fmt::Debug for Controller<M, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .field("info", &self.info)
            .field("granted", &self.granted)
            .field("created", &self.created)
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl ControllerInfo {
    fn before_identify(capabilities: Capabilities, page_size: usize, ready_timeout: Duration) -> Self {
        Self {
            model: String::new(),
            serial: String::new(),
            firmware: String::new(),
            vendor: 0,
            subsystem_vendor: 0,
            version: Version::default(),
            max_transfer: 0,
            mdts: None,
            namespace_limit: 0,
            volatile_write_cache: false,
            optional_commands: OptionalNvmCommands::empty(),
            optional_admin_commands: OptionalAdminCommands::empty(),
            optional_async_events: OptionalAsyncEvents::empty(),
            async_event_limit: 1,
            error_log_entries: 1,
            autonomous_power_states: false,
            submission_entry_sizes: (0, 0),
            completion_entry_sizes: (0, 0),
            capabilities,
            page_size,
            ready_timeout,
            shutdown_timeout: SHUTDOWN_WAIT.0,
        }
    }
}

/// Refuses capabilities that cannot be, or that this driver cannot use; returns the memory page size to use.
fn check_capabilities(name: &Arc<str>, capabilities: Capabilities) -> Result<usize, Error> {
    let impossible = |register, value| Error::ImpossibleRegister {
        controller: name.clone(),
        register,
        value,
    };
    if capabilities.maximum_queue_entries() < 2 {
        return Err(impossible(
            "CAP.MQES",
            u64::from(capabilities.maximum_queue_entries()) - 1,
        ));
    }
    let (minimum, maximum) = (capabilities.minimum_page_size(), capabilities.maximum_page_size());
    if minimum > maximum {
        return Err(impossible("CAP.MPSMIN", u64::from(minimum.trailing_zeros()) - 12));
    }
    if !capabilities.contains(Capabilities::NVM_COMMAND_SET) {
        let what = Cow::Borrowed("a controller without the NVM command set (CAP.CSS)");
        return Err(Error::Unsupported {
            controller: name.clone(),
            what,
        });
    }
    // MPSMAX cannot be below 4 KiB, so that the preferred size is only ever too small.
    Ok(minimum.max(PREFERRED_PAGE_SIZE))
}

/// An ASCII field without its padding; what a terminal or a report should not see becomes `?`.
fn printable(bytes: &[u8]) -> String {
    let text: String = bytes
        .iter()
        .map(|&byte| {
            if byte.is_ascii_graphic() || byte == b' ' {
                char::from(byte)
            } else {
                '?'
            }
        })
        .collect();
    text.trim().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_strings_are_trimmed_and_harmless() {
        assert_eq!(printable(b"QEMU NVMe Ctrl          "), "QEMU NVMe Ctrl");
        assert_eq!(printable(b" a\x1b[2Jb\x00 "), "a?[2Jb?");
        assert_eq!(printable(&[b' '; 20]), "");
    }
}
