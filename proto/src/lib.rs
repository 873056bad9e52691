//! The wire: messages between coordinators, workers and trainers, and their conversion to the
//! domain's types. Every incoming message is validated here; other code must not trust messages.
//!
//! The generated code is kept in `src/generated`, so that a build needs neither protoc nor a
//! generator; `tests/generated.rs` compares it with the .proto files. This crate must not depend on
//! senders or waiting. Only the feature `services` brings tonic: the clients and servers of the
//! services, and errors as gRPC statuses. A loader in one process does without.
#![forbid(unsafe_code)]

use std::time::Duration;

/// Messages of both protocols.
#[allow(unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod common {
    pub mod v1 {
        include!("generated/shardfeed.common.v1.rs");
    }
}

/// Protocol of the coordinator for workers and operators.
#[allow(unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod coordinator {
    pub mod v1 {
        include!("generated/shardfeed.coordinator.v1.rs");
    }
}

/// Protocol between a worker and its trainers.
#[allow(unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
pub mod trainer {
    pub mod v1 {
        include!("generated/shardfeed.trainer.v1.rs");
    }
}

pub mod chunk;

mod endpoint;
mod error;
mod job;
mod json;
mod record_spec;
#[cfg(feature = "services")]
mod status;
mod traceparent;

pub use common::v1::ErrorKind;
pub use endpoint::{Endpoint, EndpointError};
pub use error::WireError;
pub use job::{
    InvalidMessage, digest_from, identity_from, identity_to, intent_from, intent_to, left_out_from,
    left_out_to, mixture_from, mixture_to, segments_from, segments_to,
};
pub use json::Word;
pub use record_spec::{
    RECORD_SPEC_BYTES_MAX, RECORD_SPEC_CHUNKS_MAX, RECORD_SPEC_ENTRIES_MAX, RECORD_SPEC_PARTS_MAX,
    RECORD_SPEC_VERSION, RecordSpecError, record_spec_chunks, record_spec_digest,
};

pub use traceparent::{InvalidTraceparent, TRACEPARENT, TraceContext};

/// Version of the coordinator's protocol in this software.
pub const COORDINATOR_PROTOCOL: u32 = 1;

/// Version of the protocol between coordinators.
pub const PEER_PROTOCOL: u32 = 1;

/// Default time that a process waits for a coordinator.
pub const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum size of a chunk in bytes.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
