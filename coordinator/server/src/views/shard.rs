//! Shards of an epoch: which rank reads each, through which worker, and how far it is.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::Manifest;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1::{ListShardsResponse, Shard, ShardState};

use super::Picture;
use super::epoch::steps_in;
use crate::core::Core;
use crate::error;

/// Shards in one message at most.
pub(crate) const SHARDS_PER_MESSAGE: usize = 1000;

/// Workers that are named of a shard at most.
const WORKERS_NAMED_MAX: usize = 8;

/// All that messages about an epoch's shards are made of.
#[derive(Debug)]
pub(crate) struct Shards {
    epoch: u64,
    generation: u64,
    /// Whether the current generation is in that epoch, so that its ranks tell of it.
    current: bool,
    over: bool,
    picture: Picture,
    manifest: Arc<Manifest>,
    delivered: Vec<u64>,
    dropped: Vec<u64>,
    ranks: Vec<Range<u64>>,
    reading: BTreeSet<u32>,
}

/// The shards of `epoch`, of the current one if `None`. Computes for long.
///
/// # Errors  `NotFound`: the epoch lies before what is kept.
pub(crate) fn shards(
    core: &Core,
    picture: Picture,
    epoch: Option<u64>,
) -> Result<Shards, WireError> {
    let cursors = picture.cursors();
    let first = cursors.iter().min().map_or(picture.generation.origin.epoch, |c| c.epoch);
    let epoch = epoch.unwrap_or(first);
    let (generation, of) = picture.epoch_of(epoch)?;
    let (generation, world_size) = (generation.number, generation.world_size);
    let current = generation == picture.generation.number;
    let plan = picture.order.plan(core, &of)?;
    let steps = match current {
        true => steps_in(&plan, &cursors),
        false => vec![plan.steps(); world_size as usize],
    };
    let failed = |error| error::plan(&error);
    let reading = picture.live.values().filter(|live| current && live.epoch == epoch);
    let reading = reading.flat_map(|live| live.reading.iter().copied()).collect();
    Ok(Shards {
        epoch,
        generation,
        current,
        over: steps.iter().all(|step| *step == plan.steps()),
        manifest: picture.order.manifest(core)?,
        delivered: plan.delivered_by_shard(&steps).map_err(failed)?,
        dropped: plan.dropped_by_shard().map_err(failed)?,
        ranks: plan.ranks_of_shards(),
        reading,
        picture,
    })
}

impl Shards {
    /// Messages of at most [`SHARDS_PER_MESSAGE`] shards; one if there are none.
    pub(crate) fn messages(self) -> impl Iterator<Item = ListShardsResponse> {
        let count = self.manifest.shards().len();
        (0..count.max(1)).step_by(SHARDS_PER_MESSAGE).map(move |first| {
            let last = (first + SHARDS_PER_MESSAGE).min(count);
            let shards = (first..last).map(|shard| self.shard(shard)).collect();
            ListShardsResponse { epoch: self.epoch, generation: self.generation, shards }
        })
    }

    fn shard(&self, shard: usize) -> Shard {
        let known = &self.manifest.shards()[shard];
        let ranks = self.ranks.get(shard).cloned().unwrap_or(0..0);
        let done = self.delivered.get(shard).copied().unwrap_or(0);
        let workers = self.workers(&ranks);
        let state = self.state(shard, known.records, done, !workers.is_empty());
        let stands = ranks.clone().filter(|_| self.current);
        Shard {
            shard: shard as u64,
            path: known.path.clone(),
            state: state.into(),
            records: known.records,
            records_done: done,
            first_rank: ranks.start,
            last_rank: ranks.end.saturating_sub(1).max(ranks.start),
            workers,
            age_ms: stands.filter_map(|rank| self.picture.stands_ms(rank)).min(),
            group: None,
        }
    }

    fn state(&self, shard: usize, records: u64, done: u64, served: bool) -> ShardState {
        let deliverable = records.saturating_sub(self.dropped.get(shard).copied().unwrap_or(0));
        let being_read = u32::try_from(shard).is_ok_and(|shard| self.reading.contains(&shard));
        if records == 0 || self.over || deliverable > 0 && done >= deliverable {
            ShardState::Done
        } else if done > 0 || being_read {
            ShardState::Reading
        } else if served {
            ShardState::Leased
        } else {
            ShardState::Pending
        }
    }

    fn workers(&self, ranks: &Range<u64>) -> Vec<String> {
        let mut workers: Vec<String> = Vec::new();
        for rank in ranks.clone().filter(|_| self.current) {
            let Some((worker, _)) = self.picture.worker(rank) else {
                continue;
            };
            if !workers.contains(worker) {
                workers.push(worker.clone());
            }
            if workers.len() == WORKERS_NAMED_MAX {
                break;
            }
        }
        workers
    }
}
