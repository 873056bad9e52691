//! The parts of a batch that are counted when it is consumed.

use shardfeed_plan::Planned;
use shardfeed_reader::Skipped;

/// A batch without its columns.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) samples: Vec<Planned>,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}
