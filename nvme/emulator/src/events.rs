//! Asynchronous events (Base, 5.2), and the log pages that tell more of them (Base, 5.16).

use std::collections::VecDeque;

use nvme::spec::{
    AdminOpcode, AsyncEvent, AsyncEventConfiguration, AsyncEventKind, Command, CommandId, CompletionEntry,
    CriticalWarning, ErrorEntry, LogId, SmartLog, Status,
};
use zerocopy::little_endian::{U16, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

use crate::controller::{Controller, Fetched, Outcome};
use crate::driver_error::DriverError;
use crate::memory::Memory;

/// The largest part of a log page that is read at once. No page here is longer; what lies behind its end is zeroes.
const MOST_LOG_BYTES: u64 = 64 << 10;
/// Events that wait for a request. Further ones are lost.
const MOST_EVENTS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Requests that wait for an event, the oldest first.
    requests: VecDeque<Fetched>,
    waiting: VecDeque<AsyncEvent>,
    /// Pages of events that were told: no such event until the page was read.
    told: Vec<(AsyncEventKind, LogId)>,
}

/// What the log pages tell.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// The newest last.
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    media_errors: u64,
    pub reads: u64,
    pub writes: u64,
    pub blocks_read: u64,
    pub blocks_written: u64,
    warning: u8,
}

impl<M: Memory> Controller<M> {
    /// Keeps an Asynchronous Event Request until there is an event.
    pub(crate) fn async_event_request(&mut self, command: &Command) -> Option<Outcome> {
        if self.events.requests.len() >= self.config.async_event_limit.into() {
            return Some(Status::AER_LIMIT_EXCEEDED.do_not_retry().into());
        }
        self.events.requests.push_back(Fetched {
            queue: 0,
            command: *command,
        });
        None
    }

    /// Tells the driver of an event, as soon as there is a request for it. Events that are switched off (Asynchronous Event
    /// Configuration), or whose log page was not read since the last of that type, are dropped.
    pub fn raise_event(&mut self, event: AsyncEvent) {
        let known = self.events.waiting.contains(&event) || self.events.waiting.len() >= MOST_EVENTS;
        if !known && self.event_enabled(event) {
            self.events.waiting.push_back(event);
            self.deliver_events();
        }
    }

    fn event_enabled(&self, event: AsyncEvent) -> bool {
        let enabled = AsyncEventConfiguration::from_bits_retain(self.features.async_events);
        match event.kind {
            AsyncEventKind::Health => enabled.bits() & 0xff != 0,
            AsyncEventKind::Notice => match event.information {
                AsyncEvent::NAMESPACE_CHANGED => enabled.contains(AsyncEventConfiguration::NAMESPACE_ATTRIBUTES),
                1 => enabled.contains(AsyncEventConfiguration::FIRMWARE_ACTIVATION),
                _ => false,
            },
            _ => true,
        }
    }

    /// Critical Warning of the SMART log; each bit that is new is an event as well, where it is switched on.
    pub fn set_critical_warning(&mut self, warning: CriticalWarning) {
        let new = warning.bits() & !self.logs.warning;
        self.logs.warning = warning.bits();
        let enabled = self.features.async_events as u8;
        for (bit, information) in [(1, 2), (2, 1), (4, 0), (8, 0), (16, 0)] {
            if new & enabled & bit != 0 {
                self.raise_event(AsyncEvent {
                    kind: AsyncEventKind::Health,
                    information,
                    log: LogId::SMART,
                });
            }
        }
    }

    pub(crate) fn deliver_events(&mut self) {
        if !self.is_working() {
            return;
        }
        let mut at = 0;
        while at < self.events.waiting.len() && !self.events.requests.is_empty() {
            let event = self.events.waiting[at];
            if self.events.told.iter().any(|(kind, _)| *kind == event.kind) {
                at += 1;
                continue;
            }
            self.events.waiting.remove(at);
            self.events.told.push((event.kind, event.log));
            if let Some(request) = self.events.requests.pop_front() {
                let outcome = Outcome {
                    status: Status::SUCCESS,
                    result: event.to_dword(),
                };
                self.answer(&request, outcome)
                    .into_iter()
                    .for_each(|answer| self.post(answer));
            }
        }
    }

    /// Abort (Base, 5.1): a command that was fetched and not completed ends with Command Abort Requested. One that was not
    /// fetched yet, or that ended, is not found.
    pub(crate) fn abort(&mut self, command: &Command) -> Outcome {
        let cdw10 = command.cdw10[0].get();
        let (queue, id) = (cdw10 as u16, CommandId((cdw10 >> 16) as u16));
        let found = match self.submission.get(usize::from(queue)) {
            Some(Some(submissions)) if id.0 != command.command_id.get() || queue != 0 => {
                submissions.in_flight.contains(&id)
            }
            _ => false,
        };
        if found {
            self.events
                .requests
                .retain(|request| queue != 0 || request.command.command_id.get() != id.0);
            let aborted = Fetched {
                queue,
                command: Command {
                    command_id: U16::new(id.0),
                    ..Command::default()
                },
            };
            self.answer(&aborted, Status::ABORT_REQUESTED.into())
                .into_iter()
                .for_each(|answer| self.post(answer));
        }
        Outcome {
            status: Status::SUCCESS,
            result: u32::from(!found),
        }
    }

    /// Notes a command that failed.
    pub(crate) fn log_error(&mut self, entry: &CompletionEntry) {
        let status = entry.status();
        if status.is_success() || status.is(Status::ABORT_REQUESTED) {
            return;
        }
        self.logs.error_count += 1;
        self.logs.media_errors += u64::from(status.sct() == 2);
        if self.logs.errors.len() >= self.config.error_log_entries.into() {
            self.logs.errors.pop_front();
        }
        self.logs.errors.push_back(ErrorEntry {
            count: U64::new(self.logs.error_count),
            sq_id: entry.sq_id,
            command_id: entry.command_id,
            status_and_phase: U16::new(status.bits() << 1),
            parameter_location: U16::new(0xffff),
            ..ErrorEntry::default()
        });
    }

    /// Get Log Page (Base, 5.16).
    pub(crate) fn log_page(&mut self, command: &Command) -> Result<Outcome, DriverError> {
        let refused = |status: Status| Ok(status.do_not_retry().into());
        let [cdw10, cdw11, low, high] = [0, 1, 2, 3].map(|i| command.cdw10[i].get());
        let log = LogId(cdw10 as u8);
        let bytes = (u64::from(cdw11 & 0xffff) << 16 | u64::from(cdw10 >> 16)) * 4 + 4;
        let offset = u64::from(high) << 32 | u64::from(low);
        if !matches!(command.nsid.get(), 0 | u32::MAX) || bytes > MOST_LOG_BYTES || !offset.is_multiple_of(4) {
            return refused(Status::INVALID_FIELD);
        }
        let mut page = match log {
            LogId::ERROR_INFORMATION => {
                let mut entries: Vec<u8> = self
                    .logs
                    .errors
                    .iter()
                    .rev()
                    .flat_map(|entry| entry.as_bytes().to_vec())
                    .collect();
                entries.resize(usize::from(self.config.error_log_entries) * size_of::<ErrorEntry>(), 0);
                entries
            }
            LogId::SMART => self.smart().as_bytes().to_vec(),
            LogId::FIRMWARE_SLOT => {
                let mut page = vec![0; 512];
                // Slot 1 is active, and holds the revision that Identify tells.
                page[0] = 1;
                page[8..16].fill(b' ');
                let length = self.config.firmware.len().min(8);
                page[8..8 + length].copy_from_slice(&self.config.firmware.as_bytes()[..length]);
                page
            }
            LogId::CHANGED_NAMESPACES => vec![0; 4096],
            _ => return refused(Status::INVALID_LOG_PAGE),
        };
        let Some(start) = usize::try_from(offset).ok().filter(|start| *start <= page.len()) else {
            return refused(Status::INVALID_FIELD);
        };
        page.drain(..start);
        page.resize(bytes as usize, 0);
        self.data = page;
        self.send(command.data(), bytes as usize)?;
        if cdw10 & 1 << 15 == 0 {
            self.events.told.retain(|(_, of)| *of != log);
            self.deliver_events();
        }
        Ok(Status::SUCCESS.into())
    }

    fn smart(&self) -> SmartLog {
        let logs = &self.logs;
        // Thousands of 512-byte units, rounded up.
        let units = |blocks: u64| U128::new(u128::from(blocks).div_ceil(1000));
        let mut smart = SmartLog::new_zeroed();
        smart.critical_warning = logs.warning;
        smart.temperature = U16::new(273 + 30);
        smart.spare = 100;
        smart.spare_threshold = 10;
        smart.data_units_read = units(logs.blocks_read);
        smart.data_units_written = units(logs.blocks_written);
        smart.host_reads = U128::new(logs.reads.into());
        smart.host_writes = U128::new(logs.writes.into());
        smart.power_cycles = U128::new(1);
        smart.media_errors = U128::new(logs.media_errors.into());
        smart.error_entries = U128::new(logs.error_count.into());
        smart
    }
}

/// Whether the command is an Asynchronous Event Request.
pub(crate) fn is_event_request(fetched: &Fetched) -> bool {
    fetched.queue == 0 && AdminOpcode(fetched.command.opcode) == AdminOpcode::ASYNC_EVENT_REQUEST
}

/// What a reset forgets: requests, events, and what was told. Logs stay.
impl Events {
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}
