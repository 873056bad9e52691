//! Readers of a shard of an epoch, generation by generation.

use std::collections::{BTreeMap, BTreeSet};

use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1::{GetShardHistoryResponse, ShardReturn, Tenure};
use shardfeed_scheduler::{Generation, PastLease, Rank, SessionId, State};

use super::{name_of, no_job};
use crate::error::{Result, not_found};
use crate::leader::core::Core;
use crate::leader::plans::{EpochOf, Order};

/// Copy of a job's kept generations: computing on it holds no lock.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) order: Order,
    job: String,
    epoch: u64,
    /// Generations that reached the epoch.
    generations: Vec<Generation>,
    workers: BTreeMap<SessionId, String>,
}

impl Past {
    /// Returns the job's past in an epoch; `None` if the job has not started.
    /// - `epoch`: if `None`, the epoch of the slowest rank.
    ///
    /// # Errors  `NotFound`: no such job, or the epoch precedes the kept generations.
    pub(crate) fn of(state: &State, name: &str, epoch: Option<u64>) -> Result<Option<Self>> {
        let job = state.job(name).ok_or_else(|| no_job(name))?;
        let Some(current) = job.current() else {
            return Ok(None);
        };
        let epoch = epoch.unwrap_or(current.cursor().epoch);
        let order = Order::of(state, name)?.ok_or_else(|| no_job(name))?;
        let mut all = job.generations.values();
        if !all.any(|generation| generation.segments_of(epoch).is_some()) {
            let first = job.generations.values().map(|generation| generation.origin.epoch).min();
            let message = format!(
                "epoch {epoch} of job `{name}` is no longer kept; its first epoch here is {}",
                first.unwrap_or(0)
            );
            return Err(not_found(message));
        }
        let known = job.generations.values().filter(|generation| came_to(generation, epoch));
        let generations: Vec<Generation> = known.cloned().collect();
        let served = generations.iter().flat_map(Generation::leases).map(|(session, _)| session);
        let named = |session| Some((session, state.session(session)?.join.worker.clone()));
        let workers = served.filter_map(named).collect();
        Ok(Some(Self { order, job: name.to_owned(), epoch, generations, workers }))
    }

    /// Returns the history of one shard. Slow to compute.
    ///
    /// # Errors  `NotFound`: no such shard.
    pub(crate) fn of_shard(&self, core: &Core, shard: u64) -> Result<GetShardHistoryResponse> {
        let epoch = self.epoch;
        let last = self.generations.iter().rev().find_map(|known| EpochOf::new(known, epoch));
        let manifest = match &last {
            Some(of) => self.order.shards(core, of)?,
            None if !self.order.has_mixture() => self.order.manifest(core)?,
            None => return Err(no_shard_yet(&self.job, epoch)),
        };
        let ordinal = usize::try_from(shard).unwrap_or(usize::MAX);
        let Some(known) = manifest.shards().get(ordinal) else {
            return Err(not_found(format!(
                "job `{}` has {} shards, numbered from 0: there is none of number {shard}",
                self.job,
                manifest.shards().len()
            )));
        };
        let mut history = GetShardHistoryResponse {
            epoch,
            shard,
            path: known.path.clone(),
            records: known.records,
            ..GetShardHistoryResponse::default()
        };
        for generation in &self.generations {
            let Some(of) = EpochOf::new(generation, epoch) else {
                continue;
            };
            if of.mixture != last.as_ref().and_then(|last| last.mixture) {
                // Other sources may have another shard of this number.
                let shards = self.order.shards(core, &of).ok();
                let shard = shards.as_ref().and_then(|shards| shards.shards().get(ordinal));
                if shard.is_none_or(|shard| shard.path != known.path) {
                    continue;
                }
            }
            let ranks = match self.order.identity.is_dynamic() {
                true => self.granted(core, (generation, epoch), ordinal, &mut history)?,
                false => {
                    let ranks = self.order.plan(core, &of)?.ranks_of_shards()?;
                    ranks.get(ordinal).cloned().into_iter().flatten().flatten().collect()
                }
            };
            for number in ranks {
                if let Some(rank) = generation.ranks.get(&number) {
                    self.tenures((generation, epoch), (number, rank), &mut history);
                }
            }
        }
        Ok(history)
    }

    /// Returns the ranks of a dynamic job that hold, or returned, a range of the shard's group.
    fn granted(
        &self,
        core: &Core,
        (generation, epoch): (&Generation, u64),
        shard: usize,
        history: &mut GetShardHistoryResponse,
    ) -> Result<BTreeSet<u64>> {
        let Some(pool) = generation.pools.get(&epoch) else {
            return Ok(BTreeSet::new());
        };
        let groups = self.order.groups(core, epoch)?;
        let of_shard = |group: &u64| groups.shards(*group).iter().any(|of| *of as usize == shard);
        let Some(group) = (0..groups.count()).find(of_shard) else {
            return Ok(BTreeSet::new());
        };
        history.forgotten += pool.returns.forgotten;
        let mut ranks = BTreeSet::new();
        for one in &pool.returns.kept {
            let pieces = one.pieces.iter().filter(|piece| piece.group == group);
            let samples: u64 = pieces.map(|piece| piece.samples()).sum();
            if samples > 0 {
                ranks.insert(one.rank);
                history.returns.push(ShardReturn {
                    generation: generation.number,
                    rank: one.rank,
                    at_ms: one.at_ms,
                    why: name_of(&one.why),
                    group,
                    samples,
                });
            }
        }
        let holds = |rank: u64| {
            let share = pool.shares.get(&rank);
            let pieces = share.map_or(&[][..], |share| share.list.pieces());
            pieces.iter().any(|piece| piece.group == group)
        };
        ranks.extend(pool.shares.keys().copied().filter(|rank| holds(*rank)));
        Ok(ranks)
    }

    /// Adds the leases of a rank during the epoch; the current one also before the rank is in it.
    fn tenures(
        &self,
        (generation, epoch): (&Generation, u64),
        (number, rank): (u64, &Rank),
        history: &mut GetShardHistoryResponse,
    ) {
        history.forgotten += rank.past.forgotten;
        let mut began = rank.start;
        for past in &rank.past.kept {
            if (began.epoch..=past.cursor.epoch).contains(&epoch) {
                history.tenures.push(tenure_of(generation.number, number, past));
            }
            began = past.cursor;
        }
        let Some(lease) = rank.lease.as_ref().filter(|_| began.epoch <= epoch) else {
            return;
        };
        let over = generation.superseded_by.as_ref().map(|_| "superseded");
        history.tenures.push(Tenure {
            generation: generation.number,
            rank: number,
            fencing: lease.fencing,
            session: lease.session,
            worker: self.workers.get(&lease.session).cloned().unwrap_or_default(),
            granted_ms: lease.granted_ms,
            ended_ms: None,
            why: over.unwrap_or_default().to_owned(),
            epoch: rank.cursor.epoch,
            step: rank.cursor.step,
        });
    }
}

fn no_shard_yet(job: &str, epoch: u64) -> WireError {
    not_found(format!("no generation of job `{job}` came to epoch {epoch}"))
}

/// True if a generation delivered a part of an epoch, or will: false if it ended before.
fn came_to(generation: &Generation, epoch: u64) -> bool {
    let furthest = generation.ranks.values().map(|rank| rank.cursor.epoch).max();
    let goes_on = generation.superseded_by.is_none();
    generation.segments_of(epoch).is_some()
        && (goes_on || furthest.is_some_and(|furthest| furthest >= epoch))
}

fn tenure_of(generation: u64, rank: u64, past: &PastLease) -> Tenure {
    Tenure {
        generation,
        rank,
        fencing: past.fencing,
        session: past.session,
        worker: past.worker.clone(),
        granted_ms: past.granted_ms,
        ended_ms: Some(past.ended_ms),
        why: name_of(&past.why),
        epoch: past.cursor.epoch,
        step: past.cursor.step,
    }
}
