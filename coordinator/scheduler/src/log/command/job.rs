//! Commands of jobs and ranks.

use serde::{Deserialize, Serialize};
use shardfeed_plan::{Digest, Intent, JobIdentity, JobMixture, LeftOut, Sample};

use crate::log::command::Change;
use crate::log::id::{LeaseRef, RankCursor, SessionId};
use crate::log::value::DoubtPolicy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterJob {
    pub name: String,
    pub identity: JobIdentity,
    /// Dataset with the same content; empty with a mixture, and in one process, as it has no name.
    pub dataset: String,
    /// Mixture of datasets that the job reads instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<JobMixture>,
    /// Chunks of the job's `RecordSpec`, in order. Empty in one process, for a job that is already
    /// registered, and for one of an earlier release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub record_spec_chunks: Vec<Digest>,
}

impl RegisterJob {
    pub fn change(self) -> Change {
        match &self.mixture {
            None => Change::RegisterJob(self),
            Some(mixture) if mixture.versions.iter().any(|of| of.record_spec.is_some()) => {
                Change::RegisterMixtureOfSpecs(self)
            }
            Some(_) => Change::RegisterMixture(self),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRank {
    pub job: String,
    /// Run that the rank belongs to, as the launcher names it.
    pub run: Option<String>,
    pub rank: u64,
    pub world_size: u64,
    pub limit: Option<u64>,
    pub session: SessionId,
    /// Id of one loader in one process: the same loader may come back.
    pub trainer: String,
    pub intent: Intent,
    /// For a dynamic job whose loader leaves an epoch early: first step of that epoch that it did
    /// not consume, in the generation that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<RankCursor>,
    #[serde(default)]
    pub doubt: DoubtPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<Digest>,
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub left_out: LeftOut,
    /// The trainer's process, if the worker knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerProcess>,
    /// For a deterministic job: final position of another loader of this rank that the session
    /// serves. It ends if the start is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<CursorReport>,
}

impl StartRank {
    /// Generation that the loader is in, and the position at which it left an epoch of it.
    pub(crate) fn leaves(&self) -> Option<(u64, RankCursor)> {
        let left = self.left?;
        match self.intent {
            Intent::Reconnect { generation: from, .. } | Intent::Move { from, .. } => {
                Some((from, left))
            }
            Intent::Start { .. } => None,
        }
    }

    /// True if the steps left out are before the position of a start; no other intent has any.
    pub(crate) fn left_out_fits(&self) -> bool {
        let Intent::Start { segments, .. } = &self.intent else { return false };
        let step =
            segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.steps.most()));
        self.left_out.fits(step) && self.left_out.fits_beside(segments)
    }
}

/// A process on a worker's host, as identified by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProcess {
    pub uid: u32,
    pub gid: u32,
    /// Process id; 0: not visible to the worker.
    pub pid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorReport {
    pub lease: LeaseRef,
    /// Epoch of the first step that the rank has not consumed.
    pub epoch: u64,
    /// That step, counted within the epoch.
    pub step: u64,
}

/// A record that is in no batch because it is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRecord {
    pub sample: Sample,
    /// Offset of its header in the uncompressed shard, bytes.
    pub offset: u64,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSkipped {
    pub session: SessionId,
    pub job: String,
    /// The records; known ones are ignored.
    pub records: Vec<SkippedRecord>,
    /// Digest of the job's mixture whose shards the records name; `None`: the job has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<Digest>,
}
