//! Actions of a worker, without files: scans fictitious datasets, starts ranks.

use shardfeed_plan::{
    Digest, Intent, JobIdentity, Mode, ORDER_VERSION, Records, Segment, Shuffle, Steps, Tail,
};
use shardfeed_proto::chunk::{EntriesChunk, FileEntry, ListedFile, ListingChunk};
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{identity_to, intent_to};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::fixture::{Fixture, context};

pub(crate) type Client = WorkerServiceClient<Channel>;

/// Returns a fictitious file.
pub(crate) fn entry(path: &str, records: u64) -> FileEntry {
    FileEntry {
        path: path.into(),
        size_bytes: 20 * records,
        modified_ns: 1,
        etag: None,
        compression: "none".into(),
        records,
        data_bytes: 4 * records,
        record_bytes_max: 4,
        digest: Digest::of_parts([path.as_bytes()]),
        marks: (records > 0).then_some((0, 0)).into_iter().collect(),
        left_out: None,
        samples: None,
    }
}

pub(crate) async fn join(client: &mut Client, name: &str) -> JoinResponse {
    join_as(client, name, &uuid::Uuid::new_v4().to_string()).await.unwrap().into_inner()
}

pub(crate) async fn join_as(
    client: &mut Client,
    name: &str,
    incarnation: &str,
) -> Result<Response<JoinResponse>, Status> {
    let request = JoinRequest {
        context: context(),
        worker: name.into(),
        host: "host-a".into(),
        incarnation: incarnation.into(),
        version: "0.1.0".into(),
        in_process: false,
        endpoint: format!("/run/{name}.sock"),
        decoders: vec!["pixels/1".into()],
        data_roots: vec![],
    };
    client.join(request).await
}

pub(crate) async fn beat(
    client: &mut Client,
    session: u64,
    ranks: Vec<RankProgress>,
) -> Result<HeartbeatResponse, Status> {
    let request = HeartbeatRequest { context: context(), session, ranks, scans: vec![] };
    Ok(client.heartbeat(request).await?.into_inner())
}

pub(crate) async fn put(client: &mut Client, content: Vec<u8>) -> Vec<u8> {
    let request = PutChunkRequest { context: context(), content };
    client.put_chunk(request).await.unwrap().into_inner().digest
}

pub(crate) async fn take(client: &mut Client, session: u64, most: u32) -> Vec<ScanTask> {
    let request = ClaimScansRequest { context: context(), session, most };
    client.claim_scans(request).await.unwrap().into_inner().tasks
}

/// Stores the listing of some files, cut into parts, and returns the parts to report.
pub(crate) async fn list(
    client: &mut Client,
    files: &[FileEntry],
    part_files: usize,
) -> Vec<report_listing_request::Part> {
    let mut parts = Vec::new();
    for part in files.chunks(part_files) {
        let listed = |file: &FileEntry| ListedFile {
            path: file.path.clone(),
            size: file.size_bytes,
            etag: None,
            changed_ns: None,
        };
        let chunk = ListingChunk::new(part.iter().map(listed).collect()).encode().unwrap();
        parts.push(report_listing_request::Part {
            chunk: put(client, chunk).await,
            files: part.len() as u64,
            bytes: part.iter().map(|file| file.size_bytes).sum(),
        });
    }
    parts
}

/// Stores the scan results of some files.
pub(crate) async fn found(client: &mut Client, files: &[FileEntry]) -> Vec<u8> {
    put(client, EntriesChunk::new(files.to_vec()).encode().unwrap()).await
}

/// Adds a dataset of these files, and lists and scans it as `session`, in parts of two files.
pub(crate) async fn scan_dataset(
    fixture: &mut Fixture,
    session: u64,
    name: &str,
    files: &[FileEntry],
) {
    scan_parts(fixture, session, name, (files, 2)).await;
}

/// Like [`scan_dataset`], in parts of `part_files` files.
pub(crate) async fn scan_parts(
    fixture: &mut Fixture,
    session: u64,
    name: &str,
    (files, part_files): (&[FileEntry], usize),
) {
    add(fixture, name).await;
    let client = &mut fixture.worker;
    let tasks = take(client, session, 10).await;
    assert!(matches!(tasks[0].work, Some(scan_task::Work::List(_))), "{tasks:?}");
    let parts = list(client, files, part_files).await;
    let report = ReportListingRequest {
        context: context(),
        session,
        dataset: name.into(),
        fencing: tasks[0].fencing,
        root: "/data".into(),
        parts,
    };
    client.report_listing(report).await.unwrap();
    let tasks = take(client, session, 100).await;
    assert_eq!(tasks.len(), files.len().div_ceil(part_files));
    for task in tasks {
        let Some(scan_task::Work::Scan(scan)) = task.work else { panic!("{task:?}") };
        let part = files.chunks(part_files).nth(scan.part as usize).unwrap();
        let report = ReportScanRequest {
            context: context(),
            session,
            dataset: name.into(),
            fencing: task.fencing,
            part: scan.part,
            chunk: found(client, part).await,
            records: part.iter().map(|file| file.records).sum(),
            maps: vec![],
        };
        client.report_scan(report).await.unwrap();
    }
}

pub(crate) async fn add(fixture: &mut Fixture, name: &str) {
    let request = AddDatasetRequest {
        context: context(),
        name: name.into(),
        patterns: vec!["/data/*".into()],
        compression: String::new(),
        corrupt: String::new(),
        listing: None,
        program: vec![],
    };
    fixture.admin.add_dataset(request).await.unwrap();
}

/// Returns a worker's session, and a ready dataset of five files with 100 records each.
pub(crate) async fn ready(fixture: &mut Fixture) -> (u64, Dataset) {
    let session = join(&mut fixture.worker, "w0").await.session;
    let files: Vec<_> = (0..5).map(|i| entry(&format!("f-{i}.tfrecord"), 100)).collect();
    scan_dataset(fixture, session, "photos", &files).await;
    (session, wait_ready(fixture, "photos").await)
}

pub(crate) async fn get(fixture: &Fixture, name: &str) -> Dataset {
    let request = GetDatasetRequest { context: context(), name: name.into() };
    let mut admin = fixture.admin.clone();
    admin.get_dataset(request).await.unwrap().into_inner().dataset.unwrap()
}

pub(crate) async fn wait_ready(fixture: &Fixture, name: &str) -> Dataset {
    crate::fixture::eventually("the dataset is ready", || async {
        let dataset = get(fixture, name).await;
        (dataset.state() == DatasetState::Ready).then_some(dataset)
    })
    .await
}

pub(crate) fn identity(dataset: &Dataset, lanes: u64) -> JobIdentity {
    let content = Digest::from_bytes(dataset.content.clone().try_into().unwrap());
    let shuffle = Shuffle {
        digest: content,
        seed: 7,
        enabled: true,
        window: 16,
        interleave: 2,
        block_length: 1,
    };
    let (records, decoder) = (Records::Operators("raw/1".to_owned()), "none".to_owned());
    let (tail, mode) = (Tail::Drop, Mode::Deterministic);
    JobIdentity { order: ORDER_VERSION, content, shuffle, lanes, tail, mode, records, decoder }
}

pub(crate) fn register(dataset: &Dataset, job: &str, lanes: u64) -> RegisterJobRequest {
    RegisterJobRequest {
        context: context(),
        name: job.into(),
        dataset: dataset.name.clone(),
        identity: Some(identity_to(&identity(dataset, lanes))),
        ..Default::default()
    }
}

/// Returns a start of one rank of `world_size` in run `r1`, from the beginning, 8 rows a rank.
pub(crate) fn start(session: u64, job: &str, rank: u64, world_size: u64) -> StartRankRequest {
    let open = Segment { lanes: world_size, global_batch: 8 * world_size, steps: Steps::All(0) };
    let intent =
        Intent::Start { state_generation: None, epoch: 0, segments: vec![open], is_reshard: false };
    StartRankRequest {
        context: context(),
        session,
        job: job.into(),
        run: Some("r1".into()),
        rank,
        world_size,
        limit: None,
        trainer: format!("trainer-{rank}"),
        intent: Some(intent_to(&intent)),
        left: None,
        peer: None,
        in_doubt: 0,
        mixture: vec![],
        left_out: vec![],
        replaces: None,
        in_doubt_grace_ms: None,
    }
}

pub(crate) fn lease(job: &str, rank: u64, started: &StartRankResponse) -> Lease {
    let StartRankResponse { generation, fencing, .. } = *started;
    Lease { job: job.into(), generation, rank, fencing }
}

pub(crate) fn progress(lease: &Lease, epoch: u64, step: u64, reading: Vec<u32>) -> RankProgress {
    RankProgress { lease: Some(lease.clone()), epoch, step, ready: 2, reading, account: None }
}
