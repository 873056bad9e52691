//! Identity and plans of a job, which follow from its options and its dataset.

use std::sync::Arc;

use shardfeed_plan::{JobIdentity, ORDER_VERSION, Records, Shuffle};
use shardfeed_reader::Plans;

use crate::contents::Contents;
use crate::options::{LoaderOptions, interleave_default};

impl LoaderOptions {
    /// Returns the identity of a job over the contents of its dataset.
    /// - `records`: its record spec. `decoder`: pixel contract that it pins.
    pub fn identity(
        &self,
        contents: &Contents,
        (records, decoder): (Records, &str),
        lanes: u64,
    ) -> JobIdentity {
        JobIdentity {
            order: ORDER_VERSION,
            content: contents.content(),
            shuffle: Shuffle {
                digest: contents.order_digest(),
                seed: self.seed,
                enabled: self.shuffle,
                window: self.shuffle_window,
                interleave: self.interleave.unwrap_or_else(|| interleave_default(self.shuffle)),
                block_length: self.block_length,
            },
            lanes,
            tail: self.tail,
            mode: self.mode,
            records,
            decoder: decoder.to_owned(),
        }
    }

    /// Returns the plans of such a job's epochs.
    pub fn plans(&self, contents: &Contents) -> Plans {
        let rules = (self.tail, self.limit);
        match &contents.mixed {
            Some(mixed) => Plans::of_mixture(Arc::clone(mixed), rules),
            None => Plans::new(contents.counts(), rules),
        }
    }
}
