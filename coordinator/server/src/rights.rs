//! Who may ask what: one table, by role and call.

use shardfeed_tls::Role;

use crate::metrics::Rpc;

/// How a call stands to the jobs that an access token is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is about one job, which must be among them.
    Job,
    /// It is about no job, and harmless: whatever the token is limited to.
    Any,
    /// It is about more than jobs: only for tokens that are not limited.
    Whole,
}

use Role::{Admin, Coordinator, Operator, Trainer, Viewer, Worker};

/// People who look.
const LOOK: &[Role] = &[Viewer, Operator, Admin];
/// People who run things.
const RUN: &[Role] = &[Operator, Admin];
/// People who decide who belongs here.
const RULE: &[Role] = &[Admin];
/// Processes that read.
const READ: &[Role] = &[Worker, Trainer];
/// Nodes.
const NODES: &[Role] = &[Coordinator];
/// Whoever is known.
const ALL: &[Role] = &[Coordinator, Worker, Trainer, Viewer, Operator, Admin];
/// Those who may name a dataset: a trainer's first use of its files does.
const NAME: &[Role] = &[Operator, Admin, Worker, Trainer];
/// Those who may see how a dataset is.
const SEE: &[Role] = &[Viewer, Operator, Admin, Worker, Trainer];

/// The table.
pub(crate) fn of(rpc: Rpc) -> (&'static [Role], Reach) {
    match rpc {
        Rpc::Join | Rpc::Heartbeat | Rpc::Leave => (READ, Reach::Any),
        Rpc::TakeScans | Rpc::ReportListing | Rpc::ReportScan | Rpc::FailScan => (READ, Reach::Any),
        Rpc::PutChunk | Rpc::GetChunk => (READ, Reach::Any),
        Rpc::RegisterJob | Rpc::StartRank | Rpc::EndRank => (READ, Reach::Job),
        Rpc::ReportSkipped | Rpc::LatestToken | Rpc::TakeGroups => (READ, Reach::Job),
        // Each take is of a lease that the caller was given.
        Rpc::BatchTakeGroups => (READ, Reach::Any),
        Rpc::GetStatus | Rpc::GetCluster | Rpc::WhoAmI => (ALL, Reach::Any),
        Rpc::AddMember | Rpc::RemoveMember | Rpc::TransferLeader => (RULE, Reach::Whole),
        Rpc::SaveSnapshot | Rpc::ListAudit => (RULE, Reach::Whole),
        Rpc::CreateAccess | Rpc::RevokeAccess | Rpc::ListAccess => (RULE, Reach::Whole),
        // Its credential is the join token.
        Rpc::ExchangeAccess => (ALL, Reach::Any),
        Rpc::HoldJob | Rpc::DeclareGone | Rpc::RemoveJob => (RUN, Reach::Job),
        Rpc::CordonWorker | Rpc::RemoveDataset => (RUN, Reach::Whole),
        Rpc::AddDataset => (NAME, Reach::Any),
        Rpc::GetDataset => (SEE, Reach::Any),
        Rpc::ListDatasets | Rpc::ListJobs | Rpc::ListWorkers => (LOOK, Reach::Any),
        Rpc::GetJob | Rpc::ListEpochs | Rpc::ListShards | Rpc::ListRanks => (LOOK, Reach::Job),
        Rpc::GetBatch | Rpc::GetShardHistory | Rpc::GetEpochMap => (LOOK, Reach::Job),
        // It tells of every job.
        Rpc::ListEvents => (LOOK, Reach::Whole),
        Rpc::Introduce | Rpc::Exchange | Rpc::PushChunk | Rpc::PullChunk => (NODES, Reach::Any),
    }
}

/// Whether a call that was carried out is written into the audit. What workers do with what they were
/// given is not: the log, the events and the histories tell of it.
pub(crate) fn is_audited(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::Join
            | Rpc::Leave
            | Rpc::RegisterJob
            | Rpc::StartRank
            | Rpc::EndRank
            | Rpc::AddMember
            | Rpc::RemoveMember
            | Rpc::TransferLeader
            | Rpc::SaveSnapshot
            | Rpc::CordonWorker
            | Rpc::HoldJob
            | Rpc::DeclareGone
            | Rpc::RemoveDataset
            | Rpc::RemoveJob
            | Rpc::AddDataset
            | Rpc::CreateAccess
            | Rpc::RevokeAccess
            | Rpc::ExchangeAccess
            | Rpc::ListAudit
            | Rpc::ListAccess
    )
}
