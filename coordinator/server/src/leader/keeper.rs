//! Background work of any duration: the leader assembles datasets, every node removes old chunks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_plan::Digest;
use shardfeed_proto::ErrorKind;
use shardfeed_scheduler::{Change, Dataset, FailDataset, FinishDataset};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{self, Result};
use crate::leader::core::{Core, blocking, referenced};
use crate::storage::copies;
use crate::storage::manifests::assemble;
use crate::ticks::Ticks;

/// Interval between checks for a dataset to assemble.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Interval between searches for old chunks.
const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// Delay before an operation that failed temporarily is retried.
const TRY_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Keeper {
    core: Arc<Core>,
    collected: Option<Instant>,
    assemble_after: Instant,
}

impl Keeper {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let assemble_after = core.host.now();
        Self { core, collected: None, assemble_after }
    }

    pub(crate) async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut ticks = Ticks::new(LOOK_EVERY, stop);
        while ticks.next().await {
            self.tick(self.core.host.now()).await;
        }
    }

    async fn tick(&mut self, now: Instant) {
        let leads = self.core.available().is_ok();
        if leads && now >= self.assemble_after && !self.assemble().await {
            self.assemble_after = self.core.host.now() + TRY_AGAIN;
        }
        let due = |last: Instant| now.duration_since(last) >= COLLECT_EVERY;
        if self.collected.is_none_or(due) {
            self.collected = Some(now);
            self.collect().await;
        }
    }

    /// Assembles a dataset whose parts are all scanned. False if this must be retried later.
    async fn assemble(&self) -> bool {
        let Some(dataset) = self.core.read(|state| state.assembling().next().cloned()) else {
            return true;
        };
        let (name, attempt) = (dataset.name.clone(), dataset.attempt);
        let change = match self.finish(dataset).await {
            Ok(finish) => Change::FinishDataset(finish),
            // The disk may be repaired, the other nodes may return; the chunks remain valid.
            Err(error) if matches!(error.kind, ErrorKind::Storage | ErrorKind::Retry) => {
                tracing::error!(dataset = name, %error, "cannot put a dataset together");
                return false;
            }
            Err(error) => {
                tracing::warn!(dataset = name, %error, "a dataset failed");
                let failure = error::failure_from(&error);
                Change::FailDataset(FailDataset { dataset: name.clone(), attempt, failure })
            }
        };
        let proposed = self.core.propose_own(change).await;
        if let Err(error) = &proposed {
            tracing::warn!(dataset = name, %error, "cannot finish a dataset");
        }
        proposed.is_ok()
    }

    /// Reads a dataset's parts. A part that is damaged here is fetched from the other nodes.
    async fn finish(&self, dataset: Dataset) -> Result<FinishDataset> {
        let chunks = dataset.scan().map(|scan| scan.chunks().collect::<Vec<_>>());
        let (chunks, dataset) = (chunks.unwrap_or_default(), Arc::new(dataset));
        let read = || {
            let dataset = Arc::clone(&dataset);
            let finish = move |core: &Core| finish(core, &dataset);
            blocking(&self.core, "putting a dataset together", finish)
        };
        copies::bring(&self.core, &chunks).await?;
        match read().await {
            Err(error) if error.kind == ErrorKind::Corrupt => {
                copies::bring(&self.core, &chunks).await?;
                read().await
            }
            read => read,
        }
    }

    async fn collect(&self) {
        let collected = blocking(&self.core, "removing chunks", |core| {
            let referenced: BTreeSet<Digest> = core.read(referenced).into_iter().collect();
            Ok(core.chunks.collect(core.host.now(), |chunk| referenced.contains(chunk))?)
        });
        match collected.await {
            Ok(0) => {}
            Ok(chunks) => tracing::info!(chunks, "removed chunks that no dataset refers to"),
            Err(error) => tracing::warn!(%error, "cannot remove chunks"),
        }
    }
}

/// Reads the parts of a dataset and computes the digest of the whole.
fn finish(core: &Core, dataset: &Dataset) -> Result<FinishDataset> {
    let chunks = dataset.scan().map(|scan| scan.chunks().collect::<Vec<_>>()).unwrap_or_default();
    let manifest = assemble(&core.chunks, &chunks)?;
    Ok(FinishDataset {
        dataset: dataset.name.clone(),
        attempt: dataset.attempt,
        content: manifest.digest(),
        shards: manifest.shards().len() as u64,
        records: manifest.records(),
    })
}
