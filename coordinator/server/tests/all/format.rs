//! Every later build reads today's data: a data folder and a backup, written once and kept in
//! `tests/fixtures`, become the same state. A change of the encoding of the log, of snapshots,
//! commands, states or backups fails here.
//!
//! `SHARDFEED_WRITE_FIXTURE=1` writes missing files, and never replaces existing ones: a change of
//! a format keeps these files, and adds others under the next number.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardfeed_coordinator::{
    Coordinator, CoordinatorOptions, Inspector, Running, restore_snapshot,
};
use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use tonic::transport::Channel;

use crate::backup::save;
use crate::fixture::{Fixture, clients, context, eventually, options, refused};
use crate::groups::{dynamic_with, request, take};
use crate::worker::{beat, get, register, start};

/// The files of one format.
struct Format {
    folder: PathBuf,
    number: u32,
}

impl Format {
    fn file(&self, what: &str) -> PathBuf {
        self.folder.join(format!("format-{}.{what}", self.number))
    }

    fn read(&self, what: &str) -> Vec<u8> {
        let path = self.file(what);
        fs::read(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; SHARDFEED_WRITE_FIXTURE=1 writes it", path.display())
        })
    }
}

/// Returns options for the node that writes, and for all that read. Nothing expires.
fn patient(folder: &Path) -> CoordinatorOptions {
    CoordinatorOptions { snapshot_every: 8, session_ttl_ms: 600_000, ..options(folder) }
}

/// Returns all facts about a state.
fn told(inspector: &Inspector) -> Value {
    let (_, hash) = inspector.state_hash();
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let state: Value = serde_json::from_slice(&inspector.read(|state| state.snapshot())).unwrap();
    json!({ "state_hash": hash, "state": state })
}

/// Runs a few operations of each kind on a coordinator over a folder, and writes all three files.
async fn write(format: &Format) {
    let mut fixture = Fixture::start_with(|options| *options = patient(&options.data_dir)).await;
    // Scans, a dynamic job and its claims, which have their own form in the log.
    let (session, leases) = dynamic_with(&mut fixture, 2, 1).await;
    take(&mut fixture.worker, request(session, &leases[0])).await.unwrap();
    let dataset = get(&fixture, "photos").await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    fixture.worker.start_rank(start(session, "train", 0, 2)).await.unwrap();
    let (job, reason) = ("train".to_owned(), "for the fixture".to_owned());
    let hold = HoldJobRequest { context: context(), job, hold: Hold::Paused.into(), reason };
    fixture.admin.hold_job(hold).await.unwrap();
    let access = CreateAccessRequest {
        context: context(),
        id: "abcd1234".into(),
        digest: vec![7; 32],
        name: "vera".into(),
        role: "viewer".into(),
        jobs: vec!["nightly-*".into()],
        ttl_ms: 86_400_000,
        join_ttl_ms: None,
    };
    fixture.admin.create_access(access).await.unwrap();
    let inspector = fixture.running.inspector();
    eventually("a snapshot", || async { inspector.status().snapshot }).await;
    // Something that is only in the log.
    for number in 0.. {
        let worker = format!("w{number}");
        let cordon = Cordon::Cordoned.into();
        let request = CordonWorkerRequest { context: context(), worker, cordon };
        fixture.admin.cordon_worker(request).await.unwrap();
        let status = inspector.status();
        if status.snapshot < status.applied {
            break;
        }
    }
    let (backup, _) = save(&mut fixture.admin).await;
    let told = told(&inspector);
    drop(inspector);
    let folder = fixture.stop().await;
    fs::create_dir_all(&format.folder).unwrap();
    fs::write(format.file("folder"), pack(folder.path(), &["raft", "chunks"])).unwrap();
    fs::write(format.file("backup"), backup).unwrap();
    fs::write(format.file("json"), serde_json::to_string_pretty(&told).unwrap() + "\n").unwrap();
}

/// Checks that a node that runs over kept files has the recorded state, and continues.
async fn check(running: Running, told_before: &Value) {
    let now = told(&running.inspector());
    assert_eq!(now["state"], told_before["state"], "the state is another one than it was");
    assert_eq!(now["state_hash"], told_before["state_hash"], "the state is written otherwise");
    let (mut worker, mut admin) = clients(running.grpc_address()).await;
    let sessions = told_before["state"]["sessions"].to_string();
    let listed = admin.list_workers(ListWorkersRequest { context: context(), all: false }).await;
    let session = listed.unwrap().into_inner().workers[0].session;
    assert!(sessions.contains(&session.to_string()), "{sessions}");
    beat(&mut worker, session, vec![]).await.unwrap();
    check_jobs_of_order_0(&mut worker, &mut admin, session).await;
    running.stop().await;
}

/// Checks that the jobs of the first order are shown, but not continued: their
/// order is no longer computed.
async fn check_jobs_of_order_0(
    worker: &mut WorkerServiceClient<Channel>,
    admin: &mut AdminServiceClient<Channel>,
    session: u64,
) {
    let listed = admin.list_jobs(ListJobsRequest { context: context() }).await.unwrap();
    let names: Vec<_> = listed.into_inner().jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["infer", "train"]);
    let get = GetDatasetRequest { context: context(), name: "photos".into() };
    let dataset = admin.get_dataset(get).await.unwrap().into_inner().dataset.unwrap();
    let job = "train".to_owned();
    let shards = ListShardsRequest { context: context(), job, ..Default::default() };
    let refusals = [
        refused(worker.register_job(register(&dataset, "train", 2)).await),
        refused(worker.start_rank(start(session, "train", 1, 2)).await),
        refused(worker.start_rank(start(session, "infer", 0, 1)).await),
        refused(admin.list_shards(shards).await),
    ];
    for (kind, message) in refusals {
        assert_eq!(kind, ErrorKind::Identity, "{message}");
        for part in [
            "the job has order version 0, this shardfeed computes order version 1",
            "finish the job with the release that registered it",
            "shardfeed job remove",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_in_format_1_is_read_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let format = Format { folder, number: 1 };
    let is_wanted = std::env::var_os("SHARDFEED_WRITE_FIXTURE").is_some_and(|set| set == "1");
    if is_wanted && !format.file("json").exists() {
        write(&format).await;
    }
    let told: Value = serde_json::from_slice(&format.read("json")).unwrap();

    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    unpack(&format.read("folder"), &data);
    let running = Coordinator::start(patient(&data)).await.unwrap();
    check(running, &told).await;

    let restored = patient(&home.path().join("restored"));
    restore_snapshot(&format.file("backup"), &restored.data_dir, &restored).unwrap();
    check(Coordinator::start(restored).await.unwrap(), &told).await;
}

/// Block size for packing a folder: a block is zero or not as a whole.
const BLOCK_BYTES: usize = 64;

/// Packs the files of some folders without their zeros, of which a database has many: for each file
/// a line `PATH LENGTH`, then for each stretch `OFFSET LENGTH` and its bytes, and an empty line at
/// the end.
fn pack(home: &Path, folders: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for folder in folders {
        let entries = fs::read_dir(home.join(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        for name in names {
            let content = fs::read(home.join(folder).join(&name)).unwrap();
            out.extend(format!("{folder}/{name} {}\n", content.len()).bytes());
            let blocks: Vec<_> = content.chunks(BLOCK_BYTES).collect();
            let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
            let mut at = 0;
            for stretch in blocks.chunk_by(|one, other| is_zero(one) == is_zero(other)) {
                let bytes = stretch.concat();
                if !is_zero(&stretch[0]) {
                    out.extend(format!("{at} {}\n", bytes.len()).bytes());
                    out.extend(&bytes);
                }
                at += bytes.len();
            }
            out.push(b'\n');
        }
    }
    out
}

fn unpack(mut packed: &[u8], home: &Path) {
    /// Returns the next line, without its end.
    fn line<'a>(packed: &mut &'a [u8]) -> &'a str {
        let end = packed.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, rest) = packed.split_at(end);
        *packed = &rest[1..];
        std::str::from_utf8(line).unwrap()
    }

    while !packed.is_empty() {
        let (path, length) = line(&mut packed).rsplit_once(' ').unwrap();
        let mut content = vec![0; length.parse().unwrap()];
        while let Some((offset, length)) = line(&mut packed).split_once(' ') {
            let (offset, length): (usize, usize) =
                (offset.parse().unwrap(), length.parse().unwrap());
            let (bytes, rest) = packed.split_at(length);
            content[offset..offset + length].copy_from_slice(bytes);
            packed = rest;
        }
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

#[test]
fn a_folder_comes_back_as_it_was_packed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut sparse = vec![0; 100_000];
    sparse[70_000..70_100].fill(b'\n');
    fs::create_dir(from.path().join("a")).unwrap();
    for (name, content) in [("empty", vec![]), ("full", vec![1; 1_000]), ("sparse", sparse)] {
        fs::write(from.path().join("a").join(name), content).unwrap();
    }
    let packed = pack(from.path(), &["a"]);
    assert!(packed.len() < 2_000, "{}", packed.len());
    unpack(&packed, to.path());
    for name in ["empty", "full", "sparse"] {
        let read = |home: &Path| fs::read(home.join("a").join(name)).unwrap();
        assert_eq!(read(from.path()), read(to.path()), "{name}");
    }
}
