//! `tf.train.Example` and `SequenceExample`: parsed from the wire directly into columns, and
//! written.
//!
//! This module does not use a protobuf library: an Example is three nested messages, and a record
//! is walked once without an allocation. It accepts everything that protobuf accepts (packed and
//! unpacked values, mixed, in several pieces; unknown fields; any order; the last of duplicate
//! keys), except encodings that no writer produces: groups, a value of a wire type that its list
//! cannot have, and a map entry with a repeated key or value. `tests/goldens.rs` lists the cases in
//! which TensorFlow's result differs.
//!
//! Start at [`ExampleParser`] or [`SequenceParser`]. [`encode_example`] writes a record,
//! [`features_of`] lists the features of an unknown record.
//!
//! ```
//! use shardfeed_tfrecord::example::{
//!     DType, ExampleParser, Feature, FeatureSpec, Value, encode_example,
//! };
//!
//! let mut record = Vec::new();
//! encode_example(&[("label", Value::Int64(&[7])), ("x", Value::Float32(&[0.5]))], &mut record);
//!
//! let label = Feature::FixedLen { shape: vec![], dtype: DType::Int64, default: None };
//! let parser = ExampleParser::new(vec![FeatureSpec { name: "label".to_owned(), feature: label }])?;
//! let mut located = Vec::new();
//! parser.locate(&record, &mut located)?;
//! let mut column = [0_i64; 512];
//! if let Some(list) = located[0] {
//!     list.write_i64(&mut column[..1]);
//! }
//! assert_eq!(column[0], 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod spec;
mod wire;

mod varints;

mod feature;
mod keys;
mod ragged;

mod cells;
mod parse;
mod sequence;

mod inspect;
mod write;

pub use cells::Parts;
pub use feature::ListRef;
pub use inspect::{FoundFeature, features_of};
pub use parse::{ExampleParser, ParseError};
pub use ragged::{EMPTY_ROWS_MAX, PartitionFault};
pub use sequence::{SequenceParser, Steps};
pub use spec::{DType, DefaultValue, Feature, FeatureSpec, Partition, SpecError};
pub use write::{Value, encode_example, encode_sequence_example, pack_i64};
