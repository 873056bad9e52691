//! What other threads have of a device.

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

/// The thread is given up when it has done nothing for so long a wait: the driver does not answer it.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Closing waits so long for copies that are under way.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// A device, and the thread that copies batches to it. Ends when it was closed and no batch is left.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    ordinal: usize,
    process: u32,
    next: AtomicU64,
    changes: OnceLock<Arc<[Change]>>,
    /// Counts turns of the thread, which has one every few milliseconds while somebody waits.
    pub(crate) beats: AtomicU64,
    /// Not bounded: each batch is told of once for each call that waits for its answer and once when it
    /// is given back, each region of memory once.
    pub(crate) commands: Sender<Command>,
    pub(crate) failure: Mutex<Option<DeviceError>>,
    pub(crate) stats: Mutex<DeviceStats>,
}

/// What a device holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Slots that have memory.
    pub slots: usize,
    /// Bytes of these on the device.
    pub slot_bytes: usize,
    /// Batches that are on the device and not asked for.
    pub ahead: usize,
    /// Batches that were copied.
    pub batches: u64,
    /// Of these, batches that were not ahead: the trainer asked for them first.
    pub late: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Batches that were copied from memory that could not be pinned: slower, and not in the background.
    pub pageable: u64,
    /// Bytes of host memory that are pinned.
    pub pinned_bytes: usize,
    /// Times that the trainer held all slots and an extra one was made.
    pub extra_slots: u64,
}

/// A batch that is to be copied.
#[derive(Debug)]
pub struct Work {
    pub(crate) id: BatchId,
    pub(crate) hold: Hold,
    pub(crate) copies: Arc<Copies>,
    /// The trainer asked for it before it was seen.
    pub(crate) is_late: bool,
}

/// Where batches come from that the trainer has not asked for.
pub trait Source: Send {
    /// What is ready of the next `count` batches and was not given yet, in sequence. Asked often, and
    /// must not wait; `device` says what becomes of a slot.
    fn look(&mut self, count: usize, device: &Device) -> Vec<Work>;
}

pub(crate) type Answer<T> = SyncSender<Result<T, DeviceError>>;

/// What is asked of the thread.
pub(crate) enum Command {
    /// This is done to all batches from here on.
    Change(Arc<[Change]>, Answer<()>),
    /// Batches come from there.
    Follow(Box<dyn Source>),
    /// Something may have changed.
    Look,
    /// The trainer wants a batch that is not ahead.
    Stage(Work),
    /// The trainer gets a batch: where is it?
    Lend(BatchId, Answer<u64>),
    /// A stream is going to read a batch.
    Read(BatchId, ConsumerStream, Answer<()>),
    /// Parts of a batch are wanted elsewhere on the device.
    CopyOut(BatchId, Vec<(Copy, u64)>, ConsumerStream, Answer<()>),
    /// A batch is done with.
    GiveBack(BatchId),
    /// Host memory is done with.
    Unmap(Memory),
    /// No more batches.
    Close(Answer<()>),
}

impl Device {
    /// Opens a device, in the context that others in this process use.
    /// - `ordinal`: as this process counts devices.
    ///
    /// # Errors  There is no driver, or no such device, or it does not work.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        Self::with_turns(ordinal, TURNS)
    }

    /// As [`Device::open`], with another number of slots, at least 2.
    pub fn with_turns(ordinal: usize, turns: usize) -> Result<Self, DeviceError> {
        let (commands, inbox) = channel();
        let shared = Arc::new(Shared {
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

    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.shared.ordinal
    }

    /// Has this done to parts of every batch, on the device, before it is ready. Once, and before the first
    /// batch is prepared.
    ///
    /// # Errors  The driver cannot load the kernels, or something was said before.
    pub fn change(&self, changes: Vec<Change>) -> Result<(), DeviceError> {
        let changes: Arc<[Change]> = changes.into();
        self.ask(|answer| Command::Change(Arc::clone(&changes), answer))?;
        let said = self.shared.changes.set(changes);
        said.map_err(|_| DeviceError::Invalid("changes are said once".into()))
    }

    /// Copies batches from there ahead of the trainer.
    pub fn follow(&self, source: Box<dyn Source>) {
        self.tell(Command::Follow(source));
    }

    /// Says that a batch was taken, so that there may be room for another one.
    pub fn look(&self) {
        self.tell(Command::Look);
    }

    /// Whether batches can be copied.
    ///
    /// # Errors  Why not.
    pub fn check(&self) -> Result<(), DeviceError> {
        if self.shared.process != std::process::id() {
            return Err(DeviceError::Forked);
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }

    /// Gets a batch ready to be copied; its place on the device goes with the slot, as its companion.
    /// - `parts`: what goes to the device, in the order of [`DeviceBatch::places`].
    /// - Returns what [`Source::look`] gives, or [`Device::stage`] takes.
    pub fn prepare(&self, slot: &mut SharedSlot, parts: &[BufferRange]) -> Work {
        let id = BatchId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let changes = self.shared.changes.get().map_or(&[][..], |changes| changes);
        let (copies, hold) = (Arc::new(Copies::with(parts, changes)), slot.hold());
        let (copies_too, device, asked) = (Arc::clone(&copies), self.clone(), Mutex::new(None));
        let batch = DeviceBatch { id, copies: copies_too, device, asked };
        *slot.companion() = Some(Box::new(batch));
        Work { id, hold, copies, is_late: false }
    }

    /// Copies a batch that the trainer wants now.
    pub fn stage(&self, work: Work) {
        self.tell(Command::Stage(work));
    }

    /// What it holds and has done.
    pub fn stats(&self) -> DeviceStats {
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the copying ahead, and waits for copies that are under way. Batches that were lent stay good.
    pub fn close(&self) {
        // The thread did not survive a fork.
        if self.shared.process == std::process::id() {
            let (answer, closed) = sync_channel(1);
            self.tell(Command::Close(answer));
            let _ = closed.recv_timeout(CLOSE_WAIT);
        }
    }

    pub(crate) fn tell(&self, command: Command) {
        // A thread that is gone has nothing to do: its memory is freed, what is asked is not answered.
        let _ = self.shared.commands.send(command);
    }

    fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Command) -> Result<T, DeviceError> {
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

/// What the thread was asked and has not answered yet.
#[derive(Debug)]
struct Asked<T> {
    answered: Receiver<Result<T, DeviceError>>,
    /// The thread's turns when it was heard of last.
    beats: u64,
    /// How long it was waited for since then. Not by a clock, which goes on while a process is stopped.
    silent: Duration,
}

impl<T> Asked<T> {
    fn new(answered: Receiver<Result<T, DeviceError>>, beats: &AtomicU64) -> Self {
        Self { answered, beats: beats.load(Ordering::Relaxed), silent: Duration::ZERO }
    }

    /// Waits at most `patience` for the answer. A trainer that is far ahead of its device may wait as long as that
    /// takes: the thread lives, and has nothing to say yet.
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

/// A batch on a device, or on its way there. Given back when dropped.
#[derive(Debug)]
pub struct DeviceBatch {
    id: BatchId,
    copies: Arc<Copies>,
    device: Device,
    /// The trainer wants it. Under a lock only because batches are shared once they are lent.
    asked: Mutex<Option<Asked<u64>>>,
}

impl DeviceBatch {
    /// Where each part is, as it is after all changes, from the batch's address.
    pub fn places(&self) -> &[BufferRange] {
        &self.copies.places
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Takes it: from here on it keeps its slot until it is dropped. Does not wait for the copy, but for a
    /// slot, if all are in use by what the trainer has queued and given back: as long as that takes, which may be
    /// for ever, so that whoever calls looks meanwhile whether it is still wanted.
    /// - `patience`: how long to wait at most.
    /// - Returns the address that places count from; `None` if there is no slot yet. To be called again then.
    ///
    /// # Errors  It could not be copied; the thread of the device was not heard of for 60 s of waiting.
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

    /// Lets a stream read it: what is queued there from here on comes after the copy, and the slot is
    /// used again after what was queued there before the batch is dropped.
    /// - `stream`: must live until then, and a little longer: until the device's thread has seen it.
    ///
    /// # Errors  The device failed.
    pub fn read(&self, stream: ConsumerStream) -> Result<(), DeviceError> {
        self.device.ask(|answer| Command::Read(self.id, stream, answer))
    }

    /// Copies parts to other memory of the device, in the order of the trainer's stream.
    /// - `targets`: number of a part, address it goes to.
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
