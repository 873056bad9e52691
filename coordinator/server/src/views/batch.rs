//! Records of a batch: from the plan, or for a dynamic job from the groups granted to its ranks.

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{Manifest, Planned, Sample};
use shardfeed_proto::coordinator::v1::GetBatchResponse;
use shardfeed_proto::coordinator::v1::get_batch_response::{BalancedOrder, Dataset, Row};
use shardfeed_proto::{ErrorKind, WireError, identity_to, mixture_to, segments_to};
use shardfeed_scheduler::Generation;

use super::Picture;
use super::granted::{Granted, gone};
use super::held::each_sample;
use crate::error::Result;
use crate::leader::core::Core;
use crate::leader::mixtures::StageSources;

/// Maximum rows of one answer: it must fit into a message.
const ROWS_MAX: u64 = 16_384;

/// Returns the records of `rank`, or of all ranks, at a step of an epoch. Slow to compute.
///
/// # Errors  `NotFound`: no such epoch, step or rank; `Invalid`: more rows than a message holds.
pub(crate) fn batch(
    core: &Core,
    picture: &Picture,
    (epoch, step): (u64, u64),
    rank: Option<u64>,
) -> Result<GetBatchResponse> {
    if picture.order.identity.is_dynamic() {
        return granted_batch(core, picture, (epoch, step), rank);
    }
    let (generation, of) = picture.epoch_of(epoch)?;
    let plan = picture.order.plan(core, &of)?;
    let (stage, manifest) = (picture.order.stage(core, &of)?, picture.order.shards(core, &of)?);
    let ranks = match rank {
        Some(rank) => rank..=rank,
        None => 0..=of.world_size - 1,
    };
    let one = rank.is_some();
    let rows = plan.rows().saturating_mul(if one { 1 } else { of.world_size });
    check_rows(rows, one)?;
    let mut rows = Vec::with_capacity(rows as usize);
    for rank in ranks {
        // With `uneven` some ranks have one step more than others.
        if !one && step >= plan.rank_steps(rank) && step < plan.steps() {
            continue;
        }
        for planned in plan.batch(step, rank)? {
            let Planned { portion, mut sample, valid } = planned;
            if let Some(stage) = &stage {
                sample.shard = stage.in_stage(portion.source, sample.shard);
            }
            let source_epoch = if stage.is_some() { portion.epoch } else { epoch };
            rows.push(row(&manifest, (rank, source_epoch), sample, valid));
        }
    }
    let left_out = of.left_out.contains(step);
    let without_rows = without_rows(picture, generation, stage.as_deref());
    Ok(GetBatchResponse { rows, left_out, ..without_rows })
}

/// Returns the order of a job whose steps are balanced, from which its caller computes a batch.
/// - `window`: samples of a lane that are sorted together.
///
/// # Errors  `NotFound`: no such epoch.
pub(crate) fn balanced_order(
    core: &Core,
    picture: &Picture,
    (epoch, step): (u64, u64),
    window: u64,
) -> Result<GetBatchResponse> {
    let (generation, of) = picture.epoch_of(epoch)?;
    let stage = picture.order.stage(core, &of)?;
    let order = BalancedOrder {
        identity: Some(identity_to(&picture.order.identity)),
        segments: segments_to(&of.segments),
        limit: of.limit,
        mixture: picture.order.mixture_of(&of)?.map(mixture_to),
        window,
    };
    let (order, left_out) = (Some(order), of.left_out.contains(step));
    let without_rows = without_rows(picture, generation, stage.as_deref());
    Ok(GetBatchResponse { order, left_out, ..without_rows })
}

fn without_rows(
    picture: &Picture,
    generation: &Generation,
    stage: Option<&StageSources>,
) -> GetBatchResponse {
    let datasets = match stage {
        Some(stage) => stage.datasets().map(|(name, first)| dataset(name, first)).collect(),
        None => vec![dataset(&picture.order.dataset, 0)],
    };
    GetBatchResponse {
        generation: generation.number,
        world_size: generation.world_size,
        rows: vec![],
        left_out: false,
        datasets,
        shuffled: picture.order.identity.shuffle.enabled,
        order: None,
    }
}

/// Like [`batch`], for a dynamic job.
fn granted_batch(
    core: &Core,
    picture: &Picture,
    (epoch, step): (u64, u64),
    rank: Option<u64>,
) -> Result<GetBatchResponse> {
    let granted = Granted::of(picture, epoch)?.ok_or_else(|| gone(picture, epoch))?;
    let world_size = granted.generation.world_size;
    if let Some(rank) = rank.filter(|rank| *rank >= world_size) {
        let message = format!("there is no rank {rank}; job `{}` has {world_size}", picture.job);
        return Err(WireError::new(ErrorKind::NotFound, message));
    }
    let ranks = rank.map_or(0..world_size, |rank| rank..rank + 1);
    let rows = granted.generation.batch_size().saturating_mul(ranks.end - ranks.start);
    check_rows(rows, rank.is_some())?;
    let groups = picture.order.groups(core, epoch)?;
    let manifest = picture.order.manifest(core)?;
    let (mut rows, mut lacks) = (vec![], None);
    for rank in ranks {
        let has = granted_rows(&granted, &groups, (step, rank), |sample| {
            rows.push(row(&manifest, (rank, epoch), sample, true));
        })?;
        if !has {
            lacks = lacks.or(Some(rank));
        }
    }
    // Some ranks have steps that other ranks will never have.
    match lacks.filter(|_| rows.is_empty()) {
        Some(rank) => Err(not_granted(picture, &granted, (epoch, step), rank)),
        None => Ok(GetBatchResponse { rows, ..without_rows(picture, granted.generation, None) }),
    }
}

/// Calls `each` with the rows of a rank's step; returns `false` if a part was not granted to it.
fn granted_rows(
    granted: &Granted<'_>,
    groups: &Groups,
    (step, rank): (u64, u64),
    mut each: impl FnMut(Sample),
) -> Result<bool> {
    let list = granted.pool.and_then(|pool| pool.shares.get(&rank)).map(|share| &share.list);
    let Some((list, positions)) = list.and_then(|list| Some((list, list.positions_of(step)?)))
    else {
        return Ok(false);
    };
    list.pieces_in(positions).try_for_each(|piece| each_sample(groups, piece, &mut each))?;
    Ok(true)
}

/// Returns the reason why a rank has no such batch.
fn not_granted(
    picture: &Picture,
    granted: &Granted<'_>,
    (epoch, step): (u64, u64),
    rank: u64,
) -> WireError {
    let job = &picture.job;
    let pool = granted.pool;
    let share = pool.and_then(|pool| pool.shares.get(&rank));
    let first = pool.map_or(0, |pool| pool.first_step);
    let end = share.map_or(first, |share| share.list.end_step());
    let is_over = !granted.is_current()
        || picture.cursor(rank).epoch > epoch
        || pool.is_some_and(|pool| pool.has_ended(rank));
    let message = if pool.is_some() && step < first {
        format!(
            "step {step} of epoch {epoch} of job `{job}` was taken before generation {} began, by lists that \
             are not kept; this one's begin with step {first}",
            granted.generation.number
        )
    } else if is_over {
        format!(
            "there is no step {step} of rank {rank} in epoch {epoch} of job `{job}`; it ends with {end}"
        )
    } else {
        format!(
            "step {step} of epoch {epoch} of the dynamic job `{job}` is not yet granted to rank {rank}, which \
             has whole batches below step {end}"
        )
    };
    WireError::new(ErrorKind::NotFound, message)
}

fn dataset(name: &str, first_shard: u32) -> Dataset {
    Dataset { name: name.to_owned(), first_shard: first_shard.into() }
}

fn row(manifest: &Manifest, (rank, source_epoch): (u64, u64), sample: Sample, valid: bool) -> Row {
    let shard = manifest.shards().get(sample.shard as usize);
    Row {
        rank,
        shard: sample.shard.into(),
        path: shard.map(|shard| shard.path.clone()).unwrap_or_default(),
        ordinal: sample.ordinal,
        valid,
        source_epoch,
    }
}

/// - `one`: true if they are of one rank only.
fn check_rows(rows: u64, one: bool) -> Result<()> {
    if rows > ROWS_MAX {
        let hint = if one { "it is too large to be shown" } else { "name a rank" };
        let message = format!("this batch has {rows} rows, more than {ROWS_MAX}; {hint}");
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    Ok(())
}
