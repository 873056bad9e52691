//! Plans of a dataset's epochs.

use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{EpochPlan, JobIdentity, Line, PlanError, Segment, Tail};

/// Cached epoch sequences: that of the epoch being consumed and that of the epoch being read ahead.
const LINES_KEPT: usize = 2;

/// Plans of a dataset's epochs, with the latest epoch sequences cached: the consumer and the reader
/// use the same ones.
#[derive(Debug)]
pub struct Plans {
    counts: Vec<u64>,
    rules: (Tail, Option<u64>),
    lines: Mutex<Vec<(u64, Arc<Line>)>>,
}

impl Plans {
    /// Creates plans over shards with these numbers of records.
    /// - `rules`: the treatment of an epoch's tail, and the maximum number of entries in an epoch.
    pub fn new(counts: Vec<u64>, rules: (Tail, Option<u64>)) -> Self {
        Self { counts, rules, lines: Mutex::default() }
    }

    /// Returns the plan of an epoch that consists of `segments`.
    ///
    /// # Errors  See [`PlanError`].
    pub fn plan(
        &self,
        identity: &JobIdentity,
        epoch: u64,
        segments: &[Segment],
        world_size: u64,
    ) -> Result<Arc<EpochPlan>, PlanError> {
        let line = self.line(identity, epoch)?;
        let shuffle = identity.shuffle.clone();
        EpochPlan::new(line, shuffle, epoch, self.rules, segments, world_size).map(Arc::new)
    }

    /// Returns the groups of an epoch of a dynamic job.
    ///
    /// # Errors  See [`PlanError`].
    pub fn groups(&self, identity: &JobIdentity, epoch: u64) -> Result<Groups, PlanError> {
        Groups::new(self.line(identity, epoch)?, identity.shuffle.clone(), epoch)
    }

    fn line(&self, identity: &JobIdentity, epoch: u64) -> Result<Arc<Line>, PlanError> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = lines.iter().find(|(of, _)| *of == epoch) {
            return Ok(Arc::clone(line));
        }
        let line = Arc::new(Line::new(&self.counts, &identity.shuffle, epoch)?);
        lines.insert(0, (epoch, Arc::clone(&line)));
        lines.truncate(LINES_KEPT);
        Ok(line)
    }
}
