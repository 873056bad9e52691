//! States of jobs (the result of `state_dict()`): JSON that is the same on every rank and below 1
//! KiB.

use serde::{Deserialize, Serialize};

use crate::PlanError;
use crate::digest::JobDigest;
use crate::job::{Difference, JobIdentity, Tail};
use crate::segment::{GLOBAL_BATCH_MAX, LANES_MAX, LeftOut, Segment, Steps};
use crate::{ORDER_VERSION, SEGMENTS_MAX, check_epoch};

/// Version of the state's JSON.
pub const STATE_FORMAT: u64 = 1;

/// State of a job: the first unconsumed step, and the segments before it in the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderState {
    /// [`STATE_FORMAT`]; its field name distinguishes a state from other JSON.
    #[serde(rename = "shardfeed_state")]
    pub format: u64,
    pub order: u32,
    pub job: JobDigest,
    /// [`JobIdentity::field_checks`].
    pub checks: String,
    /// Lanes of the job's first segment, as in its identity.
    pub lanes: u64,
    pub epoch: u64,
    /// Generation that made the state; a start from it is the next one.
    pub generation: u64,
    /// Segments of this epoch, the last one with the steps taken so far.
    pub segments: Vec<Segment>,
    /// With `tail="uneven"` a state belongs to one rank: (rank, world size).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaks_for: Option<(u64, u64)>,
    /// Steps of this epoch before the position that were left out.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub left_out: LeftOut,
    /// Summary of the job's record processing, for comparison by the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<String>,
    /// Cluster with the lists of a dynamic job; only that cluster can resume from this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Of a mixture: the digest of the stages that were begun, see [`crate::Mixture::stages_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<String>,
}

/// Reason why a state was rejected. A rejected state changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("this is not a whole shardfeed state: {reason}; pass the result of state_dict()")]
    NotAState { reason: String },
    #[error(
        "the state has {what} {found}, this shardfeed knows up to {known}; upgrade shardfeed to \
         the version that wrote it"
    )]
    Later {
        /// Either `format` or `order version`.
        what: &'static str,
        found: u64,
        known: u64,
    },
    #[error(
        "the state has order version {found}, this shardfeed computes order version \
         {ORDER_VERSION}, which is another order; finish epoch {epoch} with the release that wrote \
         the state, or start without a state and call set_epoch({epoch}) to deliver epoch {epoch} \
         from its beginning"
    )]
    Earlier { found: u32, epoch: u64 },
    #[error(
        "the state belongs to another job: {}; create the loader as the one that made the state, \
         or start over without a state",
        .fields.iter().map(in_words).collect::<Vec<_>>().join(", ")
    )]
    OtherJob {
        /// Fields of the identity that differ: left in the state, right in this loader.
        fields: Vec<Difference>,
    },
    #[error(
        "the state is of a job with mode=\"dynamic\" and tail=\"{tail}\", but mode=\"dynamic\" has \
         tail=\"uneven\" only; start over without a state, with tail=\"uneven\", or with \
         mode=\"deterministic\" for tail=\"{tail}\""
    )]
    DynamicTail { tail: Tail },
    #[error(
        "the state belongs to a mixture whose stages until epoch {epoch} have the digest {left}, and \
         those here have {right}: another source, weight, length, number of records or operator; give the \
         mixture of the state and, for changes, add a stage that begins at a later epoch, or start \
         over without a state"
    )]
    OtherStages {
        epoch: u64,
        /// Digest in the state.
        left: String,
        /// Digest here.
        right: String,
    },
    /// The states of an uneven job do not fit together or do not fit this rank.
    #[error("{0}")]
    Uneven(String),
    /// The state's position and this start's parameters are inconsistent.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

fn in_words(Difference { field, left, right }: &Difference) -> String {
    format!("{field} is {left} in the state and {right} here")
}

impl LoaderState {
    /// Parses a state.
    ///
    /// # Errors  `NotAState`, `Later`, `Earlier`, `DynamicTail`.
    pub fn from_json(text: &str) -> Result<Self, StateError> {
        let not_a_state = |reason: String| StateError::NotAState { reason };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| not_a_state(error.to_string()))?;
        let Some(format) = value.get("shardfeed_state") else {
            return Err(not_a_state("it has no field `shardfeed_state`".into()));
        };
        let format = format
            .as_u64()
            .ok_or_else(|| not_a_state("`shardfeed_state` is not a version number".into()))?;
        if format > STATE_FORMAT {
            return Err(StateError::Later { what: "format", found: format, known: STATE_FORMAT });
        }
        // Also covers numbers that exceed a u64.
        if let Some(epoch) = value.get("epoch").and_then(serde_json::Value::as_f64) {
            check_epoch(epoch as u64)?;
        }
        let state: Self =
            serde_json::from_value(value).map_err(|error| not_a_state(error.to_string()))?;
        state.check_shape()?;
        match JobIdentity::checked_tail(&state.checks) {
            Some((tail, mode)) if mode.check_tail(tail).is_err() => {
                Err(StateError::DynamicTail { tail })
            }
            _ => Ok(state),
        }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a state is plain data")
    }

    /// Returns the number of steps of this epoch that this rank consumed.
    pub fn step(&self) -> u64 {
        self.segments.iter().map(|segment| segment.steps.most()).sum()
    }

    /// Checks that the state belongs to the job `identity`, whose lanes are ignored.
    pub fn check_job(&self, identity: &JobIdentity) -> Result<(), StateError> {
        let mut expected = identity.clone();
        expected.lanes = self.lanes;
        if expected.digest() == self.job {
            return Ok(());
        }
        Err(StateError::OtherJob { fields: self.differences(&expected) })
    }

    /// Returns the differences between the identity of its job and `identity`, at least one field
    /// if the digests differ: left in the state, right here.
    pub fn differences(&self, identity: &JobIdentity) -> Vec<Difference> {
        let ours = identity.field_checks();
        let (theirs, ours): (Vec<_>, Vec<_>) =
            (self.checks.split(',').collect(), ours.split(',').collect());
        let difference = |field: &str, left: &str, right: &str| {
            (left != right).then(|| Difference {
                field: field.to_owned(),
                left: left.to_owned(),
                right: right.to_owned(),
            })
        };
        let mut found = Vec::new();
        // If another build wrote other checks, only the digests can be compared.
        if theirs.len() == ours.len() {
            let fields = identity.fields().map(|(name, _)| name);
            let values = fields.iter().zip(theirs.iter().zip(&ours));
            found.extend(values.filter_map(|(name, (left, right))| difference(name, left, right)));
        }
        if found.is_empty() {
            let (left, right) = (self.job.to_string(), identity.digest().to_string());
            found.extend(difference("job digest", &left, &right));
        }
        found
    }

    /// Returns the last segment.
    pub(crate) fn open(&self) -> &Segment {
        self.segments.last().expect("a state has segments")
    }

    fn fits(&self, world_size: u64) -> bool {
        let batch = self.open().global_batch;
        let bounded = batch <= GLOBAL_BATCH_MAX && world_size <= LANES_MAX;
        world_size > 0 && bounded && batch.is_multiple_of(world_size)
    }

    /// Returns the total number of steps, if it does not overflow.
    fn steps_in_all(&self) -> Option<u64> {
        self.segments.iter().try_fold(0_u64, |sum, segment| sum.checked_add(segment.steps.most()))
    }

    fn check_shape(&self) -> Result<(), StateError> {
        let reason = if self.order > ORDER_VERSION {
            let (found, known) = (u64::from(self.order), u64::from(ORDER_VERSION));
            return Err(StateError::Later { what: "order version", found, known });
        } else if self.order < ORDER_VERSION {
            return Err(StateError::Earlier { found: self.order, epoch: self.epoch });
        } else if self.format == 0 {
            "format 0 does not exist"
        } else if self.segments.is_empty() || self.segments.len() > SEGMENTS_MAX {
            "it must have 1 to 16 segments"
        } else if self
            .segments
            .iter()
            .any(|segment| segment.lanes == 0 || segment.global_batch == 0)
        {
            "a segment has no lanes or no batch"
        } else if self.speaks_for.is_some_and(|(rank, world)| rank >= world || !self.fits(world)) {
            "the rank and world size that it speaks for do not fit its batch"
        } else if self.steps_in_all().is_none() {
            "its steps are beyond every epoch"
        } else if !matches!(self.open().steps, Steps::All(_)) {
            "its last segment has a list of steps"
        } else if !self.left_out.fits_beside(&self.segments) {
            "it must have at most 16 segments and parts that are left out, and of these at most 8"
        } else if !self.left_out.fits(self.step()) {
            "the steps that it left out are not before its position"
        } else if !self.left_out.is_empty() && (self.speaks_for.is_some() || self.cluster.is_some())
        {
            "it leaves out steps of a job whose ranks have no steps in common"
        } else {
            return Ok(());
        };
        Err(StateError::NotAState { reason: reason.into() })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::EPOCHS;
    use crate::digest::Digest;
    use crate::segment::LEFT_OUT_MAX;

    fn state() -> LoaderState {
        let segment =
            Segment { lanes: u32::MAX.into(), global_batch: 1 << 28, steps: Steps::All(1 << 40) };
        LoaderState {
            format: STATE_FORMAT,
            order: ORDER_VERSION,
            job: Digest::from_bytes([9; 32]),
            checks: format!(
                "1,#01234567,#01234567,{},true,{number},{number},{number},{},uneven,deterministic,#01234567,{}",
                u64::MAX,
                u32::MAX,
                "d".repeat(20),
                number = 1_u64 << 40
            ),
            lanes: u32::MAX.into(),
            epoch: u32::MAX.into(),
            generation: u32::MAX.into(),
            segments: vec![segment; SEGMENTS_MAX],
            speaks_for: None,
            left_out: LeftOut::default(),
            records: None,
            cluster: None,
            stages: Some("e".repeat(16)),
        }
    }

    #[test]
    fn the_largest_is_under_a_kibibyte_and_reads_back() {
        let json = state().to_json();
        assert!(json.len() < 1024, "{} bytes", json.len());
        assert_eq!(LoaderState::from_json(&json), Ok(state()));
    }

    #[test]
    fn the_largest_with_steps_left_out_is_under_a_kibibyte() {
        let ranges =
            (0..LEFT_OUT_MAX as u64).map(|at| ((1 << 40) + 2 * at, (1 << 40) + 2 * at + 1));
        let left_out = LeftOut::new(ranges.collect());
        let mut state = LoaderState { left_out, ..state() };
        state.segments.truncate(SEGMENTS_MAX - LEFT_OUT_MAX);
        let json = state.to_json();
        assert!(json.len() < 1024, "{} bytes", json.len());
        assert_eq!(LoaderState::from_json(&json), Ok(state));
    }

    #[test]
    fn the_largest_dynamic_one_is_under_a_kibibyte_and_reads_back() {
        let mut state = LoaderState { lanes: 1, cluster: Some("c".repeat(64)), ..state() };
        state.segments.iter_mut().for_each(|segment| segment.lanes = 1);
        let json = state.to_json();
        assert!(json.len() < 1024, "{} bytes", json.len());
        assert_eq!(LoaderState::from_json(&json), Ok(state));
    }

    #[test]
    fn the_largest_uneven_one_is_under_a_kibibyte() {
        let json = LoaderState { speaks_for: Some((1 << 19, 1 << 20)), ..state() }.to_json();
        assert!(json.len() < 1024, "{} bytes", json.len());
    }

    #[test]
    fn a_token_cut_anywhere_is_refused() {
        let json = state().to_json();
        for end in 0..json.len() {
            let error = LoaderState::from_json(&json[..end]).unwrap_err();
            assert!(matches!(error, StateError::NotAState { .. }), "{error}");
        }
    }

    #[test]
    fn a_later_format_says_so() {
        let json = state().to_json().replace("\"shardfeed_state\":1", "\"shardfeed_state\":2");
        let error = LoaderState::from_json(&json).unwrap_err();
        assert_eq!(error, StateError::Later { what: "format", found: 2, known: 1 });
        let json = state().to_json().replace("\"order\":1", "\"order\":7");
        assert!(
            LoaderState::from_json(&json).unwrap_err().to_string().contains("upgrade shardfeed")
        );
        assert!(
            LoaderState::from_json("{\"step\":3}")
                .unwrap_err()
                .to_string()
                .contains("state_dict()")
        );
        let json = state().to_json().replace("\"epoch\"", "\"epoc\"");
        assert!(
            LoaderState::from_json(&json)
                .unwrap_err()
                .to_string()
                .contains("missing field `epoch`")
        );
    }

    #[test]
    fn every_refusal_says_what_is_wrong_with_the_token() {
        let whole = || LoaderState {
            lanes: 2,
            segments: vec![Segment { lanes: 2, global_batch: 8, steps: Steps::All(3) }],
            ..state()
        };
        let changed = |change: &dyn Fn(&mut LoaderState)| {
            let mut state = whole();
            change(&mut state);
            state.to_json()
        };
        let endless = Segment { lanes: 2, global_batch: 8, steps: Steps::All(u64::MAX) };
        let texts = [
            "{\"shardfeed_state\"".to_owned(),
            "{\"step\":3}".to_owned(),
            "{\"shardfeed_state\":\"1\"}".to_owned(),
            changed(&|state| state.format = 2),
            changed(&|state| state.format = 0),
            changed(&|state| state.order = 7),
            changed(&|state| state.order = 0),
            whole().to_json().replace("\"epoch\"", "\"epoc\""),
            whole().to_json().replace("0909", "yes,"),
            changed(&|state| state.segments.clear()),
            changed(&|state| state.segments[0].lanes = 0),
            changed(&|state| state.speaks_for = Some((3, 3))),
            changed(&|state| state.segments = vec![endless.clone(), endless.clone()]),
            changed(&|state| state.segments[0].steps = Steps::PerRank(vec![1, 2])),
            changed(&|state| state.epoch = EPOCHS),
            whole().to_json().replace("uneven,deterministic", "drop,dynamic"),
        ];
        let said = texts.map(|text| LoaderState::from_json(&text).unwrap_err().to_string());
        expect![[r#"
            this is not a whole shardfeed state: EOF while parsing an object at line 1 column 18; pass the result of state_dict()
            this is not a whole shardfeed state: it has no field `shardfeed_state`; pass the result of state_dict()
            this is not a whole shardfeed state: `shardfeed_state` is not a version number; pass the result of state_dict()
            the state has format 2, this shardfeed knows up to 1; upgrade shardfeed to the version that wrote it
            this is not a whole shardfeed state: format 0 does not exist; pass the result of state_dict()
            the state has order version 7, this shardfeed knows up to 1; upgrade shardfeed to the version that wrote it
            the state has order version 0, this shardfeed computes order version 1, which is another order; finish epoch 4294967295 with the release that wrote the state, or start without a state and call set_epoch(4294967295) to deliver epoch 4294967295 from its beginning
            this is not a whole shardfeed state: missing field `epoch`; pass the result of state_dict()
            this is not a whole shardfeed state: a digest is 64 hex digits, not 64 characters of `yes,yes,...`; pass the result of state_dict()
            this is not a whole shardfeed state: it must have 1 to 16 segments; pass the result of state_dict()
            this is not a whole shardfeed state: a segment has no lanes or no batch; pass the result of state_dict()
            this is not a whole shardfeed state: the rank and world size that it speaks for do not fit its batch; pass the result of state_dict()
            this is not a whole shardfeed state: its steps are beyond every epoch; pass the result of state_dict()
            this is not a whole shardfeed state: its last segment has a list of steps; pass the result of state_dict()
            epoch must be at least 0 and below 2**48, not 281474976710656
            the state is of a job with mode="dynamic" and tail="drop", but mode="dynamic" has tail="uneven" only; start over without a state, with tail="uneven", or with mode="deterministic" for tail="drop""#]].assert_eq(&said.join("\n"));
    }

    #[test]
    fn a_token_of_another_job_names_all_fields_that_differ() {
        let identity = crate::job::tests::identity();
        let state =
            LoaderState { job: identity.digest(), checks: identity.field_checks(), ..state() };
        let mut other = identity.clone();
        other.shuffle.seed = 9;
        let one = LoaderState { lanes: 2, ..state.clone() }.check_job(&other).unwrap_err();
        other.shuffle.window = 20;
        let two = LoaderState { lanes: 2, ..state.clone() }.check_job(&other).unwrap_err();
        let lied = LoaderState { lanes: 2, job: Digest::from_bytes([3; 32]), ..state };
        let said = [one, two, lied.check_job(&identity).unwrap_err()];
        expect![[r#"
            the state belongs to another job: seed is 1 in the state and 9 here; create the loader as the one that made the state, or start over without a state
            the state belongs to another job: seed is 1 in the state and 9 here, window is 10 in the state and 20 here; create the loader as the one that made the state, or start over without a state
            the state belongs to another job: job digest is 0303030303030303030303030303030303030303030303030303030303030303 in the state and 0c34ce781eb3cef19844157ef7baff89c4b57b03503dc92e796426b64d1646d1 here; create the loader as the one that made the state, or start over without a state"#]].assert_eq(&said.map(|error| error.to_string()).join("\n"));
    }
}
