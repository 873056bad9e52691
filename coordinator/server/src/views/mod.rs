//! Data shown to users: messages made from the applied state, the leader's memory and plans.

mod batch;
mod counts;
mod dataset;
mod epoch;
mod event;
mod granted;
mod held;
mod history;
mod job;
mod picture;
mod rank;
mod shard;
mod skipped;
mod worker;

pub(crate) use batch::{balanced_order, batch};
pub(crate) use dataset::dataset;
pub(crate) use epoch::epochs;
pub(crate) use event::events;
pub(crate) use history::Past;
pub(crate) use job::job;
pub(crate) use picture::{Picture, no_job};
pub(crate) use rank::ranks;
pub(crate) use shard::{ShardFilter, shards};
pub(crate) use worker::{lease_to, workers};

/// Returns the name of a variant without data, as in JSON.
fn name_of(variant: &impl serde::Serialize) -> String {
    let name = serde_json::to_value(variant).ok();
    name.and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default()
}
