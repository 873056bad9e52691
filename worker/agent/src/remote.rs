//! Files in object stores and on web servers: listed, looked at, and read by ranges.
//!
//! One in flight is a range; it is read again from the byte where it ended, until its time is up. What
//! answers is checked against the change stamp each time, so that bytes of two versions never meet.

mod bucket;
mod fault;
mod fetch;
mod file;
mod limits;
mod listing;
mod location;
mod profile;
mod runtime;
mod transport;

pub use fetch::RemoteStats;
pub(crate) use fetch::{Reach, RemoteCounters, RemoteObject};
pub(crate) use file::{RemoteFile, Stop};
pub(crate) use listing::{find, stamps};
pub(crate) use location::{Location, common_root, is_remote};
