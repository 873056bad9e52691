//! Ranks of the current generation.

use std::collections::BTreeMap;

use shardfeed_plan::EpochPlan;
use shardfeed_proto::coordinator::v1::rank::Source;
use shardfeed_proto::coordinator::v1::{Rank, RankState};

use super::{Picture, counts};
use crate::error::Result;
use crate::leader::core::Core;
use crate::leader::plans::EpochOf;

/// Maximum ranks in one answer: it must fit into a message.
const RANKS_MAX: u64 = 16_384;

/// Maximum epochs whose steps are counted for one answer; ranks in further epochs show none.
const EPOCHS_MAX: usize = 4;

/// Maximum sources of all ranks in one answer: more take seconds to count, and fill a message.
const SOURCES_MAX: u64 = 8_192;

/// Maximum steps of an epoch for which ranks that share a lane show sources: each rank's samples of
/// each step are counted apart.
const SHARED_STEPS_MAX: u64 = 10_000;

/// Returns the ranks as shown to users, at most [`RANKS_MAX`]. Slow to compute.
pub(crate) fn ranks(core: &Core, picture: &Picture) -> Result<Vec<Rank>> {
    let is_dynamic = picture.order.identity.is_dynamic();
    let mut plans: BTreeMap<u64, (EpochOf, EpochPlan)> = BTreeMap::new();
    let mut ranks = Vec::new();
    for number in 0..picture.generation.world_size.min(RANKS_MAX) {
        let epoch = picture.cursor(number).epoch;
        if !is_dynamic && !plans.contains_key(&epoch) && plans.len() < EPOCHS_MAX {
            let (_, of) = picture.epoch_of(epoch)?;
            let plan = picture.order.plan(core, &of)?;
            plans.insert(epoch, (of, plan));
        }
        let mut rank = rank(picture, number);
        if let Some((of, plan)) = plans.get(&epoch) {
            rank.steps = plan.rank_steps(number);
            rank.sources = sources(core, picture, (of, plan), &rank)?;
        }
        ranks.push(rank);
    }
    Ok(ranks)
}

/// Returns the progress of a rank in each source of a mixture; none for one dataset.
fn sources(
    core: &Core,
    picture: &Picture,
    (of, plan): (&EpochOf, &EpochPlan),
    rank: &Rank,
) -> Result<Vec<Source>> {
    let Some(stage) = picture.order.stage(core, of)? else {
        return Ok(vec![]);
    };
    let entries = of.world_size.saturating_mul(stage.sources().count() as u64);
    if entries > SOURCES_MAX || plan.shares_lanes() && plan.steps() > SHARED_STEPS_MAX {
        return Ok(vec![]);
    }
    let step = rank.step.min(plan.steps());
    let delivered = counts::of_rank(of, plan, rank.rank, step)?;
    let source = |((name, _), delivered): ((&str, _), u64)| Source { name: name.into(), delivered };
    Ok(stage.sources().zip(delivered).map(source).collect())
}

fn rank(picture: &Picture, number: u64) -> Rank {
    let known = picture.generation.ranks.get(&number);
    let lease = known.and_then(|rank| rank.lease.as_ref());
    let state = match (known, lease) {
        (None, _) => RankState::Missing,
        (Some(_), Some(_)) => RankState::Served,
        (Some(rank), None) if rank.ended => RankState::Ended,
        (Some(_), None) => RankState::Unserved,
    };
    let (worker, host) = picture.worker(number).cloned().unwrap_or_default();
    let cursor = picture.cursor(number);
    Rank {
        rank: number,
        generation: picture.generation.number,
        state: state.into(),
        worker,
        host,
        trainer: known.map(|rank| rank.trainer.clone()).unwrap_or_default(),
        epoch: cursor.epoch,
        step: cursor.step,
        ready: picture.live.get(&number).map_or(0, |live| live.ready),
        fencing: lease.map_or(0, |lease| lease.fencing),
        age_ms: picture.stands_ms(number),
        account: picture.live.get(&number).and_then(|live| live.account(picture.now)),
        ..Rank::default()
    }
}
