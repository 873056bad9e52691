//! Stages of a mixture, and the position of each source at their starts. Source: docs/ORDER.md,
//! section 13, Stages.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::MixtureError;
use super::weight::{Decimal, exhausted, integers, largest_remainders, length_min};
use crate::digest::{Digest, OrderDigest, order_digest};
use crate::random::stream_key;
use crate::{EPOCHS, SAMPLES_MAX};

pub const STAGES_MAX: usize = 64;

/// Maximum number of sources of a stage: bounds the time of a random access, far above use.
pub const SOURCES_MAX: usize = 1024;

/// Maximum number of versions and of sources in all stages of a job's mixture, together: a job of a
/// cluster keeps them in its replicated state.
pub const JOB_MIXTURE_ENTRIES_MAX: usize = 4096;

/// Maximum number of bytes of a source's name.
pub(super) const NAME_BYTES_MAX: usize = 128;

/// One version of a named source: the number of samples of each of its shards.
#[derive(Debug)]
pub struct Source {
    name: String,
    counts: Vec<u64>,
    samples: u64,
    digest: OrderDigest,
    record_spec: Option<Digest>,
}

/// Length of the mixture epochs of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// One epoch of the source that ends first.
    FirstExhausted,
    /// One epoch of the source that ends last.
    AllExhausted,
    /// This number of samples.
    #[serde(untagged)]
    Samples(u64),
}

/// Numbers that a stage fixes. They remain valid without its sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// First mixture epoch of the stage.
    pub first_epoch: u64,
    /// Sources, ordered by name.
    pub sources: Vec<StageSource>,
}

/// A source in a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSource {
    /// Name, which identifies the source in all stages.
    pub name: String,
    /// Order digest of the version of the source in this stage.
    pub order_digest: OrderDigest,
    /// Samples of one source epoch, n.
    pub samples: u64,
    /// Samples of one mixture epoch, m.
    pub count: u64,
    /// Digest of the source's record spec, if it is not that of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_spec: Option<Digest>,
}

/// The validated stages of a mixture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixture {
    stages: Vec<Stage>,
    /// Position of each source of each stage when the stage begins.
    starts: Vec<Vec<SourceStart>>,
}

/// Position of a source's version at the start of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceStart {
    /// First source epoch of the version.
    pub(super) first: u128,
    /// Samples that earlier stages took of it.
    pub(super) taken: u128,
    /// Samples that the version before did not deliver of its last source epoch.
    pub(super) dropped: u64,
}

impl Source {
    /// Returns a version of the source `name` with these sample counts, in manifest order.
    ///
    /// # Errors  `Name`, `Empty`, `SourceTooLarge`.
    pub fn new(name: &str, counts: Vec<u64>) -> Result<Self, MixtureError> {
        check_name(name)?;
        let name = name.to_owned();
        let sum = counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
        match sum.filter(|sum| *sum <= SAMPLES_MAX && u32::try_from(counts.len()).is_ok()) {
            None => Err(MixtureError::SourceTooLarge { name }),
            Some(0) => Err(MixtureError::Empty { name, shards: counts.len() }),
            Some(samples) => {
                let digest = order_digest(counts.iter().copied());
                Ok(Self { name, counts, samples, digest, record_spec: None })
            }
        }
    }

    /// Returns this source, of which columns are made by a record spec of its own.
    pub fn with_record_spec(self, record_spec: Option<Digest>) -> Self {
        Self { record_spec, ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of samples of each shard, in manifest order.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the order digest, which random operators use.
    pub fn order_digest(&self) -> OrderDigest {
        self.digest
    }

    /// Returns the digest of its record spec; `None`: it has that of the job.
    pub fn record_spec(&self) -> Option<Digest> {
        self.record_spec
    }

    /// Returns the key of the name, which random operators use as the number of the source.
    pub fn operator_key(&self) -> u64 {
        stream_key("source", &Digest::of_parts([self.name.as_bytes()]), &[])
    }

    /// Returns the source digest, which keys the order of the source.
    pub(super) fn source_digest(&self) -> Digest {
        let name = Digest::of_parts([self.name.as_bytes()]);
        let parts = [b"shardfeed source 1\0".as_slice(), name.as_bytes(), self.digest.as_bytes()];
        Digest::of_parts(parts)
    }
}

impl Stage {
    /// Fixes the numbers of a stage.
    /// - `sources`: each source with its weight, a decimal number as it is written, in any order.
    ///
    /// # Errors  `Sources`, `SameName`, `Weight`, `WeightDigits`, `Length`, `NoSampleOf`, `TooLong`.
    pub fn new(
        first_epoch: u64,
        length: Length,
        sources: &[(&Source, &str)],
    ) -> Result<Self, MixtureError> {
        check_sources(sources.len())?;
        let mut sources = sources.to_vec();
        sources.sort_by_key(|(source, _)| source.name());
        let decimal = |(source, weight): &(&Source, &str)| {
            let (name, weight) = (source.name.clone(), (*weight).to_owned());
            Decimal::parse(&weight).ok_or(MixtureError::Weight { name, weight })
        };
        let decimals = sources.iter().map(decimal).collect::<Result<Vec<_>, _>>()?;
        let weights = integers(&decimals).ok_or(MixtureError::WeightDigits)?;
        let samples: Vec<u64> = sources.iter().map(|(source, _)| source.samples).collect();
        let counts = match length {
            Length::Samples(samples) => {
                check_length(samples.into())?;
                largest_remainders(samples, &weights)
            }
            Length::FirstExhausted | Length::AllExhausted => {
                let is_last = length == Length::AllExhausted;
                exhausted(&samples, &weights, is_last).ok_or(MixtureError::TooLong)?
            }
        };
        if let Some(without) = counts.iter().position(|count| *count == 0) {
            let samples = counts.iter().sum();
            return Err(MixtureError::NoSampleOf {
                name: sources[without].0.name.clone(),
                samples,
                samples_min: length_min(samples, &weights),
            });
        }
        let fixed = |((source, _), count): (&(&Source, &str), u64)| StageSource {
            name: source.name.clone(),
            order_digest: source.digest,
            samples: source.samples,
            count,
            record_spec: source.record_spec,
        };
        let sources = sources.iter().zip(counts).map(fixed).collect();
        let stage = Self { first_epoch, sources };
        stage.check()?;
        Ok(stage)
    }

    /// Returns the number of samples of each mixture epoch, N.
    pub fn samples(&self) -> u64 {
        self.sources.iter().map(|source| source.count).sum()
    }

    /// Checks numbers that may come from another process.
    fn check(&self) -> Result<(), MixtureError> {
        check_sources(self.sources.len())?;
        for source in &self.sources {
            check_name(&source.name)?;
            let name = || source.name.clone();
            match source.samples {
                0 => return Err(MixtureError::Empty { name: name(), shards: 0 }),
                1..=SAMPLES_MAX => {}
                _ => return Err(MixtureError::SourceTooLarge { name: name() }),
            }
            if source.count == 0 {
                return Err(MixtureError::Length { samples: 0 });
            }
        }
        for pair in self.sources.windows(2) {
            if pair[0].name == pair[1].name {
                return Err(MixtureError::SameName { name: pair[0].name.clone() });
            }
        }
        check_length(self.sources.iter().map(|source| u128::from(source.count)).sum())
    }
}

impl Mixture {
    /// Returns the mixture with these stages.
    ///
    /// # Errors  `Stages`, `StageEpoch`, and as [`Stage::new`].
    pub fn new(mut stages: Vec<Stage>) -> Result<Self, MixtureError> {
        if stages.is_empty() || stages.len() > STAGES_MAX {
            return Err(MixtureError::Stages { stages: stages.len() });
        }
        let mut last: BTreeMap<String, (StageSource, SourceStart)> = BTreeMap::new();
        let mut starts = Vec::with_capacity(stages.len());
        let mut epoch_before = None;
        for index in 0..stages.len() {
            let next = stages.get(index + 1).map(|next| next.first_epoch);
            let stage = &mut stages[index];
            let epoch = stage.first_epoch;
            let follows = epoch_before.map_or(epoch == 0, |before| before < epoch);
            if !follows || epoch >= EPOCHS {
                return Err(MixtureError::StageEpoch { stage: index, epoch });
            }
            epoch_before = Some(epoch);
            stage.sources.sort_by(|a, b| a.name.cmp(&b.name));
            stage.check()?;
            let start = |source: &StageSource| SourceStart::after(last.get(&source.name), source);
            let starts_here: Vec<SourceStart> = stage.sources.iter().map(start).collect();
            let epochs = next.map_or(0, |next| next.saturating_sub(epoch));
            for (source, &start) in stage.sources.iter().zip(&starts_here) {
                let taken = start.taken + u128::from(epochs) * u128::from(source.count);
                let end = SourceStart { taken, ..start };
                last.insert(source.name.clone(), (source.clone(), end));
            }
            starts.push(starts_here);
        }
        Ok(Self { stages, starts })
    }

    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Returns the index of the stage of a mixture epoch.
    pub fn stage_of(&self, epoch: u64) -> usize {
        self.stages.partition_point(|stage| stage.first_epoch <= epoch) - 1
    }

    /// Returns the number of stages that are begun at a step of a mixture epoch.
    pub fn begun(&self, epoch: u64, step: u64) -> usize {
        let is_begun = |stage: &Stage| stage.first_epoch < epoch + u64::from(step > 0);
        self.stages.partition_point(is_begun)
    }

    /// Returns the digest of the first `begun` stages, as states contain it.
    pub fn stages_digest(&self, begun: usize) -> String {
        let mut text = String::from("shardfeed stages\n");
        for stage in &self.stages[..begun.min(self.stages.len())] {
            let _ = writeln!(text, "stage={}", stage.first_epoch);
            for StageSource { name, order_digest, samples, count, record_spec } in &stage.sources {
                let _ = write!(
                    text,
                    "source={name} order_digest={order_digest} samples={samples} count={count}"
                );
                if let Some(record_spec) = record_spec {
                    let _ = write!(text, " record_spec={record_spec}");
                }
                text.push('\n');
            }
        }
        let mut digest = Digest::of_parts([text.as_bytes()]).to_string();
        digest.truncate(16);
        digest
    }

    /// Returns for each source of a stage the samples that are dropped when the stage begins: the
    /// rest of the last source epoch of the version that it replaces.
    pub fn dropped(&self, stage: usize) -> Vec<u64> {
        self.starts[stage].iter().map(|start| start.dropped).collect()
    }

    pub(super) fn starts(&self, stage: usize) -> &[SourceStart] {
        &self.starts[stage]
    }
}

impl SourceStart {
    /// Returns the position of `source` after the last stage before that has its name.
    fn after(last: Option<&(StageSource, Self)>, source: &StageSource) -> Self {
        let Some((before, end)) = last else {
            return Self { first: 0, taken: 0, dropped: 0 };
        };
        if before.order_digest == source.order_digest {
            return Self { dropped: 0, ..*end };
        }
        let samples = u128::from(before.samples);
        let begun = end.taken.div_ceil(samples);
        let dropped = (begun * samples - end.taken) as u64;
        Self { first: end.first + begun, taken: 0, dropped }
    }
}

fn check_name(name: &str) -> Result<(), MixtureError> {
    let is_fine = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name != "-"
        && !name.contains(|c: char| c.is_whitespace() || c.is_control());
    if is_fine { Ok(()) } else { Err(MixtureError::Name { name: name.to_owned() }) }
}

fn check_sources(sources: usize) -> Result<(), MixtureError> {
    let is_fine = (1..=SOURCES_MAX).contains(&sources);
    if is_fine { Ok(()) } else { Err(MixtureError::Sources { sources }) }
}

fn check_length(samples: u128) -> Result<(), MixtureError> {
    let is_fine = (1..=u128::from(SAMPLES_MAX)).contains(&samples);
    if is_fine { Ok(()) } else { Err(MixtureError::Length { samples }) }
}
