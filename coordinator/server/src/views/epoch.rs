//! Epochs: the delivered part of each, and the ranks that it waits for.

use std::ops::Range;

use shardfeed_plan::EpochPlan;
use shardfeed_proto::coordinator::v1::{self as wire, Epoch, EpochSource, EpochState};
use shardfeed_scheduler::{Generation, InDoubt, Rank, RankCursor, SealedEpoch};

use super::Picture;
use super::counts::{ByShard, Counts};
use super::granted::{Granted, gone};
use crate::error::Result;
use crate::leader::core::Core;
use crate::leader::plans::EpochOf;

const WAITING_NAMED_MAX: usize = 32;

/// Maximum epochs shown of the current generation that are not sealed: ranks are rarely more than
/// one apart, but a false report may name any epoch.
const OPEN_SHOWN_MAX: u64 = 16;

/// Returns epochs of a job: sealed ones of the current lineage, then those that ranks are in.
/// - `only`: one of them, or a future epoch.
///
/// # Errors  `NotFound`: the epoch precedes the kept generations. Slow to compute.
pub(crate) fn epochs(core: &Core, picture: &Picture, only: Option<u64>) -> Result<Vec<Epoch>> {
    let current = &picture.generation;
    let cursors = picture.cursors();
    let most = cursors.iter().max().map_or(current.origin.epoch, |cursor| cursor.epoch);
    let wanted = |epoch: u64| only.is_none_or(|only| only == epoch);
    let mut epochs = Vec::new();
    for sealed in lineage(picture).filter(|sealed| wanted(sealed.epoch)) {
        if let Some(epoch) = sealed_epoch(core, picture, sealed, only.is_some())? {
            epochs.push(epoch);
        }
    }
    // Cursors of heartbeats may be ahead of the state, which seals: an epoch that all ranks have
    // left is open until it is sealed.
    let sealed_to = epochs.last().map_or(current.cursor().epoch, |last: &Epoch| last.epoch + 1);
    let open: Vec<u64> = match only {
        None => (sealed_to..=most.min(sealed_to.saturating_add(OPEN_SHOWN_MAX - 1))).collect(),
        Some(epoch) if epochs.is_empty() => vec![epoch],
        Some(_) => vec![],
    };
    for epoch in open {
        match open_epoch(core, picture, &cursors, epoch, only.is_some())? {
            // The epoch in which the ranks of a finished run would have continued.
            Some(open)
                if only.is_none()
                    && picture.is_finished
                    && open.state() == EpochState::Planned
                    && !epochs.is_empty() => {}
            Some(open) => epochs.push(open),
            None if only.is_some() => return Err(gone(picture, epoch)),
            None => {}
        }
    }
    Ok(epochs)
}

fn lineage(picture: &Picture) -> impl Iterator<Item = &SealedEpoch> {
    let current = &picture.generation;
    picture.sealed.iter().filter(move |sealed| {
        let own = sealed.generation == current.number;
        let before = picture.earlier.iter().any(|earlier| earlier.number == sealed.generation);
        own || before && sealed.epoch < current.origin.epoch
    })
}

fn sealed_epoch(
    core: &Core,
    picture: &Picture,
    sealed: &SealedEpoch,
    is_only: bool,
) -> Result<Option<Epoch>> {
    let known = picture.lineage().find(|generation| generation.number == sealed.generation);
    let Some((generation, of)) =
        known.and_then(|known| Some((known, EpochOf::new(known, sealed.epoch)?)))
    else {
        return Ok(None);
    };
    let mut sources = vec![];
    let (counts, skipped) = if picture.order.identity.is_dynamic() {
        match (Granted::in_generation(picture, generation, sealed.epoch), sealed.tally) {
            (Some(granted), _) => (granted.counts(core)?, picture.skipped_of(core, &granted)?),
            // The list of dropped records is not kept as long.
            (None, Some(tally)) => (Counts::of_tally(tally), picture.all_skipped()),
            (None, None) => return Ok(None),
        }
    } else {
        if !is_only && !picture.order.keeps(&of) {
            return Ok(None);
        }
        let plan = picture.order.plan(core, &of)?;
        // Every rank has left a sealed epoch: each has consumed all its steps.
        let steps = vec![plan.steps(); generation.world_size as usize];
        sources = if is_only { of_sources(core, picture, &of, (&plan, &steps))? } else { vec![] };
        let skipped = picture.skipped_in(core, &of, (&plan, &steps))?;
        (Counts::of_plan(generation, &plan, &steps)?, skipped)
    };
    let listed = if is_only { picture.skipped_to(core, &of, &skipped.records)? } else { vec![] };
    Ok(Some(Epoch {
        sources,
        state: EpochState::Sealed.into(),
        lost: counts.left(),
        age_ms: picture.now_ms.saturating_sub(sealed.began_ms),
        took_ms: Some(sealed.sealed_ms.saturating_sub(sealed.began_ms)),
        skipped_records: listed,
        ..counted(picture, (generation, sealed.epoch), &counts, skipped.count)
    }))
}

/// Returns an unsealed epoch; `None` for a dynamic job whose grants of it are not kept.
fn open_epoch(
    core: &Core,
    picture: &Picture,
    cursors: &[RankCursor],
    epoch: u64,
    is_only: bool,
) -> Result<Option<Epoch>> {
    let (generation, of) = picture.epoch_of(epoch)?;
    let (mut in_doubt, mut decides_in_ms, mut sources) = (vec![], None, vec![]);
    let (counts, skipped, waiting_for) = if picture.order.identity.is_dynamic() {
        let Some(granted) = Granted::of(picture, epoch)? else {
            return Ok(None);
        };
        let counts = granted.counts(core)?;
        let skipped = picture.skipped_of(core, &granted)?;
        in_doubt = granted.in_doubt();
        decides_in_ms = granted.decides_in_ms();
        (counts, skipped, granted.waiting_for(&counts).take(WAITING_NAMED_MAX).collect())
    } else {
        let plan = picture.order.plan(core, &of)?;
        let steps = steps_in(picture, generation, &plan, cursors);
        let skipped = picture.skipped_in(core, &of, (&plan, &steps))?;
        if is_only {
            sources = of_sources(core, picture, &of, (&plan, &steps))?;
        }
        (Counts::of_plan(generation, &plan, &steps)?, skipped, waiting_for(picture, &plan, &steps))
    };
    let state = state_of(picture, epoch, cursors);
    let running = state == EpochState::Running;
    let rate = picture.rate.filter(|_| running).unwrap_or(0.0);
    let listed = if is_only { picture.skipped_to(core, &of, &skipped.records)? } else { vec![] };
    Ok(Some(Epoch {
        sources,
        state: state.into(),
        samples_per_second: rate,
        eta_ms: (rate > 0.0).then(|| (counts.left() as f64 / rate * 1000.0) as u64),
        age_ms: picture.now_ms.saturating_sub(began_ms(picture, generation, epoch)),
        waiting_for: if running { waiting_for } else { vec![] },
        skipped_records: listed,
        in_doubt,
        decides_in_ms,
        ..counted(picture, (generation, epoch), &counts, skipped.count)
    }))
}

/// Returns the progress of each source of a mixture; none for one dataset.
fn of_sources(
    core: &Core,
    picture: &Picture,
    of: &EpochOf,
    (plan, steps): (&EpochPlan, &[u64]),
) -> Result<Vec<EpochSource>> {
    let (Some(mixture), Some(stage)) = (plan.mixture(), picture.order.stage(core, of)?) else {
        return Ok(vec![]);
    };
    let counts = ByShard::of_plan(of, plan, steps)?;
    let numbers = mixture.counts().zip(mixture.rests_dropped());
    let source =
        |((name, shards), (total, rest_dropped)): ((&str, Range<usize>), (u64, u64))| EpochSource {
            name: name.to_owned(),
            total,
            delivered: counts.delivered[shards.clone()].iter().sum(),
            dropped: counts.dropped[shards.clone()].iter().sum(),
            rest_dropped,
            left_out: counts.left_out[shards].iter().sum(),
        };
    Ok(stage.sources().zip(numbers).map(source).collect())
}

/// Returns the fields that sealed and unsealed epochs have alike.
fn counted(
    picture: &Picture,
    (generation, epoch): (&Generation, u64),
    counts: &Counts,
    skipped: u64,
) -> Epoch {
    Epoch {
        epoch,
        generation: generation.number,
        total: counts.total,
        delivered: counts.delivered.saturating_sub(skipped),
        dropped: counts.dropped,
        left_out: counts.left_out,
        skipped,
        duplicated: counts.duplicated,
        redelivered: counts.redelivered,
        steps: counts.steps,
        steps_done: counts.steps_done,
        policy: policy(picture, generation),
        ..Epoch::default()
    }
}

/// Returns the policy for samples in doubt; unspecified for a job that plans its epochs.
fn policy(picture: &Picture, generation: &Generation) -> i32 {
    let policy = match (picture.order.identity.is_dynamic(), generation.doubt.in_doubt) {
        (false, _) => wire::InDoubt::Unspecified,
        (true, InDoubt::Redeliver) => wire::InDoubt::Redeliver,
        (true, InDoubt::Drop) => wire::InDoubt::Drop,
    };
    policy.into()
}

/// Returns for each rank the first step of the plan's epoch that it has not consumed.
pub(super) fn steps_in(
    picture: &Picture,
    generation: &Generation,
    plan: &EpochPlan,
    cursors: &[RankCursor],
) -> Vec<u64> {
    // An epoch before the current generation is requested by number: it counts as left.
    if generation.number != picture.generation.number {
        return vec![plan.steps(); generation.world_size as usize];
    }
    let step = |cursor: &RankCursor| match cursor.epoch.cmp(&plan.epoch()) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => cursor.step.min(plan.steps()),
        std::cmp::Ordering::Greater => plan.steps(),
    };
    cursors.iter().map(step).collect()
}

/// Returns the unserved ranks that have steps left.
fn waiting_for(picture: &Picture, plan: &EpochPlan, steps: &[u64]) -> Vec<u64> {
    let left = (0..).zip(steps).filter(|(_, step)| **step < plan.steps());
    let unserved = left.filter(|(rank, _)| picture.worker(*rank).is_none());
    unserved.map(|(rank, _)| rank).take(WAITING_NAMED_MAX).collect()
}

fn state_of(picture: &Picture, epoch: u64, cursors: &[RankCursor]) -> EpochState {
    let generation = &picture.generation;
    let begin = match epoch == generation.origin.epoch {
        true => generation.start(),
        false => RankCursor { epoch, step: 0 },
    };
    let begun = cursors.iter().any(|cursor| *cursor > begin);
    let has_ended = picture.is_finished || generation.ranks.values().all(Rank::has_finished);
    let awaited = cursors.contains(&begin) && !has_ended;
    if begun || awaited { EpochState::Running } else { EpochState::Planned }
}

/// Returns the start of an epoch in its generation, as far as kept: the seal of the previous one.
fn began_ms(picture: &Picture, generation: &Generation, epoch: u64) -> u64 {
    let before = |sealed: &&SealedEpoch| {
        sealed.generation == generation.number && sealed.epoch.checked_add(1) == Some(epoch)
    };
    picture.sealed.iter().find(before).map_or(generation.started_ms, |sealed| sealed.sealed_ms)
}
