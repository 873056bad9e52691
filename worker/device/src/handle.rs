//! Handles of a device for other threads.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use shardfeed_handoff::{BufferRange, Hold, Memory, SharedSlot};

use crate::agent::Agent;
use crate::copies::{Copies, Copy};
use crate::error::DeviceError;
use crate::kernels::Change;
use crate::ring::BatchId;
use crate::stream::ConsumerStream;

/// Device slots that are used in turn: the batch in work, the next one, and one for jitter.
const TURNS: usize = 3;

/// The thread is given up after this wait without any activity: the driver does not respond to it.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Maximum wait on closing for copies in progress.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// A device, and the thread that copies batches to it. Ends when it is closed and no batch is left.
#[derive(Clone)]
pub struct Device {
    shared: Arc<SharedAgent>,
}

pub(crate) struct SharedAgent {
    ordinal: usize,
    process: u32,
    next: AtomicU64,
    changes: OnceLock<Arc<[Change]>>,
    /// Counts the thread's iterations, of which there is one every few milliseconds while a caller
    /// waits.
    pub(crate) beats: AtomicU64,
    /// Unbounded: each batch causes one command per call that waits for an answer and one when it
    /// is returned, each region of memory one.
    pub(crate) commands: Sender<Command>,
    pub(crate) failure: Mutex<Option<DeviceError>>,
    pub(crate) stats: Mutex<DeviceStats>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Slots with memory.
    pub slots: usize,
    /// Bytes of these slots on the device.
    pub slot_bytes: usize,
    /// Batches on the device that were not requested yet.
    pub ahead: usize,
    /// Batches copied.
    pub batches: u64,
    /// Copied batches that were not ahead: the trainer requested them first.
    pub late: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Batches copied from memory that could not be pinned: slower, and not in the background.
    pub pageable: u64,
    /// Bytes of host memory that are pinned.
    pub pinned_bytes: usize,
    /// Times that the trainer held all slots and an extra one was made.
    pub extra_slots: u64,
}

/// A batch to copy.
#[derive(Debug)]
pub struct Work {
    pub(crate) id: BatchId,
    pub(crate) hold: Hold,
    pub(crate) copies: Arc<Copies>,
    /// The trainer requested it before the source offered it.
    pub(crate) is_late: bool,
}

/// Source of batches that the trainer has not requested yet.
pub trait BatchSource: Send {
    /// Returns the ready batches of the next `count` that were not returned before, in sequence.
    ///
    /// Called often; must not wait. `device` prepares a slot.
    fn look(&mut self, count: usize, device: &Device) -> Vec<Work>;
}

pub(crate) type DeviceReply<T> = SyncSender<Result<T, DeviceError>>;

/// Command for the thread.
pub(crate) enum Command {
    /// Apply these changes to all following batches.
    Change(Arc<[Change]>, DeviceReply<()>),
    /// Take batches from this source.
    Follow(Box<dyn BatchSource>),
    /// Something may have changed.
    Look,
    /// Copy a requested batch that is not ahead.
    Stage(Work),
    /// Lend a batch to the trainer, and return its address.
    Lend(BatchId, DeviceReply<u64>),
    /// Let a stream read a batch.
    Read(BatchId, ConsumerStream, DeviceReply<()>),
    /// Copy parts of a batch to other memory of the device.
    CopyOut(BatchId, Vec<(Copy, u64)>, ConsumerStream, DeviceReply<()>),
    /// Take back a batch that is no longer used.
    GiveBack(BatchId),
    /// Unregister and unmap host memory.
    Unmap(Memory),
    /// Stop accepting batches.
    Close(DeviceReply<()>),
}

impl Device {
    /// Opens a device, in the context that the rest of this process uses.
    /// - `ordinal`: device number as counted in this process.
    ///
    /// # Errors  There is no driver, or no such device, or it does not work.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        Self::with_turns(ordinal, TURNS)
    }

    /// As [`Device::open`], with another number of slots, at least 2.
    pub fn with_turns(ordinal: usize, turns: usize) -> Result<Self, DeviceError> {
        let (commands, inbox) = channel();
        let shared = Arc::new(SharedAgent {
            ordinal,
            process: std::process::id(),
            next: AtomicU64::new(1),
            changes: OnceLock::new(),
            beats: AtomicU64::new(0),
            commands,
            failure: Mutex::new(None),
            stats: Mutex::default(),
        });
        let (answer, opened) = sync_channel(1);
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("shardfeed-gpu".into())
            .spawn(move || Agent::run(ordinal, turns.max(2), inbox, weak, &answer))
            .map_err(|error| DeviceError::Thread(error.to_string()))?;
        let device = Self { shared };
        device.wait(opened)?;
        Ok(device)
    }

    pub(crate) fn of(shared: Arc<SharedAgent>) -> Self {
        Self { shared }
    }

    pub fn ordinal(&self) -> usize {
        self.shared.ordinal
    }

    /// Sets changes to parts of every batch, made on the device before the batch is ready.
    ///
    /// Call once, before the first batch is prepared.
    ///
    /// # Errors  The driver cannot load the kernels, or changes were set before.
    pub fn change(&self, changes: Vec<Change>) -> Result<(), DeviceError> {
        let changes: Arc<[Change]> = changes.into();
        self.ask(|answer| Command::Change(Arc::clone(&changes), answer))?;
        let said = self.shared.changes.set(changes);
        said.map_err(|_| DeviceError::Invalid("changes are said once".into()))
    }

    /// Copies batches from this source ahead of the trainer.
    pub fn follow(&self, source: Box<dyn BatchSource>) {
        self.tell(Command::Follow(source));
    }

    /// Notifies the thread that a batch was taken, so that another one may fit.
    pub fn look(&self) {
        self.tell(Command::Look);
    }

    /// Checks that batches can be copied.
    ///
    /// # Errors  The reason why they cannot.
    pub fn check(&self) -> Result<(), DeviceError> {
        if self.shared.process != std::process::id() {
            return Err(DeviceError::Forked);
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }

    /// Prepares a batch for copying; its device batch is attached to the slot as its companion.
    /// - `parts`: parts to copy, in the order of [`DeviceBatch::places`].
    /// - Returns the work for [`BatchSource::look`] or [`Device::stage`].
    pub fn prepare(&self, slot: &mut SharedSlot, parts: &[BufferRange]) -> Work {
        let id = BatchId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let changes = self.shared.changes.get().map_or(&[][..], |changes| changes);
        let (copies, hold) = (Arc::new(Copies::with(parts, changes)), slot.hold());
        let (copies_too, device, asked) = (Arc::clone(&copies), self.clone(), Mutex::new(None));
        let batch = DeviceBatch { id, copies: copies_too, device, asked };
        *slot.companion() = Some(Box::new(batch));
        Work { id, hold, copies, is_late: false }
    }

    /// Copies a batch that the trainer needs now.
    pub fn stage(&self, work: Work) {
        self.tell(Command::Stage(work));
    }

    pub fn stats(&self) -> DeviceStats {
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops copying ahead, and waits for copies in progress. Lent batches stay valid.
    pub fn close(&self) {
        // The thread did not survive a fork.
        if self.shared.process == std::process::id() {
            let (answer, closed) = sync_channel(1);
            self.tell(Command::Close(answer));
            let _ = closed.recv_timeout(CLOSE_WAIT);
        }
    }

    pub(crate) fn tell(&self, command: Command) {
        // A thread that has ended has nothing to do: its memory is freed, and requests get no
        // answer.
        let _ = self.shared.commands.send(command);
    }

    fn ask<T>(&self, question: impl FnOnce(DeviceReply<T>) -> Command) -> Result<T, DeviceError> {
        self.check()?;
        let (answer, answered) = sync_channel(1);
        self.tell(question(answer));
        self.wait(answered)
    }

    fn wait<T>(&self, answered: Receiver<Result<T, DeviceError>>) -> Result<T, DeviceError> {
        let mut asked = Asked::new(answered, &self.shared.beats);
        loop {
            if let Some(answer) = asked.wait(ANSWER_WAIT, &self.shared.beats)? {
                return Ok(answer);
            }
        }
    }
}

/// A request to the thread that is not answered yet.
#[derive(Debug)]
struct Asked<T> {
    answered: Receiver<Result<T, DeviceError>>,
    /// The thread's iterations at its last sign of activity.
    beats: u64,
    /// Time waited since then. Measured without a clock, which continues while a process is
    /// stopped.
    silent: Duration,
}

impl<T> Asked<T> {
    fn new(answered: Receiver<Result<T, DeviceError>>, beats: &AtomicU64) -> Self {
        Self { answered, beats: beats.load(Ordering::Relaxed), silent: Duration::ZERO }
    }

    /// Waits at most `patience` for the answer.
    ///
    /// A trainer that is far ahead of its device may wait for any time: the thread is alive, and
    /// has no answer yet.
    fn wait(&mut self, patience: Duration, beats: &AtomicU64) -> Result<Option<T>, DeviceError> {
        match self.answered.recv_timeout(patience) {
            Ok(answer) => return answer.map(Some),
            Err(RecvTimeoutError::Disconnected) => return Err(DeviceError::Ended),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = beats.load(Ordering::Relaxed);
        match now == self.beats {
            true => self.silent += patience,
            false => (self.beats, self.silent) = (now, Duration::ZERO),
        }
        if self.silent >= ANSWER_WAIT {
            return Err(DeviceError::Stuck { seconds: ANSWER_WAIT.as_secs() });
        }
        Ok(None)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.shared.ordinal).finish_non_exhaustive()
    }
}

/// A batch on a device, or on its way there. Returned when dropped.
#[derive(Debug)]
pub struct DeviceBatch {
    id: BatchId,
    copies: Arc<Copies>,
    device: Device,
    /// Request for the batch. The lock is needed only because batches are shared once they are
    /// lent.
    asked: Mutex<Option<Asked<u64>>>,
}

impl DeviceBatch {
    /// Final position of each part, after all changes, relative to the batch's address.
    pub fn places(&self) -> &[BufferRange] {
        &self.copies.places
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Lends the batch, which keeps its slot until it is dropped.
    ///
    /// Does not wait for the copy, but for a slot if the trainer's queued work still uses all
    /// returned ones. That wait may last forever, so callers check between calls whether the batch
    /// is still needed.
    /// - `patience`: maximum wait of this call.
    /// - Returns the address that positions are relative to; `None` if there is no slot yet, and
    ///   the call has to be repeated.
    ///
    /// # Errors  It could not be copied; the device's thread showed no activity during 60 s of
    /// waiting.
    pub fn lend(&mut self, patience: Duration) -> Result<Option<u64>, DeviceError> {
        self.device.check()?;
        let Self { id, device, asked, .. } = self;
        let beats = &device.shared.beats;
        let asked = asked.get_mut().unwrap_or_else(PoisonError::into_inner);
        asked
            .get_or_insert_with(|| {
                let (answer, answered) = sync_channel(1);
                device.tell(Command::Lend(*id, answer));
                Asked::new(answered, beats)
            })
            .wait(patience, beats)
    }

    /// Lets a stream read the batch.
    ///
    /// Work queued on the stream after this call runs after the copy. The slot is reused after the
    /// work that was queued there before the batch is dropped.
    /// - `stream`: must live until then, and until the device's thread has processed the drop.
    ///
    /// # Errors  The device failed.
    pub fn read(&self, stream: ConsumerStream) -> Result<(), DeviceError> {
        self.device.ask(|answer| Command::Read(self.id, stream, answer))
    }

    /// Copies parts to other memory of the device, in the order of the trainer's stream.
    /// - `targets`: index of a part, and target address.
    ///
    /// # Errors  There is no such part; the device failed.
    pub fn copy_out(
        &self,
        targets: &[(usize, u64)],
        stream: ConsumerStream,
    ) -> Result<(), DeviceError> {
        let copy = |(part, address): &(usize, u64)| {
            let place = self.copies.places.get(*part).ok_or_else(|| {
                DeviceError::Invalid(format!(
                    "a batch of {} parts has no part {part}",
                    self.copies.places.len()
                ))
            })?;
            Ok((Copy { from: place.start, to: 0, len: place.len }, *address))
        };
        let copies = targets.iter().map(copy).collect::<Result<_, DeviceError>>()?;
        self.device.ask(|answer| Command::CopyOut(self.id, copies, stream, answer))
    }
}

impl Drop for DeviceBatch {
    fn drop(&mut self) {
        self.device.tell(Command::GiveBack(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_silent_is_given_up_and_one_that_turns_is_not() {
        let (_answer, answered) = sync_channel::<Result<u64, DeviceError>>(1);
        let (beats, tick) = (AtomicU64::new(7), Duration::from_millis(1));
        let mut asked = Asked::new(answered, &beats);
        asked.silent = ANSWER_WAIT - 2 * tick;
        assert_eq!(asked.wait(tick, &beats), Ok(None));
        beats.store(8, Ordering::Relaxed);
        assert_eq!(asked.wait(tick, &beats), Ok(None), "it was heard of");
        assert_eq!(asked.silent, Duration::ZERO);
        asked.silent = ANSWER_WAIT - tick;
        assert_eq!(asked.wait(tick, &beats), Err(DeviceError::Stuck { seconds: 60 }));
    }

    #[test]
    fn an_answer_is_had_also_by_one_who_was_told_to_ask_again() {
        let (answer, answered) = sync_channel(1);
        let beats = AtomicU64::new(0);
        let mut asked = Asked::new(answered, &beats);
        assert_eq!(asked.wait(Duration::ZERO, &beats), Ok(None));
        answer.send(Ok(5_u64)).unwrap();
        assert_eq!(asked.wait(Duration::ZERO, &beats), Ok(Some(5)));
        drop(answer);
        assert_eq!(asked.wait(Duration::ZERO, &beats), Err(DeviceError::Ended));
    }
}
