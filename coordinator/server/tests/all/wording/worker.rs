//! Messages to workers, and through them to trainers.

use expect_test::expect;
use shardfeed_plan::Digest;
use shardfeed_proto::WireError;
use shardfeed_proto::common::v1::Mode;
use shardfeed_proto::coordinator::v1::*;
use tonic::{Response, Status};

use super::Table;
use crate::fixture::{Fixture, context, context_of, eventually, refused};
use crate::groups::{dynamic_with, request};
use crate::worker::{
    add, beat, entry, found, join, join_as, lease, list, progress, put, ready, register, start,
    take,
};

fn name_of(chunk: &[u8]) -> String {
    Digest::from_bytes(chunk.try_into().unwrap()).to_string()
}

fn beaten(
    answer: Result<HeartbeatResponse, Status>,
) -> Result<Response<HeartbeatResponse>, Status> {
    answer.map(Response::new)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_chunks_listings_and_scans_says_what_does_not_fit() {
    let mut fixture = Fixture::start_with(|options| options.unreferenced_bytes_max = 1 << 20).await;
    let session = join(&mut fixture.worker, "w0").await.session;
    add(&mut fixture, "a").await;
    let (mut table, client) = (Table::default(), &mut fixture.worker);
    let task = take(client, session, 1).await.remove(0);
    table.name(format!("scan {} ", task.fencing), "scan N ");
    let files: Vec<_> = (0..4).map(|i| entry(&format!("f{i}"), 10)).collect();
    let parts = list(client, &files, 2).await;
    table.name(name_of(&parts[0].chunk), "CHUNK-0");
    table.name(name_of(&parts[1].chunk), "CHUNK-1");
    let report = ReportListingRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        root: "/data".into(),
        parts,
    };
    type Change = fn(&mut ReportListingRequest);
    let wrong: [(&str, Change); 8] = [
        ("a listing out of order", |report| report.parts.reverse()),
        ("a listing with other numbers", |report| report.parts[0].files = 3),
        ("a listing of a chunk that was not put", |report| report.parts[1].chunk = vec![7; 32]),
        ("a listing of no chunk", |report| report.parts[1].chunk = vec![7; 31]),
        ("a listing of too many parts", |report| {
            report.parts = vec![report.parts[0].clone(); 16_385];
        }),
        ("a listing of another dataset", |report| report.dataset = "none".into()),
        ("a listing under another lease", |report| report.fencing = 1),
        ("a listing of a session that is gone", |report| report.session = 1),
    ];
    for (what, change) in wrong {
        let mut report = ReportListingRequest { context: context(), ..report.clone() };
        change(&mut report);
        table.refused(what, client.report_listing(report).await);
    }
    client.report_listing(report).await.unwrap();
    let task = take(client, session, 1).await.remove(0);
    let scan = ReportScanRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        part: 0,
        chunk: found(client, &files[..2]).await,
        records: 20,
        maps: vec![],
    };
    let others = found(client, &files[2..]).await;
    let nonsense = put(client, b"not a chunk of entries".to_vec()).await;
    table.name(name_of(&scan.chunk), "CHUNK-2");
    table.name(name_of(&others), "CHUNK-3");
    table.name(name_of(&nonsense), "CHUNK-4");
    let wrong = [
        ("a scan of other records", ReportScanRequest { records: 19, ..scan.clone() }),
        ("a scan of other files", ReportScanRequest { chunk: others, ..scan.clone() }),
        ("a scan of something else", ReportScanRequest { chunk: nonsense, ..scan.clone() }),
        ("a scan under another lease", ReportScanRequest { fencing: 1, ..scan.clone() }),
    ];
    for (what, report) in wrong {
        let report = ReportScanRequest { context: context(), ..report };
        table.refused(what, client.report_scan(report).await);
    }
    for (what, most) in [("no scans", 0), ("all scans", u32::MAX)] {
        let request = ClaimScansRequest { context: context(), session, most };
        table.refused(what, client.claim_scans(request).await);
    }
    let chunk = |bytes| PutChunkRequest { context: context(), content: vec![1; bytes] };
    table.refused("an empty chunk", client.put_chunk(chunk(0)).await);
    table.refused("a chunk that is too large", client.put_chunk(chunk((1 << 20) + 1)).await);
    client.put_chunk(chunk(800_000)).await.unwrap();
    table.refused("a chunk too many", client.put_chunk(chunk(800_001)).await);
    let get = |digest: Vec<u8>| GetChunkRequest { context: context(), digest };
    table.refused("a chunk that was not put", client.get_chunk(get(vec![1; 32])).await);
    let path = fixture.folder.path().join("chunks").join(name_of(&scan.chunk));
    table.name(fixture.folder.path().display(), "FOLDER");
    std::fs::write(path, b"damaged").unwrap();
    table.refused("a chunk that is damaged", client.get_chunk(get(scan.chunk)).await);
    table.check(&expect![[r#"
        a listing out of order
            Invalid: part 1 begins with `f0`, which is not after `f3`
        a listing with other numbers: Invalid
        a listing of a chunk that was not put
            NotFound: there is no chunk 0707070707070707070707070707070707070707070707070707070707070707; put it again
        a listing of no chunk: Invalid
        a listing of too many parts: Invalid
        a listing of another dataset: NotFound
        a listing under another lease
            Fenced: scan 1 is no longer valid: the dataset is being listed, and this session does not have that part of it
        a listing of a session that is gone: Fenced
        a scan of other records: Invalid
        a scan of other files: Invalid
        a scan of something else: Invalid
        a scan under another lease: Fenced
        no scans: Invalid
        all scans: Invalid
        an empty chunk: Invalid
        a chunk that is too large: Invalid
        a chunk too many
            Retry: chunks that no dataset refers to have 996608 bytes of at most 1048576; they are removed 60 minutes after they were put
        a chunk that was not put: NotFound
        a chunk that is damaged
            Corrupt: FOLDER/chunks/CHUNK-2: damaged: its content is not that of chunk CHUNK-2; restore the file from a backup, or add the dataset again under another name
    "#]]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_ranks_says_where_they_can_go_on() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    let (mut table, client) = (Table::default(), &mut fixture.worker);
    let moved = Dataset { content: vec![9; 32], ..dataset.clone() };
    table.name(name_of(&dataset.content), "CONTENT");
    let registered = client.register_job(register(&moved, "moved", 2)).await;
    table.refused("a job of other records", registered);
    let nameless = Dataset { name: "none".into(), ..dataset.clone() };
    table.refused("a job of no dataset", client.register_job(register(&nameless, "j", 2)).await);
    let without = RegisterJobRequest { identity: None, ..register(&dataset, "j", 2) };
    table.refused("a job without an identity", client.register_job(without).await);
    let mut equal = register(&dataset, "j", 1);
    if let Some(identity) = &mut equal.identity {
        identity.mode = Mode::Dynamic.into();
    }
    table.refused("a dynamic job with equal steps", client.register_job(equal).await);
    client.register_job(register(&dataset, "train", 2)).await.unwrap();
    let other = client.register_job(register(&dataset, "train", 4)).await;
    table.refused("a job of another identity", other);

    table.refused("a start of no job", client.start_rank(start(session, "none", 0, 2)).await);
    let without = StartRankRequest { intent: None, ..start(session, "train", 0, 2) };
    table.refused("a start from nowhere", client.start_rank(without).await);
    let beyond = StartRankRequest { rank: 2, ..start(session, "train", 0, 2) };
    table.refused("a start of a rank too many", client.start_rank(beyond).await);
    let started = client.start_rank(start(session, "train", 0, 2)).await.unwrap().into_inner();
    let mine = lease("train", 0, &started);
    table.refused(
        "a start with other ranks than the others",
        client.start_rank(start(session, "train", 1, 4)).await,
    );
    table.name(format!("session {session} "), "session W0 ");
    table.name(format!("lease {} ", mine.fencing), "lease L ");

    let without = EndRankRequest {
        context: context(),
        lease: None,
        failure: None,
        is_told: true,
        position: None,
    };
    table.refused("an end of nothing", client.end_rank(without).await);
    let told = RankProgress { lease: None, ..progress(&mine, 0, 0, vec![]) };
    table.refused("progress of nothing", beaten(beat(client, session, vec![told]).await));
    // The position after the last epoch is the end of a job.
    let told = progress(&mine, (1 << 48) + 1, 3, vec![]);
    table.refused("progress beyond all epochs", beaten(beat(client, session, vec![told]).await));
    let told = vec![progress(&mine, 0, 0, vec![]); 4_097];
    table.refused("progress of too many ranks", beaten(beat(client, session, told).await));
    let other = join(client, "w1").await.session;
    let verdicts = beat(client, other, vec![progress(&mine, 0, 0, vec![])]).await.unwrap().verdicts;
    let error = WireError::from_message(verdicts[0].error.clone());
    table.add("progress of another's rank", format!("{:?}: {}", error.kind, error.message));

    let take =
        |step: u64, wait_ms: u64| ClaimGroupsRequest { step, wait_ms, ..request(session, &mine) };
    table.refused("groups of a deterministic job", client.claim_groups(take(0, 0)).await);
    table.refused("groups after all steps", client.claim_groups(take(u64::MAX, 0)).await);
    table.refused("groups, whenever", client.claim_groups(take(0, 10_001)).await);
    let takes = vec![take(0, 0); 65];
    let batch = BatchClaimGroupsRequest { context: context(), takes };
    table.refused("groups of many ranks", client.batch_claim_groups(batch).await);
    let skips = |shard: u64, count: usize| ReportSkippedRequest {
        context: context(),
        session,
        job: "train".into(),
        records: vec![SkippedRecord { shard, ..SkippedRecord::default() }; count],
        mixture: vec![],
    };
    table.refused("a corrupt record nowhere", client.report_skipped(skips(1 << 32, 1)).await);
    table.refused("too many corrupt records", client.report_skipped(skips(0, 1_001)).await);
    let latest = LatestStateRequest { context: context(), job: "none".into() };
    table.refused("the latest state of no job", client.latest_state(latest).await);

    // The same id for two requests.
    let id = uuid::Uuid::new_v4().to_string();
    let first = ClaimScansRequest { context: context_of(&id), session, most: 1 };
    client.claim_scans(first).await.unwrap();
    let second = StartRankRequest { context: context_of(&id), ..start(session, "train", 1, 2) };
    table.refused("a request under the id of another", client.start_rank(second).await);
    let pause = HoldJobRequest {
        context: context(),
        job: "train".into(),
        hold: Hold::Paused.into(),
        reason: "the disk is full".into(),
    };
    fixture.admin.hold_job(pause).await.unwrap();
    let told = beat(client, session, vec![progress(&mine, 0, 0, vec![])]).await.unwrap();
    table.add("progress of a paused job", &told.pauses[0].note);
    table.check(&expect![[r#"
        a job of other records
            Identity: dataset `photos` exists with other content: CONTENT; use another name
        a job of no dataset
            NotFound: there is no dataset `none`
        a job without an identity
            Invalid: the message lacks `identity`
        a dynamic job with equal steps: Invalid
        a job of another identity: Identity
        a start of no job: NotFound
        a start from nowhere: Invalid
        a start of a rank too many: Invalid
        a start with other ranks than the others
            Conflict: rank 1 of job `train` has world_size=4, but run `r1` was started with world_size=2; start every rank with the same value
        an end of nothing: Invalid
        progress of nothing: Invalid
        progress beyond all epochs: Invalid
        progress of too many ranks: Invalid
        progress of another's rank
            Fenced: lease L is no longer valid: another session has it
        groups of a deterministic job: Invalid
        groups after all steps: Invalid
        groups, whenever: Invalid
        groups of many ranks: Invalid
        a corrupt record nowhere: Invalid
        too many corrupt records: Invalid
        the latest state of no job: NotFound
        a request under the id of another
            Unspecified: this request id was used for another request before; use a new one
        progress of a paused job
            job `train` was paused by test:me@here: the disk is full; it continues after `shardfeed job resume train`
    "#]]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_is_told_why() {
    let mut fixture = Fixture::start_with(|options| {
        (options.session_ttl_ms, options.heartbeat_ms) = (2_000, 500);
    })
    .await;
    let (mut table, client) = (Table::default(), &mut fixture.worker);
    table.refused("one that never was", beaten(beat(client, 1 << 40, vec![]).await));
    let left = join(client, "left").await.session;
    client.leave(LeaveRequest { context: context(), session: left }).await.unwrap();
    let replaced = join(client, "again").await.session;
    join_as(client, "again", "another start").await.unwrap();
    let silent = join(client, "silent").await.session;
    let client = client.clone();
    eventually("it is silent for long enough", || async {
        // Any call of its session would keep it alive; the list does not.
        let list = ListWorkersRequest { context: context(), all: false };
        let listed = fixture.admin.clone().list_workers(list).await.unwrap().into_inner();
        listed.workers.iter().all(|worker| worker.session != silent).then_some(())
    })
    .await;
    let mut client = client.clone();
    for (what, session) in [
        ("one whose worker left", left),
        ("one whose worker started again", replaced),
        ("one that was silent", silent),
    ] {
        table.name(format!("session {session} "), "session N ");
        let leave = LeaveRequest { context: context(), session };
        table.refused(what, beaten(beat(&mut client, session, vec![]).await));
        table.refused("    as it leaves", client.leave(leave).await);
    }
    table.check(&expect![[r#"
        one that never was
            Fenced: session 1099511627776 is no longer valid: it ended long ago, or never was; join again
        one whose worker left: Fenced
            as it leaves: Fenced
        one whose worker started again: Fenced
            as it leaves: Fenced
        one that was silent: Fenced
            as it leaves: Fenced
    "#]]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_waits_for_groups_is_told_that_the_coordinator_stops() {
    let mut fixture = Fixture::start().await;
    let (session, leases) = dynamic_with(&mut fixture, 2, 1).await;
    let mut client = fixture.worker.clone();
    let all = ClaimGroupsRequest { wants: 500, ..request(session, &leases[0]) };
    client.claim_groups(all).await.unwrap();
    let waits = ClaimGroupsRequest { wait_ms: 10_000, ..request(session, &leases[1]) };
    let waiting = tokio::spawn(async move { client.claim_groups(waits).await });
    // The leader requests work back for a waiting rank: a revocation shows that it waits.
    let told = progress(&leases[0], 0, 0, vec![]);
    eventually("it waits", || async {
        let beat = beat(&mut fixture.worker.clone(), session, vec![told.clone()]).await.unwrap();
        (!beat.revocations.is_empty()).then_some(())
    })
    .await;
    fixture.stop().await;
    let (kind, message) = refused(waiting.await.unwrap());
    expect!["Retry: this coordinator stops; try again, at another node if there is one"]
        .assert_eq(&format!("{kind:?}: {message}"));
}
