//! Batches through a device, with a fake driver: order of the work, leaks, and errors.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod consumer;
#[allow(dead_code)]
mod standin;
#[allow(dead_code)]
mod trainer;

use std::path::Path;
use std::time::{Duration, Instant};

use consumer::Consumer;
use shardfeed_device::{ConsumerStream, Device, DeviceBatch, DeviceError, device_count};
use shardfeed_handoff::SlotPool;
use standin::{build, run, run_with, wait_for_the_thread};
use trainer::{BYTES, Trainer, content, is_whole, parts, trains};

#[test]
fn batches_arrive_whole_whether_ahead_or_not() {
    let end = trains("batches_arrive_whole_whether_ahead_or_not", &[], 3, |trainer, consumer| {
        trainer.reads(12);
        for _ in 0..3 {
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, number, address, &batch, BYTES);
        }
        assert_eq!(trainer.device.stats().late, 3);
        trainer.follows();
        for _ in 3..12 {
            trainer.waits_for("copies ahead", |trainer| trainer.device.stats().ahead > 0);
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, number, address, &batch, BYTES);
        }
        let stats = trainer.device.stats();
        assert_eq!((stats.batches, stats.late, stats.pageable, stats.extra_slots), (12, 3, 0, 0));
        assert_eq!(stats.slots, 3, "{stats:?}");
    });
    let Some(end) = end else { return };
    assert_eq!(end.number("copies"), 12, "a batch of neighbouring parts is one copy");
    let threads = end.report["context_threads"].as_array().unwrap();
    assert_eq!(threads[0], "shardfeed-gpu");
    assert_eq!(threads.len(), 2, "the other one is the consumer's: {threads:?}");
}

#[test]
fn the_next_batch_is_there_while_the_trainer_works_on_this_one() {
    let environment = [("STANDIN_TRACE", "1"), ("STANDIN_COPY_US", "2000")];
    let name = "the_next_batch_is_there_while_the_trainer_works_on_this_one";
    let end = trains(name, &environment, 2, |trainer, consumer| {
        trainer.reads(4);
        trainer.follows();
        for step in 0..4 {
            // A batch that is requested before its copy may get a slot beyond the ring.
            trainer.waits_for("copies ahead", |trainer| trainer.device.stats().ahead > 0);
            let (_, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            consumer.works_until(address, BYTES, (step + 2).min(4));
        }
    });
    let Some(end) = end else { return };
    let trace = end.trace();
    let ends_of = |kind: &str, which: &str| -> Vec<usize> {
        let places = trace.iter().enumerate().filter(|(_, t)| t.1 == kind && t.2 == which);
        places.map(|(place, _)| place).collect()
    };
    let (begun, worked) = (ends_of("work", "begin"), ends_of("work", "end"));
    let copied = ends_of("copy_in", "end");
    assert_eq!((begun.len(), worked.len(), copied.len()), (4, 4, 4));
    for step in 0..3 {
        assert!(copied[step] < begun[step], "work on a batch begins after its copy");
        assert!(
            copied[step + 1] < worked[step],
            "copy {} ends during work {step}: {trace:?}",
            step + 1
        );
    }
    assert_eq!(
        end.number("device_bytes_peak"),
        2 * SlotPool::slot_bytes(BYTES) as u64,
        "the ring's"
    );
}

#[test]
fn a_slot_is_written_only_after_whoever_reads_it() {
    let environment = [("STANDIN_TRACE", "1")];
    let end = run("a_slot_is_written_only_after_whoever_reads_it", &environment, || {
        let mut trainer = Trainer::new(2);
        let consumers = [Consumer::new(), Consumer::new()];
        trainer.follows();
        for step in 0..60 {
            trainer.reads(1);
            let (_, address, batch) = trainer.next();
            // Two streams read it, and it is returned during that.
            for consumer in &consumers[..1 + step % 2] {
                batch.read(consumer.stream()).unwrap();
                consumer.works(address, BYTES, 15_000);
            }
        }
        trainer.ends();
        drop(consumers);
    });
    let Some(end) = end else { return };
    end.is_clean();
    let waits = end.trace().iter().filter(|piece| piece.1 == "wait").count();
    assert!(waits > 60, "copies waited on the device for readers, too: {waits}");
    assert_eq!(end.number("device_bytes_peak"), 2 * SlotPool::slot_bytes(BYTES) as u64);
}

#[test]
fn a_trainer_that_is_ahead_of_its_device_waits_for_it() {
    let name = "a_trainer_that_is_ahead_of_its_device_waits_for_it";
    let end = trains(name, &[], 3, |trainer, consumer| {
        trainer.follows();
        for _ in 0..60 {
            // Only queued: this loop takes no time, the device does.
            trainer.reads(1);
            let (_, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            consumer.works(address, BYTES, 5_000);
        }
        assert_eq!(trainer.device.stats().extra_slots, 0);
    });
    let Some(end) = end else { return };
    let slot = SlotPool::slot_bytes(BYTES) as u64;
    assert_eq!(end.number("device_bytes_peak"), 3 * slot);
    let host = end.number("pinned_bytes_peak");
    assert!(host <= 7 * slot, "copies that wait hold no more slots of the host: {host}");
}

#[test]
fn streams_that_cannot_be_named_are_waited_for() {
    let name = "streams_that_cannot_be_named_are_waited_for";
    trains(name, &[("STANDIN_COPY_US", "3000")], 2, |trainer, consumer| {
        trainer.reads(20);
        trainer.follows();
        for step in 0..20 {
            let (_, address, batch) = trainer.next();
            let stream =
                if step % 2 == 0 { ConsumerStream::PerThread } else { ConsumerStream::Unknown };
            batch.read(stream).unwrap();
            if stream == ConsumerStream::PerThread {
                // The copy is complete: any stream may read it now.
                consumer.works(address, BYTES, 2_000);
            }
        }
    });
}

#[test]
fn a_batch_is_copied_out_in_the_order_of_the_trainers_stream() {
    let name = "a_batch_is_copied_out_in_the_order_of_the_trainers_stream";
    trains(name, &[("STANDIN_COPY_US", "3000")], 2, |trainer, consumer| {
        let target = consumer.allocate(BYTES);
        trainer.reads(30);
        trainer.follows();
        for _ in 0..30 {
            let (number, _, batch) = trainer.next();
            let [first, second] = parts(BYTES);
            let to = target + first.len as u64;
            batch.copy_out(&[(0, target), (1, to)], consumer.stream()).unwrap();
            drop(batch);
            let there = consumer.bytes(target, first.len + second.len);
            let expected = content(number, BYTES);
            let expected = [&expected[first.bytes()], &expected[second.bytes()]].concat();
            assert!(there == expected, "batch {number}");
        }
        consumer.free(target);
    });
}

#[test]
fn memory_that_cannot_be_pinned_is_copied_all_the_same_and_counted() {
    let name = "memory_that_cannot_be_pinned_is_copied_all_the_same_and_counted";
    let end = trains(name, &[("STANDIN_REFUSE_PIN", "801")], 2, |trainer, consumer| {
        trainer.reads(5);
        for _ in 0..5 {
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, number, address, &batch, BYTES);
        }
        let stats = trainer.device.stats();
        assert_eq!((stats.pageable, stats.batches, stats.pinned_bytes), (5, 5, 0));
    });
    let Some(end) = end else { return };
    assert_eq!(end.number("pageable"), 5);
}

#[test]
fn a_trainer_that_holds_every_batch_does_not_wait_for_itself() {
    let name = "a_trainer_that_holds_every_batch_does_not_wait_for_itself";
    let end = trains(name, &[], 2, |trainer, consumer| {
        trainer.follows();
        trainer.reads(9);
        let held: Vec<_> = (0..9).map(|_| trainer.next()).collect();
        for (number, address, batch) in &held {
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, *number, *address, batch, BYTES);
        }
        assert_eq!(trainer.device.stats().extra_slots, 7);
        drop(held);
        trainer.waits_for("extra slots go", |trainer| trainer.device.stats().slots == 2);
    });
    let Some(end) = end else { return };
    assert_eq!(end.number("device_bytes_peak"), 9 * SlotPool::slot_bytes(BYTES) as u64);
}

#[test]
fn batches_of_any_size_arrive_and_ones_never_taken_are_given_back() {
    let name = "batches_of_any_size_arrive_and_ones_never_taken_are_given_back";
    trains(name, &[("STANDIN_COPY_US", "500")], 2, |trainer, consumer| {
        for number in 0..60 {
            let bytes = 2_000 + (number as usize * 7919) % 400_000;
            let mut slot = trainer.slot(number, bytes);
            let (address, batch) = trainer.takes(&mut slot, bytes).unwrap();
            if number % 3 == 0 {
                // Dropped while it is being copied, with its slot, which is overwritten at once.
                drop((slot, batch));
                continue;
            }
            batch.read(consumer.stream()).unwrap();
            is_whole(consumer, number, address, &batch, bytes);
        }
    });
}

#[test]
fn what_was_lent_stays_good_when_the_device_is_closed() {
    let end = run("what_was_lent_stays_good_when_the_device_is_closed", &[], || {
        let mut trainer = Trainer::new(2);
        let consumer = Consumer::new();
        trainer.reads(3);
        trainer.follows();
        let (number, address, batch) = trainer.next();
        trainer.device.close();
        let mut late = trainer.queue.0.lock().unwrap().pop_front().unwrap().1;
        *late.companion() = None;
        let ended = trainer.takes(&mut late, BYTES).unwrap_err();
        assert_eq!(
            ended.to_string(),
            "the loader was closed, and with it the thread that copies to the device"
        );
        drop((late, trainer));
        batch.read(consumer.stream()).unwrap();
        is_whole(&consumer, number, address, &batch, BYTES);
        drop(batch);
        wait_for_the_thread();
        drop(consumer);
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn a_device_that_failed_says_so_and_ends() {
    let environment = [("STANDIN_FAIL", "cuMemcpyHtoDAsync_v2:4:700")];
    let end = run("a_device_that_failed_says_so_and_ends", &environment, || {
        let mut trainer = Trainer::new(2);
        trainer.reads(8);
        for _ in 0..3 {
            trainer.next();
        }
        let mut slot = trainer.queue.0.lock().unwrap().pop_front().unwrap().1;
        let error = trainer.takes(&mut slot, BYTES).unwrap_err();
        let text = error.to_string();
        assert_eq!(
            text,
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_ILLEGAL_ADDRESS (700); something \
             that ran on the GPU failed, here or in the trainer, and nothing can run there any \
             more: start the process again from its last checkpoint"
        );
        assert_eq!(
            trainer.device.check().unwrap_err(),
            error,
            "before a further batch is consumed"
        );
        drop(slot);
        trainer.ends();
    });
    let Some(end) = end else { return };
    assert_eq!((end.signal, &end.report["violation"]), (None, &"".into()));
}

#[test]
fn an_answer_that_no_list_has_is_an_error_with_its_number() {
    // Newer drivers have codes that cudarc's `CUresult` lacks; 12345 represents one of them.
    let environment = [("STANDIN_FAIL", "cuMemcpyHtoDAsync_v2:2:12345")];
    let name = "an_answer_that_no_list_has_is_an_error_with_its_number";
    let end = run(name, &environment, || {
        let mut trainer = Trainer::new(2);
        trainer.reads(2);
        trainer.next();
        let mut slot = trainer.queue.0.lock().unwrap().pop_front().unwrap().1;
        let error = trainer.takes(&mut slot, BYTES).unwrap_err();
        assert!(matches!(error, DeviceError::Call { code: 12345, .. }), "{error:?}");
        let said = "cuMemcpyHtoDAsync: the NVIDIA driver says an error without a name (12345)";
        assert_eq!(error.to_string(), said);
        drop(slot);
        trainer.ends();
    });
    let Some(end) = end else { return };
    assert_eq!((end.signal, &end.report["violation"]), (None, &"".into()));
}

#[test]
fn a_wait_for_a_device_that_is_busy_can_be_left_and_taken_up_again() {
    let name = "a_wait_for_a_device_that_is_busy_can_be_left_and_taken_up_again";
    trains(name, &[], 2, |trainer, consumer| {
        trainer.follows();
        for _ in 0..4 {
            // Two are copied at once, and two more as soon as those were read.
            trainer.reads(1);
            let (_, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            consumer.works(address, BYTES, 30_000_000);
        }
        let mut slot = trainer.slot(4, BYTES);
        let work = trainer.device.prepare(&mut slot, &parts(BYTES));
        trainer.device.stage(work);
        let mut batch = slot.companion().take().unwrap().downcast::<DeviceBatch>().unwrap();
        assert_eq!(batch.lend(Duration::from_millis(50)), Ok(None));
        assert_eq!(batch.lend(Duration::ZERO), Ok(None), "asked again, it waits on");
        consumer.hurry();
        let deadline = Instant::now() + Duration::from_secs(20);
        let address = loop {
            assert!(Instant::now() < deadline, "the device is free and the batch does not come");
            if let Some(address) = batch.lend(Duration::from_millis(50)).unwrap() {
                break address;
            }
        };
        batch.read(consumer.stream()).unwrap();
        is_whole(consumer, 4, address, &batch, BYTES);
        assert_eq!(trainer.device.stats().extra_slots, 0);
        drop((batch, slot));
    });
}

#[test]
fn ten_thousand_batches_leave_nothing() {
    let end = trains("ten_thousand_batches_leave_nothing", &[], 3, |trainer, consumer| {
        trainer.follows();
        for step in 0..10_000 {
            trainer.reads(1);
            let (number, address, batch) = trainer.next();
            batch.read(consumer.stream()).unwrap();
            if step % 1000 == 0 {
                is_whole(consumer, number, address, &batch, BYTES);
            }
        }
        let stats = trainer.device.stats();
        assert_eq!((stats.batches, stats.extra_slots, stats.pageable), (10_000, 0, 0));
    });
    let Some(end) = end else { return };
    // Slots are created on demand: if batches come slowly, there are fewer than the ring's maximum.
    let (slot, peak) = (SlotPool::slot_bytes(BYTES) as u64, end.number("device_bytes_peak"));
    assert!((slot..=3 * slot).contains(&peak), "{peak} bytes are more than the ring's, or none");
    let host = end.number("pinned_bytes_peak");
    assert!(host <= 8 * SlotPool::slot_bytes(BYTES) as u64, "{host}");
}

#[test]
fn without_a_device_it_is_said_what_was_looked_for() {
    let end = run(
        "without_a_device_it_is_said_what_was_looked_for",
        &[("STANDIN_DEVICES", "0")],
        || {
            assert_eq!(
                device_count().unwrap_err().to_string(),
                "the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES: not set); give this process or \
                 container one, or use device=\"cpu\""
            );
            assert!(matches!(Device::open(0), Err(DeviceError::NoDevice { .. })));
        },
    );
    let Some(end) = end else { return };
    assert_eq!(end.signal, None, "{}", end.output);
}

#[test]
fn another_number_of_a_device_is_refused() {
    let end = run("another_number_of_a_device_is_refused", &[("STANDIN_DEVICES", "2")], || {
        assert_eq!(device_count(), Ok(2));
        assert_eq!(
            Device::open(2).unwrap_err().to_string(),
            "there is no device \"cuda:2\": this process sees 2, counted from 0 \
             (CUDA_VISIBLE_DEVICES: not set)"
        );
        let device = Device::open(1).unwrap();
        assert_eq!(device.ordinal(), 1);
        drop(device);
        wait_for_the_thread();
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn a_driver_without_what_is_needed_is_refused_by_name() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/old.c");
    let folder = build("old", &source);
    let end = run_with(&folder, "a_driver_without_what_is_needed_is_refused_by_name", &[], || {
        let error = device_count().unwrap_err();
        let text = error.to_string();
        let DeviceError::Incomplete { missing } = error else { panic!("{error:?}") };
        assert_eq!(
            text,
            format!(
                "the NVIDIA driver that was found lacks {}; a driver of version 525 or later has all that \
                 is used (a stub of the CUDA toolkit in LD_LIBRARY_PATH hides it)",
                missing.join(", ")
            )
        );
        assert!(missing.contains(&"cuMemHostRegister_v2"), "{text}");
        assert!(!missing.contains(&"cuInit") && missing.contains(&"cuStreamWaitEvent"));
    });
    let Some(end) = end else { return };
    assert_eq!(end.signal, None, "{}", end.output);
}

#[test]
fn without_a_driver_it_is_said_what_was_looked_for_and_what_to_do() {
    let name = "without_a_driver_it_is_said_what_was_looked_for_and_what_to_do";
    run_with(Path::new("/nonexistent"), name, &[], || {
        let error = match Device::open(0) {
            Err(error) => error,
            Ok(device) => return println!("there is a GPU here: {device:?}"),
        };
        let text = error.to_string();
        if matches!(error, DeviceError::NoLibrary { .. }) {
            assert_eq!(
                text,
                "no NVIDIA driver here: libcuda.so.1 was looked for in the system's library folders \
                 and in LD_LIBRARY_PATH (\"/nonexistent\"); install the driver, start the container \
                 with its GPUs (docker run --gpus all), or use device=\"cpu\""
            );
        }
        assert!(text.contains("device=\"cpu\""), "{text}");
    });
}

#[test]
fn every_answer_of_the_driver_says_what_to_do() {
    let name = "every_answer_of_the_driver_says_what_to_do";
    let mut said = Vec::new();
    for code in [1, 2, 3, 34, 46, 209, 700, 803, 901, 999] {
        let fails = format!("cuMemcpyHtoDAsync_v2:1:{code}");
        let end = run(name, &[("STANDIN_FAIL", &fails)], || {
            let mut trainer = Trainer::new(2);
            trainer.reads(1);
            let mut slot = trainer.queue.0.lock().unwrap().pop_front().unwrap().1;
            println!("SAID {}", trainer.takes(&mut slot, BYTES).unwrap_err());
            drop(slot);
            trainer.ends();
        });
        let Some(end) = end else { return };
        let texts = end.output.lines().filter_map(|line| line.strip_prefix("SAID "));
        said.extend(texts.map(str::to_owned));
    }
    assert_eq!(
        said,
        [
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (1)",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OUT_OF_MEMORY (2); the GPU has \
             no memory left for batches: use a smaller batch_size, or leave it some (JAX: \
             XLA_PYTHON_CLIENT_MEM_FRACTION)",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (3); the driver \
             does not work in this process: look at nvidia-smi and dmesg",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (34); a stub of \
             the CUDA toolkit was loaded in place of the driver: take its folder out of \
             LD_LIBRARY_PATH",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (46); the GPU is \
             in use by another process alone: see `nvidia-smi -q -d COMPUTE`",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (209); the \
             driver cannot make the kernels of on_device() for this GPU: it has to be of \
             Volta's generation or later, and in a container the driver needs its PTX compiler \
             (NVIDIA_DRIVER_CAPABILITIES=compute,utility); without on_device() the worker does the same on the host",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_ILLEGAL_ADDRESS (700); something \
             that ran on the GPU failed, here or in the trainer, and nothing can run there any \
             more: start the process again from its last checkpoint",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (803); driver \
             and libcuda.so.1 are of different versions: mount the host's driver",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (901); a CUDA \
             graph was being captured: take batches before the capture or after it, on streams \
             that are not part of it",
            "cuMemcpyHtoDAsync: the NVIDIA driver says CUDA_ERROR_OF_THE_STAND_IN (999); the \
             driver does not work in this process: look at nvidia-smi and dmesg",
        ]
    );
}

/// Checks that the fake driver aborts a process that misuses the driver; otherwise the tests above
/// would prove nothing.
fn is_caught(test: &str, what: &str, wrong: impl FnOnce(Consumer)) {
    let end = run(test, &[("STANDIN_COPY_US", "50000")], || wrong(Consumer::new()));
    let Some(end) = end else { return };
    assert!(end.signal.is_some(), "nothing was caught: {}", end.output);
    assert!(end.output.contains(what), "{}", end.output);
}

#[test]
fn the_stand_in_catches_a_write_under_a_reader() {
    is_caught(
        "the_stand_in_catches_a_write_under_a_reader",
        "while something reads it",
        |consumer| {
            let [one, two] = [consumer.allocate(1000), consumer.allocate(1000)];
            // A stream that the default stream, which is used for the write, does not wait for.
            let reader = Consumer::non_blocking();
            reader.works(one, 1000, 300_000);
            std::thread::sleep(Duration::from_millis(50));
            consumer.writes(one, two, 1000);
            consumer.bytes(two, 10);
        },
    );
}

#[test]
fn the_stand_in_catches_a_source_that_changes() {
    is_caught("the_stand_in_catches_a_source_that_changes", "host memory changed", |consumer| {
        let (mut source, target) = (vec![1; 1000], consumer.allocate(1000));
        consumer.pins(&mut source);
        consumer.sends(target, &source);
        std::hint::black_box(&mut source)[7] = 2;
        consumer.bytes(target, 10);
    });
}

#[test]
fn the_stand_in_catches_memory_that_is_unpinned_under_a_copy() {
    let name = "the_stand_in_catches_memory_that_is_unpinned_under_a_copy";
    is_caught(name, "a copy from", |consumer| {
        let (mut source, target) = (vec![1; 1000], consumer.allocate(1000));
        consumer.pins(&mut source);
        consumer.sends(target, &source);
        consumer.unpins(&mut source);
    });
}

#[test]
fn the_stand_in_catches_memory_that_was_freed() {
    is_caught("the_stand_in_catches_memory_that_was_freed", "was freed", |consumer| {
        let target = consumer.allocate(1000);
        consumer.free(target);
        consumer.sends(target, &[1, 2, 3]);
    });
}

#[test]
fn the_stand_in_tells_what_is_left() {
    let end = run("the_stand_in_tells_what_is_left", &[], || {
        let consumer = Consumer::new();
        consumer.allocate(1000);
        std::mem::forget(consumer);
    });
    let Some(end) = end else { return };
    let live = &end.report["live"];
    assert_eq!((live["memory"].as_u64(), live["streams"].as_u64()), (Some(1), Some(1)));
}
