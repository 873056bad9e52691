//! Requests to coordinators, and the call that each one is for.

use shardfeed_proto::coordinator::v1::{self as wire, Context};
use tonic::Streaming;

use super::{Answer, Clients};

/// A request of one of the coordinators' services.
pub trait Request: Clone + Send + Sync + 'static {
    type Response: Send + 'static;

    /// Makes one attempt.
    /// - `context`: replaces that of the request.
    fn send(self, clients: Clients, context: Option<Context>) -> Answer<Self::Response>;
}

macro_rules! requests {
    ($($service:ident.$method:ident($request:ident) -> $response:ty,)*) => {$(
        impl Request for wire::$request {
            type Response = $response;

            fn send(
                mut self,
                mut clients: Clients,
                context: Option<Context>,
            ) -> Answer<$response> {
                self.context = context;
                Box::pin(async move { clients.$service.$method(self).await })
            }
        }
    )*};
}

requests! {
    worker.join(JoinRequest) -> wire::JoinResponse,
    worker.heartbeat(HeartbeatRequest) -> wire::HeartbeatResponse,
    worker.leave(LeaveRequest) -> wire::LeaveResponse,
    worker.claim_scans(ClaimScansRequest) -> wire::ClaimScansResponse,
    worker.report_listing(ReportListingRequest) -> wire::ReportListingResponse,
    worker.report_scan(ReportScanRequest) -> wire::ReportScanResponse,
    worker.fail_scan(FailScanRequest) -> wire::FailScanResponse,
    worker.get_chunk(GetChunkRequest) -> wire::GetChunkResponse,
    worker.put_chunk(PutChunkRequest) -> wire::PutChunkResponse,
    worker.register_job(RegisterJobRequest) -> wire::RegisterJobResponse,
    worker.latest_state(LatestStateRequest) -> wire::LatestStateResponse,
    worker.start_rank(StartRankRequest) -> wire::StartRankResponse,
    worker.end_rank(EndRankRequest) -> wire::EndRankResponse,
    worker.claim_groups(ClaimGroupsRequest) -> wire::ClaimGroupsResponse,
    worker.batch_claim_groups(BatchClaimGroupsRequest) -> wire::BatchClaimGroupsResponse,
    worker.report_skipped(ReportSkippedRequest) -> wire::ReportSkippedResponse,
    admin.add_dataset(AddDatasetRequest) -> wire::AddDatasetResponse,
    admin.add_member(AddMemberRequest) -> wire::AddMemberResponse,
    admin.cordon_worker(CordonWorkerRequest) -> wire::CordonWorkerResponse,
    admin.create_access(CreateAccessRequest) -> wire::CreateAccessResponse,
    admin.declare_gone(DeclareGoneRequest) -> wire::DeclareGoneResponse,
    admin.exchange_access(ExchangeAccessRequest) -> wire::ExchangeAccessResponse,
    admin.get_batch(GetBatchRequest) -> wire::GetBatchResponse,
    admin.get_cluster(GetClusterRequest) -> wire::GetClusterResponse,
    admin.get_dataset(GetDatasetRequest) -> wire::GetDatasetResponse,
    admin.get_epoch_map(GetEpochMapRequest) -> wire::GetEpochMapResponse,
    admin.get_job(GetJobRequest) -> wire::GetJobResponse,
    admin.get_shard_history(GetShardHistoryRequest) -> wire::GetShardHistoryResponse,
    admin.get_status(GetStatusRequest) -> wire::GetStatusResponse,
    admin.hold_job(HoldJobRequest) -> wire::HoldJobResponse,
    admin.list_access(ListAccessRequest) -> wire::ListAccessResponse,
    admin.list_audit(ListAuditRequest) -> wire::ListAuditResponse,
    admin.list_datasets(ListDatasetsRequest) -> wire::ListDatasetsResponse,
    admin.list_epochs(ListEpochsRequest) -> wire::ListEpochsResponse,
    admin.list_events(ListEventsRequest) -> wire::ListEventsResponse,
    admin.list_jobs(ListJobsRequest) -> wire::ListJobsResponse,
    admin.list_ranks(ListRanksRequest) -> wire::ListRanksResponse,
    admin.list_shards(ListShardsRequest) -> Streaming<wire::ListShardsResponse>,
    admin.list_workers(ListWorkersRequest) -> wire::ListWorkersResponse,
    admin.remove_dataset(RemoveDatasetRequest) -> wire::RemoveDatasetResponse,
    admin.remove_job(RemoveJobRequest) -> wire::RemoveJobResponse,
    admin.remove_member(RemoveMemberRequest) -> wire::RemoveMemberResponse,
    admin.revoke_access(RevokeAccessRequest) -> wire::RevokeAccessResponse,
    admin.save_snapshot(SaveSnapshotRequest) -> Streaming<wire::SaveSnapshotResponse>,
    admin.transfer_leader(TransferLeaderRequest) -> wire::TransferLeaderResponse,
    admin.who_am_i(WhoAmIRequest) -> wire::WhoAmIResponse,
}
