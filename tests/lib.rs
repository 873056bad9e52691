//! Empty: the tests are in `main.rs`.
