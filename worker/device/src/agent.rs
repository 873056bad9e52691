//! The thread that owns a device: processes commands, copies ahead, and detects completed work.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use shardfeed_handoff::{Hold, Memory, SlotPool};

use crate::driver::{CopyStream, DeviceSlot, Driver, Kernels};
use crate::error::DeviceError;
use crate::handle::{BatchSource, Command, Device, DeviceReply, DeviceStats, SharedAgent, Work};
use crate::ring::{BatchId, Ring, SlotIndex};
use crate::stream::ConsumerStream;

/// Initial interval of the checks for completed work and new batches.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// Maximum interval of these checks while nothing changes.
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// Maximum wait if there is nothing to check; a command ends it.
const PAUSE_IDLE: Duration = Duration::from_secs(3600);

/// State of a device's thread.
pub(crate) struct Agent {
    inbox: Receiver<Command>,
    shared: Weak<SharedAgent>,
    source: Option<Box<dyn BatchSource>>,
    ring: Ring,
    /// Batches that wait for a slot, in sequence.
    waiting: VecDeque<Work>,
    /// Batches that the trainer waits for.
    asked: Vec<(BatchId, DeviceReply<u64>)>,
    /// Streams that will read a batch, and wait here until its copy is complete.
    reading: Vec<(BatchId, ConsumerStream, DeviceReply<()>)>,
    /// Returned batches whose readers' streams are part of a capture.
    captured: Vec<BatchId>,
    /// Regions of host memory, by address.
    regions: BTreeMap<usize, HostRegion>,
    stats: DeviceStats,
    is_closed: bool,
    failure: Option<DeviceError>,
    has_warned: bool,
    // In the order in which they must be dropped.
    slots: Vec<DeviceSlot>,
    kernels: Option<Kernels>,
    stream: CopyStream,
    driver: Driver,
}

struct HostRegion {
    base: NonNull<u8>,
    bytes: usize,
    is_registered: bool,
}

impl Agent {
    /// Opens the device, reports the result, and serves the device until it is no longer used.
    pub(crate) fn run(
        ordinal: usize,
        turns: usize,
        inbox: Receiver<Command>,
        shared: Weak<SharedAgent>,
        opened: &DeviceReply<()>,
    ) {
        let open = || -> Result<(Driver, CopyStream), DeviceError> {
            let driver = Driver::open(ordinal)?;
            let stream = CopyStream::new(&driver)?;
            Ok((driver, stream))
        };
        let (driver, stream) = match open() {
            Ok(opened) => opened,
            Err(error) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let mut agent = Self {
            inbox,
            shared,
            source: None,
            ring: Ring::new(turns),
            waiting: VecDeque::new(),
            asked: vec![],
            reading: vec![],
            captured: vec![],
            regions: BTreeMap::new(),
            stats: DeviceStats::default(),
            is_closed: false,
            failure: None,
            has_warned: false,
            slots: vec![],
            kernels: None,
            stream,
            driver,
        };
        let _ = opened.send(Ok(()));
        if catch_unwind(AssertUnwindSafe(|| agent.serve())).is_err() {
            tracing::error!("the thread that copies to the device panicked");
            agent.fail(&DeviceError::Ended);
        }
        agent.end();
    }

    fn serve(&mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let has_moved = match self.turn() {
                Ok(has_moved) => has_moved,
                Err(error) => {
                    self.fail(&error);
                    true
                }
            };
            self.tell_stats();
            self.beat();
            pause = if has_moved { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            let wait = if self.has_to_look() { pause } else { PAUSE_IDLE };
            match self.inbox.recv_timeout(wait) {
                Ok(command) => {
                    pause = PAUSE_MIN;
                    self.take(command);
                    while let Ok(command) = self.inbox.try_recv() {
                        self.take(command);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if !self.has_to_wait() => return,
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE_MAX),
            }
        }
    }

    /// True if something may change without a command.
    fn has_to_look(&self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let is_looking = self.source.is_some() && self.ring.room() > 0;
        let is_waiting = !self.waiting.is_empty() || !self.ring.unsettled().is_empty();
        is_looking || is_waiting || self.has_to_wait()
    }

    /// True if memory may be read that cannot be freed before a capture has ended.
    fn has_to_wait(&self) -> bool {
        self.failure.is_none() && !self.captured.is_empty()
    }

    /// Detects completed work, and starts copies that fit; returns true if anything changed.
    fn turn(&mut self) -> Result<bool, DeviceError> {
        if self.failure.is_some() {
            return Ok(false);
        }
        let mut has_moved = self.settle()?;
        if let Some(source) = &mut self.source
            && self.waiting.is_empty()
            && self.ring.room() > 0
            && let Some(shared) = self.shared.upgrade()
        {
            self.waiting.extend(source.look(self.ring.ahead_max(), &Device::of(shared)));
        }
        while let Some(work) = self.waiting.pop_front() {
            if let Some(work) = self.begin(work)? {
                self.waiting.push_front(work);
                break;
            }
            has_moved = true;
        }
        while self.lend() {
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Lends the trainer a requested batch that has a slot; returns true if there was one.
    fn lend(&mut self) -> bool {
        let waiting = |id: BatchId| self.waiting.iter().any(|work| work.id == id);
        let Some(at) = self.asked.iter().position(|(id, _)| !waiting(*id)) else {
            return false;
        };
        let (batch, answer) = self.asked.swap_remove(at);
        let slot = self.ring.lend(batch).ok_or(DeviceError::Ended);
        self.tell_stats();
        // The requester may be gone.
        let _ = answer.send(slot.map(|slot| self.slots[slot.0].address()));
        true
    }

    /// Detects complete copies and slots that have no readers left.
    fn settle(&mut self) -> Result<bool, DeviceError> {
        let mut has_moved = self.drain()?;
        for index in self.ring.unsettled() {
            let slot = &mut self.slots[index.0];
            if self.ring.is_copying(index) {
                if !slot.is_filling()? {
                    continue;
                }
                self.ring.copied(index);
                has_moved = true;
            }
            if self.ring.is_draining(index) && slot.is_drained()? {
                if self.ring.drained(index) {
                    slot.free();
                }
                has_moved = true;
            }
        }
        self.read();
        Ok(has_moved)
    }

    /// Answers requests to read a batch once their streams can.
    fn read(&mut self) {
        for (batch, stream, answer) in std::mem::take(&mut self.reading) {
            let slot = self.working().and_then(|()| self.lent(batch));
            let ordered = slot.and_then(|slot| self.slots[slot.0].lend(stream));
            match self.failed(ordered) {
                Ok(false) => self.reading.push((batch, stream, answer)),
                // The requester may be gone.
                other => drop(answer.send(other.map(drop))),
            }
        }
    }

    /// Starts draining returned slots; returns true if there was one.
    ///
    /// A slot that is read on a stream of a capture stays lent until the capture has ended.
    fn drain(&mut self) -> Result<bool, DeviceError> {
        let before = self.captured.len();
        for batch in std::mem::take(&mut self.captured) {
            let Some(slot) = self.ring.slot_of(batch) else { continue };
            if self.failure.is_some() || self.slots[slot.0].give_back()? {
                self.ring.give_back(batch);
            } else {
                self.captured.push(batch);
            }
        }
        Ok(self.captured.len() < before)
    }

    /// Starts copying a batch; returns it if it has to wait for a slot.
    fn begin(&mut self, work: Work) -> Result<Option<Work>, DeviceError> {
        let is_asked_for = self.asked.iter().any(|(id, _)| *id == work.id);
        let bytes = work.copies.bytes.max(1);
        let extra_before = self.ring.extra_total();
        let allocation = SlotPool::slot_bytes(bytes);
        let Some(begin) = self.ring.begin(work.id, bytes, allocation, is_asked_for) else {
            return Ok(Some(work));
        };
        self.stats.extra_slots += self.ring.extra_total() - extra_before;
        while self.slots.len() <= begin.slot.0 {
            self.slots.push(DeviceSlot::new(&self.driver)?);
        }
        if let Some(bytes) = begin.allocate {
            self.slots[begin.slot.0].allocate(bytes, &self.stream)?;
        }
        let is_registered = self.register(&work.hold);
        let Work { hold, copies, is_late, .. } = work;
        self.slots[begin.slot.0].fill(hold, &copies, self.kernels.as_ref(), &self.stream)?;
        self.stats.batches += 1;
        self.stats.late += u64::from(is_late || is_asked_for);
        self.stats.bytes += copies.copies.iter().map(|copy| copy.len as u64).sum::<u64>();
        self.stats.pageable += u64::from(!is_registered);
        Ok(None)
    }

    /// Registers a host slot's memory with the device, once; returns true if it is registered.
    fn register(&mut self, hold: &Hold) -> bool {
        let (base, bytes) = (hold.base(), hold.size_bytes());
        if let Some(region) = self.regions.get(&base.addr().get()) {
            return region.is_registered;
        }
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let commands = shared.commands.clone();
        // This thread exists while the memory may arrive; after it has ended nothing is registered.
        let heir = move |memory| drop(commands.send(Command::Unmap(memory)));
        if !hold.bequeath(heir) {
            // Another device uses it: this one would not be notified when it is unmapped.
            return false;
        }
        let registered = self.driver.register(base, bytes);
        if let Err(error) = &registered
            && !std::mem::replace(&mut self.has_warned, true)
        {
            tracing::warn!(
                %error,
                "batches cannot be pinned and are copied to the device the slow way"
            );
        }
        let is_registered = registered.is_ok();
        self.stats.pinned_bytes += if is_registered { bytes } else { 0 };
        self.regions.insert(base.addr().get(), HostRegion { base, bytes, is_registered });
        is_registered
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Look => {}
            Command::Change(changes, answer) => {
                let loaded = self.working().and_then(|()| Kernels::load(&self.stream, changes));
                let loaded = loaded.map(|kernels| self.kernels = Some(kernels));
                let _ = answer.send(self.failed(loaded));
            }
            Command::Follow(source) => self.source = (!self.is_closed).then_some(source),
            Command::Stage(work) => {
                if self.working().is_ok() && !self.is_closed {
                    self.waiting.push_front(Work { is_late: true, ..work });
                }
            }
            Command::Lend(batch, answer) => match self.working() {
                Ok(()) => self.asked.push((batch, answer)),
                // The requester may be gone.
                Err(error) => drop(answer.send(Err(error))),
            },
            Command::Read(batch, stream, answer) => {
                self.reading.push((batch, stream, answer));
                self.read();
            }
            Command::CopyOut(batch, copies, stream, answer) => {
                let slot = self.working().and_then(|()| self.lent(batch));
                let result = slot.and_then(|slot| self.slots[slot.0].copy_out(&copies, stream));
                let _ = answer.send(self.failed(result));
            }
            Command::GiveBack(batch) => {
                self.waiting.retain(|work| work.id != batch);
                self.captured.push(batch);
                let result = self.drain();
                let _ = self.failed(result);
            }
            Command::Unmap(memory) => self.unmap(memory),
            Command::Close(answer) => {
                self.close();
                let _ = answer.send(Ok(()));
            }
        }
    }

    fn lent(&self, batch: BatchId) -> Result<SlotIndex, DeviceError> {
        self.ring.slot_of(batch).ok_or(DeviceError::Ended)
    }

    fn working(&self) -> Result<(), DeviceError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Records a driver error: nothing works after it.
    fn failed<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error @ DeviceError::Call { .. }) = &result {
            self.fail(error);
        }
        result
    }

    fn fail(&mut self, error: &DeviceError) {
        if self.failure.is_some() {
            return;
        }
        tracing::error!(%error, "the device failed, no batch is copied any more");
        self.failure = Some(error.clone());
        if let Some(shared) = self.shared.upgrade() {
            let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
            *failure = Some(error.clone());
        }
        for (_, answer) in self.asked.drain(..) {
            let _ = answer.send(Err(error.clone()));
        }
        self.read();
        // Slots of the host that are held here would keep this thread alive.
        self.source = None;
        self.waiting.clear();
        let _ = self.stream.synchronize();
        self.slots.iter_mut().for_each(DeviceSlot::abandon);
    }

    fn unmap(&mut self, memory: Memory) {
        if let Some(region) = self.regions.remove(&memory.base().addr().get()) {
            self.unregister(&region);
        }
        drop(memory);
    }

    fn unregister(&mut self, region: &HostRegion) {
        if region.is_registered {
            // A failed device keeps no registration; the memory is unmapped anyway.
            let result = self.driver.unregister(region.base, region.bytes);
            self.stats.pinned_bytes -= region.bytes;
            if self.failure.is_none() {
                let _ = self.failed(result);
            }
        }
    }

    /// Stops accepting batches; those that were lent stay valid.
    fn close(&mut self) {
        self.is_closed = true;
        self.source = None;
        self.waiting.clear();
        let result = self.stream.synchronize().and_then(|()| self.settle().map(drop));
        if self.failure.is_none() {
            let _ = self.failed(result);
        }
        for slot in self.ring.close() {
            self.slots[slot.0].free();
        }
        for region in std::mem::take(&mut self.regions).into_values() {
            self.unregister(&region);
        }
        self.tell_stats();
    }

    /// Frees everything once no batch is in use.
    fn end(mut self) {
        self.close();
    }

    /// Signals that this thread is alive.
    fn beat(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.beats.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tell_stats(&mut self) {
        (self.stats.slots, self.stats.slot_bytes) = self.ring.memory();
        self.stats.ahead = self.ring.ahead();
        if let Some(shared) = self.shared.upgrade() {
            *shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.stats;
        }
    }
}
