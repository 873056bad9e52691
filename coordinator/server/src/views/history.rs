//! Who read a shard of an epoch, generation by generation.

use std::collections::{BTreeMap, BTreeSet};

use shardfeed_proto::coordinator::v1::{GetShardHistoryResponse, ShardReturn, Tenure};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::{
    Generation, LeaseEnded, PastLease, Rank, RankCursor, Returned, SessionId, State,
};

use super::no_job;
use crate::core::Core;
use crate::plans::{EpochOf, Order};

/// A job's generations as they are kept, copied: computing on them holds no lock.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) order: Order,
    job: String,
    generations: Vec<Generation>,
    workers: BTreeMap<SessionId, String>,
}

impl Past {
    /// The job's past; `None` if it has not started.
    ///
    /// # Errors  `NotFound`.
    pub(crate) fn of(state: &State, name: &str) -> Result<Option<Self>, WireError> {
        let job = state.job(name).ok_or_else(|| no_job(name))?;
        if job.generations.is_empty() {
            return Ok(None);
        }
        let order = Order::of(state, name)?.ok_or_else(|| no_job(name))?;
        let generations: Vec<Generation> = job.generations.values().cloned().collect();
        let served = generations.iter().flat_map(Generation::leases).map(|(session, _)| session);
        let named = |session| Some((session, state.session(session)?.join.worker.clone()));
        let workers = served.filter_map(named).collect();
        Ok(Some(Self { order, job: name.to_owned(), generations, workers }))
    }

    /// The history of one shard; `epoch`: the one that the slowest rank is in, if `None`. Computes for
    /// long.
    ///
    /// # Errors  `NotFound`: no such shard, or the epoch lies before what is kept.
    pub(crate) fn of_shard(
        &self,
        core: &Core,
        epoch: Option<u64>,
        shard: u64,
    ) -> Result<GetShardHistoryResponse, WireError> {
        let current = self.generations.last().expect("a started job has a generation");
        let epoch = epoch.unwrap_or(current.cursor().epoch);
        let manifest = self.order.manifest(core)?;
        let ordinal = usize::try_from(shard).unwrap_or(usize::MAX);
        let Some(known) = manifest.shards().get(ordinal) else {
            let message = format!(
                "job `{}` has {} shards, numbered from 0: there is none of number {shard}",
                self.job,
                manifest.shards().len()
            );
            return Err(WireError::new(ErrorKind::NotFound, message));
        };
        let mut history = GetShardHistoryResponse {
            epoch,
            shard,
            path: known.path.clone(),
            records: known.records,
            ..GetShardHistoryResponse::default()
        };
        let mut is_kept = false;
        for generation in &self.generations {
            let Some(segments) = generation.segments_of(epoch) else {
                continue;
            };
            is_kept = true;
            let is_over = generation.superseded_by.is_some();
            let furthest = generation.ranks.values().map(|rank| rank.cursor.epoch).max();
            if is_over && furthest.is_none_or(|furthest| furthest < epoch) {
                // It ended before it came to the epoch.
                continue;
            }
            let ranks = match self.order.identity.is_dynamic() {
                true => self.granted(core, (generation, epoch), ordinal, &mut history)?,
                false => {
                    let Generation { world_size, limit, .. } = *generation;
                    let of = EpochOf { epoch, segments, world_size, limit };
                    let ranks = self.order.plan(core, &of)?.ranks_of_shards();
                    ranks.get(ordinal).cloned().unwrap_or(0..0).collect()
                }
            };
            for number in ranks {
                if let Some(rank) = generation.ranks.get(&number) {
                    self.tenures((generation, epoch), (number, rank), &mut history);
                }
            }
        }
        match is_kept {
            true => Ok(history),
            false => {
                let message =
                    format!("epoch {epoch} of job `{}` lies before what is kept", self.job);
                Err(WireError::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// The ranks of a dynamic job that have, or gave back, something of the shard's group.
    fn granted(
        &self,
        core: &Core,
        (generation, epoch): (&Generation, u64),
        shard: usize,
        history: &mut GetShardHistoryResponse,
    ) -> Result<BTreeSet<u64>, WireError> {
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
                let why = match one.why {
                    Returned::Unserved => "unserved",
                    Returned::AskedBack => "asked_back",
                    Returned::Left => "left",
                    Returned::TakenOver => "taken_over",
                };
                history.returns.push(ShardReturn {
                    generation: generation.number,
                    rank: one.rank,
                    at_ms: one.at_ms,
                    why: why.to_owned(),
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

    /// The leases of a rank that were there while it was in the epoch, or before it.
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
        let RankCursor { epoch, step } = rank.cursor;
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
            epoch,
            step,
        });
    }
}

fn tenure_of(generation: u64, rank: u64, past: &PastLease) -> Tenure {
    let why = match past.why {
        LeaseEnded::WorkerLeft => "worker_left",
        LeaseEnded::WorkerExpired => "worker_expired",
        LeaseEnded::WorkerReplaced => "worker_replaced",
        LeaseEnded::TrainerEnded => "trainer_ended",
        LeaseEnded::TrainerMoved => "trainer_moved",
        LeaseEnded::TrainerReturned => "trainer_returned",
        LeaseEnded::JobCancelled => "job_cancelled",
    };
    Tenure {
        generation,
        rank,
        fencing: past.fencing,
        session: past.session,
        worker: past.worker.clone(),
        granted_ms: past.granted_ms,
        ended_ms: Some(past.ended_ms),
        why: why.to_owned(),
        epoch: past.cursor.epoch,
        step: past.cursor.step,
    }
}
