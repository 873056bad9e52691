//! Simulated processes: coordinators (the real ones), hosts with workers and trainers, launchers,
//! and an operator.

pub mod admin;
pub mod catalog;
pub mod client;
pub mod dynamic;
pub mod launcher;
pub mod mixture;
pub mod node;
mod operator;
pub mod session;
pub mod share;
pub mod trainer;
pub mod worker;
