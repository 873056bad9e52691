//! End-to-end tests and house rules, in one binary.

#![allow(clippy::unwrap_used)]

mod balance_agreement;
mod mixture_agreement;
mod order_agreement;
mod order_memory;
mod pack_agreement;
mod tidy;
