//! Files in object stores and on web servers: listing, change stamps, and reads of ranges.
//!
//! Each request is for a range. An interrupted range is requested again from the byte where it
//! ended, until its time is up. Each response is checked against the change stamp, so that bytes of
//! two versions are never mixed.

mod bucket;
mod fault;
mod fetch;
mod file;
mod limits;
mod listing;
mod location;
mod objects;
mod profile;
mod runtime;
mod transport;

pub use fetch::RemoteStats;
pub(crate) use fetch::{Reach, RemoteObject, Stop};
pub(crate) use file::RemoteFile;
pub(crate) use listing::{GoOn, find, stamps};
pub use location::is_remote;
pub(crate) use location::{Location, common_root};
pub(crate) use objects::{contents, put};
