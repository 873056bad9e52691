//! Reading of a dynamic job: a rank reads its granted samples while it claims more.
//! Source: docs/ORDER.md, section 10.

mod feed;
mod follow;
mod granted;
mod pace;
mod reader;

pub(crate) use feed::{Gate, GrantFeed};
pub use feed::{GrantStats, lapsed};

#[cfg(test)]
mod tests;
