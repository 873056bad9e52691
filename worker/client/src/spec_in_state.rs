//! The record spec in a job's states.
//!
//! With it, an error about a state of a job with other features names the features that differ; a
//! digest alone shows only that they differ.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use shardfeed_pipeline::RecordSpec;
use shardfeed_plan::{Difference, JobIdentity, LoaderState, RECORD_SPEC_FIELD, StateError};
use shardfeed_proto::common::v1 as wire;
use shardfeed_reader::EncodedSpec;

/// Maximum size of a state's JSON that contains the record spec, in bytes.
const STATE_BYTES_MAX: usize = 1023;

/// Adds the record spec to `state`, if both together stay below 1 KiB.
pub(crate) fn with_spec(state: LoaderState, spec: &EncodedSpec) -> LoaderState {
    let records = Some(BASE64_STANDARD_NO_PAD.encode(spec.bytes()));
    let whole = LoaderState { records, ..state.clone() };
    if whole.to_json().len() <= STATE_BYTES_MAX { whole } else { state }
}

/// Returns the record spec of a state's job; `None` if the state was too small for it.
pub fn spec_of(state: &LoaderState) -> Option<RecordSpec> {
    let bytes = BASE64_STANDARD_NO_PAD.decode(state.records.as_deref()?).ok()?;
    EncodedSpec::decode(&bytes).ok()
}

/// Rejects states of another job, and names the features and operators that differ, if known.
pub(crate) fn check_states(
    states: &[LoaderState],
    identity: &JobIdentity,
    spec: &EncodedSpec,
) -> Result<(), StateError> {
    states.iter().try_for_each(|state| {
        state.check_job(identity).map_err(|error| match error {
            StateError::OtherJob { fields } => {
                let fields = fields.into_iter().flat_map(|field| in_detail(field, state, spec));
                StateError::OtherJob { fields: fields.collect() }
            }
            error => error,
        })
    })
}

fn in_detail(field: Difference, state: &LoaderState, spec: &EncodedSpec) -> Vec<Difference> {
    let theirs = state.records.as_deref().and_then(decoded);
    let ours = wire::RecordSpec::decode_canonical(spec.bytes()).ok();
    match (field.field.as_str(), theirs, ours) {
        (RECORD_SPEC_FIELD, Some(theirs), Some(ours)) if theirs != ours => {
            theirs.differences(&ours)
        }
        _ => vec![field],
    }
}

/// Returns `None` for a text that is no record spec: the digest has already shown the mismatch.
fn decoded(text: &str) -> Option<wire::RecordSpec> {
    let bytes = BASE64_STANDARD_NO_PAD.decode(text).ok()?;
    wire::RecordSpec::decode_canonical(&bytes).ok()
}
