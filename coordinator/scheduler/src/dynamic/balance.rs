//! Computes which ranks of a dynamic job give back work, so that no rank waits for the slowest.
//! Source: docs/ARCHITECTURE.md, Dynamic jobs.

use std::collections::BTreeMap;

use crate::dynamic::pool::{Pool, RankAssignment};
use crate::job::generation::Generation;
use crate::log::{Cordon, REVOKES_MAX, RankRevoke, Revoke};
use crate::state::State;

/// Samples per second of each rank in an epoch, as the leader measured them. Ranks without an entry
/// count with the median of the others.
pub type Speeds = BTreeMap<u64, u64>;

/// A rank with work that it has not begun.
struct Giver {
    rank: u64,
    /// Time to finish all its remaining work, ms.
    rest_ms: u64,
    speed: u64,
    unstarted: u64,
    samples: u64,
}

impl State {
    /// Returns the revocations that the leader should propose now.
    ///
    /// In epochs whose pool is empty while ranks starve, the ranks that end last give back work.
    pub fn balance(&self, job: &str, speeds: &Speeds) -> Vec<Revoke> {
        let Some(job) = self.job(job).filter(|job| job.identity.is_dynamic()) else {
            return vec![];
        };
        let mut proposed = vec![];
        for generation in job.usable() {
            for (epoch, pool) in &generation.pools {
                let revokes = self.revokes(generation, pool, speeds);
                if !revokes.is_empty() {
                    let (job, generation) = (job.name.clone(), generation.number);
                    proposed.push(Revoke { job, generation, epoch: *epoch, revokes });
                }
            }
        }
        proposed
    }

    fn revokes(&self, generation: &Generation, pool: &Pool, speeds: &Speeds) -> Vec<RankRevoke> {
        if pool.free() > 0 || pool.is_done() {
            return vec![];
        }
        let median = median(speeds.values().copied().collect()).max(1);
        let (mut starved, mut givers) = (vec![], vec![]);
        for (number, rank) in &generation.ranks {
            let session = rank.lease.as_ref().map(|lease| lease.session);
            let Some(session) = session else {
                continue;
            };
            let speed = speed_of(speeds, *number, median);
            let Some(share) = pool.shares.get(number) else {
                continue;
            };
            let is_asked = share.revoke_from.is_some() || share.left;
            let unstarted = share.unstarted();
            if unstarted < pool.batch_size {
                let may_get = self.sessions.cordon(session) == Cordon::Open;
                starved.extend((may_get && !share.left).then_some(speed));
            } else if !is_asked {
                let (rank, rest_ms) = (*number, rest_ms(share, speed));
                let samples = share.list.samples();
                givers.push(Giver { rank, rest_ms, speed, unstarted, samples });
            }
        }
        starved.sort_unstable_by(|left, right| right.cmp(left));
        givers.sort_unstable_by_key(|giver| (std::cmp::Reverse(giver.rest_ms), giver.rank));
        let pairs = starved.into_iter().zip(&givers).take(REVOKES_MAX);
        pairs.filter_map(|(speed, giver)| giver.give_to(speed, pool.batch_size)).collect()
    }
}

impl Giver {
    /// Revokes the end of the giver's list, in whole batches, so that both ranks finish together.
    fn give_to(&self, speed: u64, batch_size: u64) -> Option<RankRevoke> {
        let all = u128::from(self.speed) + u128::from(speed);
        let given = u128::from(self.unstarted) * u128::from(speed) / all;
        let given = u64::try_from(given).unwrap_or(self.unstarted);
        let kept = (self.unstarted - given).div_ceil(batch_size) * batch_size;
        let from = self.samples - self.unstarted + kept;
        (from < self.samples).then_some(RankRevoke { rank: self.rank, from })
    }
}

/// Time to consume everything that the rank was granted and has not consumed, ms.
fn rest_ms(share: &RankAssignment, speed: u64) -> u64 {
    (share.list.samples() - share.consumed).saturating_mul(1_000) / speed
}

fn speed_of(speeds: &Speeds, rank: u64, median: u64) -> u64 {
    speeds.get(&rank).copied().unwrap_or(median).max(1)
}

fn median(mut numbers: Vec<u64>) -> u64 {
    let middle = numbers.len() / 2;
    if numbers.is_empty() { 0 } else { *numbers.select_nth_unstable(middle).1 }
}
