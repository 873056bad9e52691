//! Registration of jobs. A job's `RecordSpec` is on a majority's disks before a command refers to
//! its chunks.

use std::sync::Arc;

use shardfeed_plan::{
    Digest, JobIdentity, RECORD_SPEC_FIELD, Records, differences, mixture_digest,
};
use shardfeed_proto::common::v1::{Balance, RecordSpec};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{
    RECORD_SPEC_CHUNKS_MAX, WireError, digest_from, identity_from, mixture_from, record_spec_digest,
};
use shardfeed_scheduler::{Refusal, RegisterJob};

use super::checks::check_len;
use super::context::Caller;
use super::scans::propose_referring;
use super::serve::Call;
use crate::error::{self, Result, invalid};
use crate::leader::core::Core;
use crate::storage::copies;

const _: () = assert!(RECORD_SPEC_CHUNKS_MAX == shardfeed_scheduler::RECORD_SPEC_CHUNKS_MAX);

pub(super) async fn register_job(
    call: Call<wire::RegisterJobRequest>,
) -> Result<wire::RegisterJobResponse> {
    let Call { core, caller, request } = call;
    let wire::RegisterJobRequest {
        name,
        dataset,
        identity,
        record_spec_chunks,
        chunk,
        mixture,
        ..
    } = request;
    let mixture = mixture.map(mixture_from).transpose()?;
    let identity = identity_from(identity)?;
    let known = core.read(|state| {
        let job = state.job(&name)?;
        Some(RegisteredJob {
            identity: job.identity.clone(),
            chunks: job.record_spec_chunks.clone(),
        })
    });
    check_order(&core, &name)?;
    if mixture.is_none() && identity.content == mixture_digest() {
        return Err(invalid("the identity is that of a mixture, and the request has none"));
    }
    let registered = mixture.as_ref().map(|mixture| mixture.digest());
    let digest_of_mixture = registered.map_or(vec![], |digest| digest.as_bytes().to_vec());
    // A mixture is written to the log once, not by each rank.
    let is_registered = core.read(|state| {
        let known = state.job(&name).zip(registered);
        known.is_some_and(|(job, digest)| {
            job.mixture(digest).is_some() && differences(&job.identity, &identity).is_empty()
        })
    });
    if is_registered {
        return Ok(wire::RegisterJobResponse { missing: vec![], mixture: digest_of_mixture });
    }
    let mut register = RegisterJob { name, identity, dataset, mixture, record_spec_chunks: vec![] };
    let spec = match register.identity.records {
        Records::RecordSpec(spec) => spec,
        Records::Operators(_) => return propose(&core, caller, register, digest_of_mixture).await,
    };
    if known.as_ref().is_some_and(|known| known.identity.records == register.identity.records) {
        return propose(&core, caller, register, digest_of_mixture).await;
    }
    check_len("record_spec_chunks", record_spec_chunks.len(), RECORD_SPEC_CHUNKS_MAX)?;
    let chunks = record_spec_chunks.iter().map(|chunk| digest_from("record_spec_chunks", chunk));
    let chunks = chunks.collect::<Result<Vec<Digest>, _>>()?;
    if !chunk.is_empty() {
        if !chunks.contains(&Digest::of_parts([chunk.as_slice()])) {
            return Err(invalid("`chunk` is none of `record_spec_chunks`"));
        }
        copies::put(&core, chunk, caller.owner()).await?;
    }
    let missing = core.chunks.missing(&chunks);
    if !missing.is_empty() {
        let missing = missing.iter().map(|chunk| chunk.as_bytes().to_vec()).collect();
        return Ok(wire::RegisterJobResponse { missing, mixture: vec![] });
    }
    register.record_spec_chunks.clone_from(&chunks);
    let other = register.clone();
    let check = async {
        let encoded = read(&core, &chunks).await?;
        if record_spec_digest(&encoded) != spec {
            return Err(invalid(format!(
                "`record_spec_chunks` hold another record spec than {spec}"
            )));
        }
        let ours =
            RecordSpec::decode_canonical(&encoded).map_err(|error| invalid(error.to_string()))?;
        if ours.balance.is_some() && other.identity.is_dynamic() {
            return Err(invalid(
                "a dynamic job has no steps that ranks share, which `balance` needs",
            ));
        }
        if let Some(known) = known {
            return Err(other_identity(&core, other, known, &ours).await);
        }
        // An earlier call that failed may have left them on this node only.
        for chunk in &chunks {
            copies::put(&core, copies::get(&core, *chunk).await?, String::new()).await?;
        }
        Ok(())
    };
    propose_referring(&core, caller, register.change(), chunks.clone(), check).await?;
    Ok(wire::RegisterJobResponse { missing: vec![], mixture: digest_of_mixture })
}

/// Rejects a registered job whose order another release computes. The log may contain such jobs, so
/// that only new requests are checked, never commands.
pub(super) fn check_order(core: &Core, name: &str) -> Result<(), WireError> {
    let checked = core.read(|state| state.job(name).map(|job| job.identity.check_order()));
    checked.unwrap_or(Ok(())).map_err(|error| {
        let WireError { kind, message, .. } = WireError::from(error);
        WireError::new(kind, format!("job `{name}`: {message}"))
    })
}

/// Returns by what the steps of a job are balanced; `None`: they are not.
///
/// # Errors  The job's record spec cannot be read.
pub(super) async fn balance_of(core: &Arc<Core>, name: &str) -> Result<Option<Balance>> {
    let chunks = core.read(|state| state.job(name).map(|job| job.record_spec_chunks.clone()));
    let chunks = chunks.unwrap_or_default();
    if chunks.is_empty() {
        return Ok(None);
    }
    let spec = RecordSpec::decode_canonical(&read(core, &chunks).await?);
    Ok(spec.map_err(|error| invalid(error.to_string()))?.balance)
}

struct RegisteredJob {
    identity: JobIdentity,
    chunks: Vec<Digest>,
}

async fn propose(
    core: &Core,
    caller: Caller,
    register: RegisterJob,
    mixture: Vec<u8>,
) -> Result<wire::RegisterJobResponse> {
    core.propose(caller, register.change()).await?;
    Ok(wire::RegisterJobResponse { missing: vec![], mixture })
}

/// Returns the encoded `RecordSpec` in `chunks`.
///
/// # Errors  `NotFound`, `Corrupt`: a chunk is lost.
pub(super) async fn read(core: &Arc<Core>, chunks: &[Digest]) -> Result<Vec<u8>> {
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
