//! The order of dynamic jobs: groups in a closed order, and the lists of pieces of them that ranks
//! are granted. Who is granted what is decided elsewhere; this is what a grant means.
//! Source: docs/ORDER.md, section 10.

mod groups;
mod list;
mod piece;

pub use groups::Groups;
pub use list::RankList;
pub use piece::{FreePieces, Piece};
