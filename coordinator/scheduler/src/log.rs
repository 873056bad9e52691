//! The data of the replicated log: commands, answers, events, their encoding and their bounds.
//! Everything else in this crate builds on it.

mod answer;
mod bound;
mod command;
mod dedupe;
mod encoding;
mod event;
mod id;
mod refusal;
mod value;

pub use answer::*;
pub use bound::*;
pub use command::*;
pub(crate) use dedupe::*;
pub use encoding::*;
pub use event::*;
pub use id::*;
pub use refusal::*;
pub use value::*;
