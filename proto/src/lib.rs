//! The wire: what coordinator, workers and trainers say to each other, and how it becomes the
//! domain's types. Whatever comes in is validated here; nobody else believes a message.
//!
//! The generated code is kept in `src/generated`, so that a build needs neither protoc nor a generator;
//! `tests/generated.rs` holds it to the .proto files. This crate must never know who sends or waits.
#![forbid(unsafe_code)]

/// Messages that both protocols use.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod common {
    pub mod v1 {
        include!("generated/shardfeed.common.v1.rs");
    }
}

/// What workers and people ask of a coordinator.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod coordinator {
    pub mod v1 {
        include!("generated/shardfeed.coordinator.v1.rs");
    }
}

/// What a worker and its trainers say to each other.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod trainer {
    pub mod v1 {
        include!("generated/shardfeed.trainer.v1.rs");
    }
}

pub mod chunk;

mod endpoint;
mod error;
mod job;
mod record_spec;
mod traceparent;

pub use common::v1::ErrorKind;
pub use endpoint::{Endpoint, EndpointError};
pub use error::WireError;
pub use job::{
    InvalidMessage, digest_from, identity_from, identity_to, intent_from, intent_to, segments_from,
    segments_to,
};
pub use record_spec::{
    RECORD_SPEC_BYTES_MAX, RECORD_SPEC_CHUNKS_MAX, RECORD_SPEC_ENTRIES_MAX, RECORD_SPEC_VERSION,
    RecordSpecError, record_spec_chunks, record_spec_digest,
};

pub use traceparent::{InvalidTraceparent, TRACEPARENT, TraceContext};

/// Version of the coordinator's protocol that this software speaks.
pub const COORDINATOR_PROTOCOL: u32 = 1;

/// Version of the protocol of coordinators among each other.
pub const PEER_PROTOCOL: u32 = 1;

/// Bytes of a chunk at most.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
