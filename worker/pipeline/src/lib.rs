//! Turns records into batches: shuffle windows, checks, parsing, and batches written in place.
//!
//! Works on bytes that other crates have read. The only files that it reads itself are operators'
//! lookup tables, because the position to read depends on the row. This crate never depends on
//! shards, sockets, clocks or coordinators, and never decides an order: it follows
//! `shardfeed-plan`.
//!
//! Start at [`Assembler`], which makes a batch of records, and [`LaneFeed`], which returns a lane's
//! records in the lane's order.
#![forbid(unsafe_code)]

mod chunk;
mod draw;
mod dtype;
mod operator;
mod record;

mod feed;

mod column;
mod extent;
mod rows;

mod declared;
mod program;
mod samples;
mod schema;

mod assemble;

mod memory;
mod room;

mod account;
mod limit;
mod tune;

pub use account::{
    Account, Book, Counter, CounterMetric, CounterUnit, Reason, Reasons, Setup, Spent,
};
pub use assemble::{Assembler, Batch, Begun, Stage, Watch};
pub use chunk::{ChunkBuffer, ChunkPool};
pub use column::{ColumnData, ColumnKind};
pub use draw::{DrawKey, DrawSource};
pub use dtype::Dtype;
pub use feed::{LaneFeed, Load};
pub use limit::{Finding, Limit, PREFETCH_CHOSEN_MAX, finding};
pub use memory::{MemoryError, Need, REMOTE_CHUNKS_AHEAD, Reading, reading};
pub use operator::{
    Axis, BitOrder, Dim, ImageLayout, Operation, Operator, OperatorError, OperatorFault,
    TableCause, TableFault, TableRef,
};
pub use program::OutlineError;
pub use record::{Row, RowError, RowFault};
pub use room::{BatchTooLarge, Room};
pub use samples::balance::BalanceSpec;
pub use samples::combine::{Combiner, RecordPart, Sequence};
pub use samples::measured::{MeasuredColumn, MeasuredColumns};
pub use samples::pack::{PackSpec, Packer};
pub use samples::unbatch::{Edge, UnbatchColumn, UnbatchSpec};
pub use samples::window::{WindowSpec, Windower};
pub use samples::{CountedRecords, SampleProgram};
pub use schema::{
    CheckedExpression, Outline, OutlineColumn, ParseSpec, RecordSpec, Schema, SchemaError,
    ShardSchemas,
};
pub use shardfeed_image::{JPEG_LIBRARY, PIXEL_CONTRACT};
pub use tune::{Choice, Range, Tuner};
