//! Permissions: one table, by role and call.

use shardfeed_tls::Role;

use crate::metrics::Rpc;

/// Relation of a call to the jobs that an access token is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The call is about one job, which must be among them.
    Job,
    /// The call is about no job, and harmless: for every token, limited or not.
    Any,
    /// The call is about more than jobs: only for tokens that are not limited.
    Whole,
}

use Role::{Admin, Coordinator, Operator, Trainer, Viewer, Worker};

/// People with read access.
const LOOK: &[Role] = &[Viewer, Operator, Admin];
/// People who manage jobs, datasets and workers.
const RUN: &[Role] = &[Operator, Admin];
/// People who manage the cluster and its access.
const RULE: &[Role] = &[Admin];
/// Processes that read data.
const READ: &[Role] = &[Worker, Trainer];
/// Coordinators.
const NODES: &[Role] = &[Coordinator];
/// Every known principal.
const ALL: &[Role] = &[Coordinator, Worker, Trainer, Viewer, Operator, Admin];
/// Roles that may name a dataset, which a trainer's first use of its files does.
const NAME: &[Role] = &[Operator, Admin, Worker, Trainer];
/// Roles that may see the state of a dataset.
const SEE: &[Role] = &[Viewer, Operator, Admin, Worker, Trainer];

/// Returns the roles that may make a call, and its relation to jobs.
pub(crate) fn of(rpc: Rpc) -> (&'static [Role], Reach) {
    match rpc {
        Rpc::Join | Rpc::Heartbeat | Rpc::Leave => (READ, Reach::Any),
        Rpc::ClaimScans | Rpc::ReportListing | Rpc::ReportScan | Rpc::FailScan => {
            (READ, Reach::Any)
        }
        Rpc::PutChunk | Rpc::GetChunk => (READ, Reach::Any),
        Rpc::RegisterJob | Rpc::StartRank | Rpc::EndRank => (READ, Reach::Job),
        Rpc::ReportSkipped | Rpc::LatestState | Rpc::ClaimGroups => (READ, Reach::Job),
        // Each claim names a lease that the caller holds.
        Rpc::BatchClaimGroups => (READ, Reach::Any),
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
        // The answer is about every job.
        Rpc::ListEvents => (LOOK, Reach::Whole),
        Rpc::Introduce | Rpc::Exchange | Rpc::PushChunk | Rpc::PullChunk => (NODES, Reach::Any),
    }
}

/// True if a completed call is written into the audit. Calls of workers about their leases are not:
/// the log, the events and the histories record them.
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
