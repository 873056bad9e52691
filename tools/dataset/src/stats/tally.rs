//! Facts about files, and tallies of records; merging the tallies of parts gives the tally of the whole.

use std::collections::BTreeMap;

use shardfeed_tfrecord::Compression;
use shardfeed_tfrecord::example::{DType, FoundFeature, ListRef, features_of};

use super::labels::Labels;
use super::numbers::{Floats, Integers};
use super::sizes::Sizes;

/// Maximum number of examined features: the first ones in bytewise order. A dataset has tens of
/// features; more are keys made from data, and would all be kept in memory.
pub(super) const FEATURES_MAX: usize = 1_000;

/// Maximum length of an examined feature's name, bytes.
pub(super) const NAME_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug)]
pub(super) struct ShardFacts {
    pub(super) path: String,
    pub(super) records: u64,
    pub(super) stored_bytes: u64,
    /// Uncompressed size with framing, bytes.
    pub(super) stream_bytes: u64,
    pub(super) compression: Compression,
    /// Result of compressing records; only for uncompressed files that were selected for it.
    pub(super) sampled: Option<CompressionSample>,
}

/// Sizes of some records before and after compression.
#[derive(Clone, Debug)]
pub(super) struct CompressionSample {
    pub(super) raw_bytes: u64,
    pub(super) compressed_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) sizes: Sizes,
    pub(super) examples: u64,
    pub(super) features: BTreeMap<Vec<u8>, FeatureTally>,
    pub(super) has_more_features: bool,
}

/// Tally of a feature. Values of several types, probably a writer's mistake, are shown as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FeatureTally {
    pub(super) int64: Typed<IntegerValues>,
    pub(super) float32: Typed<Floats>,
    pub(super) bytes: Typed<BytesValues>,
}

/// Values of one type.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Typed<V> {
    /// Number of values in each record that has the feature.
    pub(super) counts: Integers,
    pub(super) values: V,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IntegerValues {
    pub(super) numbers: Integers,
    pub(super) labels: Labels<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BytesValues {
    pub(super) lengths: Integers,
    pub(super) labels: Labels<Vec<u8>>,
}

impl Tally {
    pub(super) fn add(&mut self, record: &[u8]) {
        self.sizes.add(record.len());
        let Some(mut features) = features_of(record) else {
            return;
        };
        self.examples += 1;
        // If a key occurs twice, readers use the last one with values.
        features.reverse();
        features.retain(|feature| feature.values.is_some());
        features.sort_by_key(|feature| feature.name);
        features.dedup_by_key(|feature| feature.name);
        for FoundFeature { name, values } in features {
            let Some(values) = values else { continue };
            if let Some(feature) = self.feature(name) {
                feature.add(&values);
            }
        }
    }

    /// Returns the feature of this name; `None` if it is not examined.
    fn feature(&mut self, name: &[u8]) -> Option<&mut FeatureTally> {
        if !self.features.contains_key(name) {
            if name.len() > NAME_BYTES_MAX {
                self.has_more_features = true;
                return None;
            }
            self.features.insert(name.to_vec(), FeatureTally::default());
            self.drop_last_features();
        }
        self.features.get_mut(name)
    }

    /// Keeps the first features. A feature among the first of the whole is also among the first of
    /// every part, so that the kept features are complete.
    fn drop_last_features(&mut self) {
        while self.features.len() > FEATURES_MAX {
            self.features.pop_last();
            self.has_more_features = true;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.sizes.merge(&other.sizes);
        self.examples += other.examples;
        self.has_more_features |= other.has_more_features;
        for (name, feature) in other.features {
            self.features.entry(name).or_default().merge(feature);
        }
        self.drop_last_features();
    }

    pub(super) fn records(&self) -> u64 {
        self.sizes.integers().count()
    }
}

impl FeatureTally {
    fn add(&mut self, list: &ListRef<'_>) {
        match list.dtype() {
            DType::Int64 => {
                self.int64.counts.add_size(list.count());
                let IntegerValues { numbers, labels } = &mut self.int64.values;
                let mut values = vec![0; list.count()];
                list.write_i64(&mut values);
                for value in values {
                    numbers.add(value);
                    labels.add(&value);
                }
            }
            DType::Float32 => {
                self.float32.counts.add_size(list.count());
                let mut values = vec![0.0; list.count()];
                list.write_f32(&mut values);
                values.into_iter().for_each(|value| self.float32.values.add(value));
            }
            DType::Bytes => {
                self.bytes.counts.add_size(list.count());
                let BytesValues { lengths, labels } = &mut self.bytes.values;
                list.for_each_bytes(|value| {
                    lengths.add_size(value.len());
                    labels.add_bytes(value);
                });
            }
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { int64, float32, bytes } = other;
        self.int64.counts.merge(&int64.counts);
        self.int64.values.numbers.merge(&int64.values.numbers);
        self.int64.values.labels.merge(int64.values.labels);
        self.float32.counts.merge(&float32.counts);
        self.float32.values.merge(&float32.values);
        self.bytes.counts.merge(&bytes.counts);
        self.bytes.values.lengths.merge(&bytes.values.lengths);
        self.bytes.values.labels.merge(bytes.values.labels);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardfeed_tfrecord::example::{Value, encode_example};

    use super::*;

    fn example(features: &[(&str, Value<'_>)]) -> Vec<u8> {
        let mut record = Vec::new();
        encode_example(features, &mut record);
        record
    }

    fn tally<R: AsRef<[u8]>>(records: impl IntoIterator<Item = R>) -> Tally {
        let mut tally = Tally::default();
        records.into_iter().for_each(|record| tally.add(record.as_ref()));
        tally
    }

    #[test]
    fn a_feature_is_added_up_by_type() {
        let found = tally([
            example(&[("x", Value::Int64(&[3, 5])), ("y", Value::Float32(&[0.5]))]),
            example(&[("x", Value::Int64(&[]))]),
            example(&[("x", Value::Bytes(&[b"abc"]))]),
            b"no example".to_vec(),
        ]);
        assert_eq!((found.records(), found.examples), (4, 3));
        let x = &found.features[&b"x"[..]];
        assert_eq!((x.int64.counts.count(), x.int64.counts.range()), (2, Some((0, 2))));
        assert_eq!(x.int64.values.numbers.range(), Some((3, 5)));
        assert_eq!((x.bytes.counts.count(), x.bytes.values.lengths.range()), (1, Some((3, 3))));
        assert_eq!(found.features[&b"y"[..]].float32.values.mean(), Some(0.5));
    }

    #[test]
    fn of_a_key_that_comes_twice_the_last_with_values_counts() {
        let twice = [
            example(&[("x", Value::Int64(&[1]))]),
            example(&[("x", Value::Int64(&[2]))]),
            // A feature without a kind.
            b"\x0a\x07\x0a\x05\x0a\x01x\x12\x00".to_vec(),
        ]
        .concat();
        let found = tally([twice]);
        let x = &found.features[&b"x"[..]];
        assert_eq!((x.int64.counts.count(), x.int64.values.numbers.range()), (1, Some((2, 2))));
    }

    #[test]
    fn names_that_are_data_are_not_all_held() {
        let name = |index: usize| format!("{index:06}");
        let record = |index| example(&[(&name(index), Value::Int64(&[1]))]);
        let most = tally((0..FEATURES_MAX).map(record));
        assert!(!most.has_more_features);
        let found = tally((0..FEATURES_MAX + 50).rev().map(record));
        assert!(found.has_more_features);
        assert_eq!(found.features, most.features);
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        let found = tally([example(&[(&long, Value::Int64(&[1]))])]);
        assert!(found.has_more_features && found.features.is_empty());
    }

    /// Records with a few features, some of which change their type, and some records that are not
    /// Examples.
    fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let feature = (0..4_u8, prop::collection::vec(any::<i16>(), 0..4), 0..3_u8);
        let record = prop::collection::vec(feature, 0..4).prop_map(|features| {
            let mut parts = Vec::new();
            for (name, values, dtype) in features {
                let name = char::from(b'a' + name).to_string();
                let integers: Vec<_> = values.iter().map(|&value| i64::from(value)).collect();
                let floats: Vec<_> = values.iter().map(|&value| f32::from(value) / 7.0).collect();
                let text: Vec<_> = values.iter().map(i16::to_string).collect();
                let bytes: Vec<_> = text.iter().map(String::as_bytes).collect();
                let value = match dtype {
                    0 => Value::Int64(&integers),
                    1 => Value::Float32(&floats),
                    _ => Value::Bytes(&bytes),
                };
                parts.extend(example(&[(&name, value)]));
            }
            parts
        });
        prop::collection::vec(prop_oneof![9 => record, 1 => Just(b"text".to_vec())], 0..20)
    }

    proptest! {
        #[test]
        fn parts_in_any_order_are_the_whole(records in records(), cuts in prop::collection::vec(0..20_usize, 0..4)) {
            let mut cuts = cuts;
            cuts.extend([0, records.len()]);
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(records.len()));
            cuts.sort_unstable();
            let mut merged = Tally::default();
            for pair in cuts.windows(2).rev() {
                merged.merge(tally(&records[pair[0]..pair[1]]));
            }
            prop_assert_eq!(merged, tally(&records));
        }
    }
}
