//! End-to-end tests and house rules, in one binary.

#![allow(clippy::unwrap_used)]

mod order_agreement;
mod order_memory;
mod tidy;
