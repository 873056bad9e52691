//! Requests of the admin service: the method that each one calls, and its answer.

use std::pin::Pin;

use shardfeed_agent::Wire;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use tonic::{Response, Status, Streaming};

pub(crate) type Admin = AdminServiceClient<Wire>;

pub(crate) type Sent<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

pub(crate) trait Request: Clone {
    type Answer: Send + 'static;

    /// Sends the request with a context; one that it had is replaced.
    fn send(self, admin: Admin, context: Option<wire::Context>) -> Sent<Self::Answer>;
}

macro_rules! requests {
    ($($request:ident, $method:ident -> $answer:ty;)*) => {$(
        impl Request for wire::$request {
            type Answer = $answer;

            fn send(mut self, mut admin: Admin, context: Option<wire::Context>) -> Sent<$answer> {
                self.context = context;
                Box::pin(async move { admin.$method(self).await })
            }
        }
    )*};
}

requests! {
    AddDatasetRequest, add_dataset -> wire::AddDatasetResponse;
    AddMemberRequest, add_member -> wire::AddMemberResponse;
    CordonWorkerRequest, cordon_worker -> wire::CordonWorkerResponse;
    CreateAccessRequest, create_access -> wire::CreateAccessResponse;
    DeclareGoneRequest, declare_gone -> wire::DeclareGoneResponse;
    ExchangeAccessRequest, exchange_access -> wire::ExchangeAccessResponse;
    GetBatchRequest, get_batch -> wire::GetBatchResponse;
    GetClusterRequest, get_cluster -> wire::GetClusterResponse;
    GetDatasetRequest, get_dataset -> wire::GetDatasetResponse;
    GetEpochMapRequest, get_epoch_map -> wire::GetEpochMapResponse;
    GetJobRequest, get_job -> wire::GetJobResponse;
    GetShardHistoryRequest, get_shard_history -> wire::GetShardHistoryResponse;
    GetStatusRequest, get_status -> wire::GetStatusResponse;
    HoldJobRequest, hold_job -> wire::HoldJobResponse;
    ListAccessRequest, list_access -> wire::ListAccessResponse;
    ListAuditRequest, list_audit -> wire::ListAuditResponse;
    ListDatasetsRequest, list_datasets -> wire::ListDatasetsResponse;
    ListEpochsRequest, list_epochs -> wire::ListEpochsResponse;
    ListEventsRequest, list_events -> wire::ListEventsResponse;
    ListJobsRequest, list_jobs -> wire::ListJobsResponse;
    ListRanksRequest, list_ranks -> wire::ListRanksResponse;
    ListShardsRequest, list_shards -> Streaming<wire::ListShardsResponse>;
    ListWorkersRequest, list_workers -> wire::ListWorkersResponse;
    RemoveDatasetRequest, remove_dataset -> wire::RemoveDatasetResponse;
    RemoveJobRequest, remove_job -> wire::RemoveJobResponse;
    RemoveMemberRequest, remove_member -> wire::RemoveMemberResponse;
    RevokeAccessRequest, revoke_access -> wire::RevokeAccessResponse;
    SaveSnapshotRequest, save_snapshot -> Streaming<wire::SaveSnapshotResponse>;
    TransferLeaderRequest, transfer_leader -> wire::TransferLeaderResponse;
    WhoAmIRequest, who_am_i -> wire::WhoAmIResponse;
}
