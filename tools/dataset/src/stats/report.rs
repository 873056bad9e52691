//! Reports of stats.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use shardfeed_tfrecord::example::DType;

use super::advice::Finding;
use super::labels::{LABELS_MAX, Labels};
use super::numbers::Integers;
use super::sizes::Sizes;
use super::tally::{FeatureTally, ShardFacts, Tally, Typed};
use crate::listing::{self, Shown, column, wide};
use crate::output::{self, ROWS_LISTED, Report};
use crate::samples::CountedReport;

/// Maximum number of values of a feature that a table lists without `--all`.
const VALUES_LISTED: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct Stats {
    root: String,
    shard_count: usize,
    records: u64,
    /// Records that are a `tf.train.Example`.
    examples: u64,
    stored_bytes: u64,
    data_bytes: u64,
    /// Size of a record without framing, bytes; `null` without records.
    record_bytes: Option<RecordBytes>,
    /// Records per shard; `null` without shards.
    shard_records: Option<Spread>,
    /// Size of a file, bytes.
    shard_bytes: Option<Spread>,
    /// Features by name, in bytewise order; one with values of several types has an entry for each.
    features: Vec<FeatureReport>,
    /// True if there are more features than these.
    has_more_features: bool,
    /// Possible improvements.
    findings: Vec<Finding>,
    /// Samples that a source makes of the records; `null`: each record is one.
    sampled: Option<CountedReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct RecordBytes {
    #[serde(flatten)]
    spread: Spread,
    /// Median.
    p50: u64,
    /// Size that 99 % of the records do not exceed.
    p99: u64,
}

#[derive(Debug, Serialize)]
struct Spread<N = i64> {
    min: N,
    mean: f64,
    max: N,
}

#[derive(Debug, Serialize)]
struct FeatureReport {
    name: String,
    dtype: DType,
    /// Number of records that have it with values of this type.
    records: u64,
    /// Number of values in each of these records.
    values: Spread,
    /// Range of the finite numbers; `null` for bytes, and without values.
    range: Option<Spread<Number>>,
    /// Length of each byte string, bytes; `null` for numbers, and without values.
    lengths: Option<Spread>,
    /// Number of infinities and NaN; `null` except for float32.
    not_finite: Option<u64>,
    /// Number of different values; `null` if they are not counted.
    distinct: Option<usize>,
    /// Reason why they are not counted: more than 4,096, one longer than 64 bytes, or float32.
    distinct_unknown: Option<Unknown>,
    /// Each value with its count, in order; `null` if they are not counted.
    labels: Option<Vec<Label>>,
    /// Text for `Loader(features=)`.
    suggested: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum Number {
    Int64(i64),
    Float32(f32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Unknown {
    TooMany,
    TooLong,
    Float32,
}

#[derive(Debug, Serialize)]
struct Label {
    /// Integer, or bytes as text.
    value: Text,
    /// Number of its occurrences.
    count: u64,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Text {
    Int64(i64),
    /// Unchanged if it is UTF-8, otherwise with escapes.
    Bytes(String),
}

impl Stats {
    pub(super) fn new(
        root: &Path,
        shards: &[ShardFacts],
        tally: Tally,
        sampled: Option<CountedReport>,
        findings: Vec<Finding>,
        all: bool,
    ) -> Self {
        let spread = |figure: fn(&ShardFacts) -> u64| {
            let mut figures = Integers::default();
            shards.iter().for_each(|shard| figures.add_size(figure(shard) as usize));
            Spread::of(&figures)
        };
        let records = tally.records();
        let features = tally.features.into_iter();
        let features = features.flat_map(|(name, feature)| reports(&text(&name), feature, records));
        Self {
            root: root.display().to_string(),
            shard_count: shards.len(),
            records,
            examples: tally.examples,
            stored_bytes: shards.iter().map(|shard| shard.stored_bytes).sum(),
            data_bytes: u64::try_from(tally.sizes.integers().sum()).unwrap_or(u64::MAX),
            record_bytes: RecordBytes::of(&tally.sizes),
            shard_records: spread(|shard| shard.records),
            shard_bytes: spread(|shard| shard.stored_bytes),
            features: features.collect(),
            has_more_features: tally.has_more_features,
            findings,
            sampled,
            all,
        }
    }
}

impl RecordBytes {
    fn of(sizes: &Sizes) -> Option<Self> {
        let spread = Spread::of(sizes.integers())?;
        Some(Self { spread, p50: sizes.percentile(50)?, p99: sizes.percentile(99)? })
    }
}

impl Spread {
    fn of(integers: &Integers) -> Option<Self> {
        let (min, max) = integers.range()?;
        Some(Self { min, mean: integers.mean()?, max })
    }
}

/// Returns the reports of a feature: one for each type that it has.
fn reports(name: &str, feature: FeatureTally, records: u64) -> Vec<FeatureReport> {
    let FeatureTally { int64, float32, bytes } = feature;
    let integers = new(name, DType::Int64, &int64, records).map(|report| {
        let found = &int64.values.numbers;
        let range = range(found.range(), found.mean(), Number::Int64);
        FeatureReport { range, ..report.counted(&int64.values.labels, |&value| Text::Int64(value)) }
    });
    let floats = new(name, DType::Float32, &float32, records).map(|report| {
        let found = &float32.values;
        let range = range(found.range(), found.mean(), Number::Float32);
        let (not_finite, distinct_unknown) = (Some(found.not_finite()), Some(Unknown::Float32));
        FeatureReport { range, not_finite, distinct_unknown, ..report }
    });
    let strings = new(name, DType::Bytes, &bytes, records).map(|report| {
        let lengths = Spread::of(&bytes.values.lengths);
        let text = |value: &Vec<u8>| Text::Bytes(text(value).into_owned());
        FeatureReport { lengths, ..report.counted(&bytes.values.labels, text) }
    });
    [integers, floats, strings].into_iter().flatten().collect()
}

fn range<T>(
    ends: Option<(T, T)>,
    mean: Option<f64>,
    number: fn(T) -> Number,
) -> Option<Spread<Number>> {
    let ((min, max), mean) = (ends?, mean?);
    Some(Spread { min: number(min), mean, max: number(max) })
}

/// Creates a report without the fields that depend on the type; `None` if no record has one.
fn new<V>(name: &str, dtype: DType, typed: &Typed<V>, records: u64) -> Option<FeatureReport> {
    let values = Spread::of(&typed.counts)?;
    let dtype_name = match dtype {
        DType::Int64 => "int64",
        DType::Float32 => "float32",
        DType::Bytes => "string",
    };
    let everywhere = typed.counts.count() == records;
    let suggested = match (values.min, values.max) {
        (1, 1) if everywhere => format!("FixedLenFeature((), \"{dtype_name}\")"),
        (least, most) if everywhere && least == most && least > 0 => {
            format!("FixedLenFeature(({least},), \"{dtype_name}\")")
        }
        _ => format!("VarLenFeature(\"{dtype_name}\")"),
    };
    Some(FeatureReport {
        name: name.to_owned(),
        dtype,
        records: typed.counts.count(),
        values,
        range: None,
        lengths: None,
        not_finite: None,
        distinct: None,
        distinct_unknown: None,
        labels: None,
        suggested,
    })
}

impl FeatureReport {
    /// Adds the counts of different values to the report.
    fn counted<T: Ord>(self, labels: &Labels<T>, text: impl Fn(&T) -> Text) -> Self {
        let Some(counted) = labels.counted() else {
            let unknown = match labels {
                Labels::TooLong => Unknown::TooLong,
                _ => Unknown::TooMany,
            };
            return Self { distinct_unknown: Some(unknown), ..self };
        };
        let list = counted.iter().map(|(value, &count)| Label { value: text(value), count });
        Self { distinct: Some(counted.len()), labels: Some(list.collect()), ..self }
    }

    fn range_text(&self) -> String {
        match (&self.range, &self.lengths) {
            (Some(Spread { min, max, .. }), _) => format!("{min} to {max}"),
            (None, Some(lengths)) => format!("{} bytes", lengths.ends()),
            (None, None) => "-".into(),
        }
    }

    fn mean_text(&self) -> String {
        let mean = self.range.as_ref().map(|range| range.mean);
        let mean = mean.or(self.lengths.as_ref().map(|lengths| lengths.mean));
        mean.map_or("-".into(), figure)
    }

    fn distinct_text(&self) -> String {
        match (self.distinct, self.distinct_unknown) {
            (Some(distinct), _) => output::count(distinct as u64),
            (None, Some(Unknown::TooMany)) => format!("over {}", output::count(LABELS_MAX as u64)),
            (None, _) => "-".into(),
        }
    }
}

/// Returns bytes as text: unchanged if they are UTF-8, otherwise with escapes.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.escape_ascii().to_string()),
    }
}

/// Formats a number with six digits.
fn figure(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 {
        "0".into()
    } else if !(1e-4..1e9).contains(&size) {
        format!("{number:.5e}")
    } else {
        let digits = (5 - size.log10().floor() as i32).max(0) as usize;
        let text = format!("{number:.digits$}");
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int64(number) => number.fmt(f),
            Self::Float32(number) => f.write_str(&figure(f64::from(*number))),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int64(number) => number.fmt(f),
            Self::Bytes(text) => write!(f, "`{}`", output::printable(text)),
        }
    }
}

impl Spread {
    /// Formats the minimum and maximum; a single number if they are the same.
    fn ends(&self) -> String {
        let said = |number: i64| output::count(number.unsigned_abs());
        match self.min == self.max {
            true => said(self.min),
            false => format!("{} to {}", said(self.min), said(self.max)),
        }
    }
}

impl Report for Stats {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        self.write_dataset(out)?;
        if !self.features.is_empty() {
            self.write_features(out, is_wide)?;
            self.write_labels(out)?;
        }
        self.write_findings(out)
    }
}

impl Stats {
    fn write_dataset(&self, out: &mut dyn Write) -> io::Result<()> {
        let others = self.records - self.examples;
        let mut records = output::count(self.records);
        if others > 0 {
            records += &format!(", of which {} no Examples", output::count(others));
        }
        let mut facts = vec![
            ("root", self.root.clone()),
            ("shards", output::count(self.shard_count as u64)),
            ("records", records),
            ("stored", output::bytes(self.stored_bytes)),
            ("record data", output::bytes(self.data_bytes)),
        ];
        if let Some(RecordBytes { spread: Spread { min, mean, max }, p50, p99 }) =
            &self.record_bytes
        {
            let [min, max, p50, p99] =
                [min.unsigned_abs(), max.unsigned_abs(), *p50, *p99].map(output::count);
            let text = format!("{min} to {max}, mean {}, p50 {p50}, p99 {p99}", figure(*mean));
            facts.push(("record bytes", text));
        }
        if let Some(records) = &self.shard_records {
            let text = format!("{}, mean {}", records.ends(), figure(records.mean));
            facts.push(("shard records", text));
        }
        if let Some(Spread { min, mean, max }) = &self.shard_bytes {
            let said = |number: i64| output::size(number.unsigned_abs());
            let text = format!("{} to {}, mean {}", said(*min), said(*max), said(*mean as i64));
            facts.push(("shard size", text));
        }
        output::write_facts(out, &facts)?;
        let Some(sampled) = &self.sampled else { return Ok(()) };
        writeln!(out)?;
        let mut facts = vec![("samples", output::count(sampled.samples))];
        facts.extend(sampled.facts());
        output::write_facts(out, &facts)
    }

    fn write_features(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let columns = [
            column("FEATURE", |feature: &FeatureReport| feature.name.clone()),
            column("DTYPE", |feature| feature.dtype.to_string()),
            column(">RECORDS", |feature| feature.records.to_string()),
            column(">VALUES", |feature| feature.values.ends()),
            column(">RANGE", FeatureReport::range_text),
            column(">DISTINCT", FeatureReport::distinct_text),
            wide(">MEAN", FeatureReport::mean_text),
            wide(">NOT FINITE", |f| f.not_finite.map_or("-".into(), |count| count.to_string())),
            wide("SUGGESTED", |feature| feature.suggested.clone()),
        ];
        writeln!(out)?;
        let shown = Shown { is_wide, all: self.all };
        listing::write(out, "features", &self.features, &columns, shown)?;
        match self.has_more_features {
            true => {
                writeln!(out, "… and others that are not looked at: too many, or with long names")
            }
            false => Ok(()),
        }
    }

    /// Writes the count of each value for the features with few values.
    fn write_labels(&self, out: &mut dyn Write) -> io::Result<()> {
        let (features, values) = match self.all {
            true => (usize::MAX, usize::MAX),
            false => (ROWS_LISTED, VALUES_LISTED),
        };
        let is_shown = |labels: &&Vec<Label>| (2..=ROWS_LISTED.max(values)).contains(&labels.len());
        let mut is_first = true;
        for feature in self.features.iter().take(features) {
            let Some(labels) = feature.labels.as_ref().filter(is_shown) else {
                continue;
            };
            let shown = labels.iter().take(values);
            let shown: Vec<_> =
                shown.map(|label| format!("{} {}x", label.value, label.count)).collect();
            let rest = labels.len() - shown.len();
            let rest = if rest > 0 { format!(", … and {rest} more") } else { String::new() };
            let name = output::printable(&feature.name);
            let gap = if is_first { "\n" } else { "" };
            writeln!(out, "{gap}values of {name}: {}{rest}", shown.join(", "))?;
            is_first = false;
        }
        Ok(())
    }

    fn write_findings(&self, out: &mut dyn Write) -> io::Result<()> {
        for Finding { what, advice, .. } in &self.findings {
            let (what, advice) = (output::printable(what), output::printable(advice));
            write!(out, "\nnote: {what}\nhint: {advice}\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_six_digits() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (-12.5, "-12.5"),
            (2.0 / 3.0, "0.666667"),
            (123_456_789.0, "123456789"),
            (1e9, "1.00000e9"),
            (0.000_099, "9.90000e-5"),
        ];
        for (number, said) in cases {
            assert_eq!(figure(number), said);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_told_apart() {
        assert_eq!(text("grün".as_bytes()), "grün");
        assert_eq!(text(b"\xff\x01"), "\\xff\\x01");
    }
}
