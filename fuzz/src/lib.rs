//! Fuzzing of untrusted input: every parser of bytes from other processes or files, as a function
//! of bytes.
//!
//! A target gets any bytes and processes them like the product, in two ways if there are two. It
//! returns normally for valid and for rejected input, and panics if a promise is violated: a panic
//! in the product, two readers that disagree, or a result that differs from what was written.
//!
//! Start at [`TARGETS`], and at [`fuzz`], which mutates known inputs by seeded random changes:
//! inputs with a new outcome are kept and mutated further.
#![forbid(unsafe_code)]

pub mod dice;
pub mod fuzzer;
mod targets;

pub use fuzzer::{Limits, Report, fuzz};

/// A parser of untrusted input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its folder in the corpus.
    pub name: &'static str,
    /// Processes the bytes like the product.
    /// - Returns a short description of the outcome. Inputs with the same description count as
    ///   similar, so it contains the relevant properties, but no values that are specific to one
    ///   input.
    pub run: fn(&[u8]) -> String,
    /// Initial inputs, which are valid.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    targets::framing::TARGET,
    targets::compressed::TARGET,
    targets::example::EXAMPLE,
    targets::example::SEQUENCE,
    targets::image::TARGET,
    targets::cache::TARGET,
    targets::state::TARGET,
    targets::job::TARGET,
    targets::socket::TARGET,
    targets::table::TARGET,
    targets::sample_map::TARGET,
    targets::measured::TARGET,
];

/// Returns an error's message without the numbers and quotes that differ between inputs.
pub(crate) fn gist(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let mut quoted = false;
    let keep = text.chars().filter(|&c| {
        quoted ^= c == '`' || c == '"';
        !quoted && (c.is_alphabetic() || c == ' ')
    });
    keep.take(120).collect()
}

/// Returns the number of bits of a number, as a coarse measure of its size.
pub(crate) fn size(number: usize) -> u32 {
    usize::BITS - number.leading_zeros()
}
