//! Substitution of corrupt records by other records. Source: docs/ORDER.md, section 12.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use shardfeed_pipeline::{Row, RowError};
use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{EpochPlan, PlanError, Portion, Sample};
use shardfeed_source::LoadError;

use crate::records::gather::{Gathered, PendingRow, Record};
use crate::skipped::Skipped;
use crate::work::BatchWork;

/// Order that determines the candidates to substitute a record.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Planned(Arc<EpochPlan>),
    Granted(Groups),
}

impl Order {
    fn fillers(&self, portion: Portion, sample: Sample) -> Result<Vec<Sample>, PlanError> {
        match self {
            Self::Planned(plan) => plan.fillers(portion, sample),
            Self::Granted(groups) => groups.fillers(sample),
        }
    }
}

impl BatchWork {
    /// Returns the fault of each row with a corrupt record. Runs on the current rayon pool.
    ///
    /// # Errors  A fault that is not of a record.
    pub(crate) fn faults(&self, rows: &[Row<'_>]) -> Result<Vec<Option<RowError>>, LoadError> {
        let faults: Vec<_> = rows.par_iter().map(|row| self.check(row)).collect();
        faults.into_iter().collect()
    }

    /// Substitutes each corrupt record by another one, and marks its row not valid. The entry keeps
    /// the name of its planned sample.
    /// - `faults`: of each row.
    /// - Returns the skipped samples, without padding, whose sample has its own entry.
    ///
    /// # Errors  No good candidate is found; a record cannot be read.
    pub(crate) fn substitute(
        &self,
        gathered: &mut Gathered,
        faults: &[Option<RowError>],
    ) -> Result<Vec<Skipped>, LoadError> {
        // Records of this batch, read before or as candidates, may be needed again as candidates.
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
                skipped.push(Skipped::of(error, &self.tools.files));
            }
            let portion = gathered.rows[index].portion();
            let record = self.filler(error, portion, occurrence, &mut read)?;
            let item = gathered.item(record);
            gathered.rows[index] = PendingRow { item, valid: false, occurrence };
        }
        Ok(skipped)
    }

    /// Returns the fault of a row, if its record is corrupt.
    fn check(&self, row: &Row<'_>) -> Result<Option<RowError>, LoadError> {
        match self.assembler.check(row, &self.draw) {
            Ok(()) => Ok(None),
            Err(error) if error.fault.is_of_record() => Ok(Some(error)),
            Err(error) => Err(self.tools.files.located(error)),
        }
    }

    /// Returns the substitute of a corrupt record, under the corrupt record's name.
    fn filler(
        &self,
        error: &RowError,
        portion: Portion,
        occurrence: u32,
        read: &mut BTreeMap<Sample, Record>,
    ) -> Result<Record, LoadError> {
        let sample = error.sample;
        let order = self.order.as_ref().expect("only where records are skipped");
        let fillers = order.fillers(portion, self.tools.samples.in_source(portion, sample))?;
        for candidate in &fillers {
            let candidate = &self.tools.samples.in_dataset(portion, *candidate);
            if self.tools.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            let record = match read.get(candidate) {
                Some(record) => record.clone(),
                None => {
                    let record = self.tools.read_one(portion, *candidate)?;
                    read.insert(*candidate, record.clone());
                    record
                }
            };
            // Checked alone, under this row's name: other rows must not influence the choice.
            let record = Record { portion, sample, ..record };
            if self.check(&record.row(occurrence))?.is_none() {
                return Ok(record);
            }
        }
        let files = &self.tools.files;
        // A neighbour in the lane may be one in the epoch sequence, too.
        let tried = fillers.into_iter().collect::<BTreeSet<_>>().len();
        let Skipped { record: ordinal, offset, reason, .. } = Skipped::of(error, files);
        let file = files.name(sample.shard);
        Err(LoadError::NoFiller { file, offset, ordinal, reason, tried })
    }
}
