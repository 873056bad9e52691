//! Calls of operators: reads of the applied state, and changes.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use shardfeed_plan::{Corrupt, Digest};
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::coordinator::v1::admin_service_server::AdminService;
use shardfeed_proto::{ErrorKind, WireError, coordinator::v1 as wire};
use shardfeed_raft::Role;
use shardfeed_scheduler::{
    AddDataset, Answer, Change, Cordon, Dataset, Hold, Listing, Phase, State, covers,
};
use tonic::Status;

use super::access::{
    create_access, exchange_access, list_access, list_audit, revoke_access, who_am_i,
};
use super::checks::optional_digest;
use super::context::Caller;
use super::files::{FILES_PREFIX, name_of};
use super::guard::Object;
use super::register;
use super::rights::Rpc;
use super::scans::{checked, parts_from, propose_referring};
use super::serve::{Call, Received, serve, service};
use crate::config::check_address;
use crate::error::{self, Result, invalid};
use crate::leader::computing::computing;
use crate::leader::core::{Core, blocking};
use crate::net::front::Front;
use crate::storage::archive::Archive;
use crate::storage::copies;
use crate::views::{self, Past, Picture, ShardFilter};

/// Maximum cells of a map: more than a large screen has.
const MAP_CELLS_MAX: u64 = 10_000;

#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) front: Arc<Front>,
}

type SnapshotStream = Messages<wire::SaveSnapshotResponse>;
type ShardStream = Messages<wire::ListShardsResponse>;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

service! {
    impl AdminService for Admin {
        get_status: GetStatus, |_| Object::Nothing, GetStatusRequest => wire::GetStatusResponse;
        get_cluster: GetCluster, |_| Object::Nothing, GetClusterRequest => wire::GetClusterResponse;
        add_member: AddMember, |r| Object::Named(r.node.to_string()),
            AddMemberRequest => wire::AddMemberResponse;
        remove_member: RemoveMember, |r| Object::Named(r.node.to_string()),
            RemoveMemberRequest => wire::RemoveMemberResponse;
        transfer_leader: TransferLeader, |_| Object::Nothing,
            TransferLeaderRequest => wire::TransferLeaderResponse;
        save_snapshot: SaveSnapshot, |_| Object::Nothing, SaveSnapshotRequest => SnapshotStream;
        cordon_worker: CordonWorker, |r| Object::Named(r.worker.clone()),
            CordonWorkerRequest => wire::CordonWorkerResponse;
        hold_job: HoldJob, |r| Object::Job(r.job.clone()), HoldJobRequest => wire::HoldJobResponse;
        declare_gone: DeclareGone, |r| Object::Job(r.job.clone()),
            DeclareGoneRequest => wire::DeclareGoneResponse;
        remove_dataset: RemoveDataset, |r| Object::Named(r.name.clone()),
            RemoveDatasetRequest => wire::RemoveDatasetResponse;
        remove_job: RemoveJob, |r| Object::Job(r.name.clone()),
            RemoveJobRequest => wire::RemoveJobResponse;
        add_dataset: AddDataset, |r| Object::Named(r.name.clone()),
            AddDatasetRequest => wire::AddDatasetResponse;
        get_dataset: GetDataset, |r| Object::Named(r.name.clone()),
            GetDatasetRequest => wire::GetDatasetResponse;
        list_datasets: ListDatasets, |_| Object::Nothing,
            ListDatasetsRequest => wire::ListDatasetsResponse;
        list_jobs: ListJobs, |_| Object::Nothing, ListJobsRequest => wire::ListJobsResponse;
        get_job: GetJob, |r| Object::Job(r.job.clone()), GetJobRequest => wire::GetJobResponse;
        list_epochs: ListEpochs, |r| Object::Job(r.job.clone()),
            ListEpochsRequest => wire::ListEpochsResponse;
        list_shards: ListShards, |r| Object::Job(r.job.clone()), ListShardsRequest => ShardStream;
        list_ranks: ListRanks, |r| Object::Job(r.job.clone()),
            ListRanksRequest => wire::ListRanksResponse;
        list_workers: ListWorkers, |_| Object::Nothing,
            ListWorkersRequest => wire::ListWorkersResponse;
        get_batch: GetBatch, |r| Object::Job(r.job.clone()),
            GetBatchRequest => wire::GetBatchResponse;
        list_events: ListEvents, |_| Object::Nothing, ListEventsRequest => wire::ListEventsResponse;
        get_shard_history: GetShardHistory, |r| Object::Job(r.job.clone()),
            GetShardHistoryRequest => wire::GetShardHistoryResponse;
        get_epoch_map: GetEpochMap, |r| Object::Job(r.job.clone()),
            GetEpochMapRequest => wire::GetEpochMapResponse;
        who_am_i: WhoAmI, |_| Object::Nothing, WhoAmIRequest => wire::WhoAmIResponse;
        create_access: CreateAccess, |r| Object::Named(r.id.clone()),
            CreateAccessRequest => wire::CreateAccessResponse;
        revoke_access: RevokeAccess, |r| Object::Named(r.id.clone()),
            RevokeAccessRequest => wire::RevokeAccessResponse;
        list_access: ListAccess, |_| Object::Nothing, ListAccessRequest => wire::ListAccessResponse;
        exchange_access: ExchangeAccess, |r| Object::Named(r.id.clone()),
            ExchangeAccessRequest => wire::ExchangeAccessResponse;
        list_audit: ListAudit, |_| Object::Nothing, ListAuditRequest => wire::ListAuditResponse;
    }

    type SaveSnapshotStream = SnapshotStream;
    type ListShardsStream = ShardStream;
}

async fn get_status(call: Call<wire::GetStatusRequest>) -> Result<wire::GetStatusResponse> {
    let core = call.core;
    let status = core.node.status();
    Ok(wire::GetStatusResponse {
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

async fn get_cluster(call: Call<wire::GetClusterRequest>) -> Result<wire::GetClusterResponse> {
    let core = call.core;
    let status = core.node.status();
    // Hashing a large state is slow.
    let hash = blocking(&core, "hashing the state", |core| Ok(core.node.state_hash().1)).await?;
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let member = |member: shardfeed_raft::Member| wire::Member {
        node: member.node,
        address: member.address,
        role: match member.role {
            Role::Leader => wire::MemberRole::Leader,
            Role::Voter => wire::MemberRole::Voter,
            Role::Learner => wire::MemberRole::Learner,
        }
        .into(),
        matched: member.matched,
        heard_ms: member.heard_ms,
        state_hash: if member.node == status.node_id { hash.clone() } else { String::new() },
    };
    Ok(wire::GetClusterResponse {
        cluster_id: core.node.cluster_id().to_owned(),
        cluster_name: core.options.cluster_name.clone(),
        node: status.node_id,
        leader: status.leader,
        term: status.term,
        committed: status.committed.unwrap_or(0),
        members: core.node.members().into_iter().map(member).collect(),
    })
}

async fn add_member(call: Call<wire::AddMemberRequest>) -> Result<wire::AddMemberResponse> {
    let Call { core, request: wire::AddMemberRequest { node, address, .. }, .. } = call;
    if node == 0 {
        return Err(invalid("`node` is 0; nodes are numbered from 1 on"));
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
        return Err(invalid(format!(
            "other nodes cannot reach this one at {}; set its option `advertise` and restart it first",
            core.advertise
        )));
    }
    core.node.add_member(node, &address).await.map_err(|error| error::change(&error))?;
    tracing::info!(node, address, "a node was added");
    Ok(wire::AddMemberResponse {})
}

async fn remove_member(
    call: Call<wire::RemoveMemberRequest>,
) -> Result<wire::RemoveMemberResponse> {
    let Call { core, request: wire::RemoveMemberRequest { node, .. }, .. } = call;
    copies::put_before_removal(&core, node).await?;
    core.node.remove_member(node).await.map_err(|error| error::change(&error))?;
    tracing::info!(node, "a node was removed");
    Ok(wire::RemoveMemberResponse {})
}

async fn transfer_leader(
    call: Call<wire::TransferLeaderRequest>,
) -> Result<wire::TransferLeaderResponse> {
    let Call { core, request, .. } = call;
    // Cursors that this leader received and did not write yet are not reported again to its
    // successor.
    core.write_cursors().await;
    let leader = core.node.transfer_leader(request.to).await;
    Ok(wire::TransferLeaderResponse { leader: leader.map_err(|error| error::change(&error))? })
}

async fn save_snapshot(call: Call<wire::SaveSnapshotRequest>) -> Result<SnapshotStream> {
    let core = call.core;
    let turn = Arc::clone(&core.plans.archives).try_acquire_owned();
    let turn = turn.map_err(|_| {
        WireError::new(ErrorKind::Retry, "another snapshot is being sent; try again after it")
    })?;
    core.write_cursors().await;
    let archive = blocking(&core, "exporting the state", |core| {
        let (applied, state) = core.node.export();
        Archive::new(core.node.cluster_id(), applied, state)
    });
    let archive = archive.await?;
    let applied = archive.applied();
    copies::bring(&core, archive.chunks()).await?;
    let parts = archive.parts(core).map(move |part| {
        let _until_the_end = &turn;
        let content = part.map_err(|error| error.to_status())?;
        Ok(wire::SaveSnapshotResponse { content, applied })
    });
    Ok(parts.boxed())
}

async fn cordon_worker(
    call: Call<wire::CordonWorkerRequest>,
) -> Result<wire::CordonWorkerResponse> {
    let Call { core, caller, request } = call;
    let state = match request.cordon() {
        wire::Cordon::Open => Cordon::Open,
        wire::Cordon::Cordoned => Cordon::Cordoned,
        wire::Cordon::Draining => Cordon::Draining,
        wire::Cordon::Unspecified => return Err(invalid("the message lacks `cordon`")),
    };
    core.propose(caller, Change::CordonWorker { worker: request.worker, state }).await?;
    Ok(wire::CordonWorkerResponse {})
}

async fn hold_job(call: Call<wire::HoldJobRequest>) -> Result<wire::HoldJobResponse> {
    let Call { core, caller, request } = call;
    let hold = match request.hold() {
        wire::Hold::None => None,
        wire::Hold::Paused => Some(Hold::Paused),
        wire::Hold::Cancelled => Some(Hold::Cancelled),
        wire::Hold::Unspecified => return Err(invalid("the message lacks `hold`")),
    };
    // The job's history must contain the consumption that is known now.
    core.write_cursors().await;
    let wire::HoldJobRequest { job: name, reason, .. } = request;
    core.propose(caller, Change::HoldJob { name, hold, reason }).await?;
    Ok(wire::HoldJobResponse {})
}

async fn declare_gone(call: Call<wire::DeclareGoneRequest>) -> Result<wire::DeclareGoneResponse> {
    let Call { core, caller, request: wire::DeclareGoneRequest { job, rank, .. } } = call;
    core.write_cursors().await;
    match core.propose(caller, Change::DeclareGone { job, rank }).await? {
        Answer::Decided { samples } => Ok(wire::DeclareGoneResponse { samples }),
        _ => Err(error::lost("a decision")),
    }
}

async fn remove_dataset(
    call: Call<wire::RemoveDatasetRequest>,
) -> Result<wire::RemoveDatasetResponse> {
    call.core.propose(call.caller, Change::RemoveDataset { name: call.request.name }).await?;
    Ok(wire::RemoveDatasetResponse {})
}

async fn remove_job(call: Call<wire::RemoveJobRequest>) -> Result<wire::RemoveJobResponse> {
    call.core.propose(call.caller, Change::RemoveJob { name: call.request.name }).await?;
    Ok(wire::RemoveJobResponse {})
}

async fn add_dataset(call: Call<wire::AddDatasetRequest>) -> Result<wire::AddDatasetResponse> {
    let Call { core, caller, request } = call;
    let wire::AddDatasetRequest {
        name, patterns, mut compression, corrupt, listing, program, ..
    } = request;
    let scope = caller.who.scope();
    let is_known = |p: &str| p.starts_with('/') || p.starts_with("@/") || p.contains("://");
    if let Some(pattern) = patterns.iter().find(|pattern| !is_known(pattern)) {
        let pattern: String = pattern.chars().take(200).collect();
        return Err(invalid(format!(
            "`{pattern}` is relative to a folder that the workers do not know; use an absolute path"
        )));
    }
    if compression.is_empty() {
        compression = "auto".into();
    }
    let corrupt = match corrupt.as_str() {
        "" => Corrupt::Error,
        text => text.parse().map_err(invalid)?,
    };
    let program = optional_digest("program", &program)?;
    let mut add = AddDataset { name, patterns, compression, corrupt, listing: None, program };
    if let Some(listing) = listing {
        let parts = parts_from(listing.parts)?;
        return add_files(core, caller, add, Listing { root: listing.root, parts }).await;
    }
    if add.name.starts_with(FILES_PREFIX) {
        return Err(invalid(format!(
            "names with `{FILES_PREFIX}` are the coordinator's; use another name"
        )));
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
    Ok(wire::AddDatasetResponse { name })
}

/// Adds a dataset by its files, unless it exists.
async fn add_files(
    core: Arc<Core>,
    caller: Caller,
    add: AddDataset,
    listing: Listing,
) -> Result<wire::AddDatasetResponse> {
    if !add.name.is_empty() || !add.patterns.is_empty() {
        let message = "a dataset that is added by its files has no other name and no patterns";
        return Err(invalid(message));
    }
    if !listing.root.starts_with('/') && !listing.root.contains("://") {
        return Err(invalid("`root` is no absolute path and no URL"));
    }
    let rules = (&*add.compression, add.corrupt, add.program);
    let name = |scope: &[String]| name_of(&listing, rules, scope);
    let is_there = |name: &str| {
        let usable = |dataset: &Dataset| !matches!(dataset.phase, Phase::Failed { .. });
        core.read(|state| state.dataset(name).is_some_and(usable))
    };
    // The results of an unlimited principal's workers are valid for everyone.
    let shared = name(&[]);
    if is_there(&shared) {
        return Ok(wire::AddDatasetResponse { name: shared });
    }
    let name = name(&caller.who.scope());
    if is_there(&name) {
        return Ok(wire::AddDatasetResponse { name });
    }
    let listed = listing.parts.iter().map(|part| part.chunk);
    let referred: Vec<Digest> = listed.chain(add.program).collect();
    let check = async {
        checked(&core, None, listing.clone()).await?;
        match add.program {
            Some(program) => check_program(&core, program).await,
            None => Ok(()),
        }
    };
    let change = AddDataset { name: name.clone(), listing: Some(listing.clone()), ..add.clone() };
    propose_referring(&core, caller, Change::AddDataset(change), referred, check).await?;
    Ok(wire::AddDatasetResponse { name })
}

/// Rejects a program that is no record spec, or makes no samples.
async fn check_program(core: &Arc<Core>, program: Digest) -> Result<()> {
    copies::bring(core, &[program]).await?;
    let encoded = copies::get(core, program).await?;
    let spec =
        RecordSpec::decode_canonical(&encoded).map_err(|error| invalid(error.to_string()))?;
    let combines = spec.pack.is_some() || spec.window.is_some();
    if spec.filter.is_some() || spec.unbatch.is_some() || combines || spec.balance.is_some() {
        return Ok(());
    }
    Err(invalid("`program` is a record spec without filter, unbatch, pack, window and balance"))
}

async fn get_dataset(call: Call<wire::GetDatasetRequest>) -> Result<wire::GetDatasetResponse> {
    let Call { core, request: wire::GetDatasetRequest { name, .. }, .. } = call;
    let now = (core.host.now(), core.host.wall_ms());
    let view = core
        .read(|state| Some(views::dataset(state, &core.live(), state.dataset(&name)?, true, now)));
    let name: String = name.chars().take(200).collect();
    let none = || WireError::new(ErrorKind::NotFound, format!("there is no dataset `{name}`"));
    Ok(wire::GetDatasetResponse { dataset: Some(view.ok_or_else(none)?) })
}

async fn list_datasets(
    call: Call<wire::ListDatasetsRequest>,
) -> Result<wire::ListDatasetsResponse> {
    let core = call.core;
    let now = (core.host.now(), core.host.wall_ms());
    let datasets = core.read(|state| {
        let live = core.live();
        let view = |known: &Dataset| views::dataset(state, &live, known, false, now);
        state.datasets().map(view).collect()
    });
    Ok(wire::ListDatasetsResponse { datasets })
}

async fn list_jobs(call: Call<wire::ListJobsRequest>) -> Result<wire::ListJobsResponse> {
    let now_ms = call.core.host.wall_ms();
    let all = |state: &State| state.jobs().map(|job| views::job(job, false, now_ms)).collect();
    Ok(wire::ListJobsResponse { jobs: call.core.read(all) })
}

async fn get_job(call: Call<wire::GetJobRequest>) -> Result<wire::GetJobResponse> {
    let Call { core, request: wire::GetJobRequest { job, .. }, .. } = call;
    let now_ms = core.host.wall_ms();
    let view = |state: &State| {
        let job = state.job(&job)?;
        Some((views::job(job, true, now_ms), job.record_spec_chunks.clone()))
    };
    let (known, chunks) = core.read(view).ok_or_else(|| views::no_job(&job))?;
    let record_spec = register::read(&core, &chunks).await.unwrap_or_else(|error| {
        tracing::warn!(job, %error, "cannot read the record spec of a job");
        vec![]
    });
    Ok(wire::GetJobResponse { job: Some(known), record_spec })
}

async fn list_epochs(call: Call<wire::ListEpochsRequest>) -> Result<wire::ListEpochsResponse> {
    let Call { core, request: wire::ListEpochsRequest { job, epoch, .. }, .. } = call;
    let epochs = match (Picture::take(&core, &job)?, epoch) {
        (Some(picture), _) => {
            picture
                .compute(&core, move |core, picture| views::epochs(core, &picture, epoch))
                .await?
        }
        (None, None) => vec![],
        (None, Some(_)) => return Err(not_started(&job)),
    };
    Ok(wire::ListEpochsResponse { epochs })
}

async fn list_shards(call: Call<wire::ListShardsRequest>) -> Result<ShardStream> {
    let Call { core, request, .. } = call;
    let wire::ListShardsRequest { job, epoch, rank, worker, path_part, .. } = request;
    let wanted = ShardFilter { rank, worker, path_part };
    let picture = started(&core, &job)?;
    let list = Arc::clone(&core.plans.lists).try_acquire_owned();
    let list = list.map_err(|_| {
        WireError::new(ErrorKind::Retry, "too many lists of shards are being sent; try again")
    })?;
    let shards = move |core: &Core, picture| views::shards(core, picture, epoch, wanted);
    let shards = picture.compute(&core, shards).await?;
    let message = move |message| {
        let _until_the_end = &list;
        Ok(message)
    };
    Ok(futures::stream::iter(shards.messages()).map(message).boxed())
}

async fn list_ranks(call: Call<wire::ListRanksRequest>) -> Result<wire::ListRanksResponse> {
    let ranks = match Picture::take(&call.core, &call.request.job)? {
        Some(job) => job.compute(&call.core, |core, job| views::ranks(core, &job)).await?,
        None => vec![],
    };
    Ok(wire::ListRanksResponse { ranks })
}

async fn list_workers(call: Call<wire::ListWorkersRequest>) -> Result<wire::ListWorkersResponse> {
    let Call { core, request, .. } = call;
    let now = (core.host.now(), core.host.wall_ms());
    let workers = core.read(|state| views::workers(state, &core.live(), request.all, now));
    Ok(wire::ListWorkersResponse { workers })
}

async fn get_batch(call: Call<wire::GetBatchRequest>) -> Result<wire::GetBatchResponse> {
    let wire::GetBatchRequest { job, epoch, step, rank, accepts_order, .. } = call.request;
    let picture = started(&call.core, &job)?;
    match register::balance_of(&call.core, &job).await? {
        None => {
            let batch =
                move |core: &Core, job: Picture| views::batch(core, &job, (epoch, step), rank);
            picture.compute(&call.core, batch).await
        }
        Some(balance) if accepts_order => {
            let order = move |core: &Core, job: Picture| {
                views::balanced_order(core, &job, (epoch, step), balance.window)
            };
            picture.compute(&call.core, order).await
        }
        Some(balance) => Err(invalid(format!(
            "job `{job}` balances its steps by `{}`, and coordinators do not know the costs of samples; \
             a newer `shardfeed` computes its batches",
            balance.by
        ))),
    }
}

async fn list_events(call: Call<wire::ListEventsRequest>) -> Result<wire::ListEventsResponse> {
    Ok(call.core.read(|state| views::events(state, &call.request)))
}

async fn get_shard_history(
    call: Call<wire::GetShardHistoryRequest>,
) -> Result<wire::GetShardHistoryResponse> {
    let Call { core, request, .. } = call;
    let wire::GetShardHistoryRequest { job, epoch, shard, .. } = request;
    let past = core.read(|state| Past::of(state, &job, epoch))?;
    let past = past.ok_or_else(|| not_started(&job))?;
    let chunks = past.order.chunks.clone();
    computing(&core, &chunks, move |core| past.of_shard(core, shard)).await
}

async fn get_epoch_map(call: Call<wire::GetEpochMapRequest>) -> Result<wire::GetEpochMapResponse> {
    let wire::GetEpochMapRequest { job, epoch, cells, .. } = call.request;
    if !(1..=MAP_CELLS_MAX).contains(&cells) {
        return Err(invalid(format!("`cells` is {cells}; 1 to {MAP_CELLS_MAX} are allowed")));
    }
    let map = move |core: &Core, job| {
        Ok(views::shards(core, job, epoch, ShardFilter::default())?.map(cells))
    };
    started(&call.core, &job)?.compute(&call.core, map).await
}

fn started(core: &Core, job: &str) -> Result<Picture> {
    Picture::take(core, job)?.ok_or_else(|| not_started(job))
}

fn not_started(job: &str) -> WireError {
    let message = format!("job `{job}` has not started yet; start its ranks first");
    WireError::new(ErrorKind::NotFound, message)
}
