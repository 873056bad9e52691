//! The offered batch, and the result of committing it.

use shardfeed_pipeline::Batch;
use shardfeed_plan::{Cursor, Position};
use shardfeed_reader::Delivered;

use crate::course::Course;
use crate::head::Head;
use crate::parts::BatchParts;

/// Result of committing the offered batch.
#[derive(Debug)]
pub enum Commit {
    /// It is consumed: the cursor is behind it and the ledger contains it.
    ///
    /// Carries the batch, unless [`crate::Loader::take_offered`] took it before.
    Consumed(Option<Box<Delivered>>),
    /// Its lease is not confirmed at the moment: it stays offered, to be committed later.
    Later,
    /// It is no longer this rank's, or the loader moved: [`crate::Loader::offer`] returns the next.
    Withdrawn,
}

/// The offered batch, as [`crate::Loader::take_offered`] returns it.
#[derive(Debug)]
pub struct Offered {
    pub epoch: u64,
    pub step: u64,
    pub batch: Batch,
    /// Position of the loader once the batch is consumed.
    pub after: Position,
    /// Parts of records that its rows consist of, if that is asked.
    pub parts: Option<BatchParts>,
}

/// The offered batch.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) number: u64,
    pub(super) head: Head,
    /// `None` once it was taken.
    pub(super) batch: Option<Batch>,
    /// Cursor behind the batch.
    pub(super) next: Cursor,
    /// Course of that cursor's epoch.
    pub(super) course: Course,
}

impl Held {
    pub(super) fn into_delivered(self) -> Option<Box<Delivered>> {
        let Head { epoch, step, samples, skipped, .. } = self.head;
        let batch = self.batch?;
        Some(Box::new(Delivered { epoch, step, samples, skipped, batch }))
    }
}
