//! A loop that takes batches from a device, and its source of batches.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shardfeed_device::{BatchSource, Device, DeviceBatch, DeviceError, Work};
use shardfeed_handoff::{BufferRange, SharedSlot, SlotPool};

use crate::consumer::Consumer;
use crate::standin::{End, run, wait_for_the_thread};

pub const BYTES: usize = 100_000;

/// Ready batches, in sequence.
#[derive(Clone, Default)]
pub struct Queue(pub Arc<Mutex<VecDeque<(u64, SharedSlot)>>>);

impl BatchSource for Queue {
    fn look(&mut self, count: usize, device: &Device) -> Vec<Work> {
        let mut queue = self.0.lock().unwrap();
        let new = queue.iter_mut().take(count).filter_map(|(_, slot)| {
            let is_new = slot.companion().is_none();
            is_new.then(|| device.prepare(slot, &parts(BYTES)))
        });
        new.collect()
    }
}

/// Parts of a batch of two parts, whose content is determined by its number.
pub fn parts(bytes: usize) -> [BufferRange; 2] {
    let half = (bytes / 2).next_multiple_of(256);
    [BufferRange { start: 0, len: half - 7 }, BufferRange { start: half, len: bytes - half }]
}

pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at * 7 + number * 131) % 253) as u8).collect()
}

/// A trainer with its device and its source.
pub struct Trainer {
    pub device: Device,
    pub pool: SlotPool,
    pub queue: Queue,
    number: u64,
}

impl Trainer {
    pub fn new(turns: usize) -> Self {
        let device = Device::with_turns(0, turns).unwrap();
        Self { device, pool: SlotPool::sealed(4), queue: Queue::default(), number: 0 }
    }

    pub fn slot(&self, number: u64, bytes: usize) -> SharedSlot {
        let mut slot = self.pool.take(bytes).unwrap();
        slot.bytes_mut()[..bytes].copy_from_slice(&content(number, bytes));
        slot.share()
    }

    /// Makes `count` batches ready.
    pub fn reads(&mut self, count: u64) {
        for number in self.number..self.number + count {
            let slot = self.slot(number, BYTES);
            self.queue.0.lock().unwrap().push_back((number, slot));
        }
        self.number += count;
    }

    /// Copies ready batches ahead.
    pub fn follows(&self) {
        self.device.follow(Box::new(self.queue.clone()));
    }

    pub fn waits_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.device.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes the next batch: its number, its address, and the handle that keeps it.
    pub fn next(&mut self) -> (u64, u64, Box<DeviceBatch>) {
        let (number, mut slot) = self.queue.0.lock().unwrap().pop_front().unwrap();
        let (address, batch) = self.takes(&mut slot, BYTES).unwrap();
        self.device.look();
        (number, address, batch)
    }

    pub fn takes(
        &self,
        slot: &mut SharedSlot,
        bytes: usize,
    ) -> Result<(u64, Box<DeviceBatch>), DeviceError> {
        if slot.companion().is_none() {
            let work = self.device.prepare(slot, &parts(bytes));
            self.device.stage(work);
        }
        let mut batch = slot.companion().take().unwrap().downcast::<DeviceBatch>().unwrap();
        loop {
            if let Some(address) = batch.lend(Duration::from_millis(50))? {
                return Ok((address, batch));
            }
        }
    }

    pub fn ends(self) {
        self.device.close();
        let Self { device, pool, queue, .. } = self;
        drop((queue, pool, device));
        wait_for_the_thread();
    }
}

/// Runs `body` in another process, as [`run`], with a trainer and a consumer, and checks that
/// nothing is left of them.
/// - `turns`: slots of the trainer's ring.
pub fn trains(
    test: &str,
    environment: &[(&str, &str)],
    turns: usize,
    body: impl FnOnce(&mut Trainer, &Consumer),
) -> Option<End> {
    let end = run(test, environment, || {
        let mut trainer = Trainer::new(turns);
        let consumer = Consumer::new();
        body(&mut trainer, &consumer);
        trainer.ends();
        drop(consumer);
    })?;
    end.is_clean();
    Some(end)
}

/// Checks that the bytes on the device are those of the batch with this number.
pub fn is_whole(consumer: &Consumer, number: u64, address: u64, batch: &DeviceBatch, bytes: usize) {
    let expected = content(number, bytes);
    for (part, place) in parts(bytes).iter().zip(batch.places()) {
        assert_eq!(place.start % 256, 0);
        let there = consumer.bytes(address + place.start as u64, place.len);
        assert!(there == expected[part.bytes()], "batch {number} differs from the written one");
    }
}
