//! Hostile input: every place where bytes come in that somebody else wrote, as a function of bytes.
//!
//! A target is given any bytes and does what the product does with them, twice where there are two ways to do
//! it. It returns whatever they are, good or refused, and panics if a promise is broken: a panic of ours, two
//! readers that do not agree, an answer that is not what was written.
//!
//! Start at [`TARGETS`], and at [`fuzz`], which changes known inputs by seeded chance: inputs that a target
//! has not seen the like of are kept and changed further.
#![forbid(unsafe_code)]

pub mod dice;
pub mod fuzzer;
mod targets;

pub use fuzzer::{Limits, Report, fuzz};

/// A place where bytes come in.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Does with the bytes what the product does.
    /// - Returns a few words for what became of them. Inputs with the same words are much alike, so what
    ///   matters goes into them, and what has a value for each input does not.
    pub run: fn(&[u8]) -> String,
    /// Inputs to begin with: good ones.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    targets::framing::TARGET,
    targets::compressed::TARGET,
    targets::example::EXAMPLE,
    targets::example::SEQUENCE,
    targets::image::TARGET,
    targets::cache::TARGET,
    targets::token::TARGET,
    targets::job::TARGET,
    targets::socket::TARGET,
    targets::table::TARGET,
];

/// What an error says, without the numbers and quotes that differ from input to input.
pub(crate) fn gist(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let mut quoted = false;
    let keep = text.chars().filter(|&c| {
        quoted ^= c == '`' || c == '"';
        !quoted && (c.is_alphabetic() || c == ' ')
    });
    keep.take(120).collect()
}

/// A number as coarse as its size.
pub(crate) fn size(number: usize) -> u32 {
    usize::BITS - number.leading_zeros()
}
