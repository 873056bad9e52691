//! Counts of the shards of each running epoch by state, and of samples by source: made outside the
//! calls, only on request, and never for more than a small part of the time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::Result;
use crate::leader::core::Core;
use crate::leader::measures;
use crate::leader::shard_counts::{Counted, EpochCounts};
use crate::views::{self, Picture};

/// Maximum jobs whose shards are counted, those that started last: each needs its epoch's plan.
const JOBS_COUNTED_MAX: usize = 8;

/// Minimum pause between two counts.
const REST_MIN: Duration = Duration::from_secs(10);

/// Minimum pause in multiples of the time that the last count took.
const REST_TIMES: u32 = 20;

/// Counts whenever there was a request since. Runs until `stop` is set.
pub(crate) async fn keep(core: Arc<Core>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        // In this order, so that a simulation draws no random number for it.
        tokio::select! {
            biased;
            () = core.shard_counts.asked.notified() => {}
            _ = stop.changed() => break,
        }
        let began = core.host.now();
        let mut counted = Counted::new();
        for job in measures::running(&core, JOBS_COUNTED_MAX) {
            match count(&core, &job).await {
                Ok(Some(counts)) => {
                    counted.insert(job, counts);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(job, %error, "the shards of a job are not counted"),
            }
        }
        *core.shard_counts.lock() = counted;
        let took = core.host.now().saturating_duration_since(began);
        tokio::select! {
            biased;
            () = tokio::time::sleep(REST_MIN.max(took * REST_TIMES)) => {}
            _ = stop.changed() => break,
        }
    }
}

async fn count(core: &Arc<Core>, job: &str) -> Result<Option<EpochCounts>> {
    let Some(picture) = Picture::take(core, job)? else {
        return Ok(None);
    };
    let counts = |core: &Core, picture| {
        let shards = views::shards(core, picture, None, views::ShardFilter::default())?;
        let sources = shards.delivered_by_source();
        let cell = shards.map(1).cells.into_iter().next();
        Ok(cell.map(|shards| EpochCounts { shards, sources }))
    };
    picture.compute(core, counts).await
}
