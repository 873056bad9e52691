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
        for (version, count) in named(mixture, stage) {
            let DatasetVersion { name, order_digest, samples, record_spec, .. } = version;
            let own = record_spec.map_or_else(String::new, |spec| format!(" record_spec={spec}"));
            let _ = writeln!(
                text,
                "source={name} order_digest={order_digest} samples={samples} count={count}{own}"
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

#[cfg(test)]
mod tests {
    use shardfeed_plan::{Digest, OrderDigest, order_digest};

    use super::*;

    fn version(name: &str, order_digest: OrderDigest, samples: u64) -> DatasetVersion {
        let (dataset, content) = (name.to_owned(), Digest::from_bytes([7; 32]));
        let (name, record_spec) = (name.into(), None);
        DatasetVersion { name, dataset, content, order_digest, samples, record_spec }
    }

    fn of(stages: &[(u64, &[(u32, u64)])]) -> JobMixture {
        let counts = |counts: &[u64]| order_digest(counts.iter().copied());
        let stage = |(first_epoch, counts): &(u64, &[(u32, u64)])| DatasetStage {
            first_epoch: *first_epoch,
            counts: counts.to_vec(),
        };
        JobMixture {
            versions: vec![
                version("web", counts(&[3, 0, 5]), 8),
                version("code", counts(&[4]), 4),
                version("web", counts(&[10]), 10),
            ],
            stages: stages.iter().map(stage).collect(),
        }
    }

    fn had(mixture: &JobMixture, epoch: u64) -> Vec<(String, u64)> {
        let name = |((name, epoch), samples)| (format!("{name}/{epoch}"), samples);
        portions(mixture, epoch).into_iter().map(name).collect()
    }

    #[test]
    fn the_check_vector_of_the_order() {
        let mixture = of(&[(0, &[(0, 6), (1, 4)])]);
        let expected = [("code/1", 4), ("web/0", 2), ("web/1", 4)];
        assert_eq!(had(&mixture, 1), expected.map(|(name, samples)| (name.to_owned(), samples)));
        assert_eq!(stages_digest(&mixture, (0, 1)), "dedcf9b88a5754dd");
        assert_ne!(stages_digest(&mixture, (0, 0)), "dedcf9b88a5754dd");
        let names = names(&mixture, 3);
        assert_eq!(names, [("code".to_owned(), 4), ("web".to_owned(), 6)]);
    }

    #[test]
    fn a_later_version_begins_after_the_last_source_epoch_and_another_source_continues() {
        let mixture = of(&[(0, &[(0, 6), (1, 3)]), (2, &[(1, 2)]), (3, &[(2, 5), (1, 3)])]);
        let expected = |of: &[(&str, u64)]| -> Vec<(String, u64)> {
            of.iter().map(|(name, samples)| ((*name).to_owned(), *samples)).collect()
        };
        // Two epochs took 12 of web's 8: its second source epoch is cut short.
        assert_eq!(had(&mixture, 2), expected(&[("code/1", 2)]));
        assert_eq!(had(&mixture, 3), expected(&[("code/2", 3), ("web/2", 5)]));
        assert_eq!(had(&mixture, 5), expected(&[("code/3", 2), ("code/4", 1), ("web/3", 5)]));
    }
}
