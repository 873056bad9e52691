//! Order of dynamic jobs: groups in a closed-form order, and lists of the group ranges granted to
//! ranks.
//!
//! The assignment of groups to ranks is decided elsewhere; this module defines the meaning of a
//! grant. Source: docs/ORDER.md, section 10.

mod groups;
mod list;
mod piece;

pub use groups::Groups;
pub use list::RankList;
pub use piece::{FreePieces, Piece};
