//! A rank whose control withholds batches, ends its lease, or waits for its release.

use std::time::Instant;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Schema;
use shardfeed_plan::{
    Corrupt, DECODER_NONE, LoaderState, Mode, ORDER_VERSION, Segment, Shuffle, Steps, Tail,
};
use shardfeed_proto::WireError;
use shardfeed_source::{CacheChoice, Dataset, FileRules, Lock};
use shardfeed_tfrecord::{Compression, CompressionChoice, create};

use super::*;
use crate::control::{ControlError, JobSpec, LeaseRequest, Waiting};
use crate::record_spec::EncodedSpec;

const DEADLINE: Duration = Duration::from_secs(30);

/// Control with scripted answers, which records its reports.
#[derive(Default)]
struct Scripted {
    good_for: Lock<Option<Duration>>,
    paused: Lock<Option<String>>,
    ended: Lock<Option<WireError>>,
    position: Lock<Option<(u64, u64)>>,
    failure: Lock<Option<String>>,
    /// Releases: whether the final position was known.
    released: Lock<Vec<bool>>,
}

impl Control for Scripted {
    fn register(&self, _job: &JobSpec, _waiting: Waiting<'_>) -> Result<(), ControlError> {
        Ok(())
    }

    fn lease(&self, _: &LeaseRequest, _: Waiting<'_>) -> Result<Lease, ControlError> {
        Ok(lease())
    }

    fn check(&self, _lease: &Lease) -> Result<(), ControlError> {
        self.ended.lock().clone().map_or(Ok(()), Err)
    }

    fn report(&self, _lease: &Lease, epoch: u64, step: u64) -> Result<(), ControlError> {
        *self.position.lock() = Some((epoch, step));
        Ok(())
    }

    fn good_for(&self, _lease: &Lease) -> Option<Duration> {
        *self.good_for.lock()
    }

    fn paused(&self, _lease: &Lease) -> Option<String> {
        self.paused.lock().clone()
    }

    fn report_failure(&self, _lease: &Lease, failure: &str) {
        *self.failure.lock() = Some(failure.to_owned());
    }

    fn release(&self, _lease: &Lease, is_told: bool) {
        self.released.lock().push(is_told);
    }

    fn latest(&self, _: &str, _: Waiting<'_>) -> Result<Option<LoaderState>, ControlError> {
        Ok(None)
    }
}

fn lease() -> Lease {
    let segments = vec![Segment { lanes: 1, global_batch: 1, steps: Steps::All(0) }];
    let (job, mixture) = ("job".into(), None);
    Lease { job, generation: 0, rank: 0, fencing: 1, serial: 1, mixture, epoch: 0, segments }
}

/// Reads a file of a few records, one in a batch, under a lease of `control`.
fn read(control: &Arc<Scripted>) -> (RankReader, LeaseGuard) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.tfrecord");
    let mut writer = create(&path, Compression::None).unwrap();
    (0..8_u64).for_each(|ordinal| writer.write(&ordinal.to_le_bytes()).unwrap());
    writer.finish().unwrap();
    let compression = CompressionChoice::Fixed(Compression::None);
    let none = FileRules { compression, ..FileRules::default() };
    let patterns = [path.display().to_string()];
    let dataset =
        Dataset::open(&patterns, none, None, &CacheChoice::Off.into(), &mut |_| true).unwrap();
    let content = dataset.manifest().digest();
    let shuffle = Shuffle {
        digest: content,
        seed: 0,
        enabled: false,
        window: 1,
        interleave: 1,
        block_length: 1,
    };
    let identity = JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle,
        lanes: 1,
        tail: Tail::Drop,
        mode: Mode::Deterministic,
        records: EncodedSpec::raw().records(),
        decoder: DECODER_NONE.to_owned(),
    };
    let plans = Arc::new(Plans::new(dataset.manifest().counts(), (Tail::Drop, None)));
    let options = PrefetchOptions {
        dataset: Arc::new(dataset),
        schemas: Arc::new(Schema::raw()).into(),
        corrupt: Corrupt::Error,
        slots: SlotPool::new(8),
        rank: 0,
        epoch: 0,
        step: 0,
        prefetch: Some(2),
        budget_bytes: 64 << 20,
        took_over: false,
    };
    let rank = LeaseGuard::new(Arc::<Scripted>::clone(control), lease());
    let reader = rank.read(plans, &identity, 1, options).unwrap();
    // The batches are ready before their file is gone.
    let begun = Instant::now();
    while reader.prefetch.stats().ready < 2 {
        assert!(begun.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
    (reader, rank)
}

/// Returns the step of the next batch, if there is one.
fn next(reader: &mut RankReader) -> Option<u64> {
    match reader.next(Duration::from_millis(1)).unwrap() {
        Delivery::Batch(delivered) => Some(delivered.step),
        Delivery::EpochEnd { .. } | Delivery::Pending => None,
    }
}

#[test]
fn batches_wait_until_they_may_be_delivered_and_the_reason_is_returned_once() {
    let control = Arc::new(Scripted::default());
    let (mut reader, _rank) = read(&control);
    assert_eq!((next(&mut reader), reader.take_reason()), (Some(0), None));
    *control.paused.lock() = Some("paused".into());
    assert_eq!((next(&mut reader), reader.take_reason()), (None, Some("paused")));
    assert_eq!((next(&mut reader), reader.take_reason()), (None, None));
    *control.good_for.lock() = Some(Duration::ZERO);
    assert_eq!((next(&mut reader), reader.take_reason()), (None, Some(UNCONFIRMED)));
    *control.good_for.lock() = Some(DEADLINE);
    assert_eq!((next(&mut reader), reader.take_reason()), (None, Some("paused")));
    *control.paused.lock() = None;
    assert_eq!((next(&mut reader), reader.take_reason()), (Some(1), None));
    *control.paused.lock() = Some("paused".into());
    assert_eq!((next(&mut reader), reader.take_reason()), (None, Some("paused")));
}

#[test]
fn an_ended_lease_is_an_error_also_while_batches_wait() {
    let control = Arc::new(Scripted::default());
    *control.good_for.lock() = Some(DEADLINE);
    let (mut reader, _rank) = read(&control);
    *control.paused.lock() = Some("paused".into());
    for (kind, lapses, fails) in [(ErrorKind::Fenced, true, false), (ErrorKind::Data, false, true)]
    {
        *control.ended.lock() = Some(WireError::new(kind, "it ended"));
        let error = reader.next(Duration::ZERO).unwrap_err();
        assert_eq!(reader.lapses(&error), lapses);
        assert_eq!(control.failure.lock().take().is_some(), fails);
    }
}

#[test]
fn a_lease_is_released_once_unless_it_is_kept() {
    let control = Arc::new(Scripted::default());
    let (reader, mut rank) = read(&control);
    rank.took(&reader.prefetch.consumer(), (0, 1), None);
    assert_eq!(*control.position.lock(), Some((0, 1)));
    drop(reader);
    assert!(control.released.lock().is_empty(), "the reader has no part in it");
    rank.is_told = false;
    drop(rank);
    let (_reader, mut rank) = read(&control);
    rank.is_kept = true;
    drop(rank);
    assert_eq!(*control.released.lock(), [false]);
}
