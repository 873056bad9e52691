//! Shards of a dynamic job's epoch, counted from the group ranges that were granted.

use std::collections::BTreeSet;
use std::ops::Range;

use shardfeed_plan::dynamic::{GroupRange, Groups};
use shardfeed_plan::{Manifest, Sample};
use shardfeed_scheduler::Pool;

use super::granted::Granted;
use crate::error::Result;

/// Maximum samples of partly consumed groups that are looked up one by one for one list: several
/// seconds of work. Shards of further groups are counted in proportion.
const LOOKED_UP_MAX: u64 = 1 << 24;

/// Marks a shard without samples, which is in no group.
const NO_GROUP: u64 = u64::MAX;

/// Group range in a rank's list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    piece: GroupRange,
    /// Rank whose list contains the range.
    pub(super) rank: u64,
    /// Offset in the group up to which the range was consumed.
    consumed: u64,
    /// True if the rank may have started the range.
    pub(super) begun: bool,
}

/// Holders of each group's ranges, and consumed records of each shard.
#[derive(Debug, Default)]
pub(super) struct GroupHolders {
    /// Ordered by group and offset in it.
    holdings: Vec<Holding>,
    group_of: Vec<u64>,
    delivered: Vec<u64>,
}

impl GroupHolders {
    /// Collects the ranges of an epoch. Slow to compute.
    pub(super) fn new(granted: &Granted<'_>, groups: &Groups, manifest: &Manifest) -> Result<Self> {
        let shards = manifest.shards().len();
        let mut held =
            Self { holdings: vec![], group_of: vec![NO_GROUP; shards], delivered: vec![0; shards] };
        for group in 0..groups.count() {
            for shard in groups.shards(group) {
                held.group_of[*shard as usize] = group;
            }
        }
        if let Some(pool) = granted.pool {
            held.holdings = holdings(granted, pool);
            held.count(pool, groups, manifest)?;
        }
        Ok(held)
    }

    /// Returns the group of a shard; `None` if it has no samples.
    pub(super) fn group(&self, shard: usize) -> Option<u64> {
        self.group_of.get(shard).copied().filter(|group| *group != NO_GROUP)
    }

    pub(super) fn holdings(&self, shard: usize) -> &[Holding] {
        self.group(shard).map_or(&[], |group| of_group(&self.holdings, group))
    }

    /// Returns the number of records of a shard that were consumed.
    pub(super) fn delivered(&self, shard: usize) -> u64 {
        self.delivered.get(shard).copied().unwrap_or(0)
    }

    /// Returns the shards of which the lists of `ranks` have a sample, by manifest index.
    ///
    /// Beyond [`LOOKED_UP_MAX`] samples, returns all shards of their groups. Slow to compute.
    pub(super) fn shards(&self, ranks: &BTreeSet<u64>, groups: &Groups) -> Result<BTreeSet<u32>> {
        let (mut shards, mut left) = (BTreeSet::new(), LOOKED_UP_MAX);
        for held in self.holdings.iter().filter(|held| ranks.contains(&held.rank)) {
            let (group, samples) = (held.piece.group, held.piece.samples());
            let all = groups.shards(group);
            if all.iter().all(|shard| shards.contains(shard)) {
                continue;
            }
            if samples == groups.samples_of(group) || samples > left {
                shards.extend(all.iter().copied());
                continue;
            }
            left -= samples;
            each_sample(groups, held.piece, |sample| {
                shards.insert(sample.shard);
            })?;
        }
        Ok(shards)
    }

    fn count(&mut self, pool: &Pool, groups: &Groups, manifest: &Manifest) -> Result<()> {
        let mut free = pool.returned.iter().peekable();
        let mut left = LOOKED_UP_MAX;
        for group in 0..pool.next.min(groups.count()) {
            let size = groups.samples_of(group);
            let held = of_group(&self.holdings, group);
            let mut consumed: Vec<_> =
                held.iter().map(|held| held.piece.from..held.consumed).collect();
            if pool.before > 0 {
                // Ranges in no list and not free were consumed before the generation began.
                let free = std::iter::from_fn(|| free.next_if(|piece| piece.group <= group));
                let kept = held.iter().map(|held| held.piece).chain(free);
                consumed.extend(gaps(kept.map(|piece| piece.from..piece.to).collect(), size));
            }
            let rest = gaps(consumed, size);
            left = self.count_group((groups, manifest), group, rest, left)?;
        }
        Ok(())
    }

    /// Counts a group's shards. `rest`: ranges of it that were not consumed. `left`: samples that
    /// may be looked up; returns the number left afterwards.
    fn count_group(
        &mut self,
        (groups, manifest): (&Groups, &Manifest),
        group: u64,
        rest: Vec<Range<u64>>,
        left: u64,
    ) -> Result<u64> {
        let size = groups.samples_of(group);
        let undone = length(&rest);
        let done = size - undone;
        let cost = done.min(undone);
        let adds = done <= undone;
        for shard in groups.shards(group) {
            let records = manifest.shards()[*shard as usize].records;
            let part = u128::from(records) * u128::from(done) / u128::from(size.max(1));
            self.delivered[*shard as usize] = match (cost <= left, adds) {
                (true, true) => 0,
                (true, false) => records,
                (false, _) => part as u64,
            };
        }
        if cost > left {
            return Ok(left);
        }
        // The smaller part is looked up.
        for part in if adds { gaps(rest, size) } else { rest } {
            let piece = GroupRange { group, from: part.start, to: part.end };
            each_sample(groups, piece, |sample| {
                let delivered = &mut self.delivered[sample.shard as usize];
                *delivered = if adds { *delivered + 1 } else { *delivered - 1 };
            })?;
        }
        Ok(left - cost)
    }
}

/// Returns the ranges of all lists, by group and offset in it.
fn holdings(granted: &Granted<'_>, pool: &Pool) -> Vec<Holding> {
    let mut holdings = Vec::new();
    for (rank, share) in &pool.shares {
        let consumed = granted.consumed(*rank, share);
        let started = share.started.max(consumed);
        let mut start = 0;
        for piece in share.list.pieces() {
            let of_it = consumed.saturating_sub(start).min(piece.samples());
            holdings.push(Holding {
                piece: *piece,
                rank: *rank,
                consumed: piece.from + of_it,
                begun: started > start,
            });
            start += piece.samples();
        }
    }
    holdings.sort_unstable_by_key(|held| (held.piece, held.rank));
    holdings
}

fn of_group(holdings: &[Holding], group: u64) -> &[Holding] {
    let start = holdings.partition_point(|held| held.piece.group < group);
    let count = holdings[start..].partition_point(|held| held.piece.group == group);
    &holdings[start..start + count]
}

/// Returns the ranges of `0..size` that are not in `parts`, ascending.
fn gaps(mut parts: Vec<Range<u64>>, size: u64) -> Vec<Range<u64>> {
    parts.sort_unstable_by_key(|part| part.start);
    let (mut gaps, mut at) = (vec![], 0);
    for part in parts.into_iter().chain(std::iter::once(size..size)) {
        if part.start > at {
            gaps.push(at..part.start);
        }
        at = at.max(part.end);
    }
    gaps
}

fn length(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

pub(super) fn each_sample(
    groups: &Groups,
    piece: GroupRange,
    mut each: impl FnMut(Sample),
) -> Result<()> {
    let lane = groups.lane(piece.group);
    let (mut at, mut blocks) = (piece.from, lane.blocks_from(piece.from));
    while at < piece.to {
        let Some(block) = blocks.next() else {
            break;
        };
        let block = block?;
        let to = piece.to.min(block.outputs.end);
        let places = (at - block.outputs.start) as usize..(to - block.outputs.start) as usize;
        block.sources[places].iter().for_each(|input| each(lane.input(*input)));
        at = to;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_no_part_has() {
        assert_eq!(gaps(vec![0..1, 4..4], 5), [1..4, 4..5]);
        assert_eq!(gaps(vec![], 0), []);
        assert_eq!(gaps(vec![6..9, 1..3, 2..4, 4..4], 12), [0..1, 4..6, 9..12]);
        assert_eq!(gaps(vec![0..12, 3..5], 12), []);
        assert_eq!(length(&gaps(vec![3..5, 4..5], 12)), 10);
    }
}
