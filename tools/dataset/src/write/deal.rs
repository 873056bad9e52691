//! Partition of records among shards.

use std::ops::Range;

use shardfeed_plan::{Digest, Draws, stream_key};
use shardfeed_tfrecord::{FOOTER_BYTES, HEADER_BYTES};

use crate::problem::Problem;

/// Maximum number of shards: names have five digits, and sort by them.
const SHARDS_MAX: u64 = 99_999;

const FRAME_BYTES: u64 = (HEADER_BYTES + FOOTER_BYTES) as u64;

/// Records, partitioned among shards of approximately one size.
#[derive(Debug)]
pub(crate) struct Deal {
    /// All records, in an order that the seed determines.
    order: Vec<u32>,
    /// Range of the order for each shard; none is empty.
    shards: Vec<Range<usize>>,
}

impl Deal {
    /// Partitions at least one record, of these sizes, among shards of about `shard_bytes`.
    ///
    /// # Errors
    /// More records or shards than can be counted.
    pub(crate) fn new(record_bytes: &[u64], shard_bytes: u64, seed: u64) -> Result<Self, Problem> {
        let key = stream_key("dataset write", &Digest::from_bytes([0; 32]), &[seed]);
        let records = record_bytes.len() as u64;
        let order = Draws::new(key, 0).permutation(records).map_err(|_| {
            Problem::failed(format!("{records} records are too many to shuffle"))
                .hint("write the source in parts, with a --prefix for each")
        })?;
        let sizes = order.iter().map(|&record| record_bytes[record as usize] + FRAME_BYTES);
        let total: u64 = sizes.clone().sum();
        let shards = total.div_ceil(shard_bytes).clamp(1, records.max(1));
        if shards > SHARDS_MAX {
            let what = format!("--shard-bytes {shard_bytes} would make {shards} shards");
            return Err(Problem::usage(what).hint(format!(
                "use --shard-bytes {} or more, for at most {SHARDS_MAX}",
                total.div_ceil(SHARDS_MAX)
            )));
        }
        let shards = cut(sizes, order.len(), total, shards as usize);
        Ok(Self { order, shards })
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn records(&self, shard: usize) -> &[u32] {
        &self.order[self.shards[shard].clone()]
    }
}

/// Divides `records` into `shards` ranges, none of them empty.
///
/// Each range ends where the sum of the sizes comes nearest to its share of `total`, so that none
/// is off by more than a record.
fn cut(
    mut sizes: impl Iterator<Item = u64>,
    records: usize,
    total: u64,
    shards: usize,
) -> Vec<Range<usize>> {
    let mut parts = Vec::with_capacity(shards);
    let (mut end, mut sum) = (0, 0_u64);
    let mut next = sizes.next();
    for shard in 1..=shards {
        let start = end;
        let share = (u128::from(total) * shard as u128 / shards as u128) as u64; // At most `total`.
        // Each later shard needs at least one record.
        let end_max = records - (shards - shard);
        while let Some(size) = next
            && end < end_max
            && (end == start || shard == shards || sum + size / 2 <= share)
        {
            sum += size;
            end += 1;
            next = sizes.next();
        }
        parts.push(start..end);
    }
    parts
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn dealt(sizes: &[u64], shard_bytes: u64) -> Deal {
        Deal::new(sizes, shard_bytes, 7).unwrap()
    }

    #[test]
    fn every_record_is_dealt_once_and_shards_are_alike() {
        let sizes: Vec<u64> = (0..1_000).map(|i| 50 + i % 100).collect();
        let deal = dealt(&sizes, 10_000);
        let mut seen: Vec<u32> =
            (0..deal.shards()).flat_map(|s| deal.records(s).to_vec()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1_000).collect::<Vec<_>>());
        for shard in 0..deal.shards() {
            let bytes = |&record: &u32| sizes[record as usize] + FRAME_BYTES;
            let bytes: u64 = deal.records(shard).iter().map(bytes).sum();
            assert!((9_500..=10_000 + 165).contains(&bytes), "shard {shard}: {bytes}");
        }
    }

    #[test]
    fn no_shard_is_empty_whatever_the_sizes() {
        let cases: [&[u64]; 4] = [&[1_000, 1], &[1, 1, 100_000, 1], &[0, 0, 0], &[500; 50]];
        for sizes in cases {
            for shard_bytes in [1, 17, 100, 1_000_000] {
                let deal = dealt(sizes, shard_bytes);
                assert!((0..deal.shards()).all(|shard| !deal.records(shard).is_empty()));
                let dealt: usize = (0..deal.shards()).map(|shard| deal.records(shard).len()).sum();
                assert_eq!(dealt, sizes.len());
            }
        }
    }

    #[test]
    fn too_many_shards_are_refused_with_a_size_that_does() {
        let error = Deal::new(&[84; 200_000], 1, 0).unwrap_err();
        expect![[r#"
            error: --shard-bytes 1 would make 200000 shards
            hint: use --shard-bytes 201 or more, for at most 99999
        "#]]
        .assert_eq(&crate::problem::text(&error.into()));
        assert!(Deal::new(&[84; 200_000], 201, 0).is_ok());
    }
}
