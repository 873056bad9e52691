//! The node as its users see it: one binary, because each binary would compile consensus again.
#![allow(clippy::unwrap_used)]

mod common;
mod damage;
mod faults;
mod inline;
mod kill;
mod members;
mod replication;
mod restart;
mod wording;
