//! Real files, read as a scripted control grants them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Schema;
use shardfeed_plan::dynamic::{GroupRange, RankList};
use shardfeed_plan::{
    Corrupt, DECODER_NONE, JobIdentity, LoaderState, Mode, ORDER_VERSION, Planned, Sample, Segment,
    Shuffle, Steps, Tail,
};
use shardfeed_source::{CacheChoice, Dataset, FileRules, LoadError};
use shardfeed_tfrecord::{Compression, CompressionChoice, create};

use crate::control::{
    Claim, Control, ControlError, Grant, JobSpec, Lease, LeaseRequest, LeaseUpdate, Notifier,
    Waiting,
};
use crate::{Assignment, Delivery, EncodedSpec, Plans, Prefetch, PrefetchOptions, RankLease};

/// More time than any step of these tests takes.
const DEADLINE: Duration = Duration::from_secs(30);

const BATCH_SIZE: u64 = 4;
const COUNTS: [u64; 6] = [13, 7, 21, 0, 1, 18];

/// Grants everything to one rank, one group range with each claim.
#[derive(Default)]
struct Scripted {
    epochs: Mutex<BTreeMap<u64, Epoch>>,
    bell: Mutex<Option<Notifier>>,
    groups: Mutex<Option<Arc<Plans>>>,
    identity: Mutex<Option<JobIdentity>>,
    /// Position of a revocation, which is sent once.
    revoke_from: Mutex<Option<u64>>,
    /// Position up to which the rank kept its list after the revocation.
    released: Mutex<Option<u64>>,
    /// Maximum position of the horizon.
    horizon_max: Mutex<Option<u64>>,
}

struct Epoch {
    list: RankList,
    free: Vec<GroupRange>,
}

impl Scripted {
    fn epoch(&self, epoch: u64) -> Epoch {
        let (plans, identity) = (self.groups.lock().unwrap(), self.identity.lock().unwrap());
        let groups = plans.as_ref().unwrap().groups(identity.as_ref().unwrap(), epoch).unwrap();
        let whole = |group| GroupRange { group, from: 0, to: groups.samples_of(group) };
        Epoch {
            list: RankList::new(BATCH_SIZE, 0),
            free: (0..groups.count()).rev().map(whole).collect(),
        }
    }
}

impl Control for Scripted {
    fn register(&self, _job: &JobSpec, _waiting: Waiting<'_>) -> Result<(), ControlError> {
        Ok(())
    }

    fn lease(&self, _request: &LeaseRequest, _: Waiting<'_>) -> Result<Lease, ControlError> {
        Ok(lease())
    }

    fn check(&self, _lease: &Lease) -> Result<(), ControlError> {
        Ok(())
    }

    fn report(&self, _lease: &Lease, _epoch: u64, _step: u64) -> Result<(), ControlError> {
        Ok(())
    }

    fn release(&self, _lease: &Lease, _is_told: bool) {}

    fn latest(&self, _job: &str, _: Waiting<'_>) -> Result<Option<LoaderState>, ControlError> {
        Ok(None)
    }

    fn watch(&self, _lease: &Lease, bell: Notifier) {
        *self.bell.lock().unwrap() = Some(bell);
    }

    fn take(&self, _: &Lease, take: &Claim, _: Waiting<'_>) -> Result<Grant, ControlError> {
        let mut epochs = self.epochs.lock().unwrap();
        let Epoch { list, free } =
            epochs.entry(take.epoch).or_insert_with(|| self.epoch(take.epoch));
        if let Some(released) = take.released {
            free.extend(list.truncate_to(released.from).into_iter().rev());
            *self.released.lock().unwrap() = Some(released.from);
        }
        let unstarted = list.samples() - take.started;
        if unstarted < take.wants
            && let Some(piece) = free.pop()
        {
            list.append(piece);
        } else if free.is_empty() && unstarted < BATCH_SIZE {
            list.close();
        }
        Ok(Grant {
            first: take.known,
            pieces: list.pieces()[take.known as usize..].to_vec(),
            samples: list.samples(),
            horizon: list.samples().min(self.horizon_max.lock().unwrap().unwrap_or(u64::MAX)),
            closed: list.closed(),
            revoke_from: self.revoke_from.lock().unwrap().take(),
            ended: free.is_empty() && take.started == list.samples(),
            ..Grant::default()
        })
    }
}

fn lease() -> Lease {
    let segments = vec![Segment { lanes: 1, global_batch: BATCH_SIZE, steps: Steps::All(0) }];
    Lease {
        job: "job".into(),
        generation: 0,
        rank: 0,
        fencing: 1,
        serial: 1,
        mixture: None,
        epoch: 0,
        segments,
    }
}

struct Place {
    _folder: tempfile::TempDir,
    dataset: Arc<Dataset>,
    identity: JobIdentity,
    control: Arc<Scripted>,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    for (shard, count) in COUNTS.iter().enumerate() {
        let path = folder.path().join(format!("s-{shard}.tfrecord"));
        let mut writer = create(path, Compression::None).unwrap();
        for ordinal in 0..*count {
            writer.write(format!("{ordinal} of {shard}").as_bytes()).unwrap();
        }
        writer.finish().unwrap();
    }
    let pattern = folder.path().join("*.tfrecord").display().to_string();
    let compression = CompressionChoice::Fixed(Compression::None);
    let none = FileRules { compression, ..FileRules::default() };
    let dataset =
        Dataset::open(&[pattern], none, None, &CacheChoice::Off.into(), &mut |_| true).unwrap();
    let content = dataset.manifest().digest();
    let shuffle = Shuffle {
        digest: content,
        seed: 3,
        enabled: true,
        window: 6,
        interleave: 2,
        block_length: 1,
    };
    let identity = JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle,
        lanes: 1,
        tail: Tail::Uneven,
        mode: Mode::Dynamic,
        records: EncodedSpec::raw().records(),
        decoder: DECODER_NONE.to_owned(),
    };
    let control = Arc::new(Scripted::default());
    *control.groups.lock().unwrap() = Some(Arc::new(plans(&dataset)));
    *control.identity.lock().unwrap() = Some(identity.clone());
    Place { _folder: folder, dataset: Arc::new(dataset), identity, control }
}

fn plans(dataset: &Dataset) -> Plans {
    Plans::new(dataset.manifest().counts(), (Tail::Uneven, None))
}

impl Place {
    fn read(&self, (epoch, step): (u64, u64), prefetch: usize) -> Prefetch {
        let control: Arc<dyn Control> = Arc::<Scripted>::clone(&self.control);
        let assignment = Assignment {
            rank: RankLease { control, lease: lease() },
            plans: Arc::new(plans(&self.dataset)),
            identity: self.identity.clone(),
            world_size: 1,
        };
        let options = PrefetchOptions {
            corrupt: Corrupt::Error,
            dataset: Arc::clone(&self.dataset),
            schemas: Arc::new(Schema::raw()).into(),
            slots: SlotPool::new(8),
            rank: 0,
            epoch,
            step,
            prefetch: Some(prefetch),
            budget_bytes: 64 << 20,
            took_over: false,
        };
        Prefetch::start(assignment, options).unwrap()
    }
}

/// Takes the next batch, if it comes soon.
fn next(prefetch: &mut Prefetch) -> Result<Delivery, LoadError> {
    let delivery = prefetch.show(Duration::from_millis(20))?;
    if let Delivery::Batch(delivered) = &delivery {
        prefetch.consumer().take(1, delivered.batch.slot.size_bytes());
    }
    Ok(delivery)
}

/// Returns the samples of each step until the epoch ends.
fn epoch(prefetch: &mut Prefetch) -> Vec<Vec<Planned>> {
    let (mut batches, begun) = (vec![], Instant::now());
    loop {
        match next(prefetch).unwrap() {
            Delivery::Batch(delivered) => batches.push(delivered.samples),
            Delivery::EpochEnd { .. } => return batches,
            Delivery::Pending => assert!(begun.elapsed() < DEADLINE, "{} batches", batches.len()),
        }
    }
}

fn sorted(batches: &[Vec<Planned>]) -> Vec<Sample> {
    let mut samples: Vec<_> = batches.iter().flatten().map(|planned| planned.sample).collect();
    samples.sort_unstable();
    samples
}

fn all() -> Vec<Sample> {
    let of = |(shard, count): (usize, &u64)| {
        let shard = shard as u32;
        (0..*count).map(move |ordinal| Sample { shard, ordinal }).collect::<Vec<_>>()
    };
    COUNTS.iter().enumerate().flat_map(of).collect()
}

#[test]
fn epochs_are_read_group_by_group_as_they_are_granted() {
    let place = place();
    let mut prefetch = place.read((0, 0), 3);
    for number in 0..3 {
        let batches = epoch(&mut prefetch);
        assert_eq!(sorted(&batches), all());
        assert!(batches.iter().rev().skip(1).all(|batch| batch.len() as u64 == BATCH_SIZE));
        let groups = plans(&place.dataset).groups(&place.identity, number).unwrap();
        let expected = (0..groups.count()).flat_map(|group| {
            let lane = groups.lane(group);
            (0..lane.samples()).map(move |output| lane.output(output).unwrap())
        });
        let got = batches.iter().flatten().map(|planned| planned.sample);
        assert_eq!(got.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "groups in their order");
    }
}

#[test]
fn reading_starts_at_the_exact_sample_of_a_step() {
    let place = place();
    let whole = epoch(&mut place.read((0, 0), 3));
    for step in 0..=whole.len() {
        let rest = epoch(&mut place.read((0, step as u64), 2));
        assert_eq!(rest, whole[step..], "from step {step}");
    }
}

#[test]
fn a_trainer_that_is_slow_at_an_epochs_end_gets_all_of_it() {
    let place = place();
    let whole = epoch(&mut place.read((0, 0), 3));
    place.control.epochs.lock().unwrap().remove(&1);
    let last = whole.len() - 2;
    let mut prefetch = place.read((0, last as u64), 8);
    let begun = Instant::now();
    while !place.control.epochs.lock().unwrap().contains_key(&1) {
        assert!(begun.elapsed() < DEADLINE, "the next epoch is asked for while two batches wait");
        std::thread::yield_now();
    }
    assert_eq!(epoch(&mut prefetch), whole[last..]);
}

#[test]
fn a_batch_that_was_not_opened_before_its_epoch_ended_is_an_error_and_not_left_out() {
    let place = place();
    let whole = epoch(&mut place.read((0, 0), 3));
    let last = whole.len() - 2;
    let before = whole[..=last].iter().map(|batch| batch.len() as u64).sum();
    *place.control.horizon_max.lock().unwrap() = Some(before);
    let mut prefetch = place.read((0, last as u64), 8);
    let begun = Instant::now();
    let mut delivered = vec![];
    let error = loop {
        match next(&mut prefetch) {
            Ok(Delivery::Batch(batch)) => delivered.push(batch.samples),
            Ok(Delivery::EpochEnd { .. }) => panic!("a batch was left out"),
            Ok(Delivery::Pending) => assert!(begun.elapsed() < DEADLINE),
            Err(error) => break error,
        }
    };
    assert_eq!(delivered, whole[last..=last]);
    assert!(error.to_string().contains("the lease lapsed"), "{error}");
}

#[test]
fn what_is_asked_back_while_the_trainer_is_slow_is_given_back_at_once() {
    let place = place();
    let mut prefetch = place.read((0, 0), 2);
    let mut taken = vec![];
    let begun = Instant::now();
    while taken.is_empty() {
        if let Delivery::Batch(delivered) = next(&mut prefetch).unwrap() {
            taken.push(delivered.samples);
        }
        assert!(begun.elapsed() < DEADLINE);
    }
    // The trainer takes nothing more for now.
    *place.control.revoke_from.lock().unwrap() = Some(0);
    let bell = place.control.bell.lock().unwrap().clone().unwrap();
    bell.ring(LeaseUpdate::Revoked);
    let released = loop {
        if let Some(released) = *place.control.released.lock().unwrap() {
            break released;
        }
        assert!(begun.elapsed() < DEADLINE, "it answers while reading waits for room");
        std::thread::yield_now();
    };
    assert!(released >= BATCH_SIZE && released.is_multiple_of(BATCH_SIZE), "{released}");
    taken.extend(epoch(&mut prefetch));
    assert_eq!(sorted(&taken), all(), "returned samples were granted again");
}

#[test]
fn stopping_does_not_wait_for_a_grant() {
    let place = place();
    let prefetch = place.read((0, 0), 2);
    let begun = Instant::now();
    drop(prefetch);
    assert!(begun.elapsed() < DEADLINE);
}
