//! Attacks by colleagues with a limited token, a trainer's certificate or access to the worker's
//! socket; with real processes.

use std::fmt::Debug;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use shardfeed_agent::{CallError, Coordinator, Patience};
use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{ClusterOptions, Delivery, Loader, LoaderOptions};
use shardfeed_plan::{
    DECODER_NONE, Digest, Intent, JobIdentity, Mode, ORDER_VERSION, Records, Segment, Shuffle,
    Steps, Tail,
};
use shardfeed_proto::chunk::{ListedFile, ListingChunk};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::add_dataset_request::Listing;
use shardfeed_proto::coordinator::v1::report_listing_request::Part;
use shardfeed_proto::{ErrorKind, WireError, identity_to, intent_to};

use crate::cluster::{PATIENCE, Process, until};
use crate::fixture::Place;
use crate::security::Secure;

/// Makes one call; `$field` is one of both services, and `$name` the method.
macro_rules! ask {
    ($client:expr, $field:ident.$name:ident($request:ident { $($fields:tt)* })) => {{
        let request = wire::$request { context: None, $($fields)* };
        $client.ask(Patience::Wait, PATIENCE, &mut |_| true, request)
    }};
}

fn refusal<T: Debug>(answer: Result<T, CallError>) -> WireError {
    match answer {
        Err(CallError::Refused(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Begins a session of a client, under a name.
fn join(client: &Coordinator, name: &str) -> u64 {
    let (worker, incarnation) = (name.to_owned(), "one".to_owned());
    let joined: Result<wire::JoinResponse, _> =
        ask!(client, worker.join(JoinRequest { worker, incarnation, ..Default::default() }));
    joined.unwrap().session
}

/// Claims the work that is available to a session now.
fn take(client: &Coordinator, session: u64) -> Vec<wire::ScanTask> {
    let taken: Result<wire::ClaimScansResponse, _> =
        ask!(client, worker.claim_scans(ClaimScansRequest { session, most: 16 }));
    taken.unwrap().tasks
}

fn put(client: &Coordinator, content: &[u8]) -> Result<Vec<u8>, CallError> {
    let put: Result<wire::PutChunkResponse, _> =
        ask!(client, worker.put_chunk(PutChunkRequest { content: content.to_vec() }));
    put.map(|put| put.digest)
}

/// Stores the chunk of a listing of one file; returns the part.
fn part(client: &Coordinator, path: &str) -> Part {
    let file = ListedFile { path: path.to_owned(), size: 10, etag: None, changed_ns: Some(1) };
    let chunk = put(client, &ListingChunk::new(vec![file]).encode().unwrap()).unwrap();
    Part { chunk, files: 1, bytes: 10 }
}

fn add(client: &Coordinator, name: &str, pattern: &str) -> Result<(), CallError> {
    let (name, pattern) = (name.to_owned(), pattern.to_owned());
    let added: Result<wire::AddDatasetResponse, _> = ask!(
        client,
        admin.add_dataset(AddDatasetRequest {
            name,
            patterns: vec![pattern],
            ..Default::default()
        })
    );
    added.map(drop)
}

/// Adds a dataset by its files; returns its name.
fn add_files(client: &Coordinator, root: &str, parts: &[Part]) -> String {
    let listing = Listing { root: root.to_owned(), parts: parts.to_vec() };
    let added: Result<wire::AddDatasetResponse, _> = ask!(
        client,
        admin.add_dataset(AddDatasetRequest { listing: Some(listing), ..Default::default() })
    );
    added.unwrap().name
}

fn get(client: &Coordinator, name: &str) -> wire::Dataset {
    let name = name.to_owned();
    let got: Result<wire::GetDatasetResponse, _> =
        ask!(client, admin.get_dataset(GetDatasetRequest { name }));
    got.unwrap().dataset.unwrap()
}

/// Starts a worker with the workers' certificate.
fn worker(cluster: &Secure, name: &str, more: &[&str]) -> Process {
    let (socket, log) = (format!("{name}.sock"), format!("{name}.log"));
    let args = ["worker", "start", "--name", name, "--socket", &socket, "--tls", "pki/worker"];
    let place = ["--coordinator", &cluster.address, "--memory-budget", "64MiB"];
    Process::ready(&cluster.place, &log, &[&args[..], &place, more].concat()).0
}

fn nightly(cluster: &Secure) -> Coordinator {
    let file = cluster.token("nightly", &["--role", "trainer", "--job", "nightly-*"]);
    cluster.with_token(&file);
    cluster.client(Some("anonymous"), Some(&file))
}

#[test]
fn a_limited_token_replaces_lists_and_fails_nobodys_dataset() {
    let cluster = Secure::start(Place::with_shards(&[30]));
    let (attacker, victim) = (nightly(&cluster), cluster.client(Some("pki/worker"), None));
    let pattern = cluster.place.path("s-*.tfrecord").display().to_string();
    cluster.ok("pki/otto", &["dataset", "add", "images", &pattern, "--no-wait"]);
    let session = join(&attacker, "mallory");
    // It gets no work of others, and its reports without a lease are refused.
    assert_eq!(take(&attacker, session), []);
    let parts = vec![part(&attacker, "evil.tfrecord")];
    for fencing in 0..20 {
        let parts = parts.clone();
        let reported: Result<wire::ReportListingResponse, _> = ask!(
            attacker,
            worker.report_listing(ReportListingRequest {
                session,
                dataset: "images".into(),
                fencing,
                root: "/tmp/evil".into(),
                parts: parts.clone(),
            })
        );
        let error = refusal(reported);
        assert!(matches!(error.kind, ErrorKind::Fenced | ErrorKind::Invalid), "{error:?}");
        let failed: Result<wire::FailScanResponse, _> = ask!(
            attacker,
            worker.fail_scan(FailScanRequest {
                session,
                dataset: "images".into(),
                fencing,
                error: Some(WireError::new(ErrorKind::Corrupt, "pay me").to_message()),
            })
        );
        assert_eq!(refusal(failed).kind, ErrorKind::Fenced);
    }
    // The refusals are in the audit, as far as there is room.
    let audit = cluster.ok("pki/admin", &["audit", "--since", "1h", "-o", "json"]);
    let audit: serde_json::Value = serde_json::from_str(&audit).unwrap();
    let is_fenced =
        |entry: &&serde_json::Value| entry["method"] == "FailScan" && entry["outcome"] == "FENCED";
    let fenced = audit["entries"].as_array().unwrap().iter().filter(is_fenced).count();
    assert!((1..=20).contains(&fenced), "{fenced}: {audit}");
    // It can use only its own names, and no names reserved for the coordinator.
    assert_eq!(refusal(add(&attacker, "images2", &pattern)).kind, ErrorKind::Denied);
    assert_eq!(refusal(add(&victim, "files-0123", &pattern)).kind, ErrorKind::Invalid);
    // For its own dataset, it can list only files that match the patterns.
    add(&attacker, "nightly-a", "/tmp/mine/*.tfrecord").unwrap();
    let task = take(&attacker, session).remove(0);
    assert_eq!(task.dataset, "nightly-a");
    let report = |root: &str| -> Result<wire::ReportListingResponse, CallError> {
        let (root, parts, fencing) = (root.to_owned(), parts.clone(), task.fencing);
        ask!(
            attacker,
            worker.report_listing(ReportListingRequest {
                session,
                dataset: "nightly-a".into(),
                fencing,
                root,
                parts,
            })
        )
    };
    let error = refusal(report("/tmp/other"));
    assert!(error.message.contains("is matched by no pattern"), "{error}");
    report("/tmp/mine").unwrap();
    // Its failure reports are labelled, and cannot control a terminal.
    let task = take(&attacker, session).remove(0);
    let text = format!("\u{1b}[2J{}", "x".repeat(100_000));
    let failed: Result<wire::FailScanResponse, _> = ask!(
        attacker,
        worker.fail_scan(FailScanRequest {
            session,
            dataset: "nightly-a".into(),
            fencing: task.fencing,
            error: Some(WireError::new(ErrorKind::Corrupt, text).to_message()),
        })
    );
    failed.unwrap();
    let shown = get(&victim, "nightly-a");
    let message = shown.failure.unwrap().message;
    assert!(message.len() <= 4096 && !message.contains('\u{1b}'), "{message:.80}");
    assert!(shown.failure_from.contains("mallory of trainer:nightly"), "{}", shown.failure_from);
    // The victim's dataset is unchanged.
    let _worker = worker(&cluster, "w", &[]);
    until("the dataset", || {
        (get(&victim, "images").state() == wire::DatasetState::Ready).then_some(())
    });
    assert_eq!(get(&victim, "images").records, 30);
}

#[test]
fn the_same_files_are_one_dataset_and_a_limited_scan_of_them_is_believed_by_nobody_else() {
    let cluster = Secure::start(Place::new());
    let (attacker, victim) = (nightly(&cluster), cluster.client(Some("pki/worker"), None));
    let tom = cluster.client(Some("pki/tom"), None);
    let files = part(&attacker, "train.tfrecord");
    let theirs = add_files(&attacker, "/data", std::slice::from_ref(&files));
    let ours = add_files(&victim, "/data", std::slice::from_ref(&files));
    assert_ne!(theirs, ours);
    // The attacker's session gets only its own dataset.
    let session = join(&attacker, "mallory");
    let given: Vec<_> = take(&attacker, session).into_iter().map(|task| task.dataset).collect();
    assert_eq!(given, std::slice::from_ref(&theirs));
    let workers = join(&victim, "w");
    let given: Vec<_> = take(&victim, workers).into_iter().map(|task| task.dataset).collect();
    assert_eq!(given, std::slice::from_ref(&ours));
    // A dataset that a worker scans is shared with later callers, including those with a limited
    // token.
    assert_eq!(add_files(&attacker, "/data", std::slice::from_ref(&files)), ours);
    assert_eq!(add_files(&tom, "/data", std::slice::from_ref(&files)), ours);
    assert_ne!(add_files(&victim, "/other", std::slice::from_ref(&files)), ours);
}

/// Registers a job that reads nothing, and starts its only rank in a run.
fn train(client: &Coordinator, session: u64, run: &str) -> Result<(), CallError> {
    let content = Digest::from_bytes([7; 32]);
    let shuffle = Shuffle {
        digest: content,
        seed: 0,
        enabled: true,
        window: 8,
        interleave: 4,
        block_length: 1,
    };
    let identity = JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle,
        lanes: 1,
        tail: Tail::Drop,
        mode: Mode::Deterministic,
        records: Records::Operators("raw/1".to_owned()),
        decoder: DECODER_NONE.to_owned(),
    };
    let registered: Result<wire::RegisterJobResponse, _> = ask!(
        client,
        worker.register_job(RegisterJobRequest {
            name: "train".into(),
            identity: Some(identity_to(&identity)),
            ..Default::default()
        })
    );
    registered?;
    let open = Segment { lanes: 1, global_batch: 8, steps: Steps::All(0) };
    let intent =
        Intent::Start { state_generation: None, epoch: 0, segments: vec![open], is_reshard: false };
    let started: Result<wire::StartRankResponse, _> = ask!(
        client,
        worker.start_rank(StartRankRequest {
            session,
            job: "train".into(),
            run: Some(run.to_owned()),
            world_size: 1,
            trainer: format!("process of {run}"),
            intent: Some(intent_to(&intent)),
            ..Default::default()
        })
    );
    started.map(drop)
}

#[test]
fn a_peer_with_a_trainers_certificate_takes_over_and_scans_nothing_of_others() {
    let cluster = Secure::start(Place::new());
    cluster.place.ok(&["tls", "issue", "pki", "trainer", "mallory"]);
    let tom = cluster.client(Some("pki/tom"), None);
    let mallory = cluster.client(Some("pki/mallory"), None);
    let (toms, mallorys) = (join(&tom, "tom"), join(&mallory, "mallory"));
    // The same files, found by both: neither trusts the other's scan.
    let files = [part(&tom, "train.tfrecord")];
    let (theirs, ours) = (add_files(&mallory, "/data", &files), add_files(&tom, "/data", &files));
    assert_ne!(theirs, ours);
    let given = |client: &Coordinator, session| {
        take(client, session).into_iter().map(|task| task.dataset).collect::<Vec<_>>()
    };
    assert_eq!(given(&mallory, mallorys), [theirs]);
    assert_eq!(given(&tom, toms), [ours]);
    // A dataset of an operator is scanned by a worker, if there is one.
    let worker = join(&cluster.client(Some("pki/worker"), None), "w");
    cluster.ok("pki/otto", &["dataset", "add", "images", "/images/*", "--no-wait"]);
    assert_eq!(given(&mallory, mallorys), [""; 0]);
    let workers = cluster.client(Some("pki/worker"), None);
    assert_eq!(given(&workers, worker), ["images"]);
    // A training belongs to its principal.
    train(&tom, toms, "one").unwrap();
    let error = refusal(train(&mallory, mallorys, "two"));
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("job `train` is of trainer:tom; trainer:mallory"), "{error}");
    let records = vec![wire::SkippedRecord { reason: "pay me".into(), ..Default::default() }];
    let reported: Result<wire::ReportSkippedResponse, _> = ask!(
        mallory,
        worker.report_skipped(ReportSkippedRequest {
            session: mallorys,
            job: "train".into(),
            records,
            mixture: vec![],
        })
    );
    assert_eq!(refusal(reported).kind, ErrorKind::Denied);
    train(&tom, toms, "three").unwrap();
}

#[test]
fn a_dataset_that_is_removed_is_scanned_no_longer() {
    let cluster = Secure::start(Place::with_shards(&[30]));
    // The listener never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let _worker = worker(&cluster, "w", &[]);
    // These datasets occupy all turns of the worker: three may belong to one principal.
    let hanging = [("pki/otto", "a"), ("pki/otto", "b"), ("pki/otto", "c"), ("pki/admin", "d")];
    for (who, name) in hanging {
        let url = format!("{url}/{name}.tfrecord");
        cluster.ok(who, &["dataset", "add", name, &url, "--no-wait"]);
    }
    let _asked: Vec<_> = hanging.iter().map(|_| silent.accept().unwrap()).collect();
    let pattern = cluster.place.path("s-*.tfrecord").display().to_string();
    cluster.ok("pki/admin", &["dataset", "add", "images", &pattern, "--no-wait"]);
    for (_, name) in hanging {
        cluster.ok("pki/otto", &["dataset", "remove", name, "--yes"]);
    }
    let client = cluster.client(Some("pki/worker"), None);
    // Long before the requests to the store time out.
    until("a turn", || (get(&client, "images").state() == wire::DatasetState::Ready).then_some(()));
}

#[test]
fn a_limited_token_does_not_stop_registration() {
    let cluster = Secure::start(Place::with_shards(&[30]));
    let (attacker, victim) = (nightly(&cluster), cluster.client(Some("pki/worker"), None));
    // The listener never answers: each connection waits in its queue.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let place = cluster.place.path(".");
    let roots = ["--data-root", &url, "--data-root", place.to_str().unwrap()];
    let _worker = worker(&cluster, "w", &roots);
    let mut refused = None;
    for number in 0..100 {
        let name = format!("nightly-{number}");
        if let Err(error) = add(&attacker, &name, &format!("{url}/{number}.tfrecord")) {
            refused = Some((number, refusal::<()>(Err(error))));
            break;
        }
    }
    let (count, error) = refused.expect("a principal has a bound");
    assert!(count >= 40 && error.message.contains("that are not ready"), "{count}: {error}");
    // Other principals are served meanwhile.
    let pattern = cluster.place.path("s-*.tfrecord").display().to_string();
    cluster.ok("pki/otto", &["dataset", "add", "images", &pattern]);
    // A removed dataset is no longer scanned: the attacker's turns are free for the next ones.
    for number in 0..count {
        let name = format!("nightly-{number}");
        cluster.ok("pki/otto", &["dataset", "remove", &name, "--yes"]);
    }
    let file = cluster.place.path("s-0.tfrecord").display().to_string();
    cluster.ok("pki/otto", &["dataset", "add", "more", &file]);
    // Chunks of a limited principal have a separate bound; those of others are stored, and the
    // metrics show it.
    let mut put_all = 0_u32;
    let error = loop {
        let mut content = vec![0; 1 << 20];
        content[..4].copy_from_slice(&put_all.to_le_bytes());
        let address = cluster.address.parse().unwrap();
        let answer: Result<wire::PutChunkResponse, CallError> =
            attacker.ask_at(&address, PATIENCE, wire::PutChunkRequest { context: None, content });
        match answer {
            Ok(_) => put_all += 1,
            Err(error) => break error.to_string(),
        }
        assert!(put_all < 4096, "no bound");
    };
    assert!(error.contains("chunks of trainer:nightly"), "{error}");
    put(&victim, b"another").unwrap();
    cluster.ok("pki/vera", &["status"]);
}

#[test]
fn a_dataset_by_a_trainer_says_nothing_of_paths_and_fetches_nothing() {
    let cluster = Secure::start(Place::with_shards(&[30]));
    let tom = cluster.client(Some("pki/tom"), None);
    let asked = TcpListener::bind("127.0.0.1:0").unwrap();
    asked.set_nonblocking(true).unwrap();
    let url = format!("http://{}/secret", asked.local_addr().unwrap());
    let root = cluster.place.path("allowed");
    fs::create_dir_all(&root).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
    let _with = worker(&cluster, "with", &["--data-root", root.to_str().unwrap()]);
    let _without = worker(&cluster, "without", &[]);
    let probes = ["/etc/passwd", "/no/such/file", "/root", &url];
    for (number, probe) in probes.iter().enumerate() {
        add(&tom, &format!("probe-{number}"), probe).unwrap();
    }
    // A later dataset is scanned by then, but the others are not.
    let pattern = cluster.place.path("s-*.tfrecord").display().to_string();
    let inside = root.join("s.tfrecord");
    fs::copy(cluster.place.path("s-0.tfrecord"), &inside).unwrap();
    add(&tom, "inside", inside.to_str().unwrap()).unwrap();
    cluster.ok("pki/otto", &["dataset", "add", "images", &pattern]);
    until("the files inside", || {
        (get(&tom, "inside").state() == wire::DatasetState::Ready).then_some(())
    });
    let said = probes.iter().enumerate().map(|(number, probe)| {
        let dataset = get(&tom, &format!("probe-{number}"));
        assert_eq!(dataset.state(), wire::DatasetState::Listing, "{dataset:?}");
        dataset.waiting.replace(probe, "IT")
    });
    let said: Vec<_> = said.collect();
    assert!(said[0].contains("no live worker may read IT"), "{said:?}");
    assert!(said.iter().all(|other| *other == said[0]), "{said:?}");
    assert!(asked.accept().is_err(), "the URL was fetched");
    // A symbolic link out of a data root, to an existing and a missing file.
    let linked = ["passwd", "none"].map(|name| {
        let dataset = format!("link-{name}");
        let pattern = root.join("link").join(name).display().to_string();
        add(&tom, &dataset, &pattern).unwrap();
        let failed = until("its failure", || {
            let dataset = get(&tom, &dataset);
            (dataset.state() == wire::DatasetState::Failed).then_some(dataset)
        });
        failed.failure.unwrap().message.replace(&pattern, "IT")
    });
    assert_eq!(linked[0], linked[1]);
}

/// Runs `work` on a thread with another user id, as seen by the servers that it connects to.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let run = move || {
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(None::<Gid>, Gid::from_raw(uid), None::<Gid>).unwrap();
        set_thread_res_uid(None::<Uid>, Uid::from_raw(uid), None::<Uid>).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Two users without permissions here.
const ALICE: u32 = 77_001;
const BOB: u32 = 77_002;

#[test]
fn a_seat_at_the_workers_socket_ends_no_job_and_opens_no_file() {
    assert!(geteuid().is_root(), "run the tests as root: only root is several users");
    let cluster = Secure::start(Place::with_shards(&[30]));
    let place = &cluster.place;
    let mode = |name: &str, mode| {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let _worker = worker(&cluster, "w", &[]);
    mode(".", 0o755);
    mode("w.sock", 0o666);
    mode("s-0.tfrecord", 0o644);
    place.file("secret.tfrecord", fs::read(place.path("s-0.tfrecord")).unwrap());
    mode("secret.tfrecord", 0o600);
    // The client's trust, for users who cannot read the folder of certificates.
    let start = |uid: u32, file: &str, job: &str, run: &str| {
        let options = LoaderOptions {
            job: Some(job.to_owned()),
            batch_size: 4,
            cluster: Some(ClusterOptions {
                worker: Some(place.path("w.sock")),
                fallback: false,
                run: Some(run.to_owned()),
                ..ClusterOptions::new(&cluster.address, &GrpcCluster)
            }),
            ..place.loader(file)
        };
        as_user(uid, move || {
            let open = shardfeed_embedded::open(options, &mut |_| true);
            let mut loader = open.map_err(|error| error.to_string())?;
            let begun = Instant::now();
            loop {
                match loader.next(Duration::from_millis(100)).map_err(|error| error.to_string())? {
                    Delivery::Pending => assert!(begun.elapsed() < PATIENCE, "never a batch"),
                    Delivery::Batch(_) | Delivery::EpochEnd { .. } => return Ok(loader),
                }
            }
        })
    };
    let said = |started: Result<Loader, String>| started.err().expect("refused");
    let mut alices = start(ALICE, "s-0.tfrecord", "train", "r1").unwrap();
    let error = said(start(BOB, "s-0.tfrecord", "train", "r2"));
    assert!(error.contains("is of user 77001; user 77002 may not start its ranks"), "{error}");
    start(BOB, "s-0.tfrecord", "bobs", "r1").unwrap();
    // Alice's loader still has its lease, and continues.
    let ranks = cluster.ok("pki/otto", &["rank", "list", "--job", "train", "-o", "json"]);
    assert!(ranks.contains(r#""worker":"w""#) || ranks.contains(r#""worker": "w""#), "{ranks}");
    until("her next batch", || match alices.next(Duration::from_millis(100)).unwrap() {
        Delivery::Batch(_) => Some(()),
        Delivery::Pending | Delivery::EpochEnd { .. } => None,
    });
    drop(alices);
    // Files that only the worker could open.
    for uid in [ALICE, BOB] {
        let error = said(start(uid, "secret.tfrecord", "spy", "r1"));
        assert!(error.contains("Permission denied"), "{error}");
    }
    let hidden = said(start(BOB, "folder/none.tfrecord", "spy", "r1"));
    assert!(hidden.contains("no such file"), "{hidden}");
    // The same for the name of a dataset that another user added.
    let secret = place.path("secret.tfrecord").display().to_string();
    cluster.ok("pki/otto", &["dataset", "add", "secrets", &secret]);
    let named = LoaderOptions {
        dataset: Some("secrets".into()),
        files: vec![],
        cluster: Some(ClusterOptions {
            worker: Some(place.path("w.sock")),
            fallback: false,
            ..ClusterOptions::new(&cluster.address, &GrpcCluster)
        }),
        ..place.loader("unused")
    };
    let error = as_user(BOB, move || {
        let open = shardfeed_embedded::open(named, &mut |_| true);
        open.map(drop).map_err(|error| error.to_string())
    });
    assert!(error.unwrap_err().contains("Permission denied"));
    // The audit names the users.
    let audit = cluster.ok("pki/admin", &["audit", "--since", "1h", "-o", "json"]);
    assert!(audit.contains("uid=77001") && audit.contains("uid=77002"), "{audit}");
}

#[test]
fn the_audit_says_what_was_done_and_data_folders_are_closed() {
    let cluster = Secure::start(Place::new());
    let _worker = worker(&cluster, "w7", &[]);
    cluster.ok("pki/otto", &["worker", "drain", "w7", "--no-wait"]);
    cluster.ok("pki/otto", &["worker", "uncordon", "w7"]);
    let ci = cluster.token("ci", &["--role", "viewer", "--job", "nightly-*"]);
    let ci = fs::read_to_string(cluster.place.path(&ci)).unwrap();
    let id = ci.trim().trim_start_matches("shardfeed_").split('_').next().unwrap();
    cluster.ok("pki/admin", &["access", "revoke", id]);
    cluster.run("pki/otto", &["job", "pause", "none", "--reason", "maintenance window"]);
    cluster.denied("pki/vera", &["worker", "cordon", "w7"]);
    let audit = cluster.ok("pki/admin", &["audit", "--since", "1h", "-o", "json"]);
    let audit: serde_json::Value = serde_json::from_str(&audit).unwrap();
    let details: Vec<_> = audit["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            format!(
                "{} {}",
                entry["method"].as_str().unwrap(),
                entry["detail"].as_str().unwrap_or("")
            )
        })
        .collect();
    for detail in [
        "CordonWorker state=draining",
        "CordonWorker state=open",
        "CordonWorker state=cordoned",
        "CreateAccess name=ci role=viewer jobs=nightly-*",
        "RevokeAccess name=ci",
        "HoldJob hold=paused reason=\"maintenance window\"",
    ] {
        assert!(details.iter().any(|known| known == detail), "{detail}: {details:#?}");
    }
    for folder in ["data", "data/raft", "data/audit", "data/chunks"] {
        let mode = fs::metadata(cluster.place.path(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{folder}");
    }
}
