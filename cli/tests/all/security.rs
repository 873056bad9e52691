//! Certificates, access tokens, roles, the audit, and unauthenticated peers; with real processes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use shardfeed_agent::{Address, CallError, Coordinator, CredentialOptions, Credentials, Patience};
use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::{PATIENCE, Process, until};
use crate::fixture::{Place, Ran};

/// A cluster of one coordinator with certificates, in its own folder.
pub(crate) struct Secure {
    pub(crate) place: Place,
    coordinator: Process,
    pub(crate) address: String,
}

impl Secure {
    pub(crate) fn start(place: Place) -> Self {
        place.ok(&["tls", "init", "pki", "--coordinator", "localhost"]);
        for (role, name) in [("viewer", "vera"), ("operator", "otto"), ("trainer", "tom")] {
            place.ok(&["tls", "issue", "pki", role, name]);
        }
        let (coordinator, address) = Self::coordinator(&place, "127.0.0.1:0");
        Self { place, coordinator, address }
    }

    fn coordinator(place: &Place, listen: &str) -> (Process, String) {
        let args = [
            "coordinator",
            "start",
            "--data",
            "data",
            "--listen",
            listen,
            "--http",
            "127.0.0.1:0",
            "--tls",
            "pki/localhost",
        ];
        let (coordinator, line) = Process::ready(place, "coordinator.log", &args);
        let address = line.split(' ').nth(3).unwrap().to_owned();
        (coordinator, address)
    }

    /// Runs the command with the identity in a folder of certificates.
    pub(crate) fn run(&self, tls: &str, args: &[&str]) -> Ran {
        let shown = ["--coordinator", &self.address, "--tls", tls];
        self.place.run(&[args, &shown[..]].concat())
    }

    pub(crate) fn ok(&self, tls: &str, args: &[&str]) -> String {
        let ran = self.run(tls, args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        ran.stdout
    }

    /// Runs a command that must be denied; returns the error.
    pub(crate) fn denied(&self, tls: &str, args: &[&str]) -> String {
        let ran = self.run(tls, args);
        assert_eq!(ran.code, 4, "{args:?}: {} {}", ran.stdout, ran.stderr);
        ran.stderr
    }

    /// Creates an access token as an admin.
    pub(crate) fn token(&self, name: &str, more: &[&str]) -> String {
        let file = format!("{name}.token");
        self.ok("pki/admin", &[&["access", "create", name, "--out", &file], more].concat());
        file
    }

    /// Returns the options of a client with a token and only the authority's certificate.
    pub(crate) fn with_token(&self, file: &str) -> Vec<String> {
        let anonymous = self.place.path("anonymous");
        fs::create_dir_all(&anonymous).unwrap();
        fs::copy(self.place.path("pki/ca.crt"), anonymous.join("ca.crt")).unwrap();
        ["--tls", "anonymous", "--token-file", file, "--coordinator", &self.address]
            .map(str::to_owned)
            .to_vec()
    }

    fn run_with_token(&self, file: &str, args: &[&str]) -> Ran {
        let shown = self.with_token(file);
        let shown: Vec<_> = shown.iter().map(String::as_str).collect();
        self.place.run(&[args, &shown[..]].concat())
    }

    pub(crate) fn client(&self, tls: Option<&str>, token_file: Option<&str>) -> Coordinator {
        let path = |name: &str| self.place.path(name);
        let options =
            CredentialOptions { tls: tls.map(path), token_file: token_file.map(path), token: None };
        let credentials = Credentials::read(options).unwrap();
        let listed = self.address.parse::<Address>().unwrap();
        Coordinator::of(listed, "test", PATIENCE, None, credentials)
    }
}

#[test]
fn nobody_listens_beyond_this_host_without_certificates() {
    let place = Place::new();
    let args = ["coordinator", "start", "--data", "d", "--listen", "0.0.0.0:0"];
    let ran = place.run(&args);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("callers are not authenticated"), "{}", ran.stderr);
    assert!(ran.stderr.contains("shardfeed tls init"), "{}", ran.stderr);
    assert!(!place.path("d").exists());
    let open = ["--http", "127.0.0.1:0", "--insecure"];
    let (coordinator, _) = Process::ready(&place, "c.log", &[&args[..], &open].concat());
    assert!(coordinator.log().contains("insecure"), "{}", coordinator.log());
    assert_eq!(coordinator.terminate(), Some(0));
    // The same for a worker's HTTP pages.
    let worker = ["worker", "start", "--coordinator", "127.0.0.1:1", "--http", "0.0.0.0:0"];
    let ran = place.run(&[&worker[..], &["--socket", "w.sock"]].concat());
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("`http`"), "{}", ran.stderr);
}

#[test]
fn certificates_are_made_shown_and_renewed() {
    let place = Place::new();
    let said = place.ok(&["tls", "init", "pki", "--coordinator", "head-1,10.0.0.2"]);
    for name in ["head-1", "10.0.0.2", "worker", "admin"] {
        assert!(said.contains(&format!("pki/{name}")), "{said}");
        let mode = fs::metadata(place.path(&format!("pki/{name}/tls.key"))).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
    let shown = place.json(&["tls", "show", "pki/head-1"]);
    assert_eq!(shown["certificate"]["role"], "coordinator");
    assert_eq!(shown["certificate"]["hosts"][0], "head-1");
    let serial = |name: &str| {
        place.json(&["tls", "show", &format!("pki/{name}")])["certificate"]["serial"].clone()
    };
    let before = (serial("worker"), serial("admin"));
    place.ok(&["tls", "rotate", "pki", "--within", "30"]);
    assert_eq!((serial("worker"), serial("admin")), before, "they are good for a year");
    place.ok(&["tls", "rotate", "pki"]);
    assert_ne!(serial("worker"), before.0);
    place.ok(&["tls", "rotate", "pki", "--ca"]);
    assert_eq!(
        place.json(&["tls", "show", "pki/worker"])["authorities"].as_array().unwrap().len(),
        2
    );
    let early = place.run(&["tls", "rotate", "pki", "--forget-old-ca"]);
    assert_eq!(early.code, 1, "{}", early.stderr);
    assert!(early.stderr.contains("signed by an earlier authority"), "{}", early.stderr);
    place.ok(&["tls", "rotate", "pki"]);
    place.ok(&["tls", "rotate", "pki", "--forget-old-ca"]);
    assert_eq!(
        place.json(&["tls", "show", "pki/worker"])["authorities"].as_array().unwrap().len(),
        1
    );
    // Existing certificates are not created again.
    let again = place.run(&["tls", "init", "pki"]);
    assert_eq!(again.code, 1, "{}", again.stderr);
    assert!(again.stderr.contains("is there already"), "{}", again.stderr);
}

#[test]
fn who_does_not_prove_who_they_are_gets_nothing() {
    let cluster = Secure::start(Place::new());
    let said = cluster.ok("pki/admin", &["access", "whoami"]);
    assert!(said.starts_with("admin:admin; role admin, all jobs"), "{said}");
    // Without TLS.
    let ran = cluster.place.run(&["status", "--coordinator", &cluster.address]);
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains("error:"), "{}", ran.stderr);
    // With TLS, but without an identity.
    cluster.with_token("none");
    let said = cluster.denied("anonymous", &["status"]);
    assert!(said.contains("this cluster authenticates callers"), "{said}");
    // With a certificate of another authority.
    cluster.place.ok(&["tls", "init", "other", "--coordinator", "localhost"]);
    let said = cluster.denied("other/admin", &["status"]);
    assert!(said.contains("ca.crt here is of another authority"), "{said}");
    fs::copy(cluster.place.path("pki/ca.crt"), cluster.place.path("other/admin/ca.crt")).unwrap();
    let said = cluster.denied("other/admin", &["status"]);
    assert!(said.contains("trust"), "{said}");
    // A coordinator without certificates, called with TLS.
    let args = ["coordinator", "start", "--data", "d2", "--listen", "127.0.0.1:0", "--http"];
    let (plain, line) =
        Process::ready(&cluster.place, "c2.log", &[&args[..], &["127.0.0.1:0"]].concat());
    let address = line.split(' ').nth(3).unwrap();
    let ran = cluster.place.run(&["status", "--coordinator", address, "--tls", "pki/admin"]);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("speaks no TLS"), "{}", ran.stderr);
    drop(plain);
    // The pages for monitoring contain no secrets, and do not require authentication.
    assert!(!cluster.coordinator.log().contains("panicked"));
}

/// A call, as a function of the client.
type Call = fn(&Coordinator) -> Result<(), CallError>;

macro_rules! calls {
    ($($client:ident.$name:ident($request:ident) $who:literal;)*) => {
        &[$((stringify!($name), $who, |client| {
            let request = wire::$request::default();
            client.ask(Patience::Wait, PATIENCE, &mut |_| true, request).map(drop)
        })),*]
    };
}

/// All calls of both services with the roles that may make them: Viewer, Operator, Admin, Worker,
/// Trainer, Coordinator.
const CALLS: &[(&str, &str, Call)] = calls! {
    worker.join(JoinRequest) "WT";
    worker.heartbeat(HeartbeatRequest) "WT";
    worker.leave(LeaveRequest) "WT";
    worker.claim_scans(ClaimScansRequest) "WT";
    worker.report_listing(ReportListingRequest) "WT";
    worker.report_scan(ReportScanRequest) "WT";
    worker.fail_scan(FailScanRequest) "WT";
    worker.put_chunk(PutChunkRequest) "WT";
    worker.get_chunk(GetChunkRequest) "VOAWT";
    worker.register_job(RegisterJobRequest) "WT";
    worker.start_rank(StartRankRequest) "WT";
    worker.end_rank(EndRankRequest) "WT";
    worker.report_skipped(ReportSkippedRequest) "WT";
    worker.latest_state(LatestStateRequest) "WT";
    worker.claim_groups(ClaimGroupsRequest) "WT";
    worker.batch_claim_groups(BatchClaimGroupsRequest) "WT";
    admin.get_status(GetStatusRequest) "VOAWTC";
    admin.get_cluster(GetClusterRequest) "VOAWTC";
    admin.add_member(AddMemberRequest) "A";
    admin.remove_member(RemoveMemberRequest) "A";
    admin.transfer_leader(TransferLeaderRequest) "A";
    admin.save_snapshot(SaveSnapshotRequest) "A";
    admin.cordon_worker(CordonWorkerRequest) "OA";
    admin.hold_job(HoldJobRequest) "OA";
    admin.declare_gone(DeclareGoneRequest) "OA";
    admin.remove_dataset(RemoveDatasetRequest) "OA";
    admin.remove_job(RemoveJobRequest) "OA";
    admin.add_dataset(AddDatasetRequest) "OAWT";
    admin.get_dataset(GetDatasetRequest) "VOAWT";
    admin.list_datasets(ListDatasetsRequest) "VOA";
    admin.list_jobs(ListJobsRequest) "VOA";
    admin.get_job(GetJobRequest) "VOA";
    admin.list_epochs(ListEpochsRequest) "VOA";
    admin.list_shards(ListShardsRequest) "VOA";
    admin.list_ranks(ListRanksRequest) "VOA";
    admin.list_workers(ListWorkersRequest) "VOA";
    admin.get_batch(GetBatchRequest) "VOA";
    admin.list_events(ListEventsRequest) "VOA";
    admin.get_shard_history(GetShardHistoryRequest) "VOA";
    admin.get_epoch_map(GetEpochMapRequest) "VOA";
    admin.who_am_i(WhoAmIRequest) "VOAWTC";
    admin.create_access(CreateAccessRequest) "A";
    admin.revoke_access(RevokeAccessRequest) "A";
    admin.list_access(ListAccessRequest) "A";
    admin.list_audit(ListAuditRequest) "A";
};

fn is_denied<T>(answer: &Result<T, CallError>) -> bool {
    matches!(answer, Err(CallError::Refused(error)) if error.kind == ErrorKind::Denied)
}

#[test]
fn each_role_may_make_its_calls_and_no_others() {
    let cluster = Secure::start(Place::new());
    // All calls of both services are in the table, except the exchange, which is for join tokens
    // only.
    let protocol = include_str!("../../../proto/shardfeed/coordinator/v1/coordinator.proto");
    let services = protocol.split("service PeerService").next().unwrap();
    let count = services.lines().filter(|line| line.trim_start().starts_with("rpc ")).count();
    assert_eq!(CALLS.len() + 1, count, "a call is missing here");
    let folders = [
        ('V', "pki/vera"),
        ('O', "pki/otto"),
        ('A', "pki/admin"),
        ('W', "pki/worker"),
        ('T', "pki/tom"),
        ('C', "pki/localhost"),
    ];
    let tokens = ["viewer", "operator", "admin", "worker", "trainer"].map(|role| {
        (role.chars().next().unwrap().to_ascii_uppercase(), cluster.token(role, &["--role", role]))
    });
    cluster.with_token("none");
    let mut clients: Vec<(char, String, Coordinator)> = vec![];
    for (role, folder) in folders {
        clients.push((role, folder.to_owned(), cluster.client(Some(folder), None)));
    }
    for (role, file) in &tokens {
        clients.push((*role, file.clone(), cluster.client(Some("anonymous"), Some(file))));
    }
    let mut wrong = BTreeMap::new();
    for (role, who, client) in &clients {
        for (name, allowed, call) in CALLS {
            let answer = call(client);
            if is_denied(&answer) == allowed.contains(*role) {
                wrong.insert((who.clone(), *name), format!("{answer:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Calls between nodes are only for nodes.
    let said = cluster.ok("pki/admin", &["audit", "--refused", "-o", "json", "--since", "1h"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let entries = said["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["outcome"] == "DENIED"), "{said}");
}

#[test]
fn tokens_are_limited_expire_and_are_revoked_at_once() {
    let cluster = Secure::start(Place::new());
    let file = cluster.token("ci", &["--role", "operator", "--job", "nightly-*"]);
    let mode = fs::metadata(cluster.place.path(&file)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let run = |file: &str, args: &[&str]| cluster.run_with_token(file, args);
    let said = run(&file, &["access", "whoami"]);
    assert!(said.stdout.contains("role operator, nightly-*, until"), "{}", said.stdout);
    // Its own jobs: none exists yet, which it may know.
    assert_eq!(run(&file, &["job", "show", "nightly-1"]).code, 3);
    let other = run(&file, &["job", "show", "resnet"]);
    assert_eq!(other.code, 4, "{}", other.stderr);
    assert!(other.stderr.contains("is not for job `resnet`"), "{}", other.stderr);
    assert_eq!(run(&file, &["job", "pause", "resnet"]).code, 4);
    // A call about more than jobs.
    let more = run(&file, &["events"]);
    assert_eq!(more.code, 4, "{}", more.stderr);
    assert!(more.stderr.contains("for some jobs only"), "{}", more.stderr);
    assert_eq!(run(&file, &["worker", "list"]).code, 0);
    // A secret with one wrong character.
    let mut text = fs::read_to_string(cluster.place.path(&file)).unwrap();
    let last = text.trim_end().len() - 1;
    let other = if text.as_bytes()[last] == b'0' { "1" } else { "0" };
    text.replace_range(last..=last, other);
    cluster.place.file("wrong.token", &text);
    let wrong = run("wrong.token", &["worker", "list"]);
    assert_eq!(wrong.code, 4, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("there is no such access token"), "{}", wrong.stderr);
    // Neither the cluster nor its files contain the secret.
    let secret = fs::read_to_string(cluster.place.path(&file)).unwrap();
    let secret = secret.trim().rsplit('_').next().unwrap().to_owned();
    for folder in ["data/raft", "data/audit"] {
        for name in cluster.place.names(folder) {
            let bytes = fs::read(cluster.place.path(&format!("{folder}/{name}"))).unwrap();
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{folder}/{name} holds the secret");
        }
    }
    // An expired token.
    let short = cluster.token("brief", &["--role", "viewer", "--ttl", "1s"]);
    until("its end", || (run(&short, &["worker", "list"]).code == 4).then_some(()));
    let late = run(&short, &["worker", "list"]);
    assert!(late.stderr.contains("has expired"), "{}", late.stderr);
    // A revoked token.
    let list = cluster.ok("pki/admin", &["access", "list", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let id = list["tokens"].as_array().unwrap().iter().find(|token| token["name"] == "ci");
    let id = id.unwrap()["id"].as_str().unwrap().to_owned();
    cluster.ok("pki/admin", &["access", "revoke", &id]);
    let late = run(&file, &["worker", "list"]);
    assert_eq!(late.code, 4);
    assert!(late.stderr.contains("was revoked"), "{}", late.stderr);
    // All of this outlives the process.
    let Secure { place, coordinator, address } = cluster;
    assert_eq!(coordinator.terminate(), Some(0));
    let (coordinator, address) = Secure::coordinator(&place, &address);
    let cluster = Secure { place, coordinator, address };
    let late = cluster.run_with_token(&file, &["worker", "list"]);
    assert!(late.stderr.contains("was revoked"), "{}", late.stderr);
    let said = cluster.ok("pki/admin", &["audit"]);
    for what in ["CreateAccess", "RevokeAccess", "admin:admin", "DENIED"] {
        assert!(said.contains(what), "{what}: {said}");
    }
}

#[test]
fn a_secret_that_everybody_can_read_is_told() {
    let place = Place::new();
    place.ok(&["tls", "init", "pki", "--coordinator", "localhost"]);
    for name in ["localhost", "worker"] {
        let key = place.path(&format!("pki/{name}/tls.key"));
        fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let told = |log: &str, file: &str| {
        let told = "everybody on this host can read this secret; chmod 600 it";
        let lines: Vec<_> = log.lines().filter(|line| line.contains(told)).collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0].contains(file), "{log}");
    };
    let (coordinator, address) = Secure::coordinator(&place, "127.0.0.1:0");
    told(&coordinator.log(), "pki/localhost/tls.key");
    let args = ["worker", "start", "--socket", "w.sock", "--tls", "pki/worker", "--coordinator"];
    let (worker, _) = Process::ready(&place, "w.log", &[&args[..], &[&address]].concat());
    told(&worker.log(), "pki/worker/tls.key");
    let status = |tls: &str| place.run(&["status", "--coordinator", &address, "--tls", tls]);
    told(&status("pki/worker").stderr, "pki/worker/tls.key");
    assert_eq!(status("pki/admin").stderr, "");
}

#[test]
fn the_audit_counts_a_flood_of_refusals_and_tells_callers_apart() {
    const REFUSALS: u64 = 400;
    let cluster = Secure::start(Place::new());
    let client = cluster.client(Some("pki/vera"), None);
    let (.., hold) = CALLS.iter().find(|(name, ..)| *name == "hold_job").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..REFUSALS / 8 {
                    let answer = hold(&client);
                    assert!(is_denied(&answer), "{answer:?}");
                }
            });
        }
    });
    let entries = |more: &[&str]| {
        let args = [&["audit", "--since", "1h", "-o", "json"], more].concat();
        let told: serde_json::Value =
            serde_json::from_str(&cluster.ok("pki/admin", &args)).unwrap();
        told["entries"].as_array().unwrap().clone()
    };
    // Refusals without their own entry are counted in an entry, even if no further call is refused.
    until("all of them", || {
        let count = |entry: &serde_json::Value| match entry["message"].as_str() {
            Some(text) if text.ends_with(" more calls were refused") => {
                text.split(' ').next().unwrap().parse().unwrap()
            }
            _ => u64::from(entry["method"] == "HoldJob"),
        };
        (entries(&["--refused"]).iter().map(count).sum::<u64>() == REFUSALS).then_some(())
    });

    cluster.token("ci", &["--role", "viewer"]);
    let of = |who: &str| entries(&["--principal", who]);
    let veras = of("viewer:vera");
    assert!(veras.len() as u64 >= 20, "{veras:?}");
    for entry in &veras {
        let said = (&entry["principal"], &entry["outcome"], &entry["role"]);
        assert_eq!(said, (&"viewer:vera".into(), &"DENIED".into(), &"viewer".into()), "{entry}");
    }
    let admins = of("admin:admin");
    assert!(admins.iter().any(|entry| entry["method"] == "CreateAccess"), "{admins:?}");
    assert!(admins.iter().all(|entry| entry["principal"] == "admin:admin"), "{admins:?}");
    assert!(of("operator:otto").is_empty());
}

#[test]
fn a_worker_joins_by_a_token_that_is_good_once_and_speaks_for_itself_only() {
    let cluster = Secure::start(Place::with_shards(&[30]));
    let join = cluster.token("rack", &["--role", "worker", "--join", "--ttl", "1h"]);
    cluster.with_token("none");
    let start = |name: &str, socket: &str, token: &str| {
        [
            "worker",
            "start",
            "--name",
            name,
            "--socket",
            socket,
            "--tls",
            "anonymous",
            "--token-file",
            token,
            "--join-token-file",
            &join,
            "--coordinator",
            &cluster.address,
            "--memory-budget",
            "64MiB",
        ]
        .map(str::to_owned)
    };
    let args = start("w", "w.sock", "w.secret");
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let (worker, _) = Process::ready(&cluster.place, "w.log", &args);
    // The worker reads for the cluster with its new token.
    cluster.ok(
        "pki/otto",
        &["dataset", "add", "train", cluster.place.path("s-*.tfrecord").to_str().unwrap()],
    );
    until("the dataset", || {
        let shown = cluster.ok("pki/vera", &["dataset", "show", "train", "-o", "json"]);
        shown.contains("\"ready\"").then_some(())
    });
    // The join token cannot be used again, and was never usable for anything else.
    let args = start("w2", "w2.sock", "w2.secret");
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let ran = cluster.place.run(&args);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("was used"), "{}", ran.stderr);
    assert!(!cluster.place.path("w2.secret").exists());
    // A worker with other credentials can neither replace it nor use its session.
    let args = [
        "worker",
        "start",
        "--name",
        "w",
        "--socket",
        "w3.sock",
        "--tls",
        "pki/worker",
        "--coordinator",
        &cluster.address,
    ];
    let ran = cluster.place.run(&args);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("worker `w` is of worker:w"), "{}", ran.stderr);
    let shown = cluster.ok("pki/vera", &["worker", "show", "w", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let session = shown["session"].as_u64().unwrap();
    let other = cluster.client(Some("pki/worker"), None);
    let leave = wire::LeaveRequest { context: None, session };
    let answer = other.ask(Patience::Wait, PATIENCE, &mut |_| true, leave);
    assert!(is_denied(&answer), "{answer:?}");
    // It comes back with the token that it kept.
    assert_eq!(worker.terminate(), Some(0));
    let args = start("w", "w.sock", "w.secret");
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let (worker, _) = Process::ready(&cluster.place, "w.log", &args);
    // A worker whose token is revoked is rejected.
    let list = cluster.ok("pki/admin", &["access", "list", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let id = list["tokens"].as_array().unwrap().iter().find(|token| token["name"] == "w").unwrap();
    cluster.ok("pki/admin", &["access", "revoke", id["id"].as_str().unwrap()]);
    until("a word about it", || worker.log().contains("was revoked").then_some(()));
}

#[test]
fn certificates_are_renewed_under_a_cluster_that_goes_on() {
    let cluster = Secure::start(Place::new());
    let args = [
        "worker",
        "start",
        "--name",
        "w",
        "--socket",
        "w.sock",
        "--tls",
        "pki/worker",
        "--coordinator",
        &cluster.address,
        "--memory-budget",
        "64MiB",
    ];
    let (worker, _) = Process::ready(&cluster.place, "w.log", &args);
    let shown = || {
        let shown = cluster.ok("pki/vera", &["worker", "show", "w", "-o", "json"]);
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()["session"].clone()
    };
    let session = shown();
    // A new authority, then new certificates, then only the new authority: callers are recognized
    // throughout.
    for step in [&["--ca"][..], &[], &["--forget-old-ca"]] {
        cluster.place.ok(&[&["tls", "rotate", "pki"], step].concat());
        let read_again = cluster.coordinator.log().matches("certificates were read again").count();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1_200) {
            cluster.ok("pki/vera", &["status"]);
        }
        until("the files", || {
            cluster.ok("pki/vera", &["status"]);
            let now = cluster.coordinator.log().matches("certificates were read again").count();
            (now > read_again || now >= 3).then_some(())
        });
    }
    assert_eq!(shown(), session, "the worker's session continued");
    assert_eq!(worker.terminate(), Some(0));
    // The certificates are now from the new authority, which alone is trusted.
    let (worker, _) = Process::ready(&cluster.place, "w2.log", &args);
    assert_ne!(shown(), session);
    assert_eq!(worker.terminate(), Some(0));
}

/// Number of unauthenticated peers, and the minimum if a process may open only few files.
const STRANGERS: usize = 10_000;
const STRANGERS_MIN: usize = 2_000;

#[test]
fn thousands_of_strangers_do_not_stop_the_others() {
    let place = Place::new();
    place.ok(&["tls", "init", "pki", "--coordinator", "localhost"]);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum },
    );
    let files = limit.maximum.unwrap_or(u64::MAX);
    // Half of the files: the other half is for the coordinator, which has the same limit.
    let strangers = STRANGERS.min(usize::try_from(files / 2).unwrap_or(usize::MAX));
    println!("{strangers} strangers; {STRANGERS} are wanted, and a process may open {files} files");
    assert!(
        strangers >= STRANGERS_MIN,
        "{strangers} strangers prove nothing: let a process open {} files (`ulimit -Hn`)",
        2 * STRANGERS_MIN
    );
    let (coordinator, address) = Secure::coordinator(&place, "127.0.0.1:0");
    let cluster = Secure { place, coordinator, address };
    let args = [
        "worker",
        "start",
        "--name",
        "w",
        "--socket",
        "w.sock",
        "--tls",
        "pki/worker",
        "--coordinator",
        &cluster.address,
        "--memory-budget",
        "64MiB",
    ];
    let (worker, _) = Process::ready(&cluster.place, "w.log", &args);
    let session = |cluster: &Secure| {
        let shown = cluster.ok("pki/admin", &["worker", "show", "w", "-o", "json"]);
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()["session"].clone()
    };
    let before = session(&cluster);
    let mut open = Vec::with_capacity(strangers);
    for number in 0..strangers {
        let Ok(mut stream) = TcpStream::connect(&cluster.address) else {
            panic!("stranger {number} of {strangers} is not let in");
        };
        // A third is silent, a third sends half of a TLS hello, and a third sends something other
        // than TLS.
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            _ => b"GET / HTTP/1.1\r\n\r\n",
        };
        // The connection may be closed already.
        let _ = stream.write_all(said);
        open.push(stream);
        if number % 2_000 == 1_999 {
            assert_eq!(session(&cluster), before, "with {number} strangers");
        }
    }
    assert_eq!(session(&cluster), before, "the worker's session continued");
    assert_eq!(
        cluster.ok("pki/admin", &["access", "whoami"]).split(';').next(),
        Some("admin:admin")
    );
    // The peer that did not speak TLS was disconnected.
    let mut answer = Vec::new();
    let mut rude = open.swap_remove(2);
    rude.set_read_timeout(Some(PATIENCE)).unwrap();
    match rude.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    drop(open);
    assert_eq!(session(&cluster), before);
    assert_eq!(worker.terminate(), Some(0));
}

#[test]
fn more_connections_than_there_is_room_for_make_room() {
    let place = Place::new();
    place.ok(&["tls", "init", "pki", "--coordinator", "localhost"]);
    let binary = env!("CARGO_BIN_EXE_shardfeed");
    let log = fs::File::create(place.path("coordinator.log")).unwrap();
    // 400 files: 300 connections.
    let mut child = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -n 400; exec {binary} coordinator start --data data --listen 127.0.0.1:0 \
             --http 127.0.0.1:0 --tls pki/localhost"
        ))
        .current_dir(place.path("."))
        .stdout(std::process::Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let address = line.split(' ').nth(3).unwrap_or_else(|| panic!("{line}")).to_owned();
    let mut open = Vec::new();
    for _ in 0..1_000 {
        open.push(TcpStream::connect(&address).unwrap());
        if open.len() % 250 == 0 {
            let ran = place.run(&["status", "--coordinator", &address, "--tls", "pki/admin"]);
            assert_eq!(ran.code, 0, "with {} strangers: {}", open.len(), ran.stderr);
        }
    }
    drop(open);
    child.kill().unwrap();
    child.wait().unwrap();
}
