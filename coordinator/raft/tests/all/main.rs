//! The node as its users see it: one binary, as each would compile consensus anew.
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
