//! Data files that hosts can find, and jobs over them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{
    DECODER_NONE, Digest, EpochPlan, JobIdentity, Line, Manifest, Mode, ORDER_VERSION, Planned,
    Portion, Records, Sample, Segment, Shard, Shuffle, Tail,
};
use shardfeed_proto::chunk::FileEntry;
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::coordinator::v1::InDoubt;
use shardfeed_proto::record_spec_digest;

use crate::dice::Dice;

/// Folder of all files.
pub const ROOT: &str = "/data";

/// Percentage of records that are corrupt.
const CORRUPT_PERCENT: u64 = 4;

/// Files per part of a listing.
pub const PART_FILES: usize = 4;

/// Files of a dataset.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// Files in manifest order.
    pub files: Vec<FileEntry>,
}

impl Catalog {
    /// Returns a random set of files and record counts.
    pub fn new(dice: &Dice) -> Self {
        let file = |number: u64| {
            let (path, records) = (format!("shard-{number:03}.tfrecord"), dice.pick(8..50));
            FileEntry {
                digest: Digest::of_parts([path.as_bytes()]),
                path,
                size_bytes: records * 64,
                modified_ns: 1,
                etag: None,
                compression: "none".into(),
                records,
                data_bytes: records * 48,
                record_bytes_max: 48,
                marks: vec![],
                left_out: None,
                samples: None,
            }
        };
        Self { files: (0..dice.pick(6..14)).map(file).collect() }
    }

    /// Returns the files under the name of a dataset: copies with the same content.
    pub fn of(&self, dataset: &str) -> Vec<FileEntry> {
        let named = |file: &FileEntry| {
            let path = format!("{dataset}/{}", file.path);
            FileEntry { path, ..file.clone() }
        };
        self.files.iter().map(named).collect()
    }

    /// Returns the manifest that the coordinator builds from the files.
    pub fn manifest(&self) -> Manifest {
        let shard = |file: &FileEntry| Shard {
            path: file.path.clone(),
            records: file.records,
            digest: file.digest,
        };
        Manifest::new(self.files.iter().map(shard).collect()).expect("the names differ")
    }
}

/// Time that an epoch of a dynamic job waits when only in-doubt samples are left, ms: more than two
/// session TTLs.
pub const GRACE_MS: u64 = 3_000;

/// Returns the policy for in-doubt samples of a job.
pub fn policy_of(job: &str) -> InDoubt {
    if job == "shared" { InDoubt::Drop } else { InDoubt::Redeliver }
}

/// Job, as known to its launcher.
#[derive(Debug)]
pub struct JobFacts {
    /// Name of the job.
    pub name: String,
    /// Name of its dataset.
    pub dataset: String,
    /// Identity that determines the order.
    pub identity: JobIdentity,
    /// Samples per step of all ranks; constant.
    pub global_batch: u64,
    /// Records that cannot be read: path of the shard, offset and reason.
    pub corrupt: BTreeMap<Sample, (String, u64, String)>,
    counts: Vec<u64>,
    whole: RefCell<BTreeMap<u64, Rc<EpochPlan>>>,
    groups: RefCell<BTreeMap<u64, Rc<Groups>>>,
}

impl JobFacts {
    /// Returns a deterministic job over a dataset.
    pub fn new(name: &str, dataset: &str, manifest: &Manifest, tail: Tail, seed: u64) -> Rc<Self> {
        Self::of((name, dataset), manifest, (tail, Mode::Deterministic), seed)
    }

    /// Returns a job of either mode.
    pub fn of(
        (name, dataset): (&str, &str),
        manifest: &Manifest,
        (tail, mode): (Tail, Mode),
        seed: u64,
    ) -> Rc<Self> {
        let shuffle = Shuffle {
            digest: manifest.order_digest(),
            seed,
            enabled: true,
            window: 16,
            interleave: 2,
            block_length: 1,
        };
        let spec = RecordSpec::raw().encode_canonical().expect("it is small");
        let identity = JobIdentity {
            order: ORDER_VERSION,
            content: manifest.digest(),
            shuffle,
            lanes: if mode == Mode::Dynamic { 1 } else { 4 },
            tail,
            mode,
            records: Records::RecordSpec(record_spec_digest(&spec)),
            decoder: DECODER_NONE.into(),
        };
        Rc::new(Self {
            name: name.into(),
            dataset: dataset.into(),
            identity,
            global_batch: 8,
            corrupt: corrupt_of(manifest),
            counts: manifest.counts(),
            whole: RefCell::default(),
            groups: RefCell::default(),
        })
    }

    /// Returns the groups of an epoch of a dynamic job.
    pub fn groups(&self, epoch: u64) -> Rc<Groups> {
        let make = || {
            let line = Line::unrotated(&self.counts, &self.identity.shuffle, epoch);
            let groups = line
                .and_then(|line| Groups::new(Arc::new(line), self.identity.shuffle.clone(), epoch));
            Rc::new(groups.expect("the job's numbers make groups"))
        };
        Rc::clone(self.groups.borrow_mut().entry(epoch).or_insert_with(make))
    }

    /// Returns the number of samples of an epoch.
    pub fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the plan of an epoch.
    ///
    /// # Errors  The segments are invalid.
    pub fn plan(
        &self,
        epoch: u64,
        segments: &[Segment],
        world_size: u64,
    ) -> Result<EpochPlan, shardfeed_plan::PlanError> {
        let line = Line::new(&self.counts, &self.identity.shuffle, epoch)?;
        let (shuffle, tail) = (self.identity.shuffle.clone(), self.identity.tail);
        EpochPlan::new(Arc::new(line), shuffle, epoch, (tail, None), segments, world_size)
    }

    /// Returns the plan of an epoch for a single uninterrupted rank.
    fn whole(&self, epoch: u64) -> Rc<EpochPlan> {
        let mut whole = self.whole.borrow_mut();
        let make = || {
            let open = Segment::start(self.identity.lanes, self.global_batch, 1);
            let plan = open.and_then(|open| self.plan(epoch, &[open], 1));
            Rc::new(plan.expect("the job's numbers make a plan"))
        };
        Rc::clone(whole.entry(epoch).or_insert_with(make))
    }

    /// Returns true if an epoch of a deterministic job delivers the sample; false if its tail drops
    /// it.
    pub fn delivers(&self, epoch: u64, sample: Sample) -> bool {
        self.whole(epoch).place(Portion::default(), sample).is_ok_and(|placed| placed.is_some())
    }

    /// Returns the corrupt samples among `samples`.
    pub fn corrupt_in(&self, samples: impl IntoIterator<Item = Sample>) -> Vec<Sample> {
        samples.into_iter().filter(|sample| self.corrupt.contains_key(sample)).collect()
    }

    /// Returns the number of steps of an epoch.
    pub fn steps(&self, epoch: u64) -> u64 {
        self.whole(epoch).steps()
    }

    /// Returns the entries of a global batch, in order.
    pub fn global_batch(&self, (epoch, step): (u64, u64)) -> Vec<Planned> {
        self.whole(epoch).batch(step, 0).unwrap_or_default()
    }
}

/// Returns the corrupt records of a manifest; equal content is corrupt in the same places.
fn corrupt_of(manifest: &Manifest) -> BTreeMap<Sample, (String, u64, String)> {
    let digest = manifest.digest();
    let (seed, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
    let dice = Dice::new(u64::from_le_bytes(*seed), 600);
    let mut corrupt = BTreeMap::new();
    for (shard, file) in (0..).zip(manifest.shards()) {
        for ordinal in (0..file.records).filter(|_| dice.chance(CORRUPT_PERCENT)) {
            let what = format!("the checksum of record {ordinal} is wrong");
            corrupt.insert(Sample { shard, ordinal }, (file.path.clone(), ordinal * 64, what));
        }
    }
    corrupt
}
