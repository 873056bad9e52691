//! Shards of an epoch: the ranks and workers that read each, and its progress.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::Manifest;
use shardfeed_plan::dynamic::Groups;
use shardfeed_proto::coordinator::v1::get_epoch_map_response::Cell;
use shardfeed_proto::coordinator::v1::{
    GetEpochMapResponse, ListShardsResponse, Shard, ShardState,
};
use shardfeed_scheduler::RankCursor;

use super::Picture;
use super::counts::ByShard;
use super::epoch::steps_in;
use super::granted::{Granted, gone};
use super::held::GroupHolders;
use crate::error::Result;
use crate::leader::core::Core;
use crate::leader::mixtures::StageSources;

pub(crate) const SHARDS_PER_MESSAGE: usize = 1000;

const WORKERS_NAMED_MAX: usize = 8;

/// Data for all messages about an epoch's shards.
#[derive(Debug)]
pub(crate) struct Shards {
    epoch: u64,
    generation: u64,
    /// True if the current generation is in that epoch, so that its ranks report on it.
    current: bool,
    over: bool,
    picture: Picture,
    stage: Option<Arc<StageSources>>,
    manifest: Arc<Manifest>,
    parts: ShardReaders,
    reading: BTreeSet<u32>,
    wanted: ShardFilter,
    /// Shards read by the requested rank, and by the requested worker.
    read: Vec<BTreeSet<u32>>,
}

/// Filter for the shards of an epoch: a shard must meet all conditions.
#[derive(Debug, Default)]
pub(crate) struct ShardFilter {
    /// Rank that reads the shard; of a dynamic job: that was granted a sample of it.
    pub(crate) rank: Option<u64>,
    pub(crate) worker: Option<String>,
    pub(crate) path_part: Option<String>,
}

/// Readers of shards, and consumed records.
#[derive(Debug)]
enum ShardReaders {
    Planned(Planned),
    /// According to the grants to ranks of a dynamic job.
    Granted(GroupHolders, Arc<Groups>),
}

#[derive(Debug)]
struct Planned {
    counts: ByShard,
    /// Ranks of each shard, as two ranges.
    ranks: Vec<[Range<u64>; 2]>,
}

/// Returns the shards of `epoch`; if `None`, of the current epoch. Slow to compute.
///
/// # Errors  `NotFound`: the epoch precedes the kept generations.
pub(crate) fn shards(
    core: &Core,
    mut picture: Picture,
    epoch: Option<u64>,
    wanted: ShardFilter,
) -> Result<Shards> {
    let cursors = picture.cursors();
    let first = cursors.iter().min().map_or(picture.generation.origin.epoch, |c| c.epoch);
    let epoch = epoch.unwrap_or(first);
    let (known, of) = picture.epoch_of(epoch)?;
    let generation = known.number;
    let current = generation == picture.generation.number;
    let (over, parts) = match picture.order.identity.is_dynamic() {
        true => granted(core, &picture, epoch)?,
        false => planned(core, &picture, (epoch, &cursors))?,
    };
    let reading = picture.live.values().filter(|live| current && live.epoch == epoch);
    let reading = reading.flat_map(|live| live.reading.iter().copied());
    let stage = picture.order.stage(core, &of)?;
    let place = |shard: u32| match &stage {
        Some(stage) => stage.in_source(shard).map(|(source, shard)| stage.in_stage(source, shard)),
        None => Some(shard),
    };
    let reading = reading.filter_map(place).collect();
    let manifest = picture.order.shards(core, &of)?;
    let rank = wanted.rank.map(|rank| BTreeSet::from([rank]));
    let served = wanted.worker.as_deref().map(|worker| match current {
        true => served_by(&picture, worker),
        false => BTreeSet::new(),
    });
    let ranks = rank.into_iter().chain(served);
    let read = ranks.map(|ranks| parts.read_by(&ranks)).collect::<Result<Vec<_>, _>>()?;
    // Messages are made one by one, possibly slowly: they no longer need the lists of group ranges.
    picture.generation.pools.clear();
    picture.earlier.clear();
    Ok(Shards {
        epoch,
        generation,
        current,
        over,
        picture,
        stage,
        manifest,
        parts,
        reading,
        wanted,
        read,
    })
}

/// Returns the ranks that a worker serves in the current generation.
fn served_by(picture: &Picture, worker: &str) -> BTreeSet<u64> {
    let name = |rank: u64| picture.worker(rank).map(|(name, _)| name.as_str());
    let ranks = picture.generation.ranks.keys().copied();
    ranks.filter(|rank| name(*rank) == Some(worker)).collect()
}

fn planned(
    core: &Core,
    picture: &Picture,
    (epoch, cursors): (u64, &[RankCursor]),
) -> Result<(bool, ShardReaders)> {
    let (generation, of) = picture.epoch_of(epoch)?;
    let plan = picture.order.plan(core, &of)?;
    let steps = steps_in(picture, generation, &plan, cursors);
    let over = steps.iter().all(|step| *step == plan.steps());
    let planned =
        Planned { counts: ByShard::of_plan(&of, &plan, &steps)?, ranks: plan.ranks_of_shards()? };
    Ok((over, ShardReaders::Planned(planned)))
}

fn granted(core: &Core, picture: &Picture, epoch: u64) -> Result<(bool, ShardReaders)> {
    let granted = Granted::of(picture, epoch)?.ok_or_else(|| gone(picture, epoch))?;
    let counts = granted.counts(core)?;
    let (groups, manifest) = (picture.order.groups(core, epoch)?, picture.order.manifest(core)?);
    let over = granted.pool.is_some() && counts.left() == 0;
    Ok((over, ShardReaders::Granted(GroupHolders::new(&granted, &groups, &manifest)?, groups)))
}

impl Shards {
    /// Returns messages about at most [`SHARDS_PER_MESSAGE`] shards each; one if there are none.
    pub(crate) fn messages(self) -> impl Iterator<Item = ListShardsResponse> {
        let count = self.manifest.shards().len();
        (0..count.max(1)).step_by(SHARDS_PER_MESSAGE).map(move |first| {
            let last = (first + SHARDS_PER_MESSAGE).min(count);
            let (mut counts, mut shards) = (Cell::default(), Vec::new());
            for shard in (first..last).map(|shard| self.shard(shard)) {
                *count_of(&mut counts, shard.state()) += 1;
                shards.extend(self.is_wanted(&shard).then_some(shard));
            }
            let Self { epoch, generation, .. } = self;
            ListShardsResponse { epoch, generation, shards, counts: Some(counts) }
        })
    }

    fn is_wanted(&self, shard: &Shard) -> bool {
        let is_in = |read: &BTreeSet<u32>| {
            u32::try_from(shard.shard).is_ok_and(|shard| read.contains(&shard))
        };
        let part = self.wanted.path_part.as_ref();
        self.read.iter().all(is_in) && part.is_none_or(|part| shard.path.contains(part))
    }

    /// Returns the delivered samples of each source of a mixture; none for one dataset.
    pub(crate) fn delivered_by_source(&self) -> Vec<(String, u64)> {
        let (Some(stage), ShardReaders::Planned(planned)) = (&self.stage, &self.parts) else {
            return vec![];
        };
        let delivered = |shards: Range<usize>| planned.counts.delivered[shards].iter().sum();
        stage.sources().map(|(name, shards)| (name.to_owned(), delivered(shards))).collect()
    }

    /// Counts the shards by state, in at most `cells` cells.
    pub(crate) fn map(self, cells: u64) -> GetEpochMapResponse {
        let count = self.manifest.shards().len();
        let most = usize::try_from(cells).unwrap_or(usize::MAX).max(1);
        let per_cell = count.div_ceil(most).max(1);
        let cell = |first: usize| {
            let mut cell = Cell::default();
            for shard in first..(first + per_cell).min(count) {
                *count_of(&mut cell, self.shard(shard).state()) += 1;
            }
            cell
        };
        let cells = (0..count).step_by(per_cell).map(cell).collect();
        let (epoch, generation, shards) = (self.epoch, self.generation, count as u64);
        GetEpochMapResponse { epoch, generation, shards, cells }
    }

    fn shard(&self, shard: usize) -> Shard {
        match &self.parts {
            ShardReaders::Planned(planned) => {
                let [ranks, further] = planned.ranks.get(shard).cloned().unwrap_or_default();
                let ByShard { delivered, dropped, left_out } = &planned.counts;
                let count = |counts: &[u64]| counts.get(shard).copied().unwrap_or(0);
                let never = count(dropped) + count(left_out);
                let readers = ranks.clone().chain(further.clone());
                let shown = self.shown(shard, count(delivered), readers);
                let state = self.state(&shown, never, false, !shown.workers.is_empty());
                Shard {
                    state: state.into(),
                    first_rank: ranks.start,
                    last_rank: ranks.end.saturating_sub(1).max(ranks.start),
                    further_first_rank: (!further.is_empty()).then_some(further.start),
                    further_last_rank: (!further.is_empty()).then(|| further.end - 1),
                    ..shown
                }
            }
            ShardReaders::Granted(held, _) => {
                let holdings = held.holdings(shard);
                let ranks = holdings.iter().map(|held| held.rank);
                let shown = self.shown(shard, held.delivered(shard), ranks.clone());
                let is_begun = holdings.iter().any(|held| held.begun);
                let state = self.state(&shown, 0, is_begun, !holdings.is_empty());
                Shard {
                    state: state.into(),
                    first_rank: ranks.clone().min().unwrap_or(0),
                    last_rank: ranks.max().unwrap_or(0),
                    group: held.group(shard),
                    ..shown
                }
            }
        }
    }

    /// Returns the fields that shards of all jobs have alike.
    fn shown(&self, shard: usize, done: u64, ranks: impl Iterator<Item = u64> + Clone) -> Shard {
        let known = &self.manifest.shards()[shard];
        let stands = ranks.clone().filter(|_| self.current);
        Shard {
            shard: shard as u64,
            path: known.path.clone(),
            records: known.records,
            records_done: done,
            workers: self.workers(ranks),
            age_ms: stands.filter_map(|rank| self.picture.stands_ms(rank)).min(),
            ..Shard::default()
        }
    }

    /// - `never`: records that the epoch does not deliver.
    fn state(&self, shown: &Shard, never: u64, is_begun: bool, is_leased: bool) -> ShardState {
        let Shard { shard, records, records_done: done, .. } = *shown;
        let deliverable = records.saturating_sub(never);
        if records == 0 || self.over || deliverable > 0 && done >= deliverable {
            ShardState::Done
        } else if done > 0 || is_begun || self.is_read(shard) {
            ShardState::Reading
        } else if is_leased {
            ShardState::Leased
        } else {
            ShardState::Pending
        }
    }

    fn is_read(&self, shard: u64) -> bool {
        u32::try_from(shard).is_ok_and(|shard| self.reading.contains(&shard))
    }

    fn workers(&self, ranks: impl Iterator<Item = u64>) -> Vec<String> {
        let mut workers: Vec<String> = Vec::new();
        for rank in ranks.filter(|_| self.current) {
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

impl ShardReaders {
    /// Returns the shards that one of `ranks` reads, by manifest index. Slow to compute.
    fn read_by(&self, ranks: &BTreeSet<u64>) -> Result<BTreeSet<u32>> {
        match self {
            Self::Planned(planned) => {
                let is_in =
                    |of: &Range<u64>| !of.is_empty() && ranks.range(of.clone()).next().is_some();
                let is_read = |(_, of): &(u32, &[Range<u64>; 2])| of.iter().any(is_in);
                Ok((0..).zip(&planned.ranks).filter(is_read).map(|(shard, _)| shard).collect())
            }
            Self::Granted(held, groups) => held.shards(ranks, groups),
        }
    }
}

fn count_of(cell: &mut Cell, state: ShardState) -> &mut u64 {
    match state {
        ShardState::Unspecified | ShardState::Pending => &mut cell.pending,
        ShardState::Leased => &mut cell.leased,
        ShardState::Reading => &mut cell.reading,
        ShardState::Done => &mut cell.done,
        ShardState::Skipped => &mut cell.skipped,
    }
}
