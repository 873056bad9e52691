use std::sync::Arc;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{
    EPOCHS, EpochPlan, JobIdentity, Line, MixtureEpoch, Mode, PlanError, Segment, Tail,
};
use shardfeed_source::{Dataset, Lock, Mixed};

/// Cached epoch sequences: that of the epoch being consumed and that of the epoch being read ahead.
const LINES_KEPT: usize = 2;

/// Plans of a dataset's epochs, with the latest epoch sequences cached for all users.
#[derive(Debug)]
pub struct Plans {
    counts: Vec<u64>,
    /// Sources of a mixture.
    mixed: Option<Arc<Mixed>>,
    rules: (Tail, Option<u64>),
    lines: Lock<Vec<(u64, Mode, Arc<Line>)>>,
    mixtures: Lock<Vec<(u64, Arc<MixtureEpoch>)>>,
}

impl Plans {
    /// Creates plans over shards with these numbers of records.
    /// - `rules`: the treatment of an epoch's tail, and the maximum number of entries in an epoch.
    pub fn new(counts: Vec<u64>, rules: (Tail, Option<u64>)) -> Self {
        let (lines, mixtures) = (Lock::default(), Lock::default());
        Self { counts, mixed: None, rules, lines, mixtures }
    }

    /// Creates plans over the sources of a mixture.
    /// - `rules`: as for [`Plans::new`].
    pub fn of_mixture(mixed: Arc<Mixed>, rules: (Tail, Option<u64>)) -> Self {
        Self { mixed: Some(mixed), ..Self::new(vec![], rules) }
    }

    /// Creates plans over the shards of a dataset, or over the sources of its mixture.
    /// - `rules`: as for [`Plans::new`].
    pub fn of_dataset(dataset: &Dataset, rules: (Tail, Option<u64>)) -> Self {
        match dataset.mixed() {
            Some(mixed) => Self::of_mixture(Arc::clone(mixed), rules),
            None => Self::new(dataset.sample_counts(), rules),
        }
    }

    /// Returns an epoch's plan of `segments`; of a dynamic job, that of a deterministic one.
    pub fn plan(
        &self,
        identity: &JobIdentity,
        epoch: u64,
        segments: &[Segment],
        world_size: u64,
    ) -> Result<Arc<EpochPlan>, PlanError> {
        if let Some(mixed) = &self.mixed {
            let mixture = self.mixture(mixed, identity, epoch)?;
            return EpochPlan::of_mixture(mixture, self.rules, segments, world_size).map(Arc::new);
        }
        let line = self.line(identity, Mode::Deterministic, epoch)?;
        let shuffle = identity.shuffle.clone();
        EpochPlan::new(line, shuffle, epoch, self.rules, segments, world_size).map(Arc::new)
    }

    /// Returns the groups of an epoch of a dynamic job.
    pub fn groups(&self, identity: &JobIdentity, epoch: u64) -> Result<Groups, PlanError> {
        let line = self.line(identity, Mode::Dynamic, epoch)?;
        Groups::new(line, identity.shuffle.clone(), epoch)
    }

    fn mixture(
        &self,
        mixed: &Mixed,
        identity: &JobIdentity,
        epoch: u64,
    ) -> Result<Arc<MixtureEpoch>, PlanError> {
        // The position after the last epoch has no batches, and its plan is not followed.
        let epoch = epoch.min(EPOCHS - 1);
        let mut mixtures = self.mixtures.lock();
        if let Some((_, mixture)) = mixtures.iter().find(|(known, _)| *known == epoch) {
            return Ok(Arc::clone(mixture));
        }
        let sources = mixed.sources(epoch);
        let mixture = MixtureEpoch::new(&mixed.mixture, sources, &identity.shuffle, epoch)?;
        let mixture = Arc::new(mixture);
        mixtures.insert(0, (epoch, Arc::clone(&mixture)));
        mixtures.truncate(LINES_KEPT);
        Ok(mixture)
    }

    fn line(&self, identity: &JobIdentity, mode: Mode, epoch: u64) -> Result<Arc<Line>, PlanError> {
        let mut lines = self.lines.lock();
        if let Some((_, _, line)) = lines.iter().find(|known| (known.0, known.1) == (epoch, mode)) {
            return Ok(Arc::clone(line));
        }
        let line = match mode {
            Mode::Deterministic => Line::new(&self.counts, &identity.shuffle, epoch)?,
            Mode::Dynamic => Line::unrotated(&self.counts, &identity.shuffle, epoch)?,
        };
        let line = Arc::new(line);
        lines.insert(0, (epoch, mode, Arc::clone(&line)));
        lines.truncate(LINES_KEPT);
        Ok(line)
    }
}
