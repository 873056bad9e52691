//! Samples that a mixture has of each source, computed from docs/ORDER.md (section 13) without the
//! order of `shardfeed-plan`.

use std::collections::BTreeMap;
use std::fmt::Write;

use sha2::{Digest as _, Sha256};
use shardfeed_plan::{DatasetStage, DatasetVersion, JobMixture};

/// Name of a source and source epoch.
pub type SourceEpoch = (String, u64);

/// Position of a source: its version, the first source epoch of that, and the samples taken of it.
#[derive(Clone, Copy, Debug)]
struct Taken<'a> {
    version: &'a DatasetVersion,
    first: u64,
    samples: u64,
}

/// Returns the number of samples of each source epoch in a mixture epoch.
pub fn portions(mixture: &JobMixture, epoch: u64) -> BTreeMap<SourceEpoch, u64> {
    let mut taken: BTreeMap<&str, Taken<'_>> = BTreeMap::new();
    let mut portions = BTreeMap::new();
    for (index, stage) in mixture.stages.iter().enumerate() {
        let end = mixture.stages.get(index + 1).map_or(u64::MAX, |next| next.first_epoch);
        if stage.first_epoch > epoch {
            break;
        }
        let epochs = end.min(epoch) - stage.first_epoch;
        for (version, count) in named(mixture, stage) {
            let mut at = match taken.get(version.name.as_str()) {
                None => Taken { version, first: 0, samples: 0 },
                Some(last) if last.version.order_digest == version.order_digest => *last,
                Some(last) => {
                    let begun = last.samples.div_ceil(last.version.samples);
                    Taken { version, first: last.first + begun, samples: 0 }
                }
            };
            at.samples += epochs * count;
            if epoch < end {
                for number in at.samples..at.samples + count {
                    let source_epoch = at.first + number / version.samples;
                    *portions.entry((version.name.clone(), source_epoch)).or_default() += 1;
                }
            }
            taken.insert(&version.name, at);
        }
    }
    portions
}

/// Returns the names of the sources of a mixture epoch, in the order of their numbers.
pub fn names(mixture: &JobMixture, epoch: u64) -> Vec<(String, u64)> {
    let stage = mixture.stages.iter().rev().find(|stage| stage.first_epoch <= epoch);
    let sources = stage.into_iter().flat_map(|stage| named(mixture, stage));
    sources.map(|(version, count)| (version.name.clone(), count)).collect()
}

/// Returns the first bytes of the digest of the stages that began at a position, as states have it.
pub fn stages_digest(mixture: &JobMixture, (epoch, step): (u64, u64)) -> String {
    let digest = Sha256::digest(begun(mixture, (epoch, step)));
    digest.iter().take(8).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns the lines of the stages that began at a position, which fix the order up to it.
pub fn begun(mixture: &JobMixture, (epoch, step): (u64, u64)) -> String {
    let mut text = String::from("shardfeed stages\n");
    for stage in &mixture.stages {
        let first = stage.first_epoch;
        if first > epoch || first == epoch && step == 0 {
            break;
        }
        let _ = writeln!(text, "stage={first}");
        for (DatasetVersion { name, order_digest, samples, .. }, count) in named(mixture, stage) {
            let _ = writeln!(
                text,
                "source={name} order_digest={order_digest} samples={samples} count={count}"
            );
        }
    }
    text
}

/// Returns the versions of a stage with their counts, ordered by name.
fn named<'a>(mixture: &'a JobMixture, stage: &DatasetStage) -> Vec<(&'a DatasetVersion, u64)> {
    let version = |(version, count): &(u32, u64)| (&mixture.versions[*version as usize], *count);
    let mut versions: Vec<_> = stage.counts.iter().map(version).collect();
    versions.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    versions
}
