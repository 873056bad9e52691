//! Calls of workers: sessions, jobs, ranks, chunks. Calls about scans are in `scans`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{EPOCHS, PlanError, Sample};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::worker_service_server::WorkerService;
use shardfeed_proto::coordinator::v1::{
    BatchClaimGroupsRequest, BatchClaimGroupsResponse, ClaimGroupsRequest, ClaimGroupsResponse,
    ClaimScansRequest, ClaimScansResponse, EndRankRequest, EndRankResponse, FailScanRequest,
    FailScanResponse, GetChunkRequest, GetChunkResponse, HeartbeatRequest, HeartbeatResponse,
    JoinRequest, JoinResponse, LatestStateRequest, LatestStateResponse, Lease, LeaveRequest,
    LeaveResponse, PutChunkRequest, PutChunkResponse, RankProgress, RegisterJobRequest,
    RegisterJobResponse, ReportListingRequest, ReportListingResponse, ReportScanRequest,
    ReportScanResponse, ReportSkippedRequest, ReportSkippedResponse, Revocation, ScanProgress,
    StartRankRequest, StartRankResponse, batch_claim_groups_response,
    heartbeat_response::{Pause, Verdict},
};
use shardfeed_proto::{ErrorKind, WireError, intent_from, segments_to};
use shardfeed_scheduler::{
    Answer, Change, Claim, Cordon, DoubtPolicy, GRACE_MS_MAX, Held, Hold, InDoubt, JoinSession,
    LeaseRef, LeasedScan, PeerProcess, PoolFacts, RankCursor, RankRef, Refusal, ReportSkipped,
    SKIPPED_KEPT, STEP_MAX, SessionId, SkippedRecord, StartRank, State,
};
use tokio::sync::oneshot;

use super::checks::{check_len, digest, unexpected};
use super::context::{Caller, Effect};
use super::detail;
use super::guard::{Object, Seen};
use super::register::register_job;
use super::scans::{claim_scans, fail_scan, report_listing, report_scan};
use super::serve::{Asked, serve, service};
use crate::error;
use crate::leader::claim_queue::{self, ClaimRequest};
use crate::leader::computing::groups;
use crate::leader::core::Core;
use crate::leader::plans::Order;
use crate::leader::progress::{RankReport, ScanReport};
use crate::leader::standing::{self, Standing, served, session_ttl};
use crate::metrics::Rpc;
use crate::net::front::Front;
use crate::storage::copies;
use crate::views;

/// Maximum ranks, and maximum scans, in one heartbeat.
const HEARTBEAT_ENTRIES_MAX: usize = 4096;

/// Maximum leases that a heartbeat's response lists because the request did not.
const UNLISTED_MAX: usize = 1000;

/// Maximum claims in one message.
const BATCH_CLAIMS_MAX: usize = 64;

/// Maximum time that a rank may wait for groups, ms.
const TAKE_WAIT_MS_MAX: u64 = 10_000;

/// gRPC service for workers.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) front: Arc<Front>,
}

service! {
    impl WorkerService for Workers {
        join: Join, Changes, |r| Object::Joins(r.worker.clone()),
            JoinRequest => JoinResponse;
        heartbeat: Heartbeat, Reads, |r| Object::Session(r.session),
            HeartbeatRequest => HeartbeatResponse;
        leave: Leave, Changes, |r| Object::Session(r.session),
            LeaveRequest => LeaveResponse;
        claim_scans: ClaimScans, Changes, |r| Object::Session(r.session),
            ClaimScansRequest => ClaimScansResponse;
        report_listing: ReportListing, Changes, |r| Object::Session(r.session),
            ReportListingRequest => ReportListingResponse;
        report_scan: ReportScan, Changes, |r| Object::Session(r.session),
            ReportScanRequest => ReportScanResponse;
        fail_scan: FailScan, Changes, |r| Object::Session(r.session),
            FailScanRequest => FailScanResponse;
        put_chunk: PutChunk, Changes, |_| Object::Nothing,
            PutChunkRequest => PutChunkResponse;
        get_chunk: GetChunk, Reads, |_| Object::Nothing,
            GetChunkRequest => GetChunkResponse;
        register_job: RegisterJob, Changes, |r| Object::Job(r.name.clone()),
            RegisterJobRequest => RegisterJobResponse;
        start_rank: StartRank, Changes, |r| Object::Of(r.session, r.job.clone()),
            StartRankRequest => StartRankResponse;
        end_rank: EndRank, Changes, |r| Object::Lease(r.lease.clone()),
            EndRankRequest => EndRankResponse;
        report_skipped: ReportSkipped, Changes, |r| Object::Of(r.session, r.job.clone()),
            ReportSkippedRequest => ReportSkippedResponse;
        latest_state: LatestState, Looks, |r| Object::Job(r.job.clone()),
            LatestStateRequest => LatestStateResponse;
        claim_groups: ClaimGroups, Changes, |r| Object::Of(r.session, r.lease.as_ref().map_or_else(String::new, |l| l.job.clone())),
            ClaimGroupsRequest => ClaimGroupsResponse;
        batch_claim_groups: BatchClaimGroups, Changes, |r| Object::Takes(r.takes.iter().map(|take| take.session).collect()),
            BatchClaimGroupsRequest => BatchClaimGroupsResponse;
    }
}

async fn join(
    core: Arc<Core>,
    caller: Caller,
    request: JoinRequest,
) -> Result<JoinResponse, WireError> {
    let JoinRequest {
        worker,
        host,
        incarnation,
        version,
        in_process,
        endpoint,
        decoders,
        data_roots,
        ..
    } = request;
    let ttl_ms = core.options.session_ttl_ms;
    let proved = caller.who.role.is_some();
    let join = JoinSession {
        worker,
        host,
        incarnation,
        version,
        in_process,
        ttl_ms,
        endpoint,
        decoders,
        proved,
        data_roots,
    };
    // The join may end an earlier session.
    core.write_cursors().await;
    match core.propose(caller, Change::JoinSession(join)).await? {
        Answer::Joined { session } => {
            let ttl = Duration::from_millis(ttl_ms);
            core.live().sessions.renew(session, ttl, core.host.now());
            let cluster_id = core.node.cluster_id().to_owned();
            Ok(JoinResponse {
                cluster_id,
                session,
                ttl_ms,
                heartbeat_ms: core.options.heartbeat_ms,
            })
        }
        other => Err(unexpected(&other)),
    }
}

async fn heartbeat(
    core: Arc<Core>,
    _caller: Caller,
    request: HeartbeatRequest,
) -> Result<HeartbeatResponse, WireError> {
    let HeartbeatRequest { session, ranks, mut scans, .. } = request;
    check_len("ranks", ranks.len(), HEARTBEAT_ENTRIES_MAX)?;
    check_len("scans", scans.len(), HEARTBEAT_ENTRIES_MAX)?;
    core.prove_lead().await?;
    let mut verdicts = Vec::new();
    let mut reports = Vec::with_capacity(ranks.len());
    let (mut revocations, mut pauses, mut ended_scans) = (Vec::new(), Vec::new(), Vec::new());
    let mut unlisted = Vec::new();
    let heard = core.read(|state| {
        let ttl = session_ttl(state, session)?;
        for progress in ranks {
            let mut report = report_of(progress)?;
            match served(state, session, &report.lease) {
                Err(refusal) => verdicts.push(verdict(&report.lease, &refusal)),
                Ok(Standing { cursor, rows }) => {
                    revocations.extend(revocations_of(state, &report.lease));
                    pauses.extend(pause_of(state, &report.lease));
                    report.known = Some((cursor.epoch, cursor.step));
                    reports.push((report, rows));
                }
            }
        }
        unlisted = unlisted_leases(state, session, &reports);
        let is_held = |scan: &ScanProgress| {
            standing::scan_lease(state, &leased(scan)).is_some_and(|lease| lease.session == session)
        };
        ended_scans.extend(scans.extract_if(.., |scan| !is_held(scan)));
        // A worker in a trainer's process ends with that process.
        let worker = state.session(session).map(|session| &session.join);
        let worker = worker.filter(|join| !join.in_process).map(|join| join.worker.as_str());
        let cordon = worker.map(|worker| state.cordon(worker)).unwrap_or_default();
        let has_scans = cordon == Cordon::Open && state.has_scans_for(session);
        Ok::<_, WireError>((ttl, has_scans, cordon == Cordon::Draining))
    });
    let (ttl, has_scans, draining) = heard?;
    let now = core.host.now();
    let mut live = core.live();
    if !live.sessions.renew(session, ttl, now) {
        let message = format!("session {session} was silent and is being ended; ask again");
        return Err(WireError::new(ErrorKind::Retry, message));
    }
    for (report, rows) in reports {
        live.progress.rank(report, rows, now);
    }
    for scan in scans {
        let ScanProgress { files, bytes, beat, .. } = scan;
        live.progress.scan(leased(&scan), ScanReport { files, bytes, beat }, now);
    }
    Ok(HeartbeatResponse {
        verdicts,
        has_scans,
        draining,
        revocations,
        pauses,
        ended_scans,
        unlisted,
    })
}

/// Returns the leases of dynamic jobs of a session that its worker did not list: it may not know
/// that it has them, and they keep samples from other ranks.
fn unlisted_leases(state: &State, session: SessionId, listed: &[(RankReport, u64)]) -> Vec<Lease> {
    let Some(session) = state.session(session) else {
        return vec![];
    };
    // Each listed lease is one of the session.
    if session.leases.len() == listed.len() {
        return vec![];
    }
    let listed: BTreeSet<_> = listed
        .iter()
        .map(|(report, _)| (report.lease.job.as_str(), report.lease.generation, report.lease.rank))
        .collect();
    let unlisted = session
        .leases
        .iter()
        .filter(|rank| !listed.contains(&(rank.job.as_str(), rank.generation, rank.rank)));
    let lease = |rank: &RankRef| {
        let job = state.job(&rank.job).filter(|job| job.identity.is_dynamic())?;
        let known = job.generations.get(&rank.generation)?;
        let fencing = known.ranks.get(&rank.rank)?.lease.as_ref()?.fencing;
        let (job, generation, rank) = (rank.job.clone(), rank.generation, rank.rank);
        Some(Lease { job, generation, rank, fencing })
    };
    unlisted.filter_map(lease).take(UNLISTED_MAX).collect()
}

/// Returns the scan that a worker reports on.
fn leased(ScanProgress { dataset, fencing, part, is_listing, .. }: &ScanProgress) -> LeasedScan {
    let part = (!is_listing).then_some(*part);
    LeasedScan { dataset: dataset.clone(), part, fencing: *fencing }
}

/// Returns the pause for the holder of a valid lease, if the job is paused.
fn pause_of(state: &State, lease: &LeaseRef) -> Option<Pause> {
    let held = state.job(&lease.job)?.held.as_ref().filter(|held| held.hold == Hold::Paused)?;
    let Held { principal, reason, .. } = held;
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let note = format!(
        "job `{0}` was paused by {principal}{reason}; it continues after `shardfeed job resume \
         {0}`",
        lease.job
    );
    Some(Pause { lease: Some(lease_to(lease)), note })
}

/// Returns the ranges that the holder of a valid lease must return.
fn revocations_of(state: &State, lease: &LeaseRef) -> Vec<Revocation> {
    let job = state.job(&lease.job);
    let pools = job.and_then(|job| Some(&job.generations.get(&lease.generation)?.pools));
    let asked = pools.into_iter().flatten().filter_map(|(epoch, pool)| {
        let from = pool.shares.get(&lease.rank)?.revoke_from?;
        Some(Revocation { lease: Some(lease_to(lease)), epoch: *epoch, from })
    });
    asked.collect()
}

async fn leave(
    core: Arc<Core>,
    caller: Caller,
    request: LeaveRequest,
) -> Result<LeaveResponse, WireError> {
    let session = request.session;
    core.write_cursors().await;
    core.propose(caller, Change::LeaveSession { session }).await?;
    Ok(LeaveResponse {})
}

async fn put_chunk(
    core: Arc<Core>,
    caller: Caller,
    request: PutChunkRequest,
) -> Result<PutChunkResponse, WireError> {
    let digest = copies::put(&core, request.content, caller.owner()).await?;
    Ok(PutChunkResponse { digest: digest.as_bytes().to_vec() })
}

async fn get_chunk(
    core: Arc<Core>,
    _caller: Caller,
    request: GetChunkRequest,
) -> Result<GetChunkResponse, WireError> {
    let digest = digest("digest", &request.digest)?;
    Ok(GetChunkResponse { content: copies::get(&core, digest).await? })
}

async fn start_rank(
    core: Arc<Core>,
    caller: Caller,
    request: StartRankRequest,
) -> Result<StartRankResponse, WireError> {
    let StartRankRequest {
        session,
        job,
        run,
        rank,
        world_size,
        limit,
        trainer,
        intent,
        peer,
        in_doubt,
        in_doubt_grace_ms,
        left,
        ..
    } = request;
    let intent = intent_from(intent).map_err(|error| error::invalid(&error))?;
    // Workers ask the kernel for the identity of a trainer; a trainer's own data proves nothing.
    let peer = peer.filter(|_| caller.who.role != Some(shardfeed_tls::Role::Trainer));
    let peer = peer.map(|wire::Peer { uid, gid, pid }| PeerProcess { uid, gid, pid });
    let doubt = doubt_policy(in_doubt, in_doubt_grace_ms)?;
    let left = left.map(cursor_from);
    let start = StartRank {
        job,
        run,
        rank,
        world_size,
        limit,
        session,
        trainer,
        intent,
        left,
        doubt,
        peer,
    };
    core.write_cursors().await;
    match core.propose(caller, Change::StartRank(start)).await? {
        Answer::Started(started) => Ok(StartRankResponse {
            generation: started.generation,
            fencing: started.fencing,
            run: started.run,
            epoch: started.epoch,
            segments: segments_to(&started.segments),
        }),
        other => Err(unexpected(&other)),
    }
}

fn cursor_from(wire::Position { epoch, step }: wire::Position) -> RankCursor {
    RankCursor { epoch, step }
}

/// Decodes the policy of a start for samples in doubt.
fn doubt_policy(in_doubt: i32, grace_ms: Option<u64>) -> Result<DoubtPolicy, WireError> {
    let invalid = |message: String| WireError::new(ErrorKind::Invalid, message);
    let in_doubt = match wire::InDoubt::try_from(in_doubt) {
        Ok(wire::InDoubt::Unspecified | wire::InDoubt::Redeliver) => InDoubt::Redeliver,
        Ok(wire::InDoubt::Drop) => InDoubt::Drop,
        Err(_) => {
            let message = format!("`in_doubt` is {in_doubt}, which this release does not know");
            return Err(invalid(message));
        }
    };
    let grace_ms = grace_ms.unwrap_or(DoubtPolicy::default().grace_ms);
    if grace_ms > GRACE_MS_MAX {
        let message =
            format!("`in_doubt_grace_ms` is {grace_ms}; at most {GRACE_MS_MAX} are allowed");
        return Err(invalid(message));
    }
    Ok(DoubtPolicy { in_doubt, grace_ms })
}

async fn end_rank(
    core: Arc<Core>,
    caller: Caller,
    request: EndRankRequest,
) -> Result<EndRankResponse, WireError> {
    let lease = lease_from(request.lease)?;
    core.write_cursors().await;
    let EndRankRequest { failure, is_told, position, .. } = request;
    let position = position.map(cursor_from);
    core.propose(caller, Change::EndRank { lease, is_told, failure, position }).await?;
    Ok(EndRankResponse {})
}

async fn report_skipped(
    core: Arc<Core>,
    caller: Caller,
    request: ReportSkippedRequest,
) -> Result<ReportSkippedResponse, WireError> {
    let ReportSkippedRequest { session, job, records, .. } = request;
    check_len("records", records.len(), SKIPPED_KEPT)?;
    let record = |record: wire::SkippedRecord| {
        let wire::SkippedRecord { shard, ordinal, offset, reason, .. } = record;
        let shard = u32::try_from(shard).map_err(|_| {
            WireError::new(ErrorKind::Invalid, format!("there is no shard {shard}"))
        })?;
        Ok(SkippedRecord { sample: Sample { shard, ordinal }, offset, reason })
    };
    let records = records.into_iter().map(record).collect::<Result<Vec<_>, WireError>>()?;
    let is_news = core.read(|state| {
        if state.has_answered(&caller.request_id) {
            // Its first answer may have been a rejection, and another worker may have reported them
            // since.
            return None;
        }
        let job = state.job(&job)?;
        Some(records.iter().any(|record| job.learns_of(record.sample)))
    });
    // Known records, and records beyond the limit, need no entry in the log.
    if is_news.unwrap_or(true) {
        let report = ReportSkipped { session, job, records };
        core.propose(caller, Change::ReportSkipped(report)).await?;
    }
    Ok(ReportSkippedResponse {})
}

async fn latest_state(
    core: Arc<Core>,
    _caller: Caller,
    request: LatestStateRequest,
) -> Result<LatestStateResponse, WireError> {
    core.write_cursors().await;
    let state = core.read(|state| state.latest_state(&request.job));
    let state = state.map_err(|refusal| error::refusal(&refusal))?;
    Ok(LatestStateResponse { state: state.map(|state| state.to_json()) })
}

async fn claim_groups(
    core: Arc<Core>,
    caller: Caller,
    request: ClaimGroupsRequest,
) -> Result<ClaimGroupsResponse, WireError> {
    let asked = ask(&core, caller.request_id, request, &mut BTreeMap::new()).await?;
    asked.await.unwrap_or_else(|_| Err(claim_queue::gone()))
}

async fn batch_claim_groups(
    core: Arc<Core>,
    _caller: Caller,
    request: BatchClaimGroupsRequest,
) -> Result<BatchClaimGroupsResponse, WireError> {
    check_len("takes", request.takes.len(), BATCH_CLAIMS_MAX)?;
    let (mut known, mut asked) = (BTreeMap::new(), Vec::with_capacity(request.takes.len()));
    for take in request.takes {
        let take = ClaimGroupsRequest { wait_ms: 0, ..take };
        asked.push(ask(&core, String::new(), take, &mut known).await);
    }
    let mut results = Vec::with_capacity(asked.len());
    for asked in asked {
        let answer = match asked {
            Ok(answer) => answer.await.unwrap_or_else(|_| Err(claim_queue::gone())),
            Err(error) => Err(error),
        };
        let result = match answer {
            Ok(taken) => batch_claim_groups_response::result::Result::Taken(taken),
            Err(error) => batch_claim_groups_response::result::Result::Error(error.to_message()),
        };
        results.push(batch_claim_groups_response::Result { result: Some(result) });
    }
    Ok(BatchClaimGroupsResponse { results })
}

/// Groups of epochs of jobs.
type KnownGroups = BTreeMap<(String, u64), Arc<Groups>>;

/// Passes a claim to the task that collects claims.
/// - `request_id`: empty if the claim is never repeated.
/// - `known`: groups that earlier claims of the same message needed.
async fn ask(
    core: &Arc<Core>,
    request_id: String,
    request: ClaimGroupsRequest,
    known: &mut KnownGroups,
) -> Result<oneshot::Receiver<Result<ClaimGroupsResponse, WireError>>, WireError> {
    let ClaimGroupsRequest {
        session, lease, epoch, step, started, known: knows, wants, ahead, ..
    } = request;
    check_step(epoch, step)?;
    if request.wait_ms > TAKE_WAIT_MS_MAX {
        let message =
            format!("`wait_ms` is {}; at most {TAKE_WAIT_MS_MAX} are allowed", request.wait_ms);
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    let lease = lease_from(lease)?;
    let of_epoch = (lease.job.clone(), epoch);
    let order = core.read(|state| {
        session_ttl(state, session)?;
        served(state, session, &lease).map_err(|refusal| error::refusal(&refusal))?;
        if known.contains_key(&of_epoch) {
            Ok(None)
        } else {
            Order::of(state, &lease.job).map(Some)
        }
    })?;
    if let Some(order) = order {
        let order = order.ok_or_else(|| views::no_job(&lease.job))?;
        if !order.identity.is_dynamic() {
            let message = format!(
                "claiming groups requires mode=\"dynamic\", but job `{}` is deterministic",
                lease.job
            );
            return Err(WireError::new(ErrorKind::Invalid, message));
        }
        known.insert(of_epoch.clone(), groups(core, order, epoch).await?);
    }
    let groups = Arc::clone(&known[&of_epoch]);
    let until = core.host.now() + Duration::from_millis(request.wait_ms);
    let facts = PoolFacts { groups: 0, samples: 0, at: 0, next: vec![] };
    let released = request.released;
    let (known, version) = (knows, released.map(|_| request.version));
    let take = Claim { lease, epoch, step, started, known, wants, ahead, released, version, facts };
    let (reply, answer) = oneshot::channel();
    let ask = ClaimRequest { take, groups, request_id, until, reply };
    core.asks.try_send(ask).map_err(|_| claim_queue::too_many())?;
    Ok(answer)
}

/// Decodes a rank's progress.
fn report_of(progress: RankProgress) -> Result<RankReport, WireError> {
    let RankProgress { lease, epoch, step, ready, reading, account } = progress;
    check_step(epoch, step)?;
    let lease = lease_from(lease)?;
    Ok(RankReport { lease, cursor: (epoch, step), ready, reading, account, known: None })
}

/// Rejects a position beyond every step. After the last epoch a rank is at the next one, which does
/// not exist.
fn check_step(epoch: u64, step: u64) -> Result<(), WireError> {
    if epoch > EPOCHS {
        return Err(error::plan(&PlanError::NoSuchEpoch { epoch }));
    }
    if step > STEP_MAX {
        let message = format!("there is no step {step} of epoch {epoch}");
        return Err(WireError::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn verdict(lease: &LeaseRef, refusal: &Refusal) -> Verdict {
    let error = error::refusal(refusal).to_message();
    Verdict { lease: Some(lease_to(lease)), error: Some(error) }
}

fn lease_from(lease: Option<Lease>) -> Result<LeaseRef, WireError> {
    let missing = || WireError::new(ErrorKind::Invalid, "the message lacks `lease`");
    let Lease { job, generation, rank, fencing } = lease.ok_or_else(missing)?;
    Ok(LeaseRef { job, generation, rank, fencing })
}

/// Converts a lease to its message.
fn lease_to(lease: &LeaseRef) -> Lease {
    let LeaseRef { job, generation, rank, fencing } = lease.clone();
    Lease { job, generation, rank, fencing }
}
