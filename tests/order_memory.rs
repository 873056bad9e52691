//! Verifies the memory of an epoch's order of a million shards, measured as the process's resident
//! size.

use std::sync::Arc;

use shardfeed_plan::{Digest, EpochPlan, Line, Segment, Shuffle, Tail};

const SHARDS: usize = 1_000_000;
const BYTES_PER_SHARD_MAX: u64 = 200;

#[test]
fn a_million_shards_take_less_than_200_bytes_each() {
    let counts = vec![1_000; SHARDS];
    let before = resident_bytes();
    let plan = plan(&counts);
    // The inverse needs its own table, which is part of the order.
    let planned = plan.batch(plan.steps() - 1, 7).unwrap();
    let placed = plan.place(planned[0].portion, planned[0].sample).unwrap().unwrap();
    let held = resident_bytes().saturating_sub(before);
    assert_eq!((placed.step, placed.rank), (plan.steps() - 1, 7));
    assert_eq!(plan.steps(), 1_000_000_000 / (8 * 32));
    let most = BYTES_PER_SHARD_MAX * SHARDS as u64;
    assert!(held < most, "{held} bytes for {SHARDS} shards");
}

fn plan(counts: &[u64]) -> EpochPlan {
    let digest = Digest::from_bytes([3; 32]);
    let shuffle =
        Shuffle { digest, seed: 1, enabled: true, window: 10_000, interleave: 16, block_length: 1 };
    let line = Arc::new(Line::new(counts, &shuffle, 0).unwrap());
    let segment = Segment::start(8, 32, 8).unwrap();
    EpochPlan::new(line, shuffle, 0, (Tail::Drop, None), &[segment], 8).unwrap()
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}
