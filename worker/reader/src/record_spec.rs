//! Conversions between a job's `RecordSpec` and the message that processes exchange.
//!
//! A feature has its own message type. An operator's arguments are encoded by name, as serde writes
//! them, so that a new operator needs no code here.

use std::sync::Arc;

use serde_json::{Map, Number, Value};
use shardfeed_pipeline::{
    BalanceSpec, Operation, Operator, PackSpec, ParseSpec, RecordSpec, Schema, UnbatchColumn,
    UnbatchSpec, WindowSpec,
};
use shardfeed_plan::{DECODER_NONE, Digest, Records};
use shardfeed_proto::common::v1 as wire;
use shardfeed_proto::common::v1::argument_value::Kind;
use shardfeed_proto::common::v1::feature::Layout;
use shardfeed_proto::common::v1::partition::Kind as By;
use shardfeed_proto::common::v1::record_spec::Parse;
use shardfeed_proto::{RECORD_SPEC_VERSION, RecordSpecError, record_spec_digest};
use shardfeed_source::LoadError;
use shardfeed_tfrecord::example::{DType, DefaultValue, Feature, FeatureSpec, Partition};

/// A `RecordSpec` in canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedSpec {
    bytes: Vec<u8>,
    digest: Digest,
}

impl EncodedSpec {
    /// Encodes the spec of `schema`, without the paths of side tables.
    ///
    /// # Errors  The encoding is larger than the limit for a job's spec.
    pub fn of(schema: &Schema) -> Result<Self, LoadError> {
        Self::encode(schema.spec())
    }

    /// Encodes the spec of `schema` that decides on the samples; `None`: each record is one.
    ///
    /// # Errors  As [`EncodedSpec::of`].
    pub fn of_samples(schema: &Schema) -> Result<Option<Self>, LoadError> {
        schema.sample_spec().map(|spec| Self::encode(&spec)).transpose()
    }

    fn encode(spec: &RecordSpec) -> Result<Self, LoadError> {
        let bytes = message(spec).encode_canonical().map_err(|error| refused(&error))?;
        let digest = record_spec_digest(&bytes);
        Ok(Self { bytes, digest })
    }

    pub fn raw() -> Self {
        Self::of(&Schema::raw()).expect("it is small")
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the digest in the form for an identity.
    pub fn records(&self) -> Records {
        Records::RecordSpec(self.digest)
    }

    /// Digest of the record spec of a mixture's source, and of how it decodes images.
    /// - `decoder`: of its schema.
    pub fn source_digest(&self, decoder: &str) -> Digest {
        match decoder {
            DECODER_NONE => self.digest,
            decoder => Digest::of_parts([self.bytes(), decoder.as_bytes()]),
        }
    }

    /// Decodes `bytes` to a spec, whose side tables have no path.
    ///
    /// # Errors  The bytes are not a canonical encoding, or contain names unknown to this release.
    pub fn decode(bytes: &[u8]) -> Result<RecordSpec, LoadError> {
        let spec =
            spec(wire::RecordSpec::decode_canonical(bytes).map_err(|error| refused(&error))?);
        let spec = spec.map_err(|reason| refused(&RecordSpecError::Malformed { reason }))?;
        match message(&spec).encode_canonical() {
            Ok(again) if again == bytes => Ok(spec),
            _ => {
                let reason = "it has arguments that this software does not know".to_owned();
                Err(refused(&RecordSpecError::Malformed { reason }))
            }
        }
    }
}

/// Schemas of a mixture's sources: sources that differ only in the filter of records have the same one.
#[derive(Debug)]
pub struct SourceSchemas(Vec<(Digest, Arc<Schema>)>);

impl SourceSchemas {
    /// - `job`: schema of the job.
    ///
    /// # Errors  As [`EncodedSpec::of`].
    pub fn new(job: &Arc<Schema>) -> Result<Self, LoadError> {
        Ok(Self(vec![(Self::digest(job)?, Arc::clone(job))]))
    }

    /// Returns the schema of a source's columns.
    ///
    /// # Errors  As [`EncodedSpec::of`].
    pub fn of(&mut self, source: Schema) -> Result<Arc<Schema>, LoadError> {
        let digest = Self::digest(&source)?;
        if let Some((_, known)) = self.0.iter().find(|(known, _)| *known == digest) {
            return Ok(Arc::clone(known));
        }
        let schema = Arc::new(source);
        self.0.push((digest, Arc::clone(&schema)));
        Ok(schema)
    }

    fn digest(schema: &Schema) -> Result<Digest, LoadError> {
        let spec = RecordSpec { filter: None, ..schema.spec().clone() };
        Ok(EncodedSpec::encode(&spec)?.digest)
    }
}

fn refused(error: &RecordSpecError) -> LoadError {
    LoadError::Option(error.to_string())
}

fn message(spec: &RecordSpec) -> wire::RecordSpec {
    let features = |features: &[FeatureSpec]| features.iter().map(feature_to).collect();
    let parse = spec.parse.as_ref().map(|parse| match parse {
        ParseSpec::Example(example) => {
            Parse::Example(wire::ExampleFeatures { features: features(example) })
        }
        ParseSpec::Sequence { context, lists } => {
            let (context, lists) = (features(context), features(lists));
            Parse::SequenceExample(wire::SequenceFeatures { context, lists })
        }
    });
    wire::RecordSpec {
        version: RECORD_SPEC_VERSION,
        parse,
        operators: spec.operators.iter().map(operator_to).collect(),
        outputs: spec.outputs.clone().map(|columns| wire::Outputs { columns }),
        filter: spec.filter.clone(),
        measured: spec.measured.iter().map(operator_to).collect(),
        unbatch: spec.unbatch.as_ref().map(unbatch_to),
        filter_rows: spec.filter_rows.clone(),
        pack: spec.pack.as_ref().map(pack_to),
        window: spec.window.as_ref().map(window_to),
        balance: spec
            .balance
            .as_ref()
            .map(|balance| wire::Balance { by: balance.by.clone(), window: balance.window }),
    }
}

fn spec(message: wire::RecordSpec) -> Result<RecordSpec, String> {
    let features = |features: Vec<wire::Feature>| {
        features.into_iter().map(feature_from).collect::<Result<Vec<_>, String>>()
    };
    let parse = match message.parse {
        None => None,
        Some(Parse::Example(example)) => Some(ParseSpec::Example(features(example.features)?)),
        Some(Parse::SequenceExample(wire::SequenceFeatures { context, lists })) => {
            let (context, lists) = (features(context)?, features(lists)?);
            Some(ParseSpec::Sequence { context, lists })
        }
    };
    let operators = message.operators.into_iter().map(operator_from);
    let measured = message.measured.into_iter().map(operator_from);
    Ok(RecordSpec {
        parse,
        operators: operators.collect::<Result<_, _>>()?,
        outputs: message.outputs.map(|outputs| outputs.columns),
        filter: message.filter,
        measured: measured.collect::<Result<_, _>>()?,
        unbatch: message.unbatch.map(unbatch_from).transpose()?,
        filter_rows: message.filter_rows,
        pack: message.pack.map(pack_from).transpose()?,
        window: message.window.map(window_from).transpose()?,
        balance: message.balance.map(|wire::Balance { by, window }| BalanceSpec { by, window }),
    })
}

fn feature_to(spec: &FeatureSpec) -> wire::Feature {
    let sizes = |shape: &[usize]| shape.iter().map(|size| *size as u64).collect();
    let layout = match &spec.feature {
        Feature::FixedLen { shape, default, .. } => Layout::FixedLen(wire::FixedLen {
            shape: sizes(shape),
            default: default.as_ref().map(values_to),
        }),
        Feature::VarLen { .. } => Layout::VarLen(wire::VarLen {}),
        Feature::FixedLenSequence { shape, allow_missing, default, .. } => {
            Layout::FixedLenSequence(wire::FixedLenSequence {
                shape: sizes(shape),
                allow_missing: *allow_missing,
                default: default.as_ref().map(values_to),
            })
        }
        Feature::Ragged { value_key, partitions, .. } => Layout::Ragged(wire::Ragged {
            value_key: value_key.clone(),
            partitions: partitions.iter().map(partition_to).collect(),
        }),
        Feature::Sparse { index_keys, value_key, size, already_sorted, .. } => {
            Layout::Sparse(wire::Sparse {
                index_keys: index_keys.clone(),
                value_key: value_key.clone(),
                size: sizes(size),
                already_sorted: *already_sorted,
            })
        }
        other => unreachable!("the parsers refuse {other:?}"),
    };
    let of_type = match spec.dtype() {
        DType::Float32 => wire::FeatureType::Float32,
        DType::Int64 => wire::FeatureType::Int64,
        DType::Bytes => wire::FeatureType::Bytes,
    };
    wire::Feature { name: spec.name.clone(), r#type: of_type.into(), layout: Some(layout) }
}

fn feature_from(message: wire::Feature) -> Result<FeatureSpec, String> {
    let dtype = match message.r#type() {
        wire::FeatureType::Float32 => DType::Float32,
        wire::FeatureType::Int64 => DType::Int64,
        wire::FeatureType::Bytes => DType::Bytes,
        wire::FeatureType::Unspecified => {
            return Err(format!("feature `{}` has a type that is not known", message.name));
        }
    };
    let values = |default: Option<wire::FeatureValues>| default.map(|one| values_from(dtype, one));
    let feature = match message.layout {
        Some(Layout::FixedLen(wire::FixedLen { shape, default })) => {
            Feature::FixedLen { shape: sizes_from(shape)?, dtype, default: values(default) }
        }
        Some(Layout::VarLen(wire::VarLen {})) => Feature::VarLen { dtype },
        Some(Layout::FixedLenSequence(sequence)) => Feature::FixedLenSequence {
            shape: sizes_from(sequence.shape)?,
            dtype,
            allow_missing: sequence.allow_missing,
            default: values(sequence.default),
        },
        Some(Layout::Ragged(wire::Ragged { value_key, partitions })) => {
            let partitions = partitions.into_iter().map(partition_from);
            Feature::Ragged { dtype, value_key, partitions: partitions.collect::<Result<_, _>>()? }
        }
        Some(Layout::Sparse(sparse)) => Feature::Sparse {
            dtype,
            index_keys: sparse.index_keys,
            value_key: sparse.value_key,
            size: sizes_from(sparse.size)?,
            already_sorted: sparse.already_sorted,
        },
        None => return Err(format!("feature `{}` has a layout that is not known", message.name)),
    };
    Ok(FeatureSpec { name: message.name, feature })
}

fn sizes_from(sizes: Vec<u64>) -> Result<Vec<usize>, String> {
    let size = |size| usize::try_from(size).map_err(|_| format!("size {size} is too large"));
    sizes.into_iter().map(size).collect()
}

fn partition_to(partition: &Partition) -> wire::Partition {
    let kind = match partition {
        Partition::RowSplits(key) => By::RowSplits(key.clone()),
        Partition::RowLengths(key) => By::RowLengths(key.clone()),
        Partition::RowStarts(key) => By::RowStarts(key.clone()),
        Partition::RowLimits(key) => By::RowLimits(key.clone()),
        Partition::ValueRowIds(key) => By::ValueRowIds(key.clone()),
        Partition::UniformRowLength(length) => By::UniformRowLength(*length as u64),
        other => unreachable!("the parsers refuse {other:?}"),
    };
    wire::Partition { kind: Some(kind) }
}

fn partition_from(message: wire::Partition) -> Result<Partition, String> {
    Ok(match message.kind.ok_or("a partition has a kind that is not known")? {
        By::RowSplits(key) => Partition::RowSplits(key),
        By::RowLengths(key) => Partition::RowLengths(key),
        By::RowStarts(key) => Partition::RowStarts(key),
        By::RowLimits(key) => Partition::RowLimits(key),
        By::ValueRowIds(key) => Partition::ValueRowIds(key),
        By::UniformRowLength(length) => {
            Partition::UniformRowLength(sizes_from(vec![length])?.remove(0))
        }
    })
}

/// Returns the name of a value of an enum.
fn name(value: serde_json::Result<Value>) -> String {
    match value {
        Ok(Value::String(name)) => name,
        _ => unreachable!("it has a name"),
    }
}

fn unbatch_to(unbatch: &UnbatchSpec) -> wire::Unbatch {
    let UnbatchSpec { columns, edge, stride } = unbatch;
    let column = |UnbatchColumn { name, offsets }: &UnbatchColumn| wire::unbatch::Column {
        name: name.clone(),
        offsets: offsets.map(|(first, last)| wire::unbatch::Offsets { first, last }),
    };
    let columns = columns.iter().map(column).collect();
    wire::Unbatch { columns, edge: name(serde_json::to_value(edge)), stride: *stride }
}

fn unbatch_from(message: wire::Unbatch) -> Result<UnbatchSpec, String> {
    let wire::Unbatch { columns, edge, stride } = message;
    let column = |wire::unbatch::Column { name, offsets }| UnbatchColumn {
        name,
        offsets: offsets.map(|wire::unbatch::Offsets { first, last }| (first, last)),
    };
    let columns = columns.into_iter().map(column).collect();
    let edge = serde_json::from_value(Value::String(edge)).map_err(|e| e.to_string())?;
    Ok(UnbatchSpec { columns, edge, stride })
}

fn pack_to(pack: &PackSpec) -> wire::Pack {
    wire::Pack {
        columns: pack.columns.clone(),
        length: pack.length,
        block: pack.block,
        variants: pack.variants,
        method: name(serde_json::to_value(pack.method)),
        long: name(serde_json::to_value(pack.long)),
        append: pack.append.iter().map(values_to).collect(),
    }
}

fn pack_from(message: wire::Pack) -> Result<PackSpec, String> {
    let wire::Pack { columns, length, block, variants, method, long, append } = message;
    let value = |values: wire::FeatureValues| match values.float32.is_empty() {
        true => values_from(DType::Int64, values),
        false => values_from(DType::Float32, values),
    };
    Ok(PackSpec {
        columns,
        length,
        block,
        variants,
        method: serde_json::from_value(Value::String(method)).map_err(|e| e.to_string())?,
        long: serde_json::from_value(Value::String(long)).map_err(|e| e.to_string())?,
        append: append.into_iter().map(value).collect(),
    })
}

fn window_to(window: &WindowSpec) -> wire::Window {
    let WindowSpec { columns, size, stride, by, partial } = window.clone();
    wire::Window { columns, size, stride, by, partial: name(serde_json::to_value(partial)) }
}

fn window_from(message: wire::Window) -> Result<WindowSpec, String> {
    let wire::Window { columns, size, stride, by, partial } = message;
    let partial = serde_json::from_value(Value::String(partial)).map_err(|e| e.to_string())?;
    Ok(WindowSpec { columns, size, stride, by, partial })
}

fn values_to(values: &DefaultValue) -> wire::FeatureValues {
    let mut message = wire::FeatureValues::default();
    match values {
        DefaultValue::Float32(values) => message.float32.clone_from(values),
        DefaultValue::Int64(values) => message.int64.clone_from(values),
        DefaultValue::Bytes(values) => message.bytes.clone_from(values),
    }
    message
}

fn values_from(dtype: DType, message: wire::FeatureValues) -> DefaultValue {
    match dtype {
        DType::Float32 => DefaultValue::Float32(message.float32),
        DType::Int64 => DefaultValue::Int64(message.int64),
        DType::Bytes => DefaultValue::Bytes(message.bytes),
    }
}

fn operator_to(operator: &Operator) -> wire::Operator {
    let Operator { output, operation } = operator.for_identity();
    let version = operation.version();
    let value = serde_json::to_value(operation).expect("an operator is plain data");
    let Value::Object(named) = value else { unreachable!("an operation is named by its kind") };
    let (kind, fields) = named.into_iter().next().expect("an operation is named by its kind");
    let Value::Object(fields) = fields else { unreachable!("an operation has named fields") };
    wire::Operator { output, kind, version, arguments: arguments_to(fields) }
}

fn operator_from(message: wire::Operator) -> Result<Operator, String> {
    let wire::Operator { output, kind, version, arguments } = message;
    let named = Map::from_iter([(kind.clone(), Value::Object(arguments_from(arguments)?))]);
    let operation = serde_json::from_value::<Operation>(Value::Object(named));
    match operation {
        Ok(operation) if operation.version() == version => Ok(Operator { output, operation }),
        Ok(_) => Err(format!("operator `{kind}` has version {version}, which is not known")),
        Err(error) => Err(format!("operator `{kind}`: {error}")),
    }
}

fn arguments_to(fields: Map<String, Value>) -> Vec<wire::Argument> {
    let argument = |(name, value)| wire::Argument {
        name,
        value: Some(wire::ArgumentValue { kind: argument_to(value) }),
    };
    let mut arguments: Vec<_> = fields.into_iter().map(argument).collect();
    arguments.sort_by(|one, other| one.name.cmp(&other.name));
    arguments
}

fn argument_to(value: Value) -> Option<Kind> {
    Some(match value {
        // A number that JSON cannot represent; no operator accepts it.
        Value::Null => return None,
        Value::Bool(flag) => Kind::Flag(flag),
        Value::String(text) => Kind::Text(text),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Kind::Integer(integer),
            (None, Some(large)) => Kind::Large(large),
            (None, None) => Kind::Number(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::Array(values) => {
            let value = |value| wire::ArgumentValue { kind: argument_to(value) };
            Kind::List(wire::ArgumentList { values: values.into_iter().map(value).collect() })
        }
        Value::Object(fields) => Kind::Record(wire::Arguments { arguments: arguments_to(fields) }),
    })
}

fn arguments_from(arguments: Vec<wire::Argument>) -> Result<Map<String, Value>, String> {
    let argument = |wire::Argument { name, value }| {
        let value = value.ok_or_else(|| format!("`{name}` has no value"))?;
        Ok((name, argument_from(value)?))
    };
    arguments.into_iter().map(argument).collect()
}

fn argument_from(value: wire::ArgumentValue) -> Result<Value, String> {
    Ok(match value.kind.ok_or("a value has a kind that is not known")? {
        Kind::Integer(integer) => Value::from(integer),
        Kind::Large(integer) => Value::from(integer),
        Kind::Number(number) => {
            Value::Number(Number::from_f64(number).ok_or("a number is not finite")?)
        }
        Kind::Text(text) => Value::String(text),
        Kind::Flag(flag) => Value::Bool(flag),
        Kind::List(wire::ArgumentList { values }) => {
            Value::Array(values.into_iter().map(argument_from).collect::<Result<_, _>>()?)
        }
        Kind::Record(wire::Arguments { arguments }) => Value::Object(arguments_from(arguments)?),
    })
}

#[cfg(test)]
mod tests;
