//! A simulated dataset without files, and jobs over it: no data is ever read.

use std::time::{Duration, Instant};

use shardfeed_plan::{
    DECODER_NONE, Digest, Intent, JobIdentity, Mode, ORDER_VERSION, Records, Segment, Shuffle,
    Steps, Tail,
};
use shardfeed_proto::chunk::{EntriesChunk, FileEntry, ListedFile, ListingChunk};
use shardfeed_proto::common::v1 as common;
use shardfeed_proto::coordinator::v1::report_listing_request::Part;
use shardfeed_proto::coordinator::v1::scan_task::{Scan, Work};
use shardfeed_proto::coordinator::v1::{
    AddDatasetRequest, ClaimScansRequest, DatasetState, GetDatasetRequest, HeartbeatRequest, Lease,
    PutChunkRequest, RegisterJobRequest, ReportListingRequest, ReportScanRequest, StartRankRequest,
};
use shardfeed_proto::{identity_to, intent_to};
use uuid::Uuid;

use crate::calls::{Clients, admin, context, join};

const DATASET: &str = "paper";

/// Files per part of the listing: their entries have less than 1 MiB.
const PART_FILES: u64 = 2_500;

/// Number of files and of their records, and the mode of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files {
    pub(crate) count: u64,
    pub(crate) records: u64,
    pub(crate) mode: Mode,
}

impl Files {
    pub(crate) fn few() -> Self {
        Self { count: 5, records: 10_000_000, mode: Mode::Deterministic }
    }

    fn part(self, part: u64) -> Vec<FileEntry> {
        let file = |number: u64| {
            let path = format!("part-{number:07}.tfrecord");
            FileEntry {
                digest: Digest::of_parts([path.as_bytes()]),
                path,
                size_bytes: 20 * self.records,
                modified_ns: 1,
                etag: None,
                compression: "none".into(),
                records: self.records,
                data_bytes: 4 * self.records,
                record_bytes_max: 4,
                marks: vec![(0, 0)],
                left_out: None,
                samples: None,
            }
        };
        (part * PART_FILES..self.count.min((part + 1) * PART_FILES)).map(file).collect()
    }
}

/// A job that ranks can start.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    name: String,
    run: String,
    dataset: String,
    identity: common::JobIdentity,
}

impl Job {
    /// Returns the request that registers the job again.
    pub(crate) fn register(&self) -> RegisterJobRequest {
        RegisterJobRequest {
            context: context(),
            name: self.name.clone(),
            dataset: self.dataset.clone(),
            identity: Some(self.identity.clone()),
            ..Default::default()
        }
    }

    /// Starts a rank with batches of one sample.
    pub(crate) async fn start(
        &self,
        client: &mut Clients,
        session: u64,
        rank: u64,
        world_size: u64,
    ) -> Lease {
        let steps = Steps::All(0);
        let segments = vec![Segment { lanes: 1, global_batch: world_size, steps }];
        let intent =
            Intent::Start { state_generation: None, epoch: 0, segments, is_reshard: false };
        let start = StartRankRequest {
            context: context(),
            session,
            job: self.name.clone(),
            run: Some(self.run.clone()),
            rank,
            world_size,
            limit: None,
            trainer: Uuid::new_v4().to_string(),
            intent: Some(intent_to(&intent)),
            left: None,
            in_doubt: 0,
            in_doubt_grace_ms: None,
            mixture: vec![],
            left_out: vec![],
            peer: None,
            replaces: None,
        };
        let started = client.start_rank(start).await.unwrap().into_inner();
        let (job, generation) = (self.name.clone(), started.generation);
        Lease { job, generation, rank, fencing: started.fencing }
    }
}

/// Creates a job over `files`; an existing dataset is reused.
pub(crate) async fn job(addresses: &[&str], client: &mut Clients, name: &str, files: Files) -> Job {
    let mut admin = admin(addresses).await;
    let dataset = format!("{DATASET}-{}", files.count);
    let add = AddDatasetRequest {
        context: context(),
        name: dataset.clone(),
        patterns: vec!["/paper/*.tfrecord".into()],
        compression: String::new(),
        corrupt: String::new(),
        listing: None,
        program: vec![],
    };
    // An earlier run may have added it.
    let _ = admin.add_dataset(add).await;
    let session = join(client, format!("scanner-{}", Uuid::new_v4())).await;
    let deadline = Instant::now() + Duration::from_secs(300);
    let content = loop {
        assert!(Instant::now() < deadline, "the dataset is not ready");
        let get = GetDatasetRequest { context: context(), name: dataset.clone() };
        let found = admin.get_dataset(get).await.unwrap().into_inner().dataset.unwrap();
        if found.state() == DatasetState::Ready {
            break found.content;
        }
        scan(client, session, files).await;
    };
    let content = Digest::from_bytes(content.try_into().unwrap());
    let shuffle = Shuffle {
        digest: content,
        seed: 1,
        enabled: true,
        window: if files.mode == Mode::Dynamic { 1 } else { 1_000 },
        interleave: 1,
        block_length: 1,
    };
    let is_dynamic = files.mode == Mode::Dynamic;
    let identity = identity_to(&JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle,
        lanes: 1,
        tail: if is_dynamic { Tail::Uneven } else { Tail::Drop },
        mode: files.mode,
        records: Records::Operators("raw/1".into()),
        decoder: DECODER_NONE.into(),
    });
    let job = Job { name: name.into(), run: Uuid::new_v4().to_string(), dataset, identity };
    client.register_job(job.register()).await.unwrap();
    job
}

/// Executes all scan tasks.
async fn scan(client: &mut Clients, session: u64, files: Files) {
    let (ranks, scans) = (vec![], vec![]);
    let heartbeat = HeartbeatRequest { context: context(), session, ranks, scans };
    client.heartbeat(heartbeat).await.unwrap();
    let take = ClaimScansRequest { context: context(), session, most: 16 };
    for task in client.claim_scans(take).await.unwrap().into_inner().tasks {
        let (dataset, fencing) = (task.dataset, task.fencing);
        match task.work.unwrap() {
            Work::List(_) => {
                let mut parts = vec![];
                for part in 0..files.count.div_ceil(PART_FILES) {
                    let files = files.part(part);
                    let listed = |file: &FileEntry| ListedFile {
                        path: file.path.clone(),
                        size: file.size_bytes,
                        etag: None,
                        changed_ns: None,
                    };
                    let chunk = ListingChunk::new(files.iter().map(listed).collect());
                    parts.push(Part {
                        chunk: put(client, chunk.encode().unwrap()).await,
                        files: files.len() as u64,
                        bytes: files.iter().map(|file| file.size_bytes).sum(),
                    });
                }
                let root = "/paper".to_owned();
                let report = ReportListingRequest {
                    context: context(),
                    session,
                    dataset,
                    fencing,
                    root,
                    parts,
                };
                client.report_listing(report).await.unwrap();
            }
            Work::Scan(Scan { part, .. }) => {
                let entries = EntriesChunk::new(files.part(part));
                let records = entries.samples();
                let chunk = put(client, entries.encode().unwrap()).await;
                let report = ReportScanRequest {
                    context: context(),
                    session,
                    dataset,
                    fencing,
                    part,
                    chunk,
                    records,
                    maps: vec![],
                };
                client.report_scan(report).await.unwrap();
            }
        }
    }
}

async fn put(client: &mut Clients, content: Vec<u8>) -> Vec<u8> {
    let put = PutChunkRequest { context: context(), content };
    client.put_chunk(put).await.unwrap().into_inner().digest
}
