//! The records of a batch, from the plan alone.

use shardfeed_proto::coordinator::v1::GetBatchResponse;
use shardfeed_proto::coordinator::v1::get_batch_response::Row;
use shardfeed_proto::{ErrorKind, WireError};

use super::Picture;
use crate::core::Core;
use crate::error;

/// Rows of one answer at most: it must fit into a message.
const ROWS_MAX: u64 = 16_384;

/// The records of `rank`, or of all ranks, at a step of an epoch. Computes for long.
///
/// # Errors  `NotFound`: no such epoch, step or rank; `Invalid`: more rows than a message holds.
pub(crate) fn batch(
    core: &Core,
    picture: &Picture,
    (epoch, step): (u64, u64),
    rank: Option<u64>,
) -> Result<GetBatchResponse, WireError> {
    let (generation, of) = picture.epoch_of(epoch)?;
    let plan = picture.order.plan(core, &of)?;
    let manifest = picture.order.manifest(core)?;
    let ranks = match rank {
        Some(rank) => rank..=rank,
        None => 0..=of.world_size - 1,
    };
    let rows = plan.rows().saturating_mul(if rank.is_some() { 1 } else { of.world_size });
    if rows > ROWS_MAX {
        let message = format!("this batch has {rows} rows, more than {ROWS_MAX}; name a rank");
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    let one = rank.is_some();
    let mut rows = Vec::with_capacity(rows as usize);
    for rank in ranks {
        // With `uneven` some ranks have a step more than others.
        if !one && step >= plan.rank_steps(rank) && step < plan.steps() {
            continue;
        }
        for planned in plan.batch(step, rank).map_err(|error| error::plan(&error))? {
            let sample = planned.sample;
            let shard = manifest.shards().get(sample.shard as usize);
            rows.push(Row {
                rank,
                shard: sample.shard.into(),
                path: shard.map(|shard| shard.path.clone()).unwrap_or_default(),
                ordinal: sample.ordinal,
                valid: planned.valid,
            });
        }
    }
    Ok(GetBatchResponse { generation: generation.number, world_size: of.world_size, rows })
}
