//! Requests of a worker to its coordinators, and the call that each one is for.

use shardfeed_proto::coordinator::v1::{self as wire, Context};

use super::{Answer, Clients};

pub(crate) trait Request: Clone + Send + Sync + 'static {
    type Response: Send + 'static;

    /// Makes one attempt.
    /// - `context`: replaces that of the request.
    fn send(self, clients: Clients, context: Option<Context>) -> Answer<Self::Response>;
}

macro_rules! requests {
    ($($service:ident.$method:ident($request:ident) -> $response:ident,)*) => {$(
        impl Request for wire::$request {
            type Response = wire::$response;

            fn send(
                mut self,
                mut clients: Clients,
                context: Option<Context>,
            ) -> Answer<wire::$response> {
                self.context = context;
                Box::pin(async move { clients.$service.$method(self).await })
            }
        }
    )*};
}

requests! {
    worker.join(JoinRequest) -> JoinResponse,
    worker.heartbeat(HeartbeatRequest) -> HeartbeatResponse,
    worker.leave(LeaveRequest) -> LeaveResponse,
    worker.claim_scans(ClaimScansRequest) -> ClaimScansResponse,
    worker.report_listing(ReportListingRequest) -> ReportListingResponse,
    worker.report_scan(ReportScanRequest) -> ReportScanResponse,
    worker.fail_scan(FailScanRequest) -> FailScanResponse,
    worker.get_chunk(GetChunkRequest) -> GetChunkResponse,
    worker.put_chunk(PutChunkRequest) -> PutChunkResponse,
    worker.register_job(RegisterJobRequest) -> RegisterJobResponse,
    worker.latest_state(LatestStateRequest) -> LatestStateResponse,
    worker.start_rank(StartRankRequest) -> StartRankResponse,
    worker.end_rank(EndRankRequest) -> EndRankResponse,
    worker.claim_groups(ClaimGroupsRequest) -> ClaimGroupsResponse,
    worker.report_skipped(ReportSkippedRequest) -> ReportSkippedResponse,
    admin.get_status(GetStatusRequest) -> GetStatusResponse,
    admin.get_dataset(GetDatasetRequest) -> GetDatasetResponse,
    admin.add_dataset(AddDatasetRequest) -> AddDatasetResponse,
}
