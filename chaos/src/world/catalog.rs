//! Data files that hosts can find, and jobs over them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{
    DECODER_NONE, Digest, EpochPlan, JobIdentity, JobMixture, Line, Manifest, Mode, ORDER_VERSION,
    Planned, Portion, Records, Sample, Segment, Shard, Shuffle, Tail, mixture_digest,
};
use shardfeed_proto::chunk::FileEntry;
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::coordinator::v1::{InDoubt, RegisterJobRequest};
use shardfeed_proto::{identity_to, mixture_to, record_spec_digest};
use shardfeed_scheduler::MIXTURES_KEPT;

use crate::dice::Dice;
use crate::sources;
use crate::world::mixture::{Mix, SourceVersion, Variants};

/// Folder of all files.
pub const ROOT: &str = "/data";

/// Percentage of records that are corrupt.
const CORRUPT_PERCENT: u64 = 4;

/// Files per part of a listing.
pub const PART_FILES: usize = 4;

/// Files of the datasets.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// Files in manifest order.
    pub files: Vec<FileEntry>,
    /// Files of the sources of mixtures, by dataset.
    pub sources: BTreeMap<String, Vec<FileEntry>>,
}

impl Catalog {
    /// Returns a random set of files and record counts.
    pub fn new(dice: &Dice) -> Self {
        let file = |number: u64| file(format!("shard-{number:03}.tfrecord"), dice.pick(8..50));
        let files = (0..dice.pick(6..14)).map(file).collect();
        Self { files, sources: BTreeMap::new() }
    }

    /// Returns the files under the name of a dataset: those of a source, or copies of the same
    /// files.
    pub fn of(&self, dataset: &str) -> Vec<FileEntry> {
        let named = |file: &FileEntry| {
            let path = format!("{dataset}/{}", file.path);
            FileEntry { path, ..file.clone() }
        };
        self.sources.get(dataset).unwrap_or(&self.files).iter().map(named).collect()
    }

    /// Returns the manifest that the coordinator builds from the files.
    pub fn manifest(&self) -> Manifest {
        manifest_of(&self.files)
    }
}

/// Returns a file of this number of records.
pub(super) fn file(path: String, records: u64) -> FileEntry {
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
}

/// Returns the manifest of files.
pub(super) fn manifest_of(files: &[FileEntry]) -> Manifest {
    let shard = |file: &FileEntry| Shard {
        path: file.path.clone(),
        records: file.records,
        digest: file.digest,
    };
    Manifest::new(files.iter().map(shard).collect()).expect("the names differ")
}

/// Time that an epoch of a dynamic job waits when only in-doubt samples are left, ms: more than two
/// session TTLs.
pub const GRACE_MS: u64 = 3_000;

/// Returns the policy for in-doubt samples of a job.
pub fn policy_of(job: &str) -> InDoubt {
    if job == "shared" { InDoubt::Drop } else { InDoubt::Redeliver }
}

/// Records that cannot be read: path of the shard, offset and reason.
pub type Corrupt = BTreeMap<Sample, (String, u64, String)>;

/// Job, as known to its launcher.
#[derive(Debug)]
pub struct JobFacts {
    /// Name of the job.
    pub name: String,
    /// Name of its dataset; empty for a mixture.
    pub dataset: String,
    /// Mixtures that its launcher gave it; `None`: it reads one dataset.
    pub variants: Option<Variants>,
    /// Identity that determines the order.
    pub identity: JobIdentity,
    /// Samples per step of all ranks; constant.
    pub global_batch: u64,
    /// Records that cannot be read; of a mixture, see [`JobFacts::corrupt_of`].
    pub corrupt: Rc<Corrupt>,
    counts: Vec<u64>,
    whole: RefCell<BTreeMap<(Mix, u64), Rc<EpochPlan>>>,
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
            variants: None,
            identity,
            global_batch: 8,
            corrupt: Rc::new(corrupt_of(manifest)),
            counts: manifest.counts(),
            whole: RefCell::default(),
            groups: RefCell::default(),
        })
    }

    /// Returns a deterministic job over a mixture of sources.
    pub fn mixed(name: &str, versions: &[SourceVersion], tail: Tail, seed: u64) -> Rc<Self> {
        let none = Manifest::new(vec![]).expect("it is empty");
        let job = Self::new(name, "", &none, tail, seed);
        let mut job = Rc::into_inner(job).expect("it was made just before");
        job.identity.content = mixture_digest();
        job.identity.shuffle.digest = mixture_digest();
        job.variants = Some(Variants::new(versions.to_vec()));
        Rc::new(job)
    }

    /// Returns a mixture of the job.
    pub fn mixture(&self, mix: Mix) -> Option<JobMixture> {
        Some(self.variants.as_ref()?.of(mix?))
    }

    /// Returns the stages of a mixture that fix the order of an epoch; empty for one dataset.
    pub fn stages_to(&self, mix: Mix, epoch: u64) -> String {
        self.mixture(mix).map_or(String::new(), |mixture| sources::begun(&mixture, (epoch, 1)))
    }

    /// Returns the digest of the stages that began at a position; `None` for one dataset.
    pub fn stages_digest(&self, mix: Mix, place: (u64, u64)) -> Option<String> {
        self.mixture(mix).map(|mixture| sources::stages_digest(&mixture, place))
    }

    /// Returns the names of the datasets that it reads, with their content.
    pub fn datasets(&self) -> Vec<(String, Digest)> {
        match &self.variants {
            None => vec![(self.dataset.clone(), self.identity.content)],
            Some(variants) => variants.datasets(),
        }
    }

    /// Returns the request that registers it.
    pub fn registration(&self, mix: Mix) -> RegisterJobRequest {
        let chunk = RecordSpec::raw().encode_canonical().expect("it is small");
        let mixture = self.variants.as_ref().zip(mix).map(|(variants, mix)| variants.of(mix));
        RegisterJobRequest {
            context: None,
            name: self.name.clone(),
            dataset: self.dataset.clone(),
            identity: Some(identity_to(&self.identity)),
            record_spec_chunks: vec![record_spec_digest(&chunk).as_bytes().to_vec()],
            chunk,
            mixture: mixture.map(|mixture| mixture_to(&mixture)),
        }
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
    pub fn samples(&self, mix: Mix, epoch: u64) -> u64 {
        match &self.variants {
            None => self.counts.iter().sum(),
            Some(_) => self.whole(mix, epoch).samples(),
        }
    }

    /// Returns the plan of an epoch.
    ///
    /// # Errors  The segments are invalid.
    pub fn plan(
        &self,
        (mix, epoch): (Mix, u64),
        segments: &[Segment],
        world_size: u64,
    ) -> Result<EpochPlan, shardfeed_plan::PlanError> {
        if let (Some(variants), Some(mix)) = (&self.variants, mix) {
            let epoch = Arc::new(variants.epoch(mix, &self.identity.shuffle, epoch)?);
            return EpochPlan::of_mixture(epoch, (self.identity.tail, None), segments, world_size);
        }
        let line = Line::new(&self.counts, &self.identity.shuffle, epoch)?;
        let (shuffle, tail) = (self.identity.shuffle.clone(), self.identity.tail);
        EpochPlan::new(Arc::new(line), shuffle, epoch, (tail, None), segments, world_size)
    }

    /// Returns the plan of an epoch for a single uninterrupted rank.
    fn whole(&self, mix: Mix, epoch: u64) -> Rc<EpochPlan> {
        let mut whole = self.whole.borrow_mut();
        let make = || {
            let open = Segment::start(self.identity.lanes, self.global_batch, 1);
            let plan = open.and_then(|open| self.plan((mix, epoch), &[open], 1));
            Rc::new(plan.expect("the job's numbers make a plan"))
        };
        Rc::clone(whole.entry((mix, epoch)).or_insert_with(make))
    }

    /// Returns the step of an epoch of a deterministic job that has the sample; `None` if its tail
    /// drops it.
    pub fn step_of(&self, epoch: u64, sample: Sample) -> Option<u64> {
        let placed = self.whole(None, epoch).place(Portion::default(), sample).ok().flatten();
        placed.map(|placed| placed.step)
    }

    /// Returns the records that cannot be read, by their numbers in a mixture.
    pub fn corrupt_of(&self, mix: Mix) -> Rc<Corrupt> {
        match (&self.variants, mix) {
            (Some(variants), Some(mix)) => variants.corrupt(mix),
            _ => Rc::clone(&self.corrupt),
        }
    }

    /// Returns the datasets whose shards a mixture numbers, in their order; empty for one dataset.
    pub fn numbering(&self, mix: Mix) -> String {
        let names = self.mixture(mix).map_or(vec![], |of| of.versions);
        names.iter().map(|of| format!("{} ", of.dataset)).collect()
    }

    /// True if all mixtures that the job was given number their shards alike, and are kept.
    pub fn numbers_alike(&self) -> bool {
        let given = self.variants.as_ref().map_or(0, Variants::count);
        let first = (given > 0).then(|| self.numbering(Some(0)));
        let is_first = |mix| Some(self.numbering(Some(mix))) == first;
        given <= MIXTURES_KEPT && (1..given).all(is_first)
    }

    /// Returns a sample of an epoch by its number in the mixture.
    pub fn named(&self, (mix, epoch): (Mix, u64), portion: Portion, sample: Sample) -> Sample {
        match (&self.variants, mix) {
            (Some(variants), Some(mix)) => variants.named((mix, epoch), portion.source, sample),
            _ => sample,
        }
    }

    /// Returns a sample, by its number in the epoch's shards, by its number in the mixture.
    pub fn of_stage(&self, (mix, epoch): (Mix, u64), sample: Sample) -> Option<Sample> {
        match (&self.variants, mix) {
            (Some(variants), Some(mix)) => variants.of_stage((mix, epoch), sample),
            _ => Some(sample),
        }
    }

    /// Returns the steps of an epoch of a deterministic job that have a sample, unless its tail drops
    /// it; of a mixture there may be several.
    /// - `sample`: by its number in the mixture.
    pub fn steps_of(&self, (mix, epoch): (Mix, u64), sample: Sample) -> Vec<u64> {
        let (Some(variants), Some(mix)) = (&self.variants, mix) else {
            return self.step_of(epoch, sample).into_iter().collect();
        };
        let Some((source, sample)) = variants.in_source((mix, epoch), sample) else {
            return vec![];
        };
        let plan = self.whole(Some(mix), epoch);
        let epochs = plan.mixture().expect("it is of a mixture").source_epochs(source);
        let place = |epoch| plan.place(Portion { source, epoch }, sample).ok().flatten();
        epochs.filter_map(place).map(|placed| placed.step).collect()
    }

    /// Returns the corrupt samples among `samples`.
    /// - `mix`: mixture in which they are numbered.
    pub fn corrupt_in(&self, mix: Mix, samples: impl IntoIterator<Item = Sample>) -> Vec<Sample> {
        let corrupt = self.corrupt_of(mix);
        samples.into_iter().filter(|sample| corrupt.contains_key(sample)).collect()
    }

    /// Returns the number of steps of an epoch.
    pub fn steps(&self, mix: Mix, epoch: u64) -> u64 {
        self.whole(mix, epoch).steps()
    }

    /// Returns the entries of a global batch, in order.
    pub fn global_batch(&self, mix: Mix, (epoch, step): (u64, u64)) -> Vec<Planned> {
        self.whole(mix, epoch).batch(step, 0).unwrap_or_default()
    }
}

/// Returns the corrupt records of a manifest; equal content is corrupt in the same places.
pub(super) fn corrupt_of(manifest: &Manifest) -> Corrupt {
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
