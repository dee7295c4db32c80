//! Asynchronous events: requests kept outstanding, and what they tell (Base, 5.2).

use alloc::vec::Vec;
use core::mem;

use hal::clock::Clock;
use hal::mmio::Mmio;

use crate::controller::Controller;
use crate::error::Error;
use crate::queue::Completion;
use crate::spec::{
    AdminOpcode, AsyncEvent, AsyncEventConfiguration, Command, DataPointer, FeatureId, IDENTIFY_BYTES, LogId,
    OptionalAsyncEvents,
};

/// The most requests that are kept outstanding: one for each kind of event that matters.
const MAXIMUM_REQUESTS: u16 = 4;
/// Token of event requests; other admin commands have their opcode.
pub(crate) const EVENT_TOKEN: u32 = u32::MAX;

/// Event requests and what they brought.
#[derive(Default)]
pub(crate) struct Events {
    /// Requests to keep outstanding; 0 is none.
    wanted: u16,
    outstanding: u16,
    /// Events that nobody has asked for yet. Only asking sends new requests, so that there are never more than of those.
    waiting: Vec<AsyncEvent>,
}

impl Events {
    /// A reset ended all requests.
    pub fn restart(&mut self) {
        self.outstanding = 0;
    }
}

impl<M: Mmio, C: Clock> Controller<M, C> {
    /// Switches on events (health warnings, namespace and firmware notices; errors always are), and keeps requests for them
    /// outstanding: as many as the controller takes (AERL), at most 4. Returns how many.
    ///
    /// # Errors
    /// See [`Error`]. A controller that refuses the configuration keeps its own.
    pub fn enable_async_events(&mut self) -> Result<u16, Error> {
        self.settings.events = true;
        self.configure_events()?;
        let (pair, _) = self.admin(AdminOpcode::ASYNC_EVENT_REQUEST)?;
        let room = pair.capacity().saturating_sub(1);
        self.events.wanted = self.info.async_event_limit.min(MAXIMUM_REQUESTS).min(room);
        self.request_events()?;
        Ok(self.events.wanted)
    }

    pub(crate) fn configure_events(&mut self) -> Result<(), Error> {
        type On = AsyncEventConfiguration;
        let mut events = On::SPARE | On::TEMPERATURE | On::RELIABILITY | On::READ_ONLY | On::BACKUP;
        let optional = self.info.optional_async_events;
        events.set(
            On::NAMESPACE_ATTRIBUTES,
            optional.contains(OptionalAsyncEvents::NAMESPACE_ATTRIBUTES),
        );
        events.set(
            On::FIRMWARE_ACTIVATION,
            optional.contains(OptionalAsyncEvents::FIRMWARE_ACTIVATION),
        );
        let feature = FeatureId::ASYNC_EVENT_CONFIGURATION;
        match self.submit(&Command::set_feature(feature, events.bits(), DataPointer::default())) {
            Err(error @ Error::Status { .. }) => {
                log::warn!("{error}; the events that it tells of stay as they are");
                Ok(())
            }
            result => result.map(drop),
        }
    }

    /// Sends event requests until enough are outstanding.
    pub(crate) fn request_events(&mut self) -> Result<(), Error> {
        let missing = self.events.wanted.saturating_sub(self.events.outstanding);
        let (pair, _) = self.admin(AdminOpcode::ASYNC_EVENT_REQUEST)?;
        let mut sent = 0;
        while sent < missing && pair.write(&Command::async_event_request(), EVENT_TOKEN).is_ok() {
            sent += 1;
        }
        pair.commit();
        self.events.outstanding += sent;
        Ok(())
    }

    /// Keeps what an event request was completed with.
    pub(crate) fn note_event(&mut self, completion: &Completion) {
        self.events.outstanding = self.events.outstanding.saturating_sub(1);
        if completion.status.is_success() {
            self.events.waiting.push(AsyncEvent::from_dword(completion.result));
        } else {
            // It takes fewer requests than it said, or none: the same request would be refused again.
            self.events.wanted = self.events.wanted.saturating_sub(1);
            let command = AdminOpcode::ASYNC_EVENT_REQUEST;
            log::warn!("{}: {command} failed: {}", self.name, completion.status);
        }
    }

    /// The events since the last call. Reads the log page that an event names, which lets the controller send the next one
    /// of its kind, and renews the requests. Costs one look at memory when there is none.
    ///
    /// # Errors
    /// See [`Error`]; events are then kept for the next call.
    pub fn poll_events(&mut self) -> Result<Vec<AsyncEvent>, Error> {
        let found = self.collect_events();
        self.stop_after(found)?;
        if self.events.waiting.is_empty() {
            return Ok(Vec::new());
        }
        let events = mem::take(&mut self.events.waiting);
        let read = events.iter().try_for_each(|event| self.read_event_log(event));
        if let Err(error) = read.and_then(|()| self.request_events()) {
            self.events.waiting.splice(0..0, events);
            return Err(error);
        }
        Ok(events)
    }

    fn collect_events(&mut self) -> Result<(), Error> {
        // No more looks than requests: only they are in flight now.
        for _ in 0..self.events.outstanding {
            let (pair, _) = self.admin(AdminOpcode::ASYNC_EVENT_REQUEST)?;
            let Some(completion) = pair.poll()? else { break };
            pair.acknowledge();
            self.note_event(&completion);
        }
        Ok(())
    }

    fn read_event_log(&mut self, event: &AsyncEvent) -> Result<(), Error> {
        let bytes = match event.log {
            LogId::ERROR_INFORMATION => 64,
            LogId::SMART | LogId::FIRMWARE_SLOT => 512,
            LogId::CHANGED_NAMESPACES => IDENTIFY_BYTES,
            // Of a vendor, or of none: its size is not known.
            _ => return Ok(()),
        };
        match self.log_page(event.log, bytes) {
            Err(error @ Error::Status { .. }) => {
                log::warn!("{error}; the log page of event \"{event}\" was not read");
                Ok(())
            }
            result => result,
        }
    }
}
