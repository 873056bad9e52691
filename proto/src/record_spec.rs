//! Encoded form of a `RecordSpec`: its limits, its digest, and the differences of two of them.

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use shardfeed_plan::{Difference, Digest};

use crate::CHUNK_BYTES_MAX;
use crate::common::v1::argument_value::Kind;
use crate::common::v1::feature::Layout;
use crate::common::v1::partition::Kind as By;
use crate::common::v1::record_spec::Parse;
use crate::common::v1::{
    Argument, ArgumentValue, Balance, Feature, FeatureType, FeatureValues, Operator, Outputs, Pack,
    Partition, RecordSpec, Unbatch, Window, unbatch,
};

/// Version of the message and of the result of parsing a record.
pub const RECORD_SPEC_VERSION: u32 = 1;

pub const RECORD_SPEC_CHUNKS_MAX: usize = 3;

/// Maximum size of an encoded `RecordSpec` in bytes, so that it fits into a frame of the trainer
/// socket: 10,000 features and as many operators with names of 60 bytes have 2 MB.
pub const RECORD_SPEC_BYTES_MAX: usize = RECORD_SPEC_CHUNKS_MAX * CHUNK_BYTES_MAX;

/// Maximum features and operators of a `RecordSpec`: an entry of two bytes needs 150 of memory.
pub const RECORD_SPEC_ENTRIES_MAX: usize = 65_536;

/// Maximum parts of features and operators of a `RecordSpec`, such as layouts, arguments, items of
/// lists and columns: a part of two bytes needs up to 72 of memory.
pub const RECORD_SPEC_PARTS_MAX: usize = 524_288;

/// Depth of nested messages beyond which prost decodes none.
const DEPTH_MAX: usize = 100;

/// Maximum number of differences that an error lists; it counts the others.
const DIFFERENCES_MAX: usize = 10;

/// Maximum number of bytes of a value that an error shows.
const SHOWN_BYTES_MAX: usize = 200;

/// Reason why bytes are not a `RecordSpec` in canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordSpecError {
    #[error(
        "features, operators and outputs have {bytes} bytes; a job has at most \
         {RECORD_SPEC_BYTES_MAX}, declare fewer of them or shorter names"
    )]
    TooLarge { bytes: usize },
    #[error(
        "a job has at most {RECORD_SPEC_ENTRIES_MAX} features and operators; declare fewer of them"
    )]
    TooMany,
    #[error(
        "the features and operators of a job have at most {RECORD_SPEC_PARTS_MAX} layouts, \
         arguments, list items and columns; declare fewer of them"
    )]
    TooManyParts,
    #[error("the record spec has version {found}, this software knows {RECORD_SPEC_VERSION}")]
    Version { found: u32 },
    /// The bytes are another message, or their encoding is not canonical.
    #[error("the record spec is malformed: {reason}")]
    Malformed { reason: String },
}

fn malformed(reason: impl fmt::Display) -> RecordSpecError {
    RecordSpecError::Malformed { reason: reason.to_string() }
}

impl RecordSpec {
    /// Returns the spec without features, operators and outputs: records are delivered as they are.
    pub fn raw() -> Self {
        Self { version: RECORD_SPEC_VERSION, ..Self::default() }
    }

    /// Returns the canonical encoding.
    ///
    /// # Errors  `TooLarge`, `TooMany`, `TooManyParts`.
    pub fn encode_canonical(&self) -> Result<Vec<u8>, RecordSpecError> {
        let bytes = self.encode_to_vec();
        check_bounds(&bytes)?;
        Ok(bytes)
    }

    /// Decodes a canonical encoding. The contents of features and operators are not checked.
    pub fn decode_canonical(bytes: &[u8]) -> Result<Self, RecordSpecError> {
        check_bounds(bytes)?;
        let spec = Self::decode(bytes).map_err(malformed)?;
        if spec.version != RECORD_SPEC_VERSION {
            return Err(RecordSpecError::Version { found: spec.version });
        }
        if spec.encode_to_vec() != bytes {
            return Err(malformed("its encoding is not canonical"));
        }
        for features in spec.features() {
            check_ascending(features.iter().map(|feature| &feature.name))?;
        }
        let columns = spec.unbatch.iter().flat_map(|unbatch| &unbatch.columns);
        check_ascending(columns.map(|column| &column.name))?;
        let mut operators = spec.operators.iter().chain(&spec.measured);
        operators.try_for_each(|operator| check_arguments(&operator.arguments))?;
        Ok(spec)
    }

    /// Returns the lists of features.
    fn features(&self) -> [&[Feature]; 2] {
        match &self.parse {
            None => [&[], &[]],
            Some(Parse::Example(example)) => [&example.features, &[]],
            Some(Parse::SequenceExample(sequence)) => [&sequence.context, &sequence.lists],
        }
    }

    /// Returns differences from `other`: features by name, operators by position, outputs, program.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        let mut add = |field: String, left: Option<String>, right: Option<String>| {
            if left != right {
                let text = |side: Option<String>| side.map_or("absent".into(), shortened);
                let field = shortened(field);
                found.push(Difference { field, left: text(left), right: text(right) });
            }
        };
        add("parsing".into(), Some(self.parsing().into()), Some(other.parsing().into()));
        let names = ["feature", "sequence feature"];
        for ((left, right), what) in self.features().into_iter().zip(other.features()).zip(names) {
            let mut pairs: BTreeMap<&str, [Option<String>; 2]> = BTreeMap::new();
            for (side, features) in [left, right].into_iter().enumerate() {
                for feature in features {
                    pairs.entry(&feature.name).or_default()[side] = Some(feature.to_string());
                }
            }
            for (name, [left, right]) in pairs {
                add(format!("{what} `{name}`"), left, right);
            }
        }
        let pairs = [
            ("operators", &self.operators, &other.operators),
            ("measured columns", &self.measured, &other.measured),
        ];
        for (what, left, right) in pairs {
            let text = |of: &[Operator], at: usize| of.get(at).map(Operator::to_string);
            for at in 0..left.len().max(right.len()) {
                add(format!("{what}[{at}]"), text(left, at), text(right, at));
            }
        }
        for ((what, left), (_, right)) in self.parts().into_iter().zip(other.parts()) {
            add(what.into(), left, right);
        }
        if found.len() > DIFFERENCES_MAX {
            let more = (found.len() - DIFFERENCES_MAX + 1).to_string();
            found.truncate(DIFFERENCES_MAX - 1);
            let field = format!("the record spec in {more} other places");
            found.push(Difference { field, left: "one".into(), right: "another".into() });
        }
        found
    }

    /// Returns the parts that a spec has at most once, by name, in their order.
    fn parts(&self) -> [(&'static str, Option<String>); 7] {
        fn text<T: ToString>(part: &Option<T>) -> Option<String> {
            part.as_ref().map(T::to_string)
        }
        [
            ("outputs", text(&self.outputs)),
            ("filter", text(&self.filter)),
            ("unbatch", text(&self.unbatch)),
            ("filter of rows", text(&self.filter_rows)),
            ("pack", text(&self.pack)),
            ("window", text(&self.window)),
            ("balance", text(&self.balance)),
        ]
    }

    fn parsing(&self) -> &'static str {
        match self.parse {
            None => "raw",
            Some(Parse::Example(_)) => "parse_example",
            Some(Parse::SequenceExample(_)) => "parse_sequence_example",
        }
    }
}

/// Returns the digest of an encoded spec: `JobIdentity.record_spec`.
pub fn record_spec_digest(encoded: &[u8]) -> Digest {
    Digest::of_parts([encoded])
}

/// Iterates over the chunks of an encoded spec, in order.
pub fn record_spec_chunks(encoded: &[u8]) -> impl Iterator<Item = (Digest, &[u8])> {
    encoded.chunks(CHUNK_BYTES_MAX).map(|chunk| (Digest::of_parts([chunk]), chunk))
}

/// Rejects a message that would be large in memory, before it is decoded.
fn check_bounds(bytes: &[u8]) -> Result<(), RecordSpecError> {
    if bytes.len() > RECORD_SPEC_BYTES_MAX {
        return Err(RecordSpecError::TooLarge { bytes: bytes.len() });
    }
    let mut counts = PartCounts::default();
    counts.add(Part::Spec, bytes, 0)?;
    if counts.entries > RECORD_SPEC_ENTRIES_MAX {
        return Err(RecordSpecError::TooMany);
    }
    if counts.parts > RECORD_SPEC_PARTS_MAX {
        return Err(RecordSpecError::TooManyParts);
    }
    Ok(())
}

/// A message of an encoded spec that has repeated fields or leads to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Spec,
    /// `ExampleFeatures`, `SequenceFeatures`.
    Features,
    Feature,
    /// Layout with default values.
    Dense,
    /// `Ragged`, `Sparse`, `Unbatch`, `Window`, `Outputs`: keys or columns in fields 1 and 2.
    Keys,
    Pack,
    Values,
    Operator,
    Arguments,
    Argument,
    Value,
    List,
    /// A text, or a message without repeated fields.
    Leaf,
}

impl Part {
    fn child(self, field: u32) -> Option<Self> {
        Some(match (self, field) {
            (Self::Spec, 2 | 3) => Self::Features,
            (Self::Spec, 4 | 12) => Self::Operator,
            (Self::Spec, 5 | 7 | 11) | (Self::Feature, 6 | 7) => Self::Keys,
            (Self::Spec, 9) => Self::Pack,
            (Self::Features, 1 | 2) => Self::Feature,
            (Self::Feature, 3 | 5) => Self::Dense,
            (Self::Dense, 2 | 3) | (Self::Pack, 7) => Self::Values,
            (Self::Keys, 1 | 2) | (Self::Pack, 1) | (Self::Values, 3) => Self::Leaf,
            (Self::Operator, 4) | (Self::Arguments, 1) => Self::Argument,
            (Self::Argument, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 5) => Self::List,
            (Self::Value, 6) => Self::Arguments,
            _ => return None,
        })
    }
}

#[derive(Debug, Default)]
struct PartCounts {
    /// Features and operators.
    entries: usize,
    parts: usize,
}

impl PartCounts {
    /// Counts the parts of a message at a depth.
    fn add(&mut self, part: Part, bytes: &[u8], depth: usize) -> Result<(), RecordSpecError> {
        each_field(bytes, |field, content| {
            let Some(child) = part.child(field) else { return Ok(()) };
            match child {
                Part::Feature | Part::Operator => self.entries += 1,
                _ => self.parts += 1,
            }
            match child == Part::Leaf || depth == DEPTH_MAX {
                true => Ok(()),
                false => self.add(child, content, depth + 1),
            }
        })
    }
}

/// Calls `visit` with number and content of each length-delimited field of a message.
fn each_field(
    mut bytes: &[u8],
    mut visit: impl FnMut(u32, &[u8]) -> Result<(), RecordSpecError>,
) -> Result<(), RecordSpecError> {
    while !bytes.is_empty() {
        let (field, wire_type) = decode_key(&mut bytes).map_err(malformed)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, field, &mut bytes, DecodeContext::default())
                .map_err(malformed)?;
            continue;
        }
        let len = decode_varint(&mut bytes).map_err(malformed)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= bytes.len());
        let len = len.ok_or_else(|| malformed("a field is longer than the message"))?;
        let (content, rest) = bytes.split_at(len);
        visit(field, content)?;
        bytes = rest;
    }
    Ok(())
}

fn check_ascending<'a>(
    names: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), RecordSpecError> {
    let next = names.clone().skip(1);
    match names.zip(next).find(|(name, next)| name >= next) {
        Some((_, name)) => Err(malformed(format!("`{name}` is not in the order of names"))),
        None => Ok(()),
    }
}

fn check_arguments(arguments: &[Argument]) -> Result<(), RecordSpecError> {
    check_ascending(arguments.iter().map(|argument| &argument.name))
}

fn shortened(text: String) -> String {
    match text.len() <= SHOWN_BYTES_MAX {
        true => text,
        false => format!("{}...", &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)]),
    }
}

/// One line for display; different specs can have the same line.
impl fmt::Display for RecordSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.parsing())?;
        for (features, open) in self.features().into_iter().zip(["(", ", steps ("]) {
            for (number, feature) in features.iter().enumerate() {
                let before = if number == 0 { open } else { ", " };
                write!(f, "{before}{}: {feature}", feature.name)?;
            }
            if !features.is_empty() {
                f.write_str(")")?;
            }
        }
        self.operators.iter().try_for_each(|operator| write!(f, "; {operator}"))?;
        let mut parts = self.parts().into_iter().filter_map(|(what, part)| Some((what, part?)));
        parts.try_for_each(|(what, part)| match what {
            "filter" | "filter of rows" => write!(f, "; {what} {}", part.escape_debug()),
            _ => write!(f, "; {what} {part}"),
        })
    }
}

impl fmt::Display for Unbatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { columns, edge, stride } = self;
        for unbatch::Column { name, offsets } in columns {
            write!(f, "{} ", name.escape_debug())?;
            if let Some(unbatch::Offsets { first, last }) = offsets {
                write!(f, "({first}, {last}) ")?;
            }
        }
        write!(f, "edge={} stride={stride}", edge.escape_debug())
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { columns, size, stride, by, partial } = self;
        let columns = columns.join(", ");
        write!(f, "{} size={size} stride={stride}", columns.escape_debug())?;
        if let Some(by) = by {
            write!(f, " by={}", by.escape_debug())?;
        }
        write!(f, " partial={}", partial.escape_debug())
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} window={}", self.by.escape_debug(), self.window)
    }
}

impl fmt::Display for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, block, variants, method, long, append, .. } = self;
        let columns = self.columns.join(", ");
        write!(
            f,
            "{} length={length} block={block} variants={variants} method={} long={}",
            columns.escape_debug(),
            method.escape_debug(),
            long.escape_debug()
        )?;
        for value in append {
            write!(f, " append={:?}{:?}", value.int64, value.float32)?;
        }
        Ok(())
    }
}

/// The feature without its name.
impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_type = match self.r#type() {
            FeatureType::Float32 => "float32",
            FeatureType::Int64 => "int64",
            FeatureType::Bytes => "bytes",
            FeatureType::Unspecified => "unspecified",
        };
        let default = |f: &mut fmt::Formatter<'_>, values: &Option<FeatureValues>| match values {
            Some(values) => write!(f, " default {values}"),
            None => Ok(()),
        };
        match &self.layout {
            None => f.write_str("no layout"),
            Some(Layout::FixedLen(fixed)) => {
                write!(f, "fixed_len {of_type} {:?}", fixed.shape)?;
                default(f, &fixed.default)
            }
            Some(Layout::VarLen(_)) => write!(f, "var_len {of_type}"),
            Some(Layout::FixedLenSequence(sequence)) => {
                let missing = if sequence.allow_missing { " allow_missing" } else { "" };
                write!(f, "fixed_len_sequence {of_type} {:?}{missing}", sequence.shape)?;
                default(f, &sequence.default)
            }
            Some(Layout::Ragged(ragged)) => {
                write!(f, "ragged {of_type}")?;
                if let Some(key) = &ragged.value_key {
                    write!(f, " values {key:?}")?;
                }
                ragged.partitions.iter().try_for_each(|partition| write!(f, " {partition}"))
            }
            Some(Layout::Sparse(sparse)) => {
                let sorted = if sparse.already_sorted { " already_sorted" } else { "" };
                let (keys, values, size) = (&sparse.index_keys, &sparse.value_key, &sparse.size);
                write!(f, "sparse {of_type} {size:?} at {keys:?} values {values:?}{sorted}")
            }
        }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            None => f.write_str("unspecified"),
            Some(By::RowSplits(key)) => write!(f, "row_splits {key:?}"),
            Some(By::RowLengths(key)) => write!(f, "row_lengths {key:?}"),
            Some(By::RowStarts(key)) => write!(f, "row_starts {key:?}"),
            Some(By::RowLimits(key)) => write!(f, "row_limits {key:?}"),
            Some(By::ValueRowIds(key)) => write!(f, "value_row_ids {key:?}"),
            Some(By::UniformRowLength(length)) => write!(f, "uniform_row_length {length}"),
        }
    }
}

impl fmt::Display for FeatureValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { float32, int64, bytes } = self;
        match (float32.is_empty(), int64.is_empty()) {
            (false, _) => write!(f, "{float32:?}"),
            (true, false) => write!(f, "{int64:?}"),
            (true, true) => {
                f.debug_list().entries(bytes.iter().map(|b| b.escape_ascii().to_string())).finish()
            }
        }
    }
}

impl fmt::Display for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.columns.join(", "))
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}/{}(", self.output, self.kind, self.version)?;
        arguments(f, &self.arguments)?;
        f.write_str(")")
    }
}

fn arguments(f: &mut fmt::Formatter<'_>, arguments: &[Argument]) -> fmt::Result {
    for (number, Argument { name, value }) in arguments.iter().enumerate() {
        let before = if number == 0 { "" } else { ", " };
        write!(f, "{before}{name}=")?;
        value.as_ref().map_or(Ok(()), |value| write!(f, "{value}"))?;
    }
    Ok(())
}

impl fmt::Display for ArgumentValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            None => f.write_str("unspecified"),
            Some(Kind::Integer(integer)) => write!(f, "{integer}"),
            Some(Kind::Large(integer)) => write!(f, "{integer}"),
            Some(Kind::Number(number)) => write!(f, "{number:?}"),
            Some(Kind::Text(text)) => write!(f, "{text:?}"),
            Some(Kind::Flag(flag)) => write!(f, "{flag}"),
            Some(Kind::List(list)) => {
                f.write_str("[")?;
                for (number, value) in list.values.iter().enumerate() {
                    write!(f, "{}{value}", if number == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Some(Kind::Record(record)) => {
                f.write_str("{")?;
                arguments(f, &record.arguments)?;
                f.write_str("}")
            }
        }
    }
}
