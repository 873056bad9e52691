//! The offered batch, and the results of offering and committing it.

use shardfeed_pipeline::Batch;
use shardfeed_plan::{Cursor, Position};
use shardfeed_reader::Delivered;

use crate::course::Course;
use crate::head::Head;

/// Result of [`crate::Loader::next`].
#[derive(Debug)]
pub enum Next {
    /// The next batch; it is consumed.
    Batch(Box<Delivered>),
    /// The epoch has no further batch for this rank; the cursor is at the next epoch.
    EpochEnd,
    /// Not ready yet.
    Pending,
}

/// Result of [`crate::Loader::offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The next batch is offered under this number until it is consumed or withdrawn.
    Ready(u64),
    /// The epoch has no further batch for this rank; the cursor is at the next epoch.
    EpochEnd,
    /// Not ready yet.
    Pending,
}

/// Result of committing the offered batch.
#[derive(Debug)]
pub enum Commit {
    /// It is consumed: the cursor is behind it and the ledger contains it.
    ///
    /// Carries the batch, unless [`crate::Loader::take_offered`] took it before.
    Consumed(Option<Box<Delivered>>),
    /// Its lease is not confirmed at the moment: it stays offered, to be committed later.
    Later,
    /// It no longer belongs to this rank, or the loader moved: [`crate::Loader::offer`] returns the
    /// next one.
    Withdrawn,
}

/// The offered batch, as [`crate::Loader::take_offered`] returns it.
#[derive(Debug)]
pub struct Offered {
    /// Its epoch.
    pub epoch: u64,
    /// Its step in the epoch.
    pub step: u64,
    /// Its columns.
    pub batch: Batch,
    /// Position of the loader once the batch is consumed.
    pub after: Position,
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
    /// Plan of that cursor's epoch, if it is another epoch.
    pub(super) course: Option<Course>,
}

impl Held {
    pub(super) fn into_delivered(self) -> Option<Box<Delivered>> {
        let Head { epoch, step, samples, skipped, .. } = self.head;
        let batch = self.batch?;
        Some(Box::new(Delivered { epoch, step, samples, skipped, batch }))
    }
}
