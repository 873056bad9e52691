//! `shardfeed-chaos`: runs seeds, prints what was seen.
#![forbid(unsafe_code)]
fn main() {}
