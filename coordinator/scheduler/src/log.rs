//! The data of the replicated log: commands, answers, events, their encoding and their bounds.
//! Everything else in this crate builds on it.

pub(crate) mod answer;
pub(crate) mod bound;
pub(crate) mod command;
pub(crate) mod cursor;
pub(crate) mod dedupe;
pub(crate) mod encoding;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod refusal;
pub(crate) mod value;
