//! Records of shards: read ahead in lane order, or by position, and collected into rows.

pub(crate) mod balanced;
pub(crate) mod gather;
mod pack;
pub(crate) mod place;
pub(crate) mod reader;
pub(crate) mod stream;
mod trails;
