//! Calls of workers: sessions, jobs, ranks, chunks. Calls about scans are in `scans`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use shardfeed_plan::dynamic::Groups;
use shardfeed_plan::{EPOCHS, PlanError, Sample};
use shardfeed_proto::coordinator::v1::heartbeat_response::{Pause, Verdict};
use shardfeed_proto::coordinator::v1::worker_service_server::WorkerService;
use shardfeed_proto::coordinator::v1::{
    self as wire, Lease, RankProgress, Revocation, ScanProgress, batch_claim_groups_response,
};
use shardfeed_proto::{WireError, digest_from, intent_from, left_out_from, segments_to};
use shardfeed_scheduler::{
    Answer, Change, Claim, Cordon, CursorReport, DoubtPolicy, GRACE_MS_MAX, Held, Hold, InDoubt,
    JoinSession, LeaseRef, LeasedScan, PeerProcess, PoolFacts, RankCursor, Refusal, ReportSkipped,
    SKIPPED_KEPT, STEP_MAX, SessionId, SkippedRecord, StartRank, State,
};
use tokio::sync::oneshot;

use super::checks::{check_len, optional_digest, unexpected};
use super::guard::Object;
use super::register::{check_order, register_job};
use super::rights::Rpc;
use super::scans::{claim_scans, fail_scan, report_listing, report_scan};
use super::serve::{Call, Received, serve, service};
use crate::error::{self, Result, invalid, retry};
use crate::leader::claim_queue::{self, ClaimRequest};
use crate::leader::computing::groups;
use crate::leader::core::Core;
use crate::leader::plans::Order;
use crate::leader::progress::{RankReport, ScanReport};
use crate::leader::standing::{self, Standing, served, session_ttl};
use crate::net::front::Front;
use crate::storage::copies;
use crate::views::{self, lease_to};

/// Maximum ranks, and maximum scans, in one heartbeat.
const HEARTBEAT_ENTRIES_MAX: usize = 4096;

/// Maximum leases that a heartbeat's response lists because the request did not.
const UNLISTED_MAX: usize = 1000;

const BATCH_CLAIMS_MAX: usize = 64;

/// Maximum time that a rank may wait for groups, ms.
const TAKE_WAIT_MS_MAX: u64 = 10_000;

#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) front: Arc<Front>,
}

service! {
    impl WorkerService for Workers {
        join: Join, |r| Object::Joins(r.worker.clone()), JoinRequest => wire::JoinResponse;
        heartbeat: Heartbeat, |r| Object::Session(r.session),
            HeartbeatRequest => wire::HeartbeatResponse;
        leave: Leave, |r| Object::Session(r.session), LeaveRequest => wire::LeaveResponse;
        claim_scans: ClaimScans, |r| Object::Session(r.session),
            ClaimScansRequest => wire::ClaimScansResponse;
        report_listing: ReportListing, |r| Object::Session(r.session),
            ReportListingRequest => wire::ReportListingResponse;
        report_scan: ReportScan, |r| Object::Session(r.session),
            ReportScanRequest => wire::ReportScanResponse;
        fail_scan: FailScan, |r| Object::Session(r.session),
            FailScanRequest => wire::FailScanResponse;
        put_chunk: PutChunk, |_| Object::Nothing, PutChunkRequest => wire::PutChunkResponse;
        get_chunk: GetChunk, |_| Object::Nothing, GetChunkRequest => wire::GetChunkResponse;
        register_job: RegisterJob, |r| Object::Job(r.name.clone()),
            RegisterJobRequest => wire::RegisterJobResponse;
        start_rank: StartRank, |r| Object::Of(r.session, r.job.clone()),
            StartRankRequest => wire::StartRankResponse;
        end_rank: EndRank, |r| Object::Lease(r.lease.clone()),
            EndRankRequest => wire::EndRankResponse;
        report_skipped: ReportSkipped, |r| Object::Of(r.session, r.job.clone()),
            ReportSkippedRequest => wire::ReportSkippedResponse;
        latest_state: LatestState, |r| Object::Job(r.job.clone()),
            LatestStateRequest => wire::LatestStateResponse;
        claim_groups: ClaimGroups, |r| Object::Of(r.session, job_of(r)),
            ClaimGroupsRequest => wire::ClaimGroupsResponse;
        batch_claim_groups: BatchClaimGroups, |r| Object::Takes(sessions_of(r)),
            BatchClaimGroupsRequest => wire::BatchClaimGroupsResponse;
    }
}

fn job_of(claim: &wire::ClaimGroupsRequest) -> String {
    claim.lease.as_ref().map_or_else(String::new, |lease| lease.job.clone())
}

fn sessions_of(claims: &wire::BatchClaimGroupsRequest) -> Vec<u64> {
    claims.takes.iter().map(|take| take.session).collect()
}

async fn join(call: Call<wire::JoinRequest>) -> Result<wire::JoinResponse> {
    let Call { core, caller, request } = call;
    let ttl_ms = core.options.session_ttl_ms;
    let join = JoinSession {
        worker: request.worker,
        host: request.host,
        incarnation: request.incarnation,
        version: request.version,
        in_process: request.in_process,
        ttl_ms,
        endpoint: request.endpoint,
        decoders: request.decoders,
        proved: caller.who.role.is_some(),
        data_roots: request.data_roots,
    };
    // The join may end an earlier session.
    core.write_cursors().await;
    match core.propose(caller, Change::JoinSession(join)).await? {
        Answer::Joined { session } => {
            let ttl = Duration::from_millis(ttl_ms);
            core.live().sessions.renew(session, ttl, core.host.now());
            let cluster_id = core.node.cluster_id().to_owned();
            let heartbeat_ms = core.options.heartbeat_ms;
            Ok(wire::JoinResponse { cluster_id, session, ttl_ms, heartbeat_ms })
        }
        other => Err(unexpected(&other)),
    }
}

async fn heartbeat(call: Call<wire::HeartbeatRequest>) -> Result<wire::HeartbeatResponse> {
    let Call { core, request, .. } = call;
    let wire::HeartbeatRequest { session, ranks, mut scans, .. } = request;
    check_len("ranks", ranks.len(), HEARTBEAT_ENTRIES_MAX)?;
    check_len("scans", scans.len(), HEARTBEAT_ENTRIES_MAX)?;
    core.prove_lead().await?;
    let mut answer = wire::HeartbeatResponse::default();
    let mut reports = Vec::with_capacity(ranks.len());
    let ttl = core.read(|state| {
        let ttl = session_ttl(state, session)?;
        for progress in ranks {
            let mut report = report_of(progress)?;
            match served(state, session, &report.lease) {
                Err(refusal) => answer.verdicts.push(verdict(&report.lease, &refusal)),
                Ok(Standing { cursor, rows }) => {
                    answer.revocations.extend(revocations_of(state, &report.lease));
                    answer.pauses.extend(pause_of(state, &report.lease));
                    report.known = Some((cursor.epoch, cursor.step));
                    reports.push((report, rows));
                }
            }
        }
        answer.unlisted = unlisted_leases(state, session, &reports);
        let is_held = |scan: &ScanProgress| {
            standing::scan_lease(state, &leased(scan)).is_some_and(|lease| lease.session == session)
        };
        answer.ended_scans.extend(scans.extract_if(.., |scan| !is_held(scan)));
        // A worker in a trainer's process ends with that process.
        let worker = state.session(session).map(|session| &session.join);
        let worker = worker.filter(|join| !join.in_process).map(|join| join.worker.as_str());
        let cordon = worker.map(|worker| state.cordon(worker)).unwrap_or_default();
        answer.has_scans = cordon == Cordon::Open && state.has_scans_for(session);
        answer.draining = cordon == Cordon::Draining;
        Ok::<_, WireError>(ttl)
    })?;
    let now = core.host.now();
    let mut live = core.live();
    if !live.sessions.renew(session, ttl, now) {
        let message = format!("session {session} was silent and is being ended; ask again");
        return Err(retry(message));
    }
    for (report, rows) in reports {
        live.progress.rank(report, rows, now);
    }
    for scan in scans {
        let ScanProgress { files, bytes, beat, .. } = scan;
        live.progress.scan(leased(&scan), ScanReport { files, bytes, beat }, now);
    }
    Ok(answer)
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
    let listed: BTreeSet<_> = listed.iter().map(|(report, _)| &report.lease).collect();
    let is_dynamic =
        |lease: &LeaseRef| state.job(&lease.job).is_some_and(|job| job.identity.is_dynamic());
    let leases = session.leases.iter().filter_map(|rank| state.lease_of(rank));
    let unlisted = leases.filter(|lease| is_dynamic(lease) && !listed.contains(lease));
    unlisted.take(UNLISTED_MAX).map(|lease| lease_to(&lease)).collect()
}

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
    let pools = state.generation(&lease.job, lease.generation).map(|known| &known.pools);
    let asked = pools.into_iter().flatten().filter_map(|(epoch, pool)| {
        let from = pool.shares.get(&lease.rank)?.revoke_from?;
        Some(Revocation { lease: Some(lease_to(lease)), epoch: *epoch, from })
    });
    asked.collect()
}

async fn leave(call: Call<wire::LeaveRequest>) -> Result<wire::LeaveResponse> {
    let Call { core, caller, request: wire::LeaveRequest { session, .. } } = call;
    core.write_cursors().await;
    core.propose(caller, Change::LeaveSession { session }).await?;
    Ok(wire::LeaveResponse {})
}

async fn put_chunk(call: Call<wire::PutChunkRequest>) -> Result<wire::PutChunkResponse> {
    let Call { core, caller, request } = call;
    let digest = copies::put(&core, request.content, caller.owner()).await?;
    Ok(wire::PutChunkResponse { digest: digest.as_bytes().to_vec() })
}

async fn get_chunk(call: Call<wire::GetChunkRequest>) -> Result<wire::GetChunkResponse> {
    let Call { core, request, .. } = call;
    let digest = digest_from("digest", &request.digest)?;
    Ok(wire::GetChunkResponse { content: copies::get(&core, digest).await? })
}

async fn start_rank(call: Call<wire::StartRankRequest>) -> Result<wire::StartRankResponse> {
    let Call { core, caller, request } = call;
    let intent = intent_from(request.intent)?;
    check_order(&core, &request.job)?;
    // Workers ask the kernel for the identity of a trainer; a trainer's own data proves nothing.
    let peer = request.peer.filter(|_| caller.who.role != Some(shardfeed_tls::Role::Trainer));
    let start = StartRank {
        job: request.job,
        run: request.run,
        rank: request.rank,
        world_size: request.world_size,
        limit: request.limit,
        session: request.session,
        trainer: request.trainer,
        intent,
        left: request.left.map(cursor_from),
        doubt: doubt_policy(request.in_doubt, request.in_doubt_grace_ms)?,
        mixture: optional_digest("mixture", &request.mixture)?,
        left_out: left_out_from(request.left_out)?,
        peer: peer.map(|wire::Peer { uid, gid, pid }| PeerProcess { uid, gid, pid }),
        replaces: request.replaces.map(replaced_from).transpose()?,
    };
    core.write_cursors().await;
    match core.propose(caller, Change::StartRank(start)).await? {
        Answer::Started(started) => Ok(wire::StartRankResponse {
            generation: started.generation,
            fencing: started.fencing,
            run: started.run,
            epoch: started.epoch,
            segments: segments_to(&started.segments),
        }),
        other => Err(unexpected(&other)),
    }
}

fn replaced_from(last: RankProgress) -> Result<CursorReport> {
    let RankProgress { lease, epoch, step, .. } = last;
    Ok(CursorReport { lease: lease_from(lease)?, epoch, step })
}

fn cursor_from(wire::Position { epoch, step }: wire::Position) -> RankCursor {
    RankCursor { epoch, step }
}

fn doubt_policy(in_doubt: i32, grace_ms: Option<u64>) -> Result<DoubtPolicy> {
    let in_doubt = match wire::InDoubt::try_from(in_doubt) {
        Ok(wire::InDoubt::Unspecified | wire::InDoubt::Redeliver) => InDoubt::Redeliver,
        Ok(wire::InDoubt::Drop) => InDoubt::Drop,
        Err(_) => {
            return Err(invalid(format!(
                "`in_doubt` is {in_doubt}, which this release does not know"
            )));
        }
    };
    let grace_ms = grace_ms.unwrap_or(DoubtPolicy::default().grace_ms);
    if grace_ms > GRACE_MS_MAX {
        return Err(invalid(format!(
            "`in_doubt_grace_ms` is {grace_ms}; at most {GRACE_MS_MAX} are allowed"
        )));
    }
    Ok(DoubtPolicy { in_doubt, grace_ms })
}

async fn end_rank(call: Call<wire::EndRankRequest>) -> Result<wire::EndRankResponse> {
    let Call { core, caller, request } = call;
    let lease = lease_from(request.lease)?;
    core.write_cursors().await;
    let wire::EndRankRequest { failure, is_told, position, .. } = request;
    let position = position.map(cursor_from);
    core.propose(caller, Change::EndRank { lease, is_told, failure, position }).await?;
    Ok(wire::EndRankResponse {})
}

async fn report_skipped(
    call: Call<wire::ReportSkippedRequest>,
) -> Result<wire::ReportSkippedResponse> {
    let Call { core, caller, request } = call;
    let wire::ReportSkippedRequest { session, job, records, mixture, .. } = request;
    let mixture = optional_digest("mixture", &mixture)?;
    check_len("records", records.len(), SKIPPED_KEPT)?;
    let record = |record: wire::SkippedRecord| {
        let wire::SkippedRecord { shard, ordinal, offset, reason, .. } = record;
        let none = |_| invalid(format!("there is no shard {shard}"));
        let shard = u32::try_from(shard).map_err(none)?;
        Ok(SkippedRecord { sample: Sample { shard, ordinal }, offset, reason })
    };
    let records = records.into_iter().map(record).collect::<Result<Vec<_>>>()?;
    let is_news = core.read(|state| {
        if state.has_answered(&caller.request_id) {
            // Its first answer may be a rejection, and another worker may have reported them since.
            return None;
        }
        let job = state.job(&job)?;
        Some(records.iter().any(|record| job.learns_of(record.sample)))
    });
    // Known records, and records beyond the limit, need no entry in the log.
    if is_news.unwrap_or(true) {
        let report = ReportSkipped { session, job, records, mixture };
        core.propose(caller, Change::ReportSkipped(report)).await?;
    }
    Ok(wire::ReportSkippedResponse {})
}

async fn latest_state(call: Call<wire::LatestStateRequest>) -> Result<wire::LatestStateResponse> {
    let Call { core, request, .. } = call;
    core.write_cursors().await;
    let state = core.read(|state| state.latest_state(&request.job));
    let state = state.map_err(|refusal| error::refusal(&refusal))?;
    Ok(wire::LatestStateResponse { state: state.map(|state| state.to_json()) })
}

async fn claim_groups(call: Call<wire::ClaimGroupsRequest>) -> Result<wire::ClaimGroupsResponse> {
    let Call { core, caller, request } = call;
    let asked = ask(&core, caller.request_id, request, &mut BTreeMap::new()).await?;
    asked.await.unwrap_or_else(|_| Err(claim_queue::gone()))
}

async fn batch_claim_groups(
    call: Call<wire::BatchClaimGroupsRequest>,
) -> Result<wire::BatchClaimGroupsResponse> {
    let Call { core, request, .. } = call;
    check_len("takes", request.takes.len(), BATCH_CLAIMS_MAX)?;
    let (mut known, mut asked) = (BTreeMap::new(), Vec::with_capacity(request.takes.len()));
    for take in request.takes {
        let take = wire::ClaimGroupsRequest { wait_ms: 0, ..take };
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
    Ok(wire::BatchClaimGroupsResponse { results })
}

/// Groups of epochs of jobs.
type KnownGroups = BTreeMap<(String, u64), Arc<Groups>>;

/// Passes a claim to the task that collects claims.
/// - `request_id`: empty if the claim is never repeated.
/// - `known`: groups that earlier claims of the same message needed.
async fn ask(
    core: &Arc<Core>,
    request_id: String,
    request: wire::ClaimGroupsRequest,
    known: &mut KnownGroups,
) -> Result<oneshot::Receiver<Result<wire::ClaimGroupsResponse>>> {
    let wire::ClaimGroupsRequest { session, lease, epoch, step, wait_ms, .. } = request;
    check_step(epoch, step)?;
    if wait_ms > TAKE_WAIT_MS_MAX {
        let most = TAKE_WAIT_MS_MAX;
        return Err(invalid(format!("`wait_ms` is {wait_ms}; at most {most} are allowed")));
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
            return Err(invalid(format!(
                "claiming groups requires mode=\"dynamic\", but job `{}` is deterministic",
                lease.job
            )));
        }
        known.insert(of_epoch.clone(), groups(core, order, epoch).await?);
    }
    let groups = Arc::clone(&known[&of_epoch]);
    let until = core.host.now() + Duration::from_millis(wait_ms);
    let facts = PoolFacts { groups: 0, samples: 0, at: 0, next: vec![] };
    let wire::ClaimGroupsRequest { started, known, wants, ahead, released, .. } = request;
    let version = released.map(|_| request.version);
    let take = Claim { lease, epoch, step, started, known, wants, ahead, released, version, facts };
    let (reply, answer) = oneshot::channel();
    let known_version = request.known_version;
    let ask = ClaimRequest { take, known_version, groups, request_id, until, reply };
    core.asks.try_send(ask).map_err(|_| claim_queue::too_many())?;
    Ok(answer)
}

fn report_of(progress: RankProgress) -> Result<RankReport> {
    let RankProgress { lease, epoch, step, ready, reading, account } = progress;
    check_step(epoch, step)?;
    let lease = lease_from(lease)?;
    Ok(RankReport { lease, cursor: (epoch, step), ready, reading, account, known: None })
}

/// Rejects a position beyond every step. After the last epoch a rank is at the next one.
fn check_step(epoch: u64, step: u64) -> Result<()> {
    if epoch > EPOCHS {
        return Err(PlanError::NoSuchEpoch { epoch }.into());
    }
    if step > STEP_MAX {
        return Err(invalid(format!("there is no step {step} of epoch {epoch}")));
    }
    Ok(())
}

fn verdict(lease: &LeaseRef, refusal: &Refusal) -> Verdict {
    let error = error::refusal(refusal).to_message();
    Verdict { lease: Some(lease_to(lease)), error: Some(error) }
}

fn lease_from(lease: Option<Lease>) -> Result<LeaseRef> {
    let missing = || invalid("the message lacks `lease`");
    let Lease { job, generation, rank, fencing } = lease.ok_or_else(missing)?;
    Ok(LeaseRef { job, generation, rank, fencing })
}
