//! Registration of jobs. A job's `RecordSpec` is on a majority's disks before a command refers to
//! its chunks.

use std::sync::Arc;

use shardfeed_plan::{Digest, JobIdentity, RECORD_SPEC_FIELD, Records, differences};
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::coordinator::v1::{RegisterJobRequest, RegisterJobResponse};
use shardfeed_proto::{
    ErrorKind, RECORD_SPEC_CHUNKS_MAX, WireError, identity_from, record_spec_digest,
};
use shardfeed_scheduler::{Change, Refusal, RegisterJob};

use super::checks::{check_len, digest};
use super::context::Caller;
use super::scans::propose_holding;
use crate::error;
use crate::leader::core::Core;
use crate::storage::copies;

const _: () = assert!(RECORD_SPEC_CHUNKS_MAX == shardfeed_scheduler::RECORD_SPEC_CHUNKS_MAX);

pub(super) async fn register_job(
    core: Arc<Core>,
    caller: Caller,
    request: RegisterJobRequest,
) -> Result<RegisterJobResponse, WireError> {
    let RegisterJobRequest { name, dataset, identity, record_spec_chunks, chunk, .. } = request;
    let identity = identity_from(identity).map_err(|error| error::invalid(&error))?;
    let known = core.read(|state| {
        let job = state.job(&name)?;
        Some(RegisteredJob {
            identity: job.identity.clone(),
            chunks: job.record_spec_chunks.clone(),
        })
    });
    let mut register = RegisterJob { name, identity, dataset, record_spec_chunks: vec![] };
    let spec = match register.identity.records {
        Records::RecordSpec(spec) => spec,
        Records::Operators(_) => return propose(&core, caller, register).await,
    };
    if known.as_ref().is_some_and(|known| known.identity.records == register.identity.records) {
        return propose(&core, caller, register).await;
    }
    check_len("record_spec_chunks", record_spec_chunks.len(), RECORD_SPEC_CHUNKS_MAX)?;
    let chunks = record_spec_chunks.iter().map(|chunk| digest("record_spec_chunks", chunk));
    let chunks = chunks.collect::<Result<Vec<Digest>, WireError>>()?;
    if !chunk.is_empty() {
        if !chunks.contains(&Digest::of_parts([chunk.as_slice()])) {
            let message = "`chunk` is none of `record_spec_chunks`".to_owned();
            return Err(WireError::new(ErrorKind::Invalid, message));
        }
        copies::put(&core, chunk, caller.owner()).await?;
    }
    let missing = core.chunks.missing(&chunks);
    if !missing.is_empty() {
        let missing = missing.iter().map(|chunk| chunk.as_bytes().to_vec()).collect();
        return Ok(RegisterJobResponse { missing });
    }
    register.record_spec_chunks.clone_from(&chunks);
    let other = register.clone();
    let check = async {
        let encoded = read(&core, &chunks).await?;
        if record_spec_digest(&encoded) != spec {
            let message = format!("`record_spec_chunks` hold another record spec than {spec}");
            return Err(WireError::new(ErrorKind::Invalid, message));
        }
        let ours = RecordSpec::decode_canonical(&encoded)
            .map_err(|error| WireError::new(ErrorKind::Invalid, error.to_string()))?;
        if let Some(known) = known {
            return Err(other_identity(&core, other, known, &ours).await);
        }
        // An earlier call that failed may have left them on this node only.
        for chunk in &chunks {
            copies::put(&core, copies::get(&core, *chunk).await?, String::new()).await?;
        }
        Ok(())
    };
    propose_holding(&core, caller, Change::RegisterJob(register), chunks.clone(), check).await?;
    Ok(RegisterJobResponse::default())
}

/// A registered job.
struct RegisteredJob {
    identity: JobIdentity,
    chunks: Vec<Digest>,
}

async fn propose(
    core: &Core,
    caller: Caller,
    register: RegisterJob,
) -> Result<RegisterJobResponse, WireError> {
    core.propose(caller, Change::RegisterJob(register)).await?;
    Ok(RegisterJobResponse::default())
}

/// Returns the encoded `RecordSpec` in `chunks`.
///
/// # Errors  `NotFound`, `Corrupt`: a chunk is lost.
pub(super) async fn read(core: &Arc<Core>, chunks: &[Digest]) -> Result<Vec<u8>, WireError> {
    let mut encoded = Vec::new();
    for chunk in chunks {
        encoded.extend(copies::get(core, *chunk).await?);
    }
    Ok(encoded)
}

/// Returns the rejection of a job whose name is registered with another record spec: the differing
/// features, operators and outputs, or the digests if the registered spec cannot be read.
async fn other_identity(
    core: &Arc<Core>,
    register: RegisterJob,
    known: RegisteredJob,
    ours: &RecordSpec,
) -> WireError {
    let mut found = differences(&known.identity, &register.identity);
    let theirs = read(core, &known.chunks).await.ok();
    let theirs = theirs.and_then(|encoded| RecordSpec::decode_canonical(&encoded).ok());
    let named = theirs.map(|theirs| theirs.differences(ours)).unwrap_or_default();
    if !named.is_empty() {
        found.retain(|difference| difference.field != RECORD_SPEC_FIELD);
        found.extend(named);
    }
    error::refusal(&Refusal::OtherIdentity { name: register.name, differences: found })
}
