//! Images of rows that later batches have: an image is decoded once for all rows of its record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use shardfeed_plan::{Portion, Sample};

use crate::draw::DrawKey;
use crate::record::{Row, RowError};
use crate::rows::LocatedRecords;
use crate::schema::{Schema, ShardSchemas};

/// Approximate bytes of an entry besides its image.
const ENTRY_BYTES: usize = 128;

/// Number of taken rows that are kept among those that were made.
const TAKEN_MAX: usize = 1024;

/// Maximum bytes of intermediate columns for rows that are made together.
const MADE_BYTES_MAX: usize = 4 << 20;

/// Returns the rows of a sample's record that are samples, with their ordinals in the shard; none if
/// there are more than the given number.
pub(crate) type RowsOf = dyn Fn(Sample, u64) -> Vec<(u64, u32)> + Send + Sync;

/// A sample in an epoch.
type RowKey = (u64, Portion, Sample);

/// A record in an epoch, by its shard and offset.
type RecordKey = (u64, Portion, u32, u64);

/// Images of rows that were made together with those of an earlier batch.
pub(crate) struct RowImages {
    rows_of: Box<RowsOf>,
    kept: Mutex<KeptImages>,
}

impl fmt::Debug for RowImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowImages").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct KeptImages {
    images: BTreeMap<RowKey, Arc<[u8]>>,
    /// Rows in the order in which they were made, each with the batch that made it.
    made: VecDeque<(u64, RowKey)>,
    /// Records whose images a batch makes now, and those that have an error.
    making: BTreeSet<RecordKey>,
    /// Bytes of the images, with those that are being made.
    bytes: usize,
    bytes_max: usize,
    batches: u64,
    /// Maximum number of batches after which a row is expected.
    batches_max: u64,
}

/// Rows of a record whose images a batch makes.
struct RecordRows<'a> {
    record: RecordKey,
    rows: Vec<Row<'a>>,
    row_bytes: usize,
}

impl RowImages {
    /// Creates a store without memory; see [`RowImages::bound`].
    pub(crate) fn new(rows_of: Box<RowsOf>) -> Self {
        Self { rows_of, kept: Mutex::default() }
    }

    /// Limits the images from now on.
    /// - `batches`: maximum number of batches between the rows of a record.
    pub(crate) fn bound(&self, bytes: usize, batches: u64) {
        let mut kept = self.lock();
        (kept.bytes_max, kept.batches_max) = (bytes, batches);
    }

    pub(crate) fn row_bytes(schema: &Schema) -> usize {
        schema.program().shared_bytes() + ENTRY_BYTES
    }

    fn lock(&self) -> MutexGuard<'_, KeptImages> {
        // Each change of the state is complete when the lock is released, even after a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the images of a batch's rows that were made before or are made now for all rows of
    /// their records, as far as memory permits.
    /// - `make`: makes the images of a record's rows, as far as they have no errors.
    pub(crate) fn of_batch(
        &self,
        schemas: &ShardSchemas,
        rows: &[Row<'_>],
        epoch: u64,
        make: impl Fn(&Schema, &[Row<'_>]) -> Vec<Arc<[u8]>> + Sync,
    ) -> Vec<Option<Arc<[u8]>>> {
        let claims = self.claim(schemas, rows, epoch);
        let made: Vec<_> = claims
            .par_iter()
            .map(|claim| make(schemas.of(claim.rows[0].sample.shard), &claim.rows))
            .collect();
        let mut kept = self.lock();
        for (claim, made) in claims.iter().zip(made) {
            kept.keep(claim, made, epoch);
        }
        rows.iter().map(|row| kept.take(&(epoch, row.portion, row.sample), row)).collect()
    }

    /// Reserves memory for the images of records that are not made.
    fn claim<'r>(
        &self,
        schemas: &ShardSchemas,
        rows: &[Row<'r>],
        epoch: u64,
    ) -> Vec<RecordRows<'r>> {
        let mut kept = self.lock();
        kept.batches += 1;
        kept.drop_late(epoch);
        let (mut claims, mut seen) = (vec![], BTreeSet::new());
        for row in rows.iter().filter(|row| is_itself(row)) {
            let schema = schemas.of(row.sample.shard);
            if schema.program().shared_bytes() == 0 {
                continue;
            }
            let row_bytes = Self::row_bytes(schema);
            let record = (epoch, row.portion, row.sample.shard, row.offset);
            let is_made = kept.images.contains_key(&(epoch, row.portion, row.sample));
            if is_made || kept.making.contains(&record) || !seen.insert(record) {
                continue;
            }
            let most = kept.bytes_max.saturating_sub(kept.bytes) / row_bytes;
            if most < 2 {
                break;
            }
            let all = (self.rows_of)(row.sample, most as u64);
            if all.len() < 2 {
                continue;
            }
            kept.bytes += all.len() * row_bytes;
            kept.making.insert(record);
            let other = |(ordinal, part)| {
                let sample = Sample { ordinal, ..row.sample };
                Row { sample, part, ..*row }
            };
            let rows = all.into_iter().map(other).collect();
            claims.push(RecordRows { record, rows, row_bytes });
        }
        claims
    }
}

/// True if a row is the sample that it names: not padding, and not a corrupt record's substitute.
fn is_itself(row: &Row<'_>) -> bool {
    row.valid && row.occurrence == 0
}

/// Makes the images of a record's rows; those after a row with an error are not made.
pub(crate) fn make(schema: &Schema, rows: &[Row<'_>], key: &DrawKey) -> Vec<Arc<[u8]>> {
    let program = schema.program();
    let row_bytes = program.row_bytes(rows[0].len()) + program.shared_bytes();
    let most = program.memory().bytes_max() / rayon::current_num_threads();
    let together = (most.min(MADE_BYTES_MAX) / row_bytes.max(1)).clamp(1, rows.len());
    let record = LocatedRecords::new(schema.parser(), &rows[..1]);
    let mut images = vec![];
    for rows in rows.chunks(together) {
        let made = || -> Result<Vec<Arc<[u8]>>, RowError> {
            program.make_shared(&schema.locate(rows, &record)?, key)
        };
        // The batch that has the row finds the error.
        let Ok(made) = made() else { break };
        images.extend(made);
    }
    images
}

impl KeptImages {
    fn keep(&mut self, claim: &RecordRows<'_>, images: Vec<Arc<[u8]>>, epoch: u64) {
        let row_bytes = claim.row_bytes;
        if images.len() == claim.rows.len() {
            self.making.remove(&claim.record);
        }
        self.bytes -= (claim.rows.len() - images.len()) * row_bytes;
        for (row, image) in claim.rows.iter().zip(images) {
            let key = (epoch, row.portion, row.sample);
            self.made.push_back((self.batches, key));
            if self.images.insert(key, image).is_some() {
                self.bytes -= row_bytes;
            }
        }
    }

    fn take(&mut self, key: &RowKey, row: &Row<'_>) -> Option<Arc<[u8]>> {
        let image = if is_itself(row) { self.images.remove(key)? } else { return None };
        self.bytes -= image.len() + ENTRY_BYTES;
        Some(image)
    }

    /// Drops the images of rows that no batch has, e.g. because another rank has them.
    fn drop_late(&mut self, epoch: u64) {
        // Batches of two epochs may be in work.
        self.making.retain(|(of, ..)| of.saturating_add(1) >= epoch);
        while let Some((batch, key)) = self.made.front()
            && (!self.images.contains_key(key) || self.batches - batch > self.batches_max)
        {
            if let Some(image) = self.images.remove(key) {
                self.bytes -= image.len() + ENTRY_BYTES;
            }
            self.made.pop_front();
        }
        if self.made.len() > 2 * self.images.len() + TAKEN_MAX {
            let images = &self.images;
            self.made.retain(|(_, key)| images.contains_key(key));
        }
    }
}
