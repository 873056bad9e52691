//! Findings: properties of a dataset that cost more than necessary or look like mistakes.

use serde::Serialize;
use shardfeed_tfrecord::Compression;
use shardfeed_tfrecord::example::DType;

use super::tally::{CompressionSample, ShardFacts, Tally};
use crate::output::{count, counted, size};

/// Default shard size of `dataset write`, and a common recommendation.
const SHARD_BYTES_GOOD: u64 = 150_000_000;

/// Average shard size below which opening costs more than reading.
const SHARD_BYTES_LOW: u64 = 16_000_000;

/// Number of small shards that causes no finding.
const SMALL_SHARDS_MAX: usize = 31;

/// Maximum size of a shard: a larger one is slow to copy and check, and caches keep it whole.
const SHARD_BYTES_HIGH: u64 = 2_000_000_000;

/// Maximum uncompressed size of a compressed shard: a run that resumes inside inflates all before.
const STREAM_BYTES_HIGH: u64 = 500_000_000;

/// Number of shards below which shuffling the order of shards mixes hardly anything.
const SHARDS_LOW: usize = 8;

/// Percentage of the uncompressed size above which compression is not worth inflating.
const USELESS_PERCENT: u64 = 90;

/// Percentage of the uncompressed size below which compression may be worthwhile.
const WORTH_PERCENT: u64 = 50;

/// Maximum number of features named in one finding; the others are counted.
const NAMED_MAX: usize = 5;

pub(super) struct Facts<'a> {
    pub(super) shards: &'a [ShardFacts],
    pub(super) tally: &'a Tally,
    pub(super) world_size: Option<u32>,
}

/// A finding about a dataset, with advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) kind: FindingKind,
    /// Description of the finding.
    pub(super) what: String,
    /// Recommended change.
    pub(super) advice: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FindingKind {
    ShardsSmall,
    ShardsLarge,
    ShardsFew,
    ShardsUneven,
    ShardsEmpty,
    CompressionMixed,
    CompressionUseless,
    CompressionWorthwhile,
    RecordsOfSeveralKinds,
    TypesDiffer,
    NotFinite,
}

/// Returns all findings, those about shards first.
pub(super) fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let about =
        [small, large, few, uneven, empty, mixed, useless, worthwhile, kinds, types, not_finite];
    about.iter().filter_map(|find| find(facts)).collect()
}

impl Facts<'_> {
    fn stored_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.stored_bytes).sum()
    }

    fn with_records(&self) -> impl Iterator<Item = &ShardFacts> {
        self.shards.iter().filter(|shard| shard.records > 0)
    }

    /// Number of shards of a good size that would hold all data.
    fn shards_good(&self) -> u64 {
        let good = self.stored_bytes().div_ceil(SHARD_BYTES_GOOD).max(1);
        good.max(self.world_size.map_or(1, u64::from))
    }
}

fn found(kind: FindingKind, what: String, advice: impl Into<String>) -> Option<Finding> {
    Some(Finding { kind, what, advice: advice.into() })
}

fn small(facts: &Facts<'_>) -> Option<Finding> {
    let shards = facts.shards.len();
    let mean = facts.stored_bytes() / (shards as u64).max(1);
    let good = facts.shards_good();
    if shards <= SMALL_SHARDS_MAX || mean >= SHARD_BYTES_LOW || good >= shards as u64 {
        return None;
    }
    found(
        FindingKind::ShardsSmall,
        format!("{} have {} on average", counted(shards as u64, "shard"), size(mean)),
        format!(
            "rewrite them as {}, of {} or so: every file costs an open, and in a store requests",
            counted(good, "shard"),
            size(facts.stored_bytes() / good)
        ),
    )
}

fn large(facts: &Facts<'_>) -> Option<Finding> {
    let most = |shard: &&ShardFacts| match shard.compression {
        Compression::None => shard.stored_bytes > SHARD_BYTES_HIGH,
        _ => shard.stream_bytes > STREAM_BYTES_HIGH,
    };
    let large = facts.shards.iter().filter(most).count() as u64;
    let largest = facts.shards.iter().filter(most).max_by_key(|shard| shard.stream_bytes)?;
    let (inflated, why) = match largest.compression {
        Compression::None => ("", "one that is damaged or replaced costs that much to fetch again"),
        _ => (" inflated", "a run that resumes inside of one inflates it from its start"),
    };
    found(
        FindingKind::ShardsLarge,
        format!(
            "{} large: {} has {}{inflated}",
            if large == 1 { "1 shard is".into() } else { format!("{} shards are", count(large)) },
            largest.path,
            size(largest.stream_bytes)
        ),
        format!("write shards of {} or so: {why}", size(SHARD_BYTES_GOOD)),
    )
}

fn few(facts: &Facts<'_>) -> Option<Finding> {
    let shards = facts.with_records().count();
    let many = facts.shards_good().max(SHARDS_LOW as u64);
    if let Some(ranks) = facts.world_size
        && (shards as u64) < u64::from(ranks)
    {
        let is_compressed = facts.shards.iter().any(|shard| shard.compression != Compression::None);
        return found(
            FindingKind::ShardsFew,
            format!("{} for {ranks} ranks", counted(shards as u64, "shard")),
            match is_compressed {
                true => format!(
                    "write {ranks} shards or more: where ranks share a compressed one, each inflates it from \
                     its start"
                ),
                false => format!(
                    "ranks share shards and read them at offsets; write {ranks} or more if storage \
                     is bound to one file, or if other readers distribute whole files"
                ),
            },
        );
    }
    if shards >= SHARDS_LOW || facts.stored_bytes() < SHARDS_LOW as u64 * SHARD_BYTES_GOOD {
        return None;
    }
    found(
        FindingKind::ShardsFew,
        format!("{} hold {}", counted(shards as u64, "shard"), size(facts.stored_bytes())),
        format!(
            "write about {many}: shuffled are shards, and records only within a window; or choose a larger \
             shuffle_window"
        ),
    )
}

fn uneven(facts: &Facts<'_>) -> Option<Finding> {
    let shards = facts.with_records().count() as u64;
    let mean = facts.tally.records() / shards.max(1);
    if shards < 4 {
        return None;
    }
    let largest = facts.with_records().max_by_key(|shard| shard.records)?;
    let smallest = facts.with_records().min_by_key(|shard| shard.records)?;
    // The last shard of a writer is often short, which is harmless.
    let short = facts.with_records().filter(|shard| shard.records < mean / 2).count();
    if largest.records <= 2 * mean && short <= 1 {
        return None;
    }
    found(
        FindingKind::ShardsUneven,
        format!(
            "shards are uneven: {} has {}, {} has {}, the mean is {}",
            smallest.path,
            counted(smallest.records, "record"),
            largest.path,
            count(largest.records),
            count(mean)
        ),
        "rewrite them with records distributed at random: steps are equal all the same, but the \
         rest of a large shard is mixed with nothing, and with mode=\"dynamic\" all ranks may wait \
         for it",
    )
}

fn empty(facts: &Facts<'_>) -> Option<Finding> {
    let empty = facts.shards.iter().filter(|shard| shard.records == 0).count() as u64;
    let first = facts.shards.iter().find(|shard| shard.records == 0)?;
    found(
        FindingKind::ShardsEmpty,
        format!("{} without records, such as {}", counted(empty, "shard"), first.path),
        "check with their producer whether that is intended",
    )
}

fn mixed(facts: &Facts<'_>) -> Option<Finding> {
    let first = facts.shards.first()?;
    let other = facts.shards.iter().find(|shard| shard.compression != first.compression)?;
    found(
        FindingKind::CompressionMixed,
        format!(
            "shards are compressed differently: {} ({}), {} ({})",
            first.path, first.compression, other.path, other.compression
        ),
        "ask whether these files belong together",
    )
}

fn useless(facts: &Facts<'_>) -> Option<Finding> {
    let compressed = || facts.shards.iter().filter(|shard| shard.compression != Compression::None);
    let stored: u64 = compressed().map(|shard| shard.stored_bytes).sum();
    let stream: u64 = compressed().map(|shard| shard.stream_bytes).sum();
    let percent = percent(stored, stream)?;
    if percent <= USELESS_PERCENT {
        return None;
    }
    found(
        FindingKind::CompressionUseless,
        format!("compressed files take {percent} % of the size of their contents"),
        "write them uncompressed: inflating costs processor time, and their records cannot be read at offsets",
    )
}

fn worthwhile(facts: &Facts<'_>) -> Option<Finding> {
    let sampled = facts.shards.iter().filter_map(|shard| shard.sampled.as_ref());
    let (mut raw, mut compressed) = (0, 0);
    for CompressionSample { raw_bytes, compressed_bytes } in sampled {
        raw += raw_bytes;
        compressed += compressed_bytes;
    }
    let percent = percent(compressed, raw)?;
    if percent >= WORTH_PERCENT || facts.stored_bytes() < SHARD_BYTES_GOOD {
        return None;
    }
    found(
        FindingKind::CompressionWorthwhile,
        format!("a sample of the records shrinks to {percent} % with gzip"),
        "compress them if a network or a disk is the bottleneck; inflating costs processor time, \
         and large shuffle windows need records that can be read at offsets",
    )
}

fn kinds(facts: &Facts<'_>) -> Option<Finding> {
    let (records, examples) = (facts.tally.records(), facts.tally.examples);
    if examples == 0 || examples == records {
        return None;
    }
    found(
        FindingKind::RecordsOfSeveralKinds,
        format!("{} of {} are no Examples", count(records - examples), counted(records, "record")),
        "ask whether these files belong together: with features= each of these records is an error",
    )
}

fn types(facts: &Facts<'_>) -> Option<Finding> {
    let mut named = Vec::new();
    for (name, feature) in &facts.tally.features {
        let all = [
            (DType::Int64, feature.int64.counts.count()),
            (DType::Float32, feature.float32.counts.count()),
            (DType::Bytes, feature.bytes.counts.count()),
        ];
        let types: Vec<_> = all
            .iter()
            .filter(|(_, records)| *records > 0)
            .map(|(dtype, records)| format!("{dtype} in {}", counted(*records, "record")))
            .collect();
        if types.len() > 1 {
            let name = String::from_utf8_lossy(name);
            named.push(format!("`{name}` is {}", types.join(" and ")));
        }
    }
    let what = listed(&named)?;
    let advice = "write the feature as one type: a loader asks for one, and the others are errors";
    found(FindingKind::TypesDiffer, what, advice)
}

fn not_finite(facts: &Facts<'_>) -> Option<Finding> {
    let features = facts.tally.features.iter();
    let named: Vec<_> = features
        .filter(|(_, feature)| feature.float32.values.not_finite() > 0)
        .map(|(name, feature)| {
            let values = counted(feature.float32.values.not_finite(), "value");
            format!("`{}` has {values} that are not finite", String::from_utf8_lossy(name))
        })
        .collect();
    let advice = "ask whether infinities and NaN are meant: most losses do not survive them";
    found(FindingKind::NotFinite, listed(&named)?, advice)
}

/// Joins the first sentences and the number of further ones; `None` if there are none.
fn listed(named: &[String]) -> Option<String> {
    let shown = named.get(..NAMED_MAX.min(named.len())).filter(|shown| !shown.is_empty())?;
    let mut text = shown.join(", ");
    if named.len() > NAMED_MAX {
        text += &format!(", and {} more", named.len() - NAMED_MAX);
    }
    Some(text)
}

/// Returns `part` as a percentage of `whole`, rounded up; `None` if `whole` is 0.
fn percent(part: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| (u128::from(part) * 100).div_ceil(u128::from(whole)) as u64)
}

#[cfg(test)]
mod tests {
    use shardfeed_tfrecord::example::{Value, encode_example};

    use super::*;

    fn shard(path: &str, records: u64, stored_bytes: u64) -> ShardFacts {
        ShardFacts {
            path: path.into(),
            records,
            stored_bytes,
            stream_bytes: stored_bytes,
            compression: Compression::None,
            sampled: None,
        }
    }

    fn gzip(path: &str, stored_bytes: u64, stream_bytes: u64) -> ShardFacts {
        let compression = Compression::Gzip;
        ShardFacts { stream_bytes, compression, ..shard(path, 100, stored_bytes) }
    }

    /// A tally with the number of records of the shards.
    fn tally(shards: &[ShardFacts]) -> Tally {
        let mut tally = Tally::default();
        let records: u64 = shards.iter().map(|shard| shard.records).sum();
        (0..records).for_each(|_| tally.add(b"x"));
        tally
    }

    fn of(shards: &[ShardFacts], world_size: Option<u32>) -> Vec<FindingKind> {
        let all = findings(&Facts { shards, tally: &tally(shards), world_size });
        all.iter().map(|finding| finding.kind).collect()
    }

    fn many(shards: usize, records: u64, stored_bytes: u64) -> Vec<ShardFacts> {
        (0..shards).map(|index| shard(&format!("{index}"), records, stored_bytes)).collect()
    }

    #[test]
    fn good_shards_have_no_findings() {
        assert_eq!(of(&many(100, 10, 150_000_000), None), []);
        assert_eq!(of(&many(100, 10, 150_000_000), Some(100)), []);
        assert_eq!(of(&many(3, 1, 2_000), None), []);
        // The last shard is short.
        let mut shards = many(10, 10, 150_000_000);
        shards[9].records = 1;
        assert_eq!(of(&shards, None), []);
        assert_eq!(of(&[gzip("a", 70, 100), gzip("b", 70, 100)], Some(2)), []);
    }

    #[test]
    fn each_finding_has_its_bounds() {
        use FindingKind::*;
        assert_eq!(of(&many(32, 1, 15_999_999), None), [ShardsSmall]);
        assert_eq!(of(&many(31, 1, 15_999_999), None), []);
        // The shards are small because there are many ranks.
        assert_eq!(of(&many(32, 1, 15_999_999), Some(32)), []);
        assert_eq!(of(&many(8, 1, 2_000_000_001), None), [ShardsLarge]);
        assert_eq!(of(&[gzip("a", 400_000_000, 500_000_001)], None), [ShardsLarge]);
        assert_eq!(of(&many(3, 1, 1_000), Some(4)), [ShardsFew]);
        assert_eq!(of(&many(7, 1, 200_000_000), None), [ShardsFew]);
        let mut shards = many(4, 10, 150_000_000);
        shards[0].records = 40;
        assert_eq!(of(&shards, None), [ShardsUneven]);
        shards[0].records = 0;
        assert_eq!(of(&shards, None), [ShardsEmpty]);
        let both = [gzip("a", 70, 100), shard("b", 100, 70)];
        assert_eq!(of(&both, None), [CompressionMixed]);
        assert_eq!(of(&[gzip("a", 91, 100)], None), [CompressionUseless]);
        assert_eq!(of(&[gzip("a", 90, 100)], None), []);
        let mut shards = many(2, 1, 150_000_000);
        shards[1].sampled = Some(CompressionSample { raw_bytes: 1_000, compressed_bytes: 480 });
        assert_eq!(of(&shards, None), [CompressionWorthwhile]);
        shards[0].sampled = Some(CompressionSample { raw_bytes: 1_000, compressed_bytes: 520 });
        assert_eq!(of(&shards, None), []);
    }

    #[test]
    fn records_that_do_not_belong_together_are_named() {
        let mut tally = Tally::default();
        let mut add = |features: &[(&str, Value<'_>)]| {
            let mut record = Vec::new();
            encode_example(features, &mut record);
            tally.add(&record);
        };
        add(&[("x", Value::Int64(&[1])), ("y", Value::Float32(&[1.0, f32::NAN]))]);
        add(&[("x", Value::Bytes(&[b"1"])), ("y", Value::Float32(&[f32::INFINITY]))]);
        tally.add(b"text");
        let shards = [shard("a", 3, 100)];
        let all = findings(&Facts { shards: &shards, tally: &tally, world_size: None });
        let what: Vec<_> = all.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "1 of 3 records are no Examples",
                "`x` is int64 in 1 record and bytes in 1 record",
                "`y` has 2 values that are not finite"
            ]
        );
    }

    #[test]
    fn nothing_has_nothing_to_find() {
        assert_eq!(of(&[], None), []);
        assert_eq!(of(&many(1, 0, 0), None), [FindingKind::ShardsEmpty]);
    }
}
