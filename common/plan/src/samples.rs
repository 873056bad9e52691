//! Samples that have several records of a shard.

pub(crate) mod lengths;
pub(crate) mod pack;
pub(crate) mod windows;
