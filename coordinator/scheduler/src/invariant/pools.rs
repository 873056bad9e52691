//! Invariants of the pools of dynamic jobs; the ids are those of docs/GUARANTEES.md.

use shardfeed_plan::dynamic::GroupRange;

use crate::dynamic::pool::{Pool, RankAssignment};
use crate::invariant::breach::{Checked, bound, rule};
use crate::job::Job;
use crate::job::generation::Generation;
use crate::log::EPOCHS_KEPT;

/// Y2: no dynamic job has equal steps.
pub(super) fn check_pools(job: &Job, generation: &Generation, what: &str) -> Checked {
    bound("pools of a generation", generation.pools.len(), EPOCHS_KEPT)?;
    let is_dynamic = job.identity.is_dynamic() || generation.pools.is_empty();
    rule(is_dynamic, what, "only dynamic jobs have pools")?;
    let has_its_tail = job.identity.mode.check_tail(job.identity.tail).is_ok();
    rule(has_its_tail, what, "dynamic jobs have the tail uneven")?;
    for (epoch, pool) in &generation.pools {
        let what = &format!("epoch {epoch} of {what}");
        rule(*epoch >= generation.origin.epoch, what, "pools are of its epochs")?;
        check_places(pool, what)?;
        for (number, share) in &pool.shares {
            let what = &format!("rank {number} in {what}");
            let served = generation.ranks.get(number).is_some_and(|rank| rank.lease.is_some());
            let is_in_doubt = share.doubt.is_some();
            rule(
                !(is_in_doubt && (served || share.left)),
                what,
                "only samples of unserved ranks are in doubt",
            )?;
            check_share(pool, share, what)?;
            check_cursor(generation, *epoch, *number, what)?;
        }
    }
    Ok(())
}

/// Y1: every sample of a group that was begun is free, in one list, or was consumed before.
fn check_places(pool: &Pool, what: &str) -> Checked {
    let Pool { groups, samples, next, begun, before, returned, dropped, .. } = pool;
    let is_begun = if next == groups { begun == samples } else { begun < samples };
    rule(next <= groups && is_begun, what, "the groups begun have the samples begun")?;
    let shares = pool.shares.values();
    let mut pieces: Vec<GroupRange> =
        shares.flat_map(|share| share.own_pieces(0..share.list.samples())).collect();
    pieces.extend(returned.iter().chain(dropped.iter()));
    let held: u64 = pieces.iter().map(GroupRange::samples).sum();
    rule(before + held == *begun, what, "every sample begun is in one place")?;
    pieces.sort_unstable();
    let apart =
        pieces.windows(2).all(|pair| pair[0].group < pair[1].group || pair[0].to <= pair[1].from);
    rule(apart, what, "no sample is in two places")?;
    let known = pieces.last().is_none_or(|last| last.group < *next);
    rule(known, what, "placed samples were begun")?;
    rule(pool.delivered() <= *samples, what, "no more samples are delivered than exist")
}

/// Y3: consumed <= started <= granted, and consumed <= horizon <= granted.
fn check_share(pool: &Pool, share: &RankAssignment, what: &str) -> Checked {
    let samples = share.list.samples();
    let in_order = share.consumed <= share.started && share.started <= samples;
    rule(in_order, what, "consumed samples were begun, and begun samples were granted")?;
    let opened = share.consumed <= share.horizon && share.horizon <= samples;
    rule(opened, what, "consumed samples are before the horizon, which is in the list")?;
    let ends = share.doubt.is_none() || share.horizon == samples;
    rule(ends, what, "samples in doubt are before the horizon")?;
    let revoked = share.revoke_from.is_none_or(|from| share.started <= from && from < samples);
    rule(revoked, what, "only samples that were granted and not begun are revoked")?;
    let list = &share.list;
    let numbers = (list.batch_size(), list.first_step()) == (pool.batch_size, pool.first_step);
    rule(numbers, what, "lists have the batches of their pool")?;
    rule(share.told <= list.pieces().len() as u64, what, "no more is reported than exists")?;
    let mut at = 0;
    for doubled in &share.doubled {
        rule(at <= doubled.start && doubled.start < doubled.end, what, "doubles are in order")?;
        at = doubled.end;
    }
    rule(at <= samples, what, "doubles are in the list")
}

/// Y4: the known cursor of a rank matches the samples that are counted as consumed.
fn check_cursor(generation: &Generation, epoch: u64, number: u64, what: &str) -> Checked {
    let (Some(rank), Some(pool)) = (generation.ranks.get(&number), generation.pools.get(&epoch))
    else {
        return Ok(());
    };
    let Some(share) = pool.shares.get(&number) else {
        return Ok(());
    };
    let cursor = rank.cursor;
    rule(share.left == (cursor.epoch > epoch), what, "a rank beyond an epoch has left it")?;
    if cursor.epoch != epoch {
        return Ok(());
    }
    let is_there = share.list.position_of_step(cursor.step) == Some(share.consumed);
    rule(is_there, what, "the consumed samples are those before its cursor")
}
