//! Ranks of the current generation.

use std::collections::BTreeMap;

use shardfeed_plan::EpochPlan;
use shardfeed_proto::coordinator::v1::{Rank, RankState};

use super::Picture;
use crate::error::Result;
use crate::leader::core::Core;

/// Maximum ranks in one answer: it must fit into a message.
const RANKS_MAX: u64 = 16_384;

/// Maximum epochs whose steps are counted for one answer; ranks in further epochs show none.
const EPOCHS_MAX: usize = 4;

/// Returns the ranks as shown to users, at most [`RANKS_MAX`]. Slow to compute.
pub(crate) fn ranks(core: &Core, picture: &Picture) -> Result<Vec<Rank>> {
    let is_dynamic = picture.order.identity.is_dynamic();
    let mut plans: BTreeMap<u64, EpochPlan> = BTreeMap::new();
    let mut ranks = Vec::new();
    for number in 0..picture.generation.world_size.min(RANKS_MAX) {
        let epoch = picture.cursor(number).epoch;
        if !is_dynamic && !plans.contains_key(&epoch) && plans.len() < EPOCHS_MAX {
            let (_, of) = picture.epoch_of(epoch)?;
            plans.insert(epoch, picture.order.plan(core, &of)?);
        }
        let steps = plans.get(&epoch).map_or(0, |plan| plan.rank_steps(number));
        ranks.push(rank(picture, number, steps));
    }
    Ok(ranks)
}

fn rank(picture: &Picture, number: u64, steps: u64) -> Rank {
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
        steps,
        ready: picture.live.get(&number).map_or(0, |live| live.ready),
        fencing: lease.map_or(0, |lease| lease.fencing),
        age_ms: picture.stands_ms(number),
        account: picture.live.get(&number).and_then(|live| live.account(picture.now)),
    }
}
