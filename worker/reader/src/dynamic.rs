//! Reading of a dynamic job: a rank reads its granted samples while it claims more.
//! Source: docs/ORDER.md, section 10.

mod feed;
mod follow;
mod granted;
mod pace;
mod reader;

use std::sync::Arc;

use shardfeed_plan::Shuffle;
use shardfeed_plan::dynamic::Groups;
use shardfeed_source::LoadError;

use crate::control::{Control, Lease};

pub(crate) use feed::{Gate, GrantFeed};
pub use feed::{GrantStats, lapsed};

pub type GroupsOf = Box<dyn FnMut(u64) -> Result<Groups, LoadError> + Send>;

/// Parameters with which a rank of a dynamic job claims samples.
pub struct DynamicRank {
    pub control: Arc<dyn Control>,
    pub lease: Lease,
    /// Groups of an epoch; requested once for each epoch, in ascending order.
    pub groups_of: GroupsOf,
    pub shuffle: Shuffle,
    /// Samples of a full batch.
    pub batch_size: u64,
}

#[cfg(test)]
mod tests;
