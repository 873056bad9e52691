//! Who lives in the simulation: coordinators (the real ones), hosts with workers and trainers, launchers, and
//! a person.

pub mod admin;
pub mod catalog;
pub mod client;
pub mod dynamic;
pub mod launcher;
pub mod node;
mod operator;
pub mod session;
pub mod share;
pub mod trainer;
pub mod worker;
