//! Order of dynamic jobs: groups in a closed-form order, and lists of the group ranges granted to
//! ranks.
//!
//! The assignment of groups to ranks is decided elsewhere; this module defines the meaning of a
//! grant. Source: docs/ORDER.md, section 10.

mod group_range;
mod groups;
mod list;

pub use group_range::{FreeRanges, GroupRange};
pub use groups::Groups;
pub use list::RankList;
