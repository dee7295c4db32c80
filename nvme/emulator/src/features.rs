//! Features (Base, 5.15 and 5.27).

use std::collections::BTreeSet;

use nvme::spec::{APST_BYTES, Command, FeatureId, InterruptCoalescing, QueueCounts, Status, VectorConfiguration};

use crate::controller::{Controller, Outcome};
use crate::driver_error::DriverError;
use crate::memory::Memory;

/// SV of Set Features: the value is to survive power cycles.
const SAVE: u32 = 1 << 31;

/// Current values; a controller level reset brings back the defaults.
#[derive(Debug)]
pub(crate) struct Features {
    write_cache: bool,
    pub coalescing: InterruptCoalescing,
    /// Vectors that take no part in coalescing.
    pub uncoalesced: BTreeSet<u16>,
    pub async_events: u32,
    autonomous_power: bool,
    transitions: Vec<u8>,
}

impl Features {
    pub fn new(autonomous_power: bool) -> Self {
        Self {
            write_cache: true,
            coalescing: InterruptCoalescing::default(),
            uncoalesced: BTreeSet::new(),
            async_events: 0,
            autonomous_power,
            transitions: vec![0; APST_BYTES],
        }
    }
}

impl<M: Memory> Controller<M> {
    pub(crate) fn set_features(&mut self, command: &Command) -> Result<Outcome, DriverError> {
        let refused = |status: Status| Ok(status.do_not_retry().into());
        let (cdw10, value) = (command.cdw10[0].get(), command.cdw10[1].get());
        if cdw10 & SAVE != 0 {
            return refused(Status::FEATURE_NOT_SAVEABLE);
        }
        match FeatureId(cdw10 as u8) {
            FeatureId::NUMBER_OF_QUEUES => {
                let wanted = QueueCounts::from_dword(value);
                if wanted.submission > 0xffff || wanted.completion > 0xffff {
                    return refused(Status::INVALID_FIELD);
                }
                if self.submission.iter().skip(1).any(Option::is_some)
                    || self.completion.iter().skip(1).any(Option::is_some)
                {
                    return refused(Status::COMMAND_SEQUENCE_ERROR);
                }
                // What is granted does not depend on what is asked for.
                return Ok(Outcome {
                    status: Status::SUCCESS,
                    result: self.config.io_queues.to_dword(),
                });
            }
            FeatureId::VOLATILE_WRITE_CACHE if self.config.volatile_write_cache => {
                self.features.write_cache = value & 1 != 0;
            }
            FeatureId::INTERRUPT_COALESCING => self.features.coalescing = InterruptCoalescing::from_dword(value),
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let wanted = VectorConfiguration::from_dword(value);
                if wanted.vector >= self.config.vectors {
                    return refused(Status::INVALID_FIELD);
                }
                if wanted.coalescing_disabled {
                    self.features.uncoalesced.insert(wanted.vector);
                } else {
                    self.features.uncoalesced.remove(&wanted.vector);
                }
            }
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.features.async_events = value,
            FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION if self.config.autonomous_power => {
                self.receive(command.data(), APST_BYTES)?;
                self.features.transitions.copy_from_slice(&self.data[..APST_BYTES]);
                self.features.autonomous_power = value & 1 != 0;
            }
            _ => return refused(Status::INVALID_FIELD),
        }
        Ok(Status::SUCCESS.into())
    }

    pub(crate) fn get_features(&mut self, command: &Command) -> Result<Outcome, DriverError> {
        let refused = |status: Status| Ok(status.do_not_retry().into());
        let (cdw10, cdw11) = (command.cdw10[0].get(), command.cdw10[1].get());
        // Only current values: saved and default ones come with ONCS bit 4.
        if cdw10 >> 8 & 7 != 0 {
            return refused(Status::INVALID_FIELD);
        }
        let result = match FeatureId(cdw10 as u8) {
            FeatureId::NUMBER_OF_QUEUES => self.config.io_queues.to_dword(),
            FeatureId::VOLATILE_WRITE_CACHE if self.config.volatile_write_cache => self.features.write_cache.into(),
            FeatureId::INTERRUPT_COALESCING => self.features.coalescing.to_dword(),
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let vector = cdw11 as u16;
                if vector >= self.config.vectors {
                    return refused(Status::INVALID_FIELD);
                }
                let coalescing_disabled = self.features.uncoalesced.contains(&vector);
                VectorConfiguration {
                    vector,
                    coalescing_disabled,
                }
                .to_dword()
            }
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.features.async_events,
            FeatureId::AUTONOMOUS_POWER_STATE_TRANSITION if self.config.autonomous_power => {
                self.data.clear();
                self.data.extend_from_slice(&self.features.transitions);
                // A driver that only wants the switch gives no page.
                if command.prp1.get() != 0 {
                    self.send(command.data(), APST_BYTES)?;
                }
                self.features.autonomous_power.into()
            }
            _ => return refused(Status::INVALID_FIELD),
        };
        Ok(Outcome {
            status: Status::SUCCESS,
            result,
        })
    }

    /// Whether autonomous power state transitions are on.
    pub fn has_autonomous_transitions(&self) -> bool {
        self.features.autonomous_power
    }

    /// Whether interrupts of `vector` wait for more completions (Base, 5.27.1.6); both limits have to be set.
    pub(crate) fn is_coalesced(&self, vector: u16) -> bool {
        let InterruptCoalescing { threshold, time } = self.features.coalescing;
        threshold != 0 && time != 0 && !self.features.uncoalesced.contains(&vector)
    }
}
