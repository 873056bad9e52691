//! Packing: samples of a fixed number of tokens, written as records of their own. Source:
//! docs/ORDER.md, section 14.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use shardfeed_plan::{LongSequences, PackMethod, PackSettings};
use shardfeed_tfrecord::example::{
    DType, DefaultValue, Feature, FeatureSpec, ListRef, Value, pack_i64,
};

use crate::record::{Row, RowError, RowFault};
use crate::samples::combine::{Combined, Members, RecordPart, Sequence, of_records, put_record};
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns};
use crate::samples::unbatch::UnbatchSpec;

/// Columns of tokens, and how they are packed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackSpec {
    /// Lists of numbers, with equally many values in each record or row. The first one names
    /// the columns of segments and positions.
    pub columns: Vec<String>,
    /// Tokens of a pack.
    pub length: u64,
    /// Maximum number of parts that are packed together.
    pub block: u64,
    /// Number of different packings.
    pub variants: u64,
    pub method: PackMethod,
    pub long: LongSequences,
    /// Value appended to each sequence, one for each column; empty: none.
    pub append: Vec<DefaultValue>,
}

/// Writes packs as records, each with its tokens, segments and positions.
#[derive(Debug)]
pub struct Packer {
    spec: PackSpec,
    members: Members,
    /// Type of each column, and the value appended to it.
    columns: Vec<(DType, Option<Appended>)>,
    /// Names of the columns of segments and positions.
    made: [String; 2],
    /// Positions of a whole pack, as they are packed in a list.
    positions: OnceLock<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum Appended {
    Int64(i64),
    Float32(f32),
}

impl PackSpec {
    /// Settings that determine the packs of a shard.
    pub fn settings(&self) -> PackSettings {
        let Self { length, block, variants, method, long, .. } = *self;
        PackSettings { length, block, variants, append: !self.append.is_empty(), long, method }
    }

    /// Names of the columns of segments and positions.
    fn made(&self) -> [String; 2] {
        let name = self.columns.first().map_or("", String::as_str);
        [format!("{name}_segment_ids"), format!("{name}_positions")]
    }

    /// Features of the records that a [`Packer`] writes.
    pub(crate) fn features(&self, combined: Combined<'_>) -> Result<Vec<FeatureSpec>, String> {
        let shape = vec![usize::try_from(self.length).map_err(|error| error.to_string())?];
        let feature = |dtype| Feature::FixedLen { shape: shape.clone(), dtype, default: None };
        let mut features = vec![];
        for spec in self.members(combined)?.features() {
            features.push(FeatureSpec { name: spec.name.clone(), feature: feature(spec.dtype()) });
        }
        for name in self.made() {
            if self.columns.contains(&name) {
                return Err(format!("column `{name}` is made by pack and cannot be packed"));
            }
            features.push(FeatureSpec { name, feature: feature(DType::Int64) });
        }
        Ok(features)
    }

    fn members(&self, combined: Combined<'_>) -> Result<Members, String> {
        if self.columns.is_empty() {
            return Err("it takes the names of columns of tokens".to_owned());
        }
        let unbatched = combined.unbatch.map(UnbatchSpec::names);
        let is_repeated =
            |name: &String| unbatched.as_ref().is_some_and(|names| !names.contains(name));
        Members::new(&self.columns, combined, |spec| match (spec.is_list(), spec.dtype()) {
            _ if is_repeated(&spec.name) => {
                Some("is repeated in each row; pack after unbatch() takes its columns")
            }
            (true, DType::Int64 | DType::Float32) => None,
            _ => Some(
                "has no tokens for pack: it takes a VarLenFeature, a FixedLenSequenceFeature of shape () \
                 or a RaggedFeature without partitions, of int64 or float32",
            ),
        })
    }
}

impl Packer {
    /// Checks columns and settings.
    ///
    /// # Errors  A description of what does not fit.
    pub(crate) fn new(spec: &PackSpec, combined: Combined<'_>) -> Result<Self, String> {
        spec.settings().validate().map_err(|error| error.to_string())?;
        let members = spec.members(combined)?;
        let features = members.features();
        spec.features(combined)?;
        if !spec.append.is_empty() && spec.append.len() != features.len() {
            return Err("append has a value for each column".to_owned());
        }
        let appended = |place: usize, dtype: DType| match (spec.append.get(place), dtype) {
            (None, _) => Ok(None),
            (Some(DefaultValue::Int64(values)), DType::Int64) if values.len() == 1 => {
                Ok(Some(Appended::Int64(values[0])))
            }
            (Some(DefaultValue::Float32(values)), DType::Float32) if values.len() == 1 => {
                Ok(Some(Appended::Float32(values[0])))
            }
            _ => Err(format!("append has one {dtype} for column `{}`", spec.columns[place])),
        };
        let columns = features.iter().enumerate().map(|(place, feature)| {
            let dtype = feature.dtype();
            Ok((dtype, appended(place, dtype)?))
        });
        let columns = columns.collect::<Result<_, String>>()?;
        let (made, positions) = (spec.made(), OnceLock::new());
        Ok(Self { spec: spec.clone(), members, columns, made, positions })
    }

    pub fn spec(&self) -> &PackSpec {
        &self.spec
    }

    /// Text that identifies the features.
    pub(crate) fn key(&self) -> &str {
        self.members.key()
    }

    /// Checks the data of records, and returns the tokens of each, without the appended one.
    /// - `kept`: takes them, if the rows are all records that follow.
    ///
    /// # Errors  The first record whose data or features are damaged.
    pub(crate) fn lengths(&self, rows: &[Row<'_>], kept: Kept<'_>) -> Result<Vec<u32>, RowError> {
        let lengths = of_records(rows, |record, parts| {
            let length = |sequence: Sequence<'_>| {
                u32::try_from(sequence.tokens()).map_err(|_| {
                    let (rows, most) = (sequence.tokens() as usize, u32::MAX as usize);
                    RowError::at(record, RowFault::too_many_rows(rows, most))
                })
            };
            self.sequences(record, parts)?.into_iter().map(length).collect()
        })?;
        if let Some(kept) = kept {
            let values = lengths.iter().map(|length| i64::from(*length)).collect();
            kept.push(&self.column(), MeasuredColumn::Integers(values));
        }
        Ok(lengths)
    }

    /// As [`Packer::lengths`], of values that were measured before; `None`: they are not known.
    pub(crate) fn kept_lengths(&self, columns: &MeasuredColumns) -> Option<Vec<u32>> {
        let MeasuredColumn::Integers(lengths) = columns.get(&self.column())? else { return None };
        lengths.iter().map(|length| u32::try_from(*length).ok()).collect()
    }

    /// Returns the key of the column of lengths: of one column that of its length in expressions.
    pub(crate) fn column(&self) -> String {
        match &self.spec.columns[..] {
            [column] => self.members.key_of(&format!("length {column}")),
            _ => self.members.key_of("tokens"),
        }
    }

    /// Checks the data of a record, and finds its tokens, or those of some of its rows.
    ///
    /// # Errors  The data or a feature is damaged; columns have different numbers of tokens.
    pub(crate) fn sequences<'a>(
        &self,
        record: &Row<'a>,
        rows: &[u32],
    ) -> Result<Vec<Sequence<'a>>, RowError> {
        let sequence = |(at, columns): (usize, Vec<Option<ListRef<'a>>>)| {
            let count = |column: &Option<ListRef<'_>>| column.map_or(0, |list| list.count());
            let tokens = columns.first().map_or(0, count);
            if let Some(other) = columns.iter().position(|column| count(column) != tokens) {
                let [first, second] = [0, other].map(|place| &self.spec.columns[place]);
                let row = match self.members.has_rows() {
                    true => format!(" in row {}", rows[at]),
                    false => String::new(),
                };
                let what = format!(
                    "column `{first}` has {tokens} tokens and `{second}` {}{row}; pack takes columns with \
                     as many tokens in each sequence",
                    count(&columns[other])
                );
                return Err(RowError::at(record, RowFault::Record(what)));
            }
            Ok(Sequence::new(columns, tokens as u64))
        };
        self.members.find(record, rows)?.into_iter().enumerate().map(sequence).collect()
    }

    /// Appends a pack to `out` as a record, followed by its checksum. Returns the bytes of its data.
    ///
    /// Tokens are copied as they are in their records, without decoding them.
    pub(crate) fn write(&self, parts: &[RecordPart<'_>], out: &mut Vec<u8>) -> usize {
        let length = self.spec.length as usize;
        let tokens: usize = parts.iter().map(|part| part.tokens as usize).sum();
        let padding = length.saturating_sub(tokens);
        let mut columns = vec![Vec::with_capacity(2 * length); self.columns.len()];
        let mut segments = Vec::with_capacity(length);
        let mut positions = Vec::with_capacity(2 * length);
        for (segment, part) in (1..).zip(parts) {
            let tokens = part.tokens as usize;
            match u8::try_from(segment) {
                // A varint of one byte.
                Ok(byte) if byte < 0x80 => segments.resize(segments.len() + tokens, byte),
                _ => (0..tokens).for_each(|_| pack_i64(segment, &mut segments)),
            }
            positions.extend_from_slice(self.positions(tokens));
            let columns = columns.iter_mut().zip(part.sequence.columns()).zip(&self.columns);
            for ((column, list), (_, appended)) in columns {
                put_tokens(column, part, list.as_ref(), *appended);
            }
        }
        // A zero is one byte, and four as float32.
        segments.resize(segments.len() + padding, 0);
        positions.resize(positions.len() + padding, 0);
        for (column, (dtype, _)) in columns.iter_mut().zip(&self.columns) {
            let zero = if *dtype == DType::Float32 { 4 } else { 1 };
            column.resize(column.len() + padding * zero, 0);
        }
        let values = columns.iter().zip(&self.columns);
        let values = values.map(|(column, (dtype, _))| Value::Packed(*dtype, column));
        let names = self.spec.columns.iter().map(String::as_str);
        let [segment_ids, position_ids] = &self.made;
        let made = [(&**segment_ids, &segments), (&**position_ids, &positions)];
        let made = made.map(|(name, values)| (name, Value::Packed(DType::Int64, values)));
        let features: Vec<_> = names.zip(values).chain(made).collect();
        put_record(&features, out)
    }

    /// Returns 0, 1, ... as they are packed, `tokens` in number.
    fn positions(&self, tokens: usize) -> &[u8] {
        let all = self.positions.get_or_init(|| {
            let mut all = Vec::new();
            (0..self.spec.length as i64).for_each(|position| pack_i64(position, &mut all));
            all
        });
        // Numbers of one byte, then of two, and so on.
        let (mut bytes, mut from) = (0, 0);
        for size in 1.. {
            let to = tokens.min(1 << (7 * size));
            bytes += size * (to - from);
            from = to;
            if to == tokens {
                break;
            }
        }
        &all[..bytes]
    }
}

/// Appends the tokens of a part, of which the last one may be the appended one.
fn put_tokens(
    column: &mut Vec<u8>,
    part: &RecordPart<'_>,
    list: Option<&ListRef<'_>>,
    appended: Option<Appended>,
) {
    let own = part.sequence.tokens().saturating_sub(part.first).min(part.tokens);
    let list = list.and_then(|list| list.range(part.first as usize, own as usize));
    if let Some(list) = list.filter(|_| own > 0) {
        list.pack(column);
    }
    match appended.filter(|_| own < part.tokens) {
        Some(Appended::Int64(value)) => pack_i64(value, column),
        Some(Appended::Float32(value)) => column.extend_from_slice(&value.to_le_bytes()),
        None => {}
    }
}
