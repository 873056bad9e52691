//! End-to-end tests and house rules, one binary.

mod order_agreement;
mod tidy;
