//! Calls of operators: reads of the applied state, and changes.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use shardfeed_plan::{Corrupt, Digest};
use shardfeed_proto::coordinator::v1::admin_service_server::AdminService;
use shardfeed_proto::coordinator::v1::{
    AddDatasetRequest, AddDatasetResponse, AddMemberRequest, AddMemberResponse, Cordon,
    CordonWorkerRequest, CordonWorkerResponse, CreateAccessRequest, CreateAccessResponse,
    DeclareGoneRequest, DeclareGoneResponse, ExchangeAccessRequest, ExchangeAccessResponse,
    GetBatchRequest, GetBatchResponse, GetClusterRequest, GetClusterResponse, GetDatasetRequest,
    GetDatasetResponse, GetEpochMapRequest, GetEpochMapResponse, GetJobRequest, GetJobResponse,
    GetShardHistoryRequest, GetShardHistoryResponse, GetStatusRequest, GetStatusResponse,
    HoldJobRequest, HoldJobResponse, ListAccessRequest, ListAccessResponse, ListAuditRequest,
    ListAuditResponse, ListDatasetsRequest, ListDatasetsResponse, ListEpochsRequest,
    ListEpochsResponse, ListEventsRequest, ListEventsResponse, ListJobsRequest, ListJobsResponse,
    ListRanksRequest, ListRanksResponse, ListShardsRequest, ListShardsResponse, ListWorkersRequest,
    ListWorkersResponse, Member, MemberRole, RemoveDatasetRequest, RemoveDatasetResponse,
    RemoveJobRequest, RemoveJobResponse, RemoveMemberRequest, RemoveMemberResponse,
    RevokeAccessRequest, RevokeAccessResponse, SaveSnapshotRequest, SaveSnapshotResponse,
    TransferLeaderRequest, TransferLeaderResponse, WhoAmIRequest, WhoAmIResponse,
};
use shardfeed_proto::{ErrorKind, WireError, coordinator::v1 as wire};
use shardfeed_raft::Role;
use shardfeed_scheduler::{AddDataset, Answer, Change, Dataset, Hold, Listing, Phase, covers};
use tonic::{Request, Response, Status};

use super::access::{
    create_access, exchange_access, list_access, list_audit, revoke_access, who_am_i,
};
use super::context::{Caller, Effect};
use super::detail;
use super::files::{FILES_PREFIX, name_of};
use super::guard::{Object, Seen};
use super::register;
use super::scans::{checked, parts_from, propose_holding};
use super::serve::{Asked, serve, service};
use crate::config::check_address;
use crate::error;
use crate::leader::computing::computing;
use crate::leader::core::{Core, blocking};
use crate::metrics::Rpc;
use crate::net::front::Front;
use crate::storage::archive::{self, Archive};
use crate::storage::copies;
use crate::views::{self, Past, Picture};

/// Maximum cells of a map: more than a large screen has.
const MAP_CELLS_MAX: u64 = 10_000;

/// gRPC service for operators.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) front: Arc<Front>,
}

type SnapshotStream = Pin<Box<dyn Stream<Item = Result<SaveSnapshotResponse, Status>> + Send>>;
type ShardStream = Pin<Box<dyn Stream<Item = Result<ListShardsResponse, Status>> + Send>>;

service! {
    impl AdminService for Admin {
        get_status: GetStatus, Reads, |_| Object::Nothing, GetStatusRequest => GetStatusResponse;
        get_cluster: GetCluster, Reads, |_| Object::Nothing,
            GetClusterRequest => GetClusterResponse;
        add_member: AddMember, Changes, |r| Object::Named(r.node.to_string()),
            AddMemberRequest => AddMemberResponse;
        remove_member: RemoveMember, Changes, |r| Object::Named(r.node.to_string()),
            RemoveMemberRequest => RemoveMemberResponse;
        transfer_leader: TransferLeader, Changes, |_| Object::Nothing,
            TransferLeaderRequest => TransferLeaderResponse;
        cordon_worker: CordonWorker, Changes, |r| Object::Named(r.worker.clone()),
            CordonWorkerRequest => CordonWorkerResponse;
        hold_job: HoldJob, Changes, |r| Object::Job(r.job.clone()),
            HoldJobRequest => HoldJobResponse;
        declare_gone: DeclareGone, Changes, |r| Object::Job(r.job.clone()),
            DeclareGoneRequest => DeclareGoneResponse;
        remove_dataset: RemoveDataset, Changes, |r| Object::Named(r.name.clone()),
            RemoveDatasetRequest => RemoveDatasetResponse;
        remove_job: RemoveJob, Changes, |r| Object::Job(r.name.clone()),
            RemoveJobRequest => RemoveJobResponse;
        add_dataset: AddDataset, Changes, |r| Object::Named(r.name.clone()),
            AddDatasetRequest => AddDatasetResponse;
        get_dataset: GetDataset, Looks, |r| Object::Named(r.name.clone()),
            GetDatasetRequest => GetDatasetResponse;
        list_datasets: ListDatasets, Looks, |_| Object::Nothing,
            ListDatasetsRequest => ListDatasetsResponse;
        list_jobs: ListJobs, Looks, |_| Object::Nothing, ListJobsRequest => ListJobsResponse;
        get_job: GetJob, Looks, |r| Object::Job(r.job.clone()), GetJobRequest => GetJobResponse;
        list_epochs: ListEpochs, Looks, |r| Object::Job(r.job.clone()),
            ListEpochsRequest => ListEpochsResponse;
        list_ranks: ListRanks, Looks, |r| Object::Job(r.job.clone()),
            ListRanksRequest => ListRanksResponse;
        list_workers: ListWorkers, Looks, |_| Object::Nothing,
            ListWorkersRequest => ListWorkersResponse;
        get_batch: GetBatch, Looks, |r| Object::Job(r.job.clone()),
            GetBatchRequest => GetBatchResponse;
        list_events: ListEvents, Looks, |_| Object::Nothing,
            ListEventsRequest => ListEventsResponse;
        get_shard_history: GetShardHistory, Looks, |r| Object::Job(r.job.clone()),
            GetShardHistoryRequest => GetShardHistoryResponse;
        get_epoch_map: GetEpochMap, Looks, |r| Object::Job(r.job.clone()),
            GetEpochMapRequest => GetEpochMapResponse;
        who_am_i: WhoAmI, Reads, |_| Object::Nothing, WhoAmIRequest => WhoAmIResponse;
        create_access: CreateAccess, Changes, |r| Object::Named(r.id.clone()),
            CreateAccessRequest => CreateAccessResponse;
        revoke_access: RevokeAccess, Changes, |r| Object::Named(r.id.clone()),
            RevokeAccessRequest => RevokeAccessResponse;
        list_access: ListAccess, Looks, |_| Object::Nothing, ListAccessRequest => ListAccessResponse;
        exchange_access: ExchangeAccess, Changes, |r| Object::Named(r.id.clone()),
            ExchangeAccessRequest => ExchangeAccessResponse;
        list_audit: ListAudit, Reads, |_| Object::Nothing, ListAuditRequest => ListAuditResponse;
    }

    type SaveSnapshotStream = SnapshotStream;

    async fn save_snapshot(
        &self,
        request: Request<SaveSnapshotRequest>,
    ) -> Result<Response<SnapshotStream>, Status> {
        let seen = Seen::of(&request);
        let context = request.into_inner().context;
        let asked = Asked { seen, context, object: Object::Nothing, detail: String::new() };
        let call = (Rpc::SaveSnapshot, Effect::Looks);
        serve(&self.front, call, asked, |core, _| save_snapshot(core)).await
    }

    type ListShardsStream = ShardStream;

    async fn list_shards(
        &self,
        request: Request<ListShardsRequest>,
    ) -> Result<Response<ShardStream>, Status> {
        let seen = Seen::of(&request);
        let mut request = request.into_inner();
        let context = request.context.take();
        let (object, detail) = (Object::Job(request.job.clone()), String::new());
        let asked = Asked { seen, context, object, detail };
        let call = (Rpc::ListShards, Effect::Looks);
        serve(&self.front, call, asked, |core, caller| list_shards(core, caller, request)).await
    }
}

async fn get_status(
    core: Arc<Core>,
    _caller: Caller,
    _request: GetStatusRequest,
) -> Result<GetStatusResponse, WireError> {
    let status = core.node.status();
    Ok(GetStatusResponse {
        cluster_id: core.node.cluster_id().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: status.node_id,
        leader: status.leader,
        term: status.term,
        applied: status.applied.unwrap_or(0),
        snapshot: status.snapshot.unwrap_or(0),
        uptime_ms: core.host.now().saturating_duration_since(core.started).as_millis() as u64,
        leader_address: core.leadership().leader.as_ref().and_then(error::address_of),
        clock_ms: core.host.wall_ms(),
    })
}

async fn get_cluster(
    core: Arc<Core>,
    _caller: Caller,
    _request: GetClusterRequest,
) -> Result<GetClusterResponse, WireError> {
    let status = core.node.status();
    let here = Arc::clone(&core);
    // Hashing a large state is slow.
    let hash = blocking(&core, "hashing the state", move || Ok(here.node.state_hash().1)).await?;
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let member = |member: shardfeed_raft::Member| Member {
        node: member.node,
        address: member.address,
        role: match member.role {
            Role::Leader => MemberRole::Leader,
            Role::Voter => MemberRole::Voter,
            Role::Learner => MemberRole::Learner,
        }
        .into(),
        matched: member.matched,
        heard_ms: member.heard_ms,
        state_hash: if member.node == status.node_id { hash.clone() } else { String::new() },
    };
    Ok(GetClusterResponse {
        cluster_id: core.node.cluster_id().to_owned(),
        cluster_name: core.options.cluster_name.clone(),
        node: status.node_id,
        leader: status.leader,
        term: status.term,
        committed: status.committed.unwrap_or(0),
        members: core.node.members().into_iter().map(member).collect(),
    })
}

async fn add_member(
    core: Arc<Core>,
    _caller: Caller,
    request: AddMemberRequest,
) -> Result<AddMemberResponse, WireError> {
    let AddMemberRequest { node, address, .. } = request;
    let invalid = |message: String| WireError::new(ErrorKind::Invalid, message);
    if node == 0 {
        return Err(invalid("`node` is 0; nodes are numbered from 1 on".into()));
    }
    check_address("address", &address).map_err(|error| invalid(error.to_string()))?;
    let members = core.node.members();
    if members.iter().any(|member| member.node != node && member.address == address) {
        return Err(invalid(format!("another node of the cluster has the address {address}")));
    }
    if core.options.advertise.is_none()
        && core.options.peers.is_empty()
        && core.options.listens_everywhere()
    {
        let message = format!(
            "other nodes cannot reach this one at {}; set its option `advertise` and restart it first",
            core.advertise
        );
        return Err(invalid(message));
    }
    let added = core.node.add_member(node, &address).await;
    added.map_err(|error| error::change(&error))?;
    tracing::info!(node, address, "a node was added");
    Ok(AddMemberResponse {})
}

async fn remove_member(
    core: Arc<Core>,
    _caller: Caller,
    request: RemoveMemberRequest,
) -> Result<RemoveMemberResponse, WireError> {
    let node = request.node;
    copies::put_before_removal(&core, node).await?;
    let removed = core.node.remove_member(node).await;
    removed.map_err(|error| error::change(&error))?;
    tracing::info!(node, "a node was removed");
    Ok(RemoveMemberResponse {})
}

async fn transfer_leader(
    core: Arc<Core>,
    _caller: Caller,
    request: TransferLeaderRequest,
) -> Result<TransferLeaderResponse, WireError> {
    // Cursors that this leader received and did not write yet are not reported again to its
    // successor.
    core.write_cursors().await;
    let leader = core.node.transfer_leader(request.to).await;
    Ok(TransferLeaderResponse { leader: leader.map_err(|error| error::change(&error))? })
}

async fn save_snapshot(core: Arc<Core>) -> Result<SnapshotStream, WireError> {
    let turn = Arc::clone(&core.plans.archives).try_acquire_owned();
    let turn = turn.map_err(|_| {
        WireError::new(ErrorKind::Retry, "another snapshot is being sent; try again after it")
    })?;
    core.write_cursors().await;
    let here = Arc::clone(&core);
    let export = move || {
        let (applied, state) = here.node.export();
        Archive::new(here.node.cluster_id(), applied, state)
    };
    let archive = blocking(&core, "exporting the state", export).await?;
    let applied = archive.applied();
    copies::bring(&core, archive.chunks()).await?;
    let parts = archive::parts(core, archive).map(move |part| {
        let _until_the_end = &turn;
        let content = part.map_err(|error| error.to_status())?;
        Ok(SaveSnapshotResponse { content, applied })
    });
    Ok(parts.boxed())
}

async fn cordon_worker(
    core: Arc<Core>,
    caller: Caller,
    request: CordonWorkerRequest,
) -> Result<CordonWorkerResponse, WireError> {
    let state = match request.cordon() {
        Cordon::Open => shardfeed_scheduler::Cordon::Open,
        Cordon::Cordoned => shardfeed_scheduler::Cordon::Cordoned,
        Cordon::Draining => shardfeed_scheduler::Cordon::Draining,
        Cordon::Unspecified => {
            return Err(WireError::new(ErrorKind::Invalid, "the message lacks `cordon`"));
        }
    };
    let worker = request.worker;
    core.propose(caller, Change::CordonWorker { worker, state }).await?;
    Ok(CordonWorkerResponse {})
}

async fn hold_job(
    core: Arc<Core>,
    caller: Caller,
    request: HoldJobRequest,
) -> Result<HoldJobResponse, WireError> {
    let hold = match request.hold() {
        wire::Hold::None => None,
        wire::Hold::Paused => Some(Hold::Paused),
        wire::Hold::Cancelled => Some(Hold::Cancelled),
        wire::Hold::Unspecified => {
            return Err(WireError::new(ErrorKind::Invalid, "the message lacks `hold`"));
        }
    };
    // The job's history must contain the consumption that is known now.
    core.write_cursors().await;
    let HoldJobRequest { job: name, reason, .. } = request;
    core.propose(caller, Change::HoldJob { name, hold, reason }).await?;
    Ok(HoldJobResponse {})
}

async fn declare_gone(
    core: Arc<Core>,
    caller: Caller,
    request: DeclareGoneRequest,
) -> Result<DeclareGoneResponse, WireError> {
    core.write_cursors().await;
    let DeclareGoneRequest { job, rank, .. } = request;
    match core.propose(caller, Change::DeclareGone { job, rank }).await? {
        Answer::Decided { samples } => Ok(DeclareGoneResponse { samples }),
        _ => Err(error::lost("a decision")),
    }
}

async fn remove_dataset(
    core: Arc<Core>,
    caller: Caller,
    request: RemoveDatasetRequest,
) -> Result<RemoveDatasetResponse, WireError> {
    core.propose(caller, Change::RemoveDataset { name: request.name }).await?;
    Ok(RemoveDatasetResponse {})
}

async fn remove_job(
    core: Arc<Core>,
    caller: Caller,
    request: RemoveJobRequest,
) -> Result<RemoveJobResponse, WireError> {
    core.propose(caller, Change::RemoveJob { name: request.name }).await?;
    Ok(RemoveJobResponse {})
}

async fn add_dataset(
    core: Arc<Core>,
    caller: Caller,
    request: AddDatasetRequest,
) -> Result<AddDatasetResponse, WireError> {
    let AddDatasetRequest { name, patterns, mut compression, corrupt, listing, .. } = request;
    let scope = caller.who.scope();
    let is_known = |p: &str| p.starts_with('/') || p.starts_with("@/") || p.contains("://");
    let relative = patterns.iter().find(|pattern| !is_known(pattern));
    if let Some(pattern) = relative {
        let pattern: String = pattern.chars().take(200).collect();
        let message = format!(
            "`{pattern}` is relative to a folder that the workers do not know; use an absolute path"
        );
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    if compression.is_empty() {
        compression = "auto".into();
    }
    let corrupt = match corrupt.as_str() {
        "" => Corrupt::Error,
        text => text.parse().map_err(|error| WireError::new(ErrorKind::Invalid, error))?,
    };
    let mut add = AddDataset { name, patterns, compression, corrupt, listing: None };
    if let Some(listing) = listing {
        let parts = parts_from(listing.parts)?;
        return add_files(core, caller, add, Listing { root: listing.root, parts }).await;
    }
    if add.name.starts_with(FILES_PREFIX) {
        let message =
            format!("names with `{FILES_PREFIX}` are the coordinator's; use another name");
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    if !covers(&scope, &add.name) {
        add.name.truncate(add.name.floor_char_boundary(200));
        let message = format!(
            "{} is not for dataset `{}`; its names: {}",
            caller.principal,
            add.name,
            scope.join(", ")
        );
        return Err(WireError::new(ErrorKind::Denied, message));
    }
    let name = add.name.clone();
    core.propose(caller, Change::AddDataset(add)).await?;
    Ok(AddDatasetResponse { name })
}

/// Adds a dataset by its files, unless it exists.
async fn add_files(
    core: Arc<Core>,
    caller: Caller,
    add: AddDataset,
    listing: Listing,
) -> Result<AddDatasetResponse, WireError> {
    let invalid = |message: &str| Err(WireError::new(ErrorKind::Invalid, message));
    if !add.name.is_empty() || !add.patterns.is_empty() {
        return invalid("a dataset that is added by its files has no other name and no patterns");
    }
    if !listing.root.starts_with('/') && !listing.root.contains("://") {
        return invalid("`root` is no absolute path and no URL");
    }
    let name = |scope: &[String]| name_of(&listing, &add.compression, add.corrupt, scope);
    let is_there = |name: &str| {
        let usable = |dataset: &Dataset| !matches!(dataset.phase, Phase::Failed { .. });
        core.read(|state| state.dataset(name).is_some_and(usable))
    };
    // The results of an unlimited principal's workers are valid for everyone.
    let shared = name(&[]);
    if is_there(&shared) {
        return Ok(AddDatasetResponse { name: shared });
    }
    let name = name(&caller.who.scope());
    if is_there(&name) {
        return Ok(AddDatasetResponse { name });
    }
    let held: Vec<Digest> = listing.parts.iter().map(|part| part.chunk).collect();
    let here = Arc::clone(&core);
    let checked_listing = listing.clone();
    let check = async move { checked(&here, None, checked_listing).await };
    let change = AddDataset { name: name.clone(), listing: Some(listing.clone()), ..add.clone() };
    propose_holding(&core, caller, Change::AddDataset(change), held, check).await?;
    Ok(AddDatasetResponse { name })
}

async fn get_dataset(
    core: Arc<Core>,
    _caller: Caller,
    request: GetDatasetRequest,
) -> Result<GetDatasetResponse, WireError> {
    let name = request.name;
    let now = (core.host.now(), core.host.wall_ms());
    let view = core
        .read(|state| Some(views::dataset(state, &core.live(), state.dataset(&name)?, true, now)));
    let name: String = name.chars().take(200).collect();
    let none = || WireError::new(ErrorKind::NotFound, format!("there is no dataset `{name}`"));
    Ok(GetDatasetResponse { dataset: Some(view.ok_or_else(none)?) })
}

async fn list_datasets(
    core: Arc<Core>,
    _caller: Caller,
    _request: ListDatasetsRequest,
) -> Result<ListDatasetsResponse, WireError> {
    let now = (core.host.now(), core.host.wall_ms());
    let datasets = core.read(|state| {
        let live = core.live();
        let view = |known: &Dataset| views::dataset(state, &live, known, false, now);
        state.datasets().map(view).collect()
    });
    Ok(ListDatasetsResponse { datasets })
}

async fn list_jobs(
    core: Arc<Core>,
    _caller: Caller,
    _request: ListJobsRequest,
) -> Result<ListJobsResponse, WireError> {
    let now_ms = core.host.wall_ms();
    let jobs = core.read(|state| state.jobs().map(|job| views::job(job, false, now_ms)).collect());
    Ok(ListJobsResponse { jobs })
}

async fn get_job(
    core: Arc<Core>,
    _caller: Caller,
    request: GetJobRequest,
) -> Result<GetJobResponse, WireError> {
    let now_ms = core.host.wall_ms();
    let view = |state: &shardfeed_scheduler::State| {
        let job = state.job(&request.job)?;
        Some((views::job(job, true, now_ms), job.record_spec_chunks.clone()))
    };
    let (job, chunks) = core.read(view).ok_or_else(|| views::no_job(&request.job))?;
    let record_spec = register::read(&core, &chunks).await.unwrap_or_else(|error| {
        tracing::warn!(job = request.job, %error, "cannot read the record spec of a job");
        vec![]
    });
    Ok(GetJobResponse { job: Some(job), record_spec })
}

async fn list_epochs(
    core: Arc<Core>,
    _caller: Caller,
    request: ListEpochsRequest,
) -> Result<ListEpochsResponse, WireError> {
    let epoch = request.epoch;
    let epochs = match (Picture::take(&core, &request.job)?, epoch) {
        (Some(picture), _) => {
            let chunks = picture.order.chunks.clone();
            computing(&core, &chunks, move |core| views::epochs(core, &picture, epoch)).await?
        }
        (None, None) => vec![],
        (None, Some(_)) => return Err(not_started(&request.job)),
    };
    Ok(ListEpochsResponse { epochs })
}

async fn list_shards(
    core: Arc<Core>,
    _caller: Caller,
    request: ListShardsRequest,
) -> Result<ShardStream, WireError> {
    let ListShardsRequest { job, epoch, rank, worker, path_part, .. } = request;
    let wanted = views::ShardFilter { rank, worker, path_part };
    let picture = Picture::take(&core, &job)?.ok_or_else(|| not_started(&job))?;
    let list = Arc::clone(&core.plans.lists).try_acquire_owned();
    let list = list.map_err(|_| {
        WireError::new(ErrorKind::Retry, "too many lists of shards are being sent; try again")
    })?;
    let chunks = picture.order.chunks.clone();
    let shards = move |core: &Core| views::shards(core, picture, epoch, wanted);
    let shards = computing(&core, &chunks, shards).await?;
    let message = move |message| {
        let _until_the_end = &list;
        Ok(message)
    };
    Ok(futures::stream::iter(shards.messages()).map(message).boxed())
}

async fn list_ranks(
    core: Arc<Core>,
    _caller: Caller,
    request: ListRanksRequest,
) -> Result<ListRanksResponse, WireError> {
    let Some(picture) = Picture::take(&core, &request.job)? else {
        return Ok(ListRanksResponse { ranks: vec![] });
    };
    let chunks = picture.order.chunks.clone();
    let ranks = computing(&core, &chunks, move |core| views::ranks(core, &picture)).await?;
    Ok(ListRanksResponse { ranks })
}

async fn list_workers(
    core: Arc<Core>,
    _caller: Caller,
    request: ListWorkersRequest,
) -> Result<ListWorkersResponse, WireError> {
    let now = (core.host.now(), core.host.wall_ms());
    let workers = core.read(|state| views::workers(state, &core.live(), request.all, now));
    Ok(ListWorkersResponse { workers })
}

async fn get_batch(
    core: Arc<Core>,
    _caller: Caller,
    request: GetBatchRequest,
) -> Result<GetBatchResponse, WireError> {
    let GetBatchRequest { job, epoch, step, rank, .. } = request;
    let picture = Picture::take(&core, &job)?.ok_or_else(|| not_started(&job))?;
    let chunks = picture.order.chunks.clone();
    let batch = move |core: &Core| views::batch(core, &picture, (epoch, step), rank);
    computing(&core, &chunks, batch).await
}

async fn list_events(
    core: Arc<Core>,
    _caller: Caller,
    request: ListEventsRequest,
) -> Result<ListEventsResponse, WireError> {
    Ok(core.read(|state| views::events(state, &request)))
}

async fn get_shard_history(
    core: Arc<Core>,
    _caller: Caller,
    request: GetShardHistoryRequest,
) -> Result<GetShardHistoryResponse, WireError> {
    let GetShardHistoryRequest { job, epoch, shard, .. } = request;
    let past = core.read(|state| Past::of(state, &job, epoch))?;
    let past = past.ok_or_else(|| not_started(&job))?;
    let chunks = past.order.chunks.clone();
    computing(&core, &chunks, move |core| past.of_shard(core, shard)).await
}

async fn get_epoch_map(
    core: Arc<Core>,
    _caller: Caller,
    request: GetEpochMapRequest,
) -> Result<GetEpochMapResponse, WireError> {
    let GetEpochMapRequest { job, epoch, cells, .. } = request;
    if !(1..=MAP_CELLS_MAX).contains(&cells) {
        let message = format!("`cells` is {cells}; 1 to {MAP_CELLS_MAX} are allowed");
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    let picture = Picture::take(&core, &job)?.ok_or_else(|| not_started(&job))?;
    let chunks = picture.order.chunks.clone();
    let all = views::ShardFilter::default();
    let map = move |core: &Core| Ok(views::shards(core, picture, epoch, all)?.map(cells));
    computing(&core, &chunks, map).await
}

fn not_started(job: &str) -> WireError {
    let message = format!("job `{job}` has not started yet; start its ranks first");
    WireError::new(ErrorKind::NotFound, message)
}
