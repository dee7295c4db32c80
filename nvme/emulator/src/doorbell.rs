//! Doorbells: the registers, and the buffers that take their place for I/O queues (Base, 5.8 and Annex B.5).

use nvme::spec::{
    Command, ControllerStatus, DOORBELLS, ShutdownStatus, Status, completion_head_doorbell, submission_tail_doorbell,
};

use crate::controller::{Controller, Outcome};
use crate::driver_error::{DriverError, QueueName};
use crate::memory::Memory;

/// Where the doorbell buffers lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoorbellBuffers {
    shadow: u64,
    event_index: u64,
}

impl<M: Memory> Controller<M> {
    /// The driver wrote a doorbell register.
    pub(crate) fn ring(&mut self, offset: usize, value: u32) {
        let (index, rest) = (
            (offset - DOORBELLS) / self.config.doorbell_stride,
            (offset - DOORBELLS) % self.config.doorbell_stride,
        );
        if rest != 0 {
            return self.fail(DriverError::NoRegister { offset });
        }
        let id = (index / 2) as u16;
        let name = if index.is_multiple_of(2) {
            QueueName::Submission(id)
        } else {
            QueueName::Completion(id)
        };
        if let Err(error) = self.ring_queue(name, value) {
            self.fail(error);
        }
    }

    fn ring_queue(&mut self, name: QueueName, value: u32) -> Result<(), DriverError> {
        let none = |reason| Err(DriverError::NoSuchDoorbell { queue: name, reason });
        if !self.csts.contains(ControllerStatus::READY) {
            return none("the controller is not ready");
        }
        if self.csts.shutdown() != ShutdownStatus::Normal {
            return none("the controller was shut down");
        }
        let shadow = self.shadow(name)?;
        if let Some(shadow) = shadow
            && shadow != value
        {
            return Err(DriverError::ShadowDiffers {
                queue: name,
                shadow,
                value,
            });
        }
        // The controller may have found the value in the buffer before the driver rang.
        let known = shadow.is_some();
        match name {
            QueueName::Submission(id) => match self.submission.get_mut(usize::from(id)) {
                Some(Some(queue)) => {
                    queue.awake = true;
                    if known && queue.tail == value {
                        Ok(())
                    } else {
                        queue.ring(id, value)
                    }
                }
                _ => none("there is no such queue"),
            },
            QueueName::Completion(id) => match self.completion.get_mut(usize::from(id)) {
                Some(Some(queue)) => {
                    queue.asleep = false;
                    if known && queue.head == value {
                        Ok(())
                    } else {
                        queue.ring(id, value)
                    }
                }
                _ => none("there is no such queue"),
            },
        }
    }

    /// Doorbell Buffer Config (Base, 5.8).
    pub(crate) fn doorbell_buffer_config(&mut self, command: &Command) -> Outcome {
        let data = command.data();
        let page = self.page_size() as u64;
        let buffers = [data.prp1, data.prp2];
        if !self.config.doorbell_buffer {
            return Status::INVALID_OPCODE.do_not_retry().into();
        }
        let wrong = buffers
            .iter()
            .any(|address| *address == 0 || !address.is_multiple_of(page));
        if wrong || data.prp1 == data.prp2 {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        self.doorbell_buffers = Some(DoorbellBuffers {
            shadow: data.prp1,
            event_index: data.prp2,
        });
        Status::SUCCESS.into()
    }

    /// Offset of a queue's doorbell in the buffers; `None` where it has none: the admin queue, doorbells beyond the page.
    fn in_buffer(&self, name: QueueName) -> Option<(DoorbellBuffers, u64)> {
        let buffers = self.doorbell_buffers?;
        let stride = self.config.doorbell_stride;
        let (id, offset) = match name {
            QueueName::Submission(id) => (id, submission_tail_doorbell(id, stride)),
            QueueName::Completion(id) => (id, completion_head_doorbell(id, stride)),
        };
        let offset = offset - DOORBELLS;
        (id != 0 && offset + 4 <= self.page_size()).then_some((buffers, offset as u64))
    }

    /// What the driver left in the buffer for a queue, if it has a place there.
    fn shadow(&self, name: QueueName) -> Result<Option<u32>, DriverError> {
        let Some((buffers, offset)) = self.in_buffer(name) else {
            return Ok(None);
        };
        let mut value = [0; 4];
        self.memory
            .read(buffers.shadow + offset, &mut value)
            .map_err(|source| DriverError::Unmapped {
                what: "the doorbell buffer",
                source,
            })?;
        Ok(Some(u32::from_le_bytes(value)))
    }

    /// Asks to be told, by the register, once the driver goes on from `value`.
    fn set_event_index(&self, name: QueueName, value: u32) -> Result<(), DriverError> {
        let Some((buffers, offset)) = self.in_buffer(name) else {
            return Ok(());
        };
        self.memory
            .write(buffers.event_index + offset, &value.to_le_bytes())
            .map_err(|source| DriverError::Unmapped {
                what: "the event index buffer",
                source,
            })
    }

    /// Looks for commands in the doorbell buffer. A queue that was found empty is looked at no more until its register is
    /// rung: a driver that does not ring when it has to is left waiting, as by a real device.
    pub(crate) fn look_for_commands(&mut self, index: usize) -> Result<(), DriverError> {
        let (id, name) = (index as u16, QueueName::Submission(index as u16));
        while let Some(Some(queue)) = self.submission.get(index)
            && queue.awake
            && queue.head == queue.tail
        {
            let tail = queue.tail;
            let Some(shadow) = self.shadow(name)? else {
                return Ok(());
            };
            let went_on = shadow != tail;
            if went_on {
                if let Some(Some(queue)) = self.submission.get_mut(index) {
                    queue.ring(id, shadow)?;
                }
                continue;
            }
            self.set_event_index(name, tail)?;
            // The driver may have gone on before it could see the event index.
            let last_look = self.shadow(name)? == Some(tail);
            if let Some(Some(queue)) = self.submission.get_mut(index)
                && last_look
            {
                queue.awake = false;
            }
        }
        Ok(())
    }

    /// Looks how far the driver acknowledged completions of a full queue, where a buffer says so. As with commands, one look
    /// in vain is the last until the register is rung.
    pub(crate) fn look_for_room(&mut self, index: usize) -> Result<(), DriverError> {
        let (id, name) = (index as u16, QueueName::Completion(index as u16));
        while let Some(Some(queue)) = self.completion.get(index)
            && !queue.asleep
            && queue.is_full()
        {
            let head = queue.head;
            let Some(shadow) = self.shadow(name)? else {
                return Ok(());
            };
            let went_on = shadow != head;
            if went_on {
                if let Some(Some(queue)) = self.completion.get_mut(index) {
                    queue.ring(id, shadow)?;
                }
                continue;
            }
            self.set_event_index(name, head)?;
            let last_look = self.shadow(name)? == Some(head);
            if let Some(Some(queue)) = self.completion.get_mut(index) {
                queue.asleep = last_look;
            }
        }
        Ok(())
    }
}
