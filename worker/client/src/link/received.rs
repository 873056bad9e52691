//! Batches that a worker announces, as views of its memory.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use shardfeed_handoff::{BufferRange, Mapping, SharedSlot, SlotPoolStats};
use shardfeed_pipeline::{Batch, ColumnData, Reading, Schema, Spent};
use shardfeed_plan::{Planned, Portion, Sample};
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_reader::{GrantStats, PrefetchStats, account_from};
use shardfeed_source::{Lock, RemoteStats};

/// The worker's memory that is mapped here, and the slots to return.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    mapped: BTreeMap<u64, Arc<Mapping>>,
    returned: Arc<Returned>,
}

/// A batch that a worker announced.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) batch: Batch,
    /// Ordinals of the rows' samples, if those of the batch are of records; empty otherwise.
    pub(crate) samples: Vec<u64>,
    /// Source epochs of the rows' samples, of a mixture; empty otherwise.
    pub(crate) source_epochs: Vec<u64>,
}

/// Slots that were dropped since the last report to the worker.
#[derive(Debug, Default)]
struct Returned {
    regions: Lock<Vec<u64>>,
    /// Number of slots that are viewed, or that hold a queued batch.
    out: AtomicUsize,
}

/// Violation of the protocol by the worker, with a description.
#[derive(Debug, thiserror::Error)]
#[error("the worker broke the protocol: {0}; use the same version of shardfeed for both")]
pub(crate) struct Broken(String);

impl Broken {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl Regions {
    pub(crate) fn map(&mut self, region: &wire::Region, fd: Option<OwnedFd>) -> Result<(), Broken> {
        let fd = fd.ok_or_else(|| Broken::new("a region without a descriptor"))?;
        let mapping = Mapping::import(fd, region.bytes).map_err(|e| Broken::new(e.to_string()))?;
        self.mapped.insert(region.region, Arc::new(mapping));
        Ok(())
    }

    pub(crate) fn forget(&mut self, regions: &[u64]) {
        for region in regions {
            self.mapped.remove(region);
        }
    }

    /// Number of slots that are viewed, or that hold a queued batch.
    pub(crate) fn out(&self) -> usize {
        self.returned.out.load(Ordering::Relaxed)
    }

    /// Takes the list of slots to return.
    pub(crate) fn take_returned(&self) -> Vec<u64> {
        std::mem::take(&mut *self.returned.regions.lock())
    }

    /// Returns a batch as a view of its slot.
    pub(crate) fn view(&self, batch: wire::Batch, schema: &Schema) -> Result<Batch, Broken> {
        let mapping = self
            .mapped
            .get(&batch.region)
            .ok_or_else(|| Broken::new(format!("a batch in unknown region {}", batch.region)))?;
        let size = mapping.size_bytes();
        let range = |range: Option<wire::Range>| {
            let wire::Range { start, len } =
                range.ok_or_else(|| Broken::new("a batch without a range"))?;
            let fits = start.checked_add(len).is_some_and(|end| end <= size as u64);
            match fits {
                true => Ok(BufferRange { start: start as usize, len: len as usize }),
                false => Err(Broken::new(format!("a range beyond the {size} bytes of its slot"))),
            }
        };
        if batch.columns.len() != schema.columns().len() {
            return Err(Broken::new("a batch with other columns than the job's"));
        }
        let mut columns = Vec::with_capacity(batch.columns.len());
        for (column, (name, kind)) in batch.columns.into_iter().zip(schema.columns()) {
            if column.splits.len() != kind.splits() {
                return Err(Broken::new("a column with other splits than its kind has"));
            }
            let splits = column.splits.into_iter().map(|splits| range(Some(splits)));
            columns.push(ColumnData {
                name: Arc::clone(name),
                kind: kind.clone(),
                values: range(column.values)?,
                offsets: column.offsets.map(|offsets| range(Some(offsets))).transpose()?,
                splits: splits.collect::<Result<_, _>>()?,
            });
        }
        let (valid, shards, ordinals) =
            (range(batch.valid)?, range(batch.shards)?, range(batch.ordinals)?);
        let (returned, region) = (Arc::clone(&self.returned), batch.region);
        returned.out.fetch_add(1, Ordering::Relaxed);
        let slot = SharedSlot::imported(Arc::clone(mapping), move || {
            returned.regions.lock().push(region);
            returned.out.fetch_sub(1, Ordering::Relaxed);
        });
        let rows = batch.rows as usize;
        Ok(Batch { rows, columns, valid, shards, ordinals, slot })
    }
}

/// Reads the samples of a batch from its slot, the same memory that the trainer gets.
/// - `samples`: their ordinals; empty: those in the slot.
/// - `source_epochs`: of a mixture; empty otherwise.
pub(crate) fn samples_of(
    batch: &mut Batch,
    samples: Vec<u64>,
    source_epochs: &[u64],
) -> Vec<Planned> {
    let words = |bytes: Vec<u8>| -> Vec<u64> {
        let words = bytes.chunks_exact(8);
        words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
    };
    let shards = words(batch.slot.read(&batch.shards));
    let ordinals = match samples.is_empty() {
        true => words(batch.slot.read(&batch.ordinals)),
        false => samples,
    };
    let valid = batch.slot.read(&batch.valid);
    let rows = shards.into_iter().zip(ordinals).zip(valid).enumerate();
    rows.map(|(row, ((shard, ordinal), valid))| Planned {
        portion: Portion { source: 0, epoch: source_epochs.get(row).copied().unwrap_or(0) },
        sample: Sample { shard: shard as u32, ordinal },
        valid: valid != 0,
    })
    .collect()
}

/// Combines a worker's statistics with those of this process.
pub(crate) fn prefetch_stats(
    stats: &wire::Stats,
    in_hand: usize,
    held: usize,
    copies: SlotPoolStats,
    waited: Duration,
) -> PrefetchStats {
    let reading = match stats.reading.as_str() {
        "hold" => Some(Reading::Hold { chunk_bytes: stats.chunk_bytes as usize, primed_max: 0 }),
        "locate" => Some(Reading::Locate),
        _ => None,
    };
    let account = stats.account.as_ref().map(account_from).unwrap_or_default();
    let Spent { store_requests, store_retries, store_bytes, cached_bytes, .. } =
        account.since_start;
    let remote = account.setup.remote.then_some(RemoteStats {
        requests: store_requests,
        retries: store_retries,
        bytes: store_bytes,
        cached_bytes,
    });
    PrefetchStats {
        // Batches in transit count on neither side.
        ready: stats.ready as usize + in_hand,
        shown: 0,
        in_work: stats.in_work as usize,
        prefetch: stats.prefetch as usize,
        budget_bytes: stats.budget_bytes,
        reading,
        read_bytes: stats.read_bytes,
        reinflated_bytes: stats.reinflated_bytes,
        remote,
        slots: SlotPoolStats {
            slots: stats.slots as usize + copies.slots,
            bytes: stats.slot_bytes as usize + copies.bytes,
            in_use: held + copies.in_use,
            mapped_total: stats.slots_mapped_total + copies.mapped_total,
        },
        waited,
        account,
        granted: (stats.lookahead > 0).then_some(GrantStats {
            granted: stats.granted,
            lookahead: stats.lookahead,
            horizon_waits: stats.horizon_waits,
        }),
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_handoff::SlotPool;

    use super::*;

    /// Checks the errors about a worker that announces memory or a batch incorrectly.
    #[test]
    fn every_broken_announcement_is_named() {
        let slot = SlotPool::sealed(1).take(100).unwrap().share();
        let handle = slot.region().unwrap();
        let (region, bytes) = (handle.id.0, handle.size_bytes as u64);
        let mut regions = Regions::default();
        let of = |bytes: u64| wire::Region { region, bytes };
        let other = std::fs::File::open("/dev/null").unwrap();
        let mut said = vec![
            regions.map(&of(bytes), None).unwrap_err().to_string(),
            regions
                .map(&of(bytes + 1), Some(handle.fd.unwrap().try_clone_to_owned().unwrap()))
                .unwrap_err()
                .to_string(),
            regions.map(&of(bytes), Some(other.into())).unwrap_err().to_string(),
        ];
        regions.map(&of(bytes), Some(handle.fd.unwrap().try_clone_to_owned().unwrap())).unwrap();
        let range = |start: u64, len: u64| Some(wire::Range { start, len });
        let column = || wire::Column { values: range(0, 0), offsets: range(0, 0), splits: vec![] };
        let batch = |change: &dyn Fn(&mut wire::Batch)| {
            let mut batch = wire::Batch {
                region,
                columns: vec![column()],
                valid: range(0, 0),
                shards: range(0, 0),
                ordinals: range(0, 0),
                ..wire::Batch::default()
            };
            change(&mut batch);
            batch
        };
        let schema = Schema::raw();
        regions.view(batch(&|_| {}), &schema).unwrap();
        let broken = [
            batch(&|batch| batch.region += 1),
            batch(&|batch| batch.valid = None),
            batch(&|batch| batch.valid = range(1, bytes)),
            batch(&|batch| batch.shards = range(u64::MAX, 1)),
            batch(&|batch| batch.columns.clear()),
            batch(&|batch| batch.columns[0].splits = vec![wire::Range { start: 0, len: 0 }]),
        ];
        said.extend(broken.map(|batch| regions.view(batch, &schema).unwrap_err().to_string()));
        let number = |said: String| said.replace(&bytes.to_string(), "BYTES");
        let said: Vec<_> = said.into_iter().map(number).collect();
        assert_eq!(
            said,
            [
                "the worker broke the protocol: a region without a descriptor; use the same \
                 version of shardfeed for both",
                "the worker broke the protocol: a slot was announced with 65549 bytes, its \
                 descriptor has BYTES; use the same version of shardfeed for both",
                "the worker broke the protocol: a slot was announced with BYTES bytes, its \
                 descriptor has 0; use the same version of shardfeed for both",
                "the worker broke the protocol: a batch in unknown region 2; use the same version \
                 of shardfeed for both",
                "the worker broke the protocol: a batch without a range; use the same version of \
                 shardfeed for both",
                "the worker broke the protocol: a range beyond the BYTES bytes of its slot; use \
                 the same version of shardfeed for both",
                "the worker broke the protocol: a range beyond the BYTES bytes of its slot; use \
                 the same version of shardfeed for both",
                "the worker broke the protocol: a batch with other columns than the job's; use the \
                 same version of shardfeed for both",
                "the worker broke the protocol: a column with other splits than its kind has; use \
                 the same version of shardfeed for both",
            ]
        );
    }
}
