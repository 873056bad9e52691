//! The way of a dynamic job: a rank reads what it is granted while it asks for more.
//! Source: docs/ORDER.md, section 10.

mod feed;
mod follow;
mod granted;
mod pace;
mod reader;

use std::sync::Arc;

use shardfeed_plan::Shuffle;
use shardfeed_plan::dynamic::Groups;

use crate::control::{Control, Lease};
use crate::error::LoadError;

pub use feed::GrantStats;
pub(crate) use feed::{Feed, Gate, lapsed};

/// The groups of an epoch.
pub type GroupsOf = Box<dyn FnMut(u64) -> Result<Groups, LoadError> + Send>;

/// What a rank of a dynamic job asks with.
pub struct DynamicRank {
    /// Who grants.
    pub control: Arc<dyn Control>,
    /// The right to be granted.
    pub lease: Lease,
    /// The groups of an epoch; asked for each epoch once, in ascending order.
    pub groups_of: GroupsOf,
    /// What the job says of shuffling.
    pub shuffle: Shuffle,
    /// Samples of a full batch.
    pub batch_size: u64,
}

#[cfg(test)]
mod tests;
