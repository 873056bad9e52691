//! Batches while a trainer captures a CUDA graph.
//!
//! The fake driver aborts the process at a call that would make the capture fail, as it does for
//! work in the wrong order.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod consumer;
#[allow(dead_code)]
mod standin;
#[allow(dead_code)]
mod trainer;

use consumer::Consumer;
use shardfeed_device::{Change, ConsumerStream, DeviceError, Number, Step};
use shardfeed_handoff::SlotPool;
use standin::{End, run, wait_for_the_thread};
use trainer::{BYTES, Trainer, is_whole, trains};

#[test]
fn a_graph_is_captured_while_batches_are_copied_and_slots_made() {
    let name = "a_graph_is_captured_while_batches_are_copied_and_slots_made";
    let end = run(name, &[("STANDIN_COPY_US", "1000")], || {
        let consumer = Consumer::new();
        let graph = Consumer::non_blocking();
        graph.captures();
        // Opening, loading kernels, allocating and registering memory, copying ahead, returning,
        // freeing and closing all happen within the capture.
        let mut trainer = Trainer::new(2);
        let cast = Step::Cast { to: Number::Uint8 };
        trainer.device.change(vec![Change::new(0, Number::Uint8, &[cast])]).unwrap();
        trainer.follows();
        trainer.reads(9);
        let held: Vec<_> = (0..9).map(|_| trainer.next()).collect();
        for (_, _, batch) in &held {
            batch.read(consumer.stream()).unwrap();
        }
        assert_eq!(trainer.device.stats().extra_slots, 7);
        drop(held);
        trainer.waits_for("extra slots go", |trainer| trainer.device.stats().slots == 2);
        for _ in 0..30 {
            trainer.reads(1);
            let (_, _, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
        }
        trainer.ends();
        graph.ends_capture();
        drop((graph, consumer));
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn a_slot_that_is_read_on_a_captured_stream_waits_for_the_end_of_the_capture() {
    let name = "a_slot_that_is_read_on_a_captured_stream_waits_for_the_end_of_the_capture";
    let end = run(name, &[("STANDIN_COPY_US", "3000")], || {
        let mut trainer = Trainer::new(2);
        let consumer = Consumer::new();
        let graph = Consumer::non_blocking();
        trainer.reads(8);
        let (_, address, batch) = trainer.next();
        batch.read(graph.stream()).unwrap();
        graph.works(address, BYTES, 50_000);
        graph.captures();
        // Work queued before the capture still reads it, and no event can mark the end of that
        // work.
        drop(batch);
        // The stream cannot wait for a copy either: the answer comes when the copy is complete.
        let (_, _, during) = trainer.next();
        during.read(graph.stream()).unwrap();
        let refused = during.copy_out(&[(0, 0)], graph.stream()).unwrap_err();
        assert_eq!(refused, DeviceError::Captured);
        drop(during);
        // Both slots are kept, so the loop gets extra ones.
        for _ in 0..3 {
            let (_, _, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
        }
        assert!(trainer.device.stats().extra_slots > 0);
        graph.ends_capture();
        for _ in 0..3 {
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            is_whole(&consumer, number, address, &batch, BYTES);
        }
        trainer.waits_for("all slots are free", |trainer| trainer.device.stats().slots == 2);
        trainer.ends();
        drop((graph, consumer));
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn the_default_stream_is_left_alone_while_a_stream_that_it_waits_for_is_captured() {
    let name = "the_default_stream_is_left_alone_while_a_stream_that_it_waits_for_is_captured";
    let end = run(name, &[("STANDIN_COPY_US", "3000")], || {
        let mut trainer = Trainer::new(3);
        let (consumer, graph) = (Consumer::new(), Consumer::new());
        trainer.reads(6);
        let streams = [ConsumerStream::Legacy, ConsumerStream::PerThread, ConsumerStream::Unknown];
        for stream in streams {
            let (_, _, batch) = trainer.next();
            graph.captures();
            batch.read(stream).unwrap();
            drop(batch);
            // Answered by the same thread, after the read.
            let (_, _, other) = trainer.next();
            other.read(stream).unwrap();
            graph.ends_capture();
        }
        trainer.ends();
        drop((graph, consumer));
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn a_batch_that_outlives_its_device_within_a_capture_is_freed_after_it() {
    let name = "a_batch_that_outlives_its_device_within_a_capture_is_freed_after_it";
    let end = run(name, &[], || {
        let mut trainer = Trainer::new(2);
        let graph = Consumer::non_blocking();
        trainer.reads(1);
        let (_, address, batch) = trainer.next();
        batch.read(graph.stream()).unwrap();
        graph.works(address, BYTES, 50_000);
        graph.captures();
        trainer.device.close();
        drop((trainer, batch));
        graph.ends_capture();
        wait_for_the_thread();
        drop(graph);
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn extra_slots_are_freed_while_the_device_is_busy() {
    // cuMemFree would wait for the work, and the loop would get no batch in that time.
    let name = "extra_slots_are_freed_while_the_device_is_busy";
    let end = run(name, &[], || {
        let mut trainer = Trainer::new(2);
        let (consumer, other) = (Consumer::new(), Consumer::new());
        let busy = other.allocate(BYTES);
        other.works(busy, BYTES, 600_000_000);
        trainer.follows();
        trainer.reads(6);
        let held: Vec<_> = (0..6).map(|_| trainer.next()).collect();
        for (_, _, batch) in &held {
            batch.read(consumer.stream()).unwrap();
        }
        drop(held);
        trainer.waits_for("extra slots go", |trainer| trainer.device.stats().slots == 2);
        trainer.reads(3);
        for _ in 0..3 {
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            is_whole(&consumer, number, address, &batch, BYTES);
        }
        trainer.ends();
        other.hurry();
        other.free(busy);
        drop((other, consumer));
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn a_device_without_memory_pools_frees_in_the_order_of_all_work() {
    let name = "a_device_without_memory_pools_frees_in_the_order_of_all_work";
    let end = trains(name, &[("STANDIN_POOLS", "0")], 2, |trainer, consumer| {
        trainer.reads(4);
        let held: Vec<_> = (0..4).map(|_| trainer.next()).collect();
        for (number, address, batch) in &held {
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, *number, *address, batch, BYTES);
        }
        drop(held);
    });
    let Some(end) = end else { return };
    assert_eq!(end.number("device_bytes_peak"), 4 * SlotPool::slot_bytes(BYTES) as u64);
}

#[test]
fn memory_that_somebody_else_registered_is_copied_all_the_same() {
    let name = "memory_that_somebody_else_registered_is_copied_all_the_same";
    trains(name, &[("STANDIN_REFUSE_PIN", "712")], 2, |trainer, consumer| {
        trainer.reads(2);
        for _ in 0..2 {
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, number, address, &batch, BYTES);
        }
        assert_eq!(trainer.device.stats().pageable, 2);
    });
}

/// Checks that the fake driver aborts a process that makes a call forbidden during a capture;
/// otherwise the tests above would prove nothing.
fn is_caught(end: &End, what: &str) {
    assert!(end.signal.is_some(), "nothing was caught: {}", end.output);
    assert!(end.output.contains(what), "{}", end.output);
}

#[test]
fn the_stand_in_catches_an_allocation_during_a_capture_of_another_thread() {
    let name = "the_stand_in_catches_an_allocation_during_a_capture_of_another_thread";
    let end = run(name, &[], || {
        let consumer = Consumer::new();
        let capture = || {
            let graph = Consumer::non_blocking();
            graph.captures();
            std::mem::forget(graph);
        };
        std::thread::spawn(capture).join().unwrap();
        consumer.allocate(1000);
    });
    let Some(end) = end else { return };
    is_caught(&end, "violation: cuMemAlloc_v2 during the capture of stream");
}

#[test]
fn the_stand_in_catches_the_default_stream_during_a_capture() {
    let name = "the_stand_in_catches_the_default_stream_during_a_capture";
    let end = run(name, &[], || {
        let consumer = Consumer::new();
        let [one, two] = [consumer.allocate(1000), consumer.allocate(1000)];
        consumer.captures();
        consumer.writes(one, two, 1000);
    });
    let Some(end) = end else { return };
    is_caught(&end, "the legacy stream is used");
}
