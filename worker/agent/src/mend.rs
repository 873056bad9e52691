//! Slots whose records are corrupt: other records stand in for them. Source: docs/ORDER.md, section 12.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use shardfeed_pipeline::{Assembler, DrawKey, Row, RowError, RowFault};
use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{EpochPlan, PlanError, Sample};
use shardfeed_tfrecord::{DataCrcMismatch, ReadErrorKind};

use crate::error::LoadError;
use crate::gather::{Gathered, PendingRow, Record};
use crate::stream::StreamTools;

/// Bytes of what is said of a skipped record, at most: an error may quote the record.
const REASON_BYTES_MAX: usize = 300;

/// The order that says which records may stand in for another one.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Planned(Arc<EpochPlan>),
    Granted(Groups),
}

impl Order {
    fn fillers(&self, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        match self {
            Self::Planned(plan) => plan.fillers(sample),
            Self::Granted(groups) => groups.fillers(sample),
        }
    }
}

/// A sample that was planned and not delivered, because its record is corrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Which sample.
    pub sample: Sample,
    /// Offset of its header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// What is wrong with it, in words.
    pub reason: String,
}

impl Skipped {
    fn of(error: &RowError) -> Self {
        let RowError { sample, offset, len, .. } = *error;
        let mut reason = match &error.fault {
            // In the words of the error that it would be.
            RowFault::Data(DataCrcMismatch { stored, computed }) => {
                let (stored, computed) = (*stored, *computed);
                ReadErrorKind::DataCrc { length: len as u64, stored, computed }.to_string()
            }
            fault => fault.to_string(),
        };
        if reason.len() > REASON_BYTES_MAX {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
            reason.push_str(" ...");
        }
        Self { sample, offset, reason }
    }
}

/// A batch with corrupt records in it.
pub(crate) struct Mending<'a> {
    pub(crate) assembler: &'a Assembler,
    pub(crate) tools: &'a StreamTools,
    pub(crate) order: &'a Order,
    pub(crate) draw: &'a DrawKey,
}

impl Mending<'_> {
    /// What is wrong with each row that is to blame for it. On the threads of the current rayon pool.
    ///
    /// # Errors  Something else is wrong.
    pub(crate) fn faults(&self, rows: &[Row<'_>]) -> Result<Vec<Option<RowError>>, LoadError> {
        let faults: Vec<_> = rows.par_iter().map(|row| self.check(row)).collect();
        faults.into_iter().collect()
    }

    /// Gives every slot of a corrupt record another record, and marks it not valid. The slot keeps the
    /// name of the sample that was planned for it.
    /// - `faults`: of each row.
    /// - Returns what was skipped; padding is not, as its sample has a slot of its own.
    ///
    /// # Errors  No good record is near; something cannot be read.
    pub(crate) fn mend(
        &self,
        gathered: &mut Gathered,
        faults: &[Option<RowError>],
    ) -> Result<Vec<Skipped>, LoadError> {
        // What was read, for this batch or for a slot of it, may be asked for again.
        let records = (0..gathered.rows.len()).filter_map(|row| gathered.record(row));
        let mut read: BTreeMap<Sample, Record> =
            records.map(|record| (record.sample, record)).collect();
        let mut skipped = Vec::new();
        for (index, fault) in faults.iter().enumerate() {
            let Some(error) = fault else {
                continue;
            };
            let PendingRow { valid, occurrence, .. } = gathered.rows[index];
            if valid {
                skipped.push(Skipped::of(error));
            }
            let record = self.filler(error, occurrence, &mut read)?;
            let item = gathered.item(record);
            gathered.rows[index] = PendingRow { item, valid: false, occurrence };
        }
        Ok(skipped)
    }

    /// What is wrong with a row that is to blame for it.
    fn check(&self, row: &Row<'_>) -> Result<Option<RowError>, LoadError> {
        match self.assembler.check(row, self.draw) {
            Ok(()) => Ok(None),
            Err(error) if error.fault.is_of_record() => Ok(Some(error)),
            Err(error) => Err(self.tools.files.located(error)),
        }
    }

    /// The record that stands in for a corrupt one, under its name.
    fn filler(
        &self,
        error: &RowError,
        occurrence: u32,
        read: &mut BTreeMap<Sample, Record>,
    ) -> Result<Record, LoadError> {
        let sample = error.sample;
        let fillers = self.order.fillers(sample)?;
        for candidate in &fillers {
            if self.tools.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            let record = match read.get(candidate) {
                Some(record) => record.clone(),
                None => {
                    let record = self.tools.read_one(*candidate)?;
                    read.insert(*candidate, record.clone());
                    record
                }
            };
            // Tried as what it would be here: what is beside it in the batch must have no say.
            let record = Record { sample, ..record };
            if self.check(&record.row(occurrence))?.is_none() {
                return Ok(record);
            }
        }
        let (file, ordinal) = (self.tools.files.name(sample.shard), sample.ordinal);
        let (offset, reason) = (error.offset, Skipped::of(error).reason);
        Err(LoadError::NoFiller { file, offset, ordinal, reason, tried: fillers.len() })
    }
}
