//! Processes: ready lines, signals, remains, and failed starts.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;

use expect_test::{Expect, expect};
use rustix::process::Signal;

use crate::cluster::{Cluster, Process, host, until};
use crate::fixture::Place;

const TTL_MS: u64 = 5_000;

/// Runs a process whose start must fail.
fn refused(cluster: &Cluster, args: &[&str], expected: &Expect) {
    let ran = cluster.place.run(args);
    assert_eq!(ran.stdout, "", "{args:?}");
    // Log lines come first.
    let from = ran.stderr.find("error: ").unwrap_or_else(|| panic!("{args:?}: {}", ran.stderr));
    let said = cluster.portable(&ran.stderr[from..]);
    expected.assert_eq(&format!("exit {}\n{said}", ran.code));
}

#[test]
fn they_end_when_asked_and_leave_nothing_but_the_data() {
    let place = Place::with_shards(&[30]);
    let cluster = Cluster::start(place, TTL_MS);
    let worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let socket = fs::metadata(cluster.place.path("w.sock")).unwrap();
    assert!(socket.file_type().is_socket());

    assert_eq!(worker.terminate(), Some(0));
    let gone = cluster.json(&["worker", "show", "w"]);
    assert_eq!(gone["state"], "left", "a worker that is asked to end says so");
    let Cluster { place, coordinator, id, .. } = cluster;
    coordinator.signal(Signal::INT);
    assert_eq!(coordinator.ended(), Some(0));

    let names =
        ["cache", "coordinator", "coordinator.log", "coordinator.toml", "s-0.tfrecord", "w.log"];
    assert_eq!(place.names("."), names);
    assert_eq!(place.names("coordinator"), ["audit", "chunks", "raft"]);
    let shared = fs::read_dir("/dev/shm").unwrap();
    let ours = shared.filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().contains("shardfeed")
    });
    assert_eq!(ours.count(), 0);

    // It continues with its previous state, also without its worker.
    let cluster = Cluster::start(place, TTL_MS);
    assert_eq!(cluster.id, id);
    assert_eq!(cluster.json(&["dataset", "show", "train"])["state"], "ready");
}

#[test]
fn a_worker_waits_for_a_coordinator_that_is_down() {
    let place = Place::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["worker", "start", "--socket", "w.sock", "--coordinator", &free];
    let (worker, first) = Process::spawn(&place, "w.log", &args);
    until("a word about it", || worker.log().contains("does not answer").then_some(()));
    let args = ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0", "--listen", &free];
    let (coordinator, _) = Process::ready(&place, "c.log", &args);
    let ready = format!("worker ready: {} socket w.sock coordinator {free}", host());
    assert_eq!(first(), Some(ready));
    assert_eq!(coordinator.terminate(), Some(0));
    assert_eq!(worker.terminate(), Some(0), "also when its coordinator is gone again");
}

#[test]
fn a_file_says_where_the_cluster_is_as_long_as_it_serves() {
    let place = Place::new();
    let status = ["status", "--coordinator", "@cluster.json", "-o", "json"];
    expect![[r#"
        exit 6
        error: cannot read cluster.json: No such file or directory (os error 2)
        hint: check the path; `shardfeed coordinator start --endpoint-file PATH` writes it once it serves, and `shardfeed wait leader` waits for it
    "#]]
    .assert_eq(&place.fails(&status));
    let args = ["worker", "start", "--name", "w", "--socket", "w.sock", "--coordinator"];
    let args = [&args[..], &["@cluster.json"]].concat();
    let (worker, first) = Process::spawn(&place, "w.log", &args);
    until("a word about it", || worker.log().contains("cannot read cluster.json").then_some(()));

    let coordinator =
        ["coordinator", "start", "--data", "d", "--endpoint-file", "cluster.json", "--http"];
    let coordinator = [&coordinator[..], &["127.0.0.1:0", "--listen", "127.0.0.1:0"]].concat();
    let (served, line) = Process::ready(&place, "c.log", &coordinator);
    let words: Vec<_> = line.split(' ').collect();
    let written = fs::read_to_string(place.path("cluster.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(
        written,
        serde_json::json!({"version": 1, "cluster_id": words[7], "node": 1, "addresses": [words[3]]})
    );
    let ready = "worker ready: w socket w.sock coordinator @cluster.json";
    assert_eq!(first().as_deref(), Some(ready));
    assert_eq!(place.json(&status[..3])["cluster_id"], words[7]);
    // A context is valid in any folder.
    place.ok(&["context", "set", "here", "--coordinator", "@cluster.json"]);
    let mut elsewhere = place.command(&["status", "--context", "here"]);
    assert!(elsewhere.current_dir("/").output().unwrap().status.success());

    // It comes back at another address, and the worker finds it.
    assert_eq!(served.terminate(), Some(0));
    assert!(!place.path("cluster.json").exists());
    let (served, _) = Process::ready(&place, "c2.log", &coordinator);
    // Once after the first wait, and now.
    let times = || worker.log().matches("the coordinator is back").count();
    until("the worker", || (times() == 2).then_some(()));
    assert_eq!(worker.terminate(), Some(0));

    // A file that another coordinator wrote is kept.
    let other = r#"{"version": 1, "cluster_id": "other", "node": 1, "addresses": ["a:1"]}"#;
    place.file("cluster.json", other);
    assert_eq!(served.terminate(), Some(0));
    assert_eq!(fs::read_to_string(place.path("cluster.json")).unwrap(), other);
}

#[test]
fn a_file_that_nobody_could_use_is_refused() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let start = ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0", "--listen"];
    refused(
        &cluster,
        &[&start[..], &["0.0.0.0:0", "--insecure", "--endpoint-file", "cluster.json"]].concat(),
        &expect![[r#"
            exit 2
            error: option `advertise`: is needed, as others cannot reach 0.0.0.0:0
            hint: name the HOST:PORT that they use
        "#]],
    );
    let args = [&start[..], &["127.0.0.1:0", "--endpoint-file", "nowhere/cluster.json"]].concat();
    let ran = cluster.place.run(&args);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("error: cannot write the endpoint file nowhere/cluster.json\n"));
    assert!(ran.stderr.contains("No such file or directory"), "{}", ran.stderr);
}

#[test]
fn a_worker_that_waits_ends_when_asked() {
    let place = Place::new();
    let args = ["worker", "start", "--socket", "w.sock", "--coordinator", "127.0.0.1:1"];
    let (worker, first) = Process::spawn(&place, "w.log", &args);
    until("a word about it", || worker.log().contains("does not answer").then_some(()));
    assert_eq!(worker.terminate(), Some(0));
    assert_eq!(first(), None);
    assert_eq!(place.names("."), ["w.log"]);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::new();
    // The address accepts the connection and never answers: leaving such a cluster takes a while.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let args = ["worker", "start", "--socket", "w.sock", "--coordinator", &address];
    let (worker, _) = Process::spawn(&place, "w.log", &args);
    let (_connection, _) = silent.accept().unwrap();
    worker.signal(Signal::TERM);
    until("a word about it", || worker.log().contains("asked to stop").then_some(()));
    worker.signal(Signal::TERM);
    assert_eq!(worker.ended(), Some(1));
}

#[test]
fn all_in_one_says_what_to_type_next() {
    let place = Place::with_shards(&[10]);
    let args = ["up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--socket", "w.sock"];
    let (up, line) = Process::ready(&place, "up.log", &args);
    let address = line.split(' ').nth(3).unwrap();
    let add = ["dataset", "add", "train", "s-0.tfrecord", "--coordinator", address];
    assert!(place.ok(&add).contains("ready"));
    assert_eq!(up.terminate(), Some(0));
    let names = place.names(".");
    assert_eq!(names, ["cache", "s-0.tfrecord", "up.log"], "its folder is gone");
}

#[test]
fn what_is_taken_is_refused() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let _worker = cluster.worker("w");
    refused(
        &cluster,
        &Cluster::ARGS,
        &expect![[r#"
        exit 1
        error: coordinator/raft is in use by another node
        hint: stop that one first, or give this one its own directory
    "#]],
    );
    let args = ["coordinator", "start", "--data", "other", "--http", "127.0.0.1:0", "--listen"];
    refused(
        &cluster,
        &[&args[..], &[&cluster.address]].concat(),
        &expect![[r#"
        exit 1
        error: option `listen`: cannot listen on $ADDRESS: Address already in use (os error 98)
        hint: stop what uses the port, or choose another one
    "#]],
    );
    let args = ["worker", "start", "--socket", "w.sock", "--coordinator", &cluster.address];
    let ran = cluster.place.run(&args);
    assert!(ran.stderr.contains("another worker listens on w.sock (pid "), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: stop it, or choose another path"), "{}", ran.stderr);
    let args = ["worker", "start", "--socket", "coordinator.log", "--coordinator"];
    refused(
        &cluster,
        &[&args[..], &[&cluster.address]].concat(),
        &expect![[r#"
        exit 1
        error: coordinator.log is there and is not a socket
        hint: choose another path, or remove it yourself
    "#]],
    );
}

#[test]
fn another_cluster_is_not_joined() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let args = ["worker", "start", "--socket", "w.sock", "--cluster-id", "other", "--coordinator"];
    refused(
        &cluster,
        &[&args[..], &[&cluster.address]].concat(),
        &expect![[r#"
        exit 5
        error: the coordinator at $ADDRESS refuses this worker
        cause: the caller belongs to cluster other, this coordinator is of cluster $CLUSTER
        hint: check the address, or start again if the cluster was recreated
    "#]],
    );
    assert!(!cluster.place.path("w.sock").exists());
}

#[test]
fn files_that_make_no_sense_are_refused() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let place = &cluster.place;
    place.file("word.toml", "ttl = 1");
    place.file("relation.toml", "session-ttl-ms = 1000\nheartbeat-ms = 500");
    place.file("type.toml", "session-ttl-ms = \"long\"");
    place.file("syntax.toml", "# options\nlisten = \n");
    refused(
        &cluster,
        &["coordinator", "start"],
        &expect![[r#"
        exit 2
        error: the coordinator needs a folder for its data
        hint: give --data DIR, or --config FILE with data-dir = "DIR"
    "#]],
    );
    let start = ["coordinator", "start", "--data", "d", "--config"];
    refused(
        &cluster,
        &[&start[..], &["word.toml"]].concat(),
        &expect![[r#"
            exit 2
            error: word.toml: unknown field `ttl`, expected one of `data-dir`, `listen`, `http`, `tls`, `insecure`, `node-id`, `advertise`, `peers`, `join`, `endpoint-file`, `peer-heartbeat-ms`, `election-min-ms`, `election-max-ms`, `cluster-name`, `session-ttl-ms`, `heartbeat-ms`, `snapshot-every`, `unreferenced-bytes-max`
            hint: `--help` lists the options, their units and their defaults
        "#]],
    );
    refused(
        &cluster,
        &[&start[..], &["relation.toml"]].concat(),
        &expect![[r#"
        exit 2
        error: option `heartbeat-ms`: is 500, but two may be lost within session-ttl-ms=1000
        hint: use 1 to 333
    "#]],
    );
    refused(
        &cluster,
        &[&start[..], &["type.toml"]].concat(),
        &expect![[r#"
        exit 2
        error: type.toml: invalid type: string "long", expected u64, in `session-ttl-ms`
        hint: `--help` lists the options, their units and their defaults
    "#]],
    );
    refused(
        &cluster,
        &[&start[..], &["syntax.toml"]].concat(),
        &expect![[r#"
        exit 2
        error: syntax.toml:2: string values must be quoted, expected literal string
        hint: write TOML: `name = value`, strings in quotes
    "#]],
    );
    refused(
        &cluster,
        &[&start[..], &["nowhere.toml"]].concat(),
        &expect![[r#"
            exit 1
            error: cannot read nowhere.toml
            cause: No such file or directory (os error 2)
            hint: check the path
        "#]],
    );
    refused(
        &cluster,
        &[&start[..], &["."]].concat(),
        &expect![[r#"
            exit 1
            error: cannot read .
            cause: Is a directory (os error 21)
        "#]],
    );
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    cluster.place.file("worker.toml", "memory-budget = \"some\"");
    refused(
        &cluster,
        &["worker", "start"],
        &expect![[r#"
        exit 2
        error: the worker needs the address of its coordinator
        hint: give --coordinator HOST:PORT, SHARDFEED_COORDINATOR, or `coordinator` in --config FILE
    "#]],
    );
    refused(
        &cluster,
        &["worker", "start", "--config", "worker.toml"],
        &expect![[r#"
        exit 2
        error: worker.toml: size "some": `some` is no unit; use B, KB, MB, GB, KiB, MiB or GiB, in `memory-budget`
        hint: `--help` lists the options, their units and their defaults
    "#]],
    );
    refused(
        &cluster,
        &["worker", "start", "--coordinator", "here"],
        &expect![[r#"
        exit 2
        error: invalid value 'here' for '--coordinator <HOST:PORT>': write HOST:PORT, such as 127.0.0.1:7070

        For more information, try '--help'.
    "#]],
    );
    refused(
        &cluster,
        &["worker", "start", "--threads", "0"],
        &expect![[r#"
            exit 2
            error: invalid value '0' for '--threads <N>': must be a whole number, at least 1

            For more information, try '--help'.
        "#]],
    );
    refused(
        &cluster,
        &["worker", "start", "--memory-budget", "much"],
        &expect![[r#"
        exit 2
        error: invalid value 'much' for '--memory-budget <SIZE>': `much` is no unit; use B, KB, MB, GB, KiB, MiB or GiB

        For more information, try '--help'.
    "#]],
    );
    refused(
        &cluster,
        &["up", "--listen", "here"],
        &expect![[r#"
        exit 2
        error: invalid value 'here' for '--listen <IP:PORT>': invalid socket address syntax

        For more information, try '--help'.
    "#]],
    );
    let long = "x".repeat(120);
    let args = ["worker", "start", "--coordinator", "127.0.0.1:1", "--socket", &long];
    refused(
        &cluster,
        &args,
        &expect![[r#"
        exit 1
        error: the socket path xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx has 120 bytes, more than 107
        hint: use a shorter one
    "#]],
    );
}

#[test]
fn a_data_folder_that_cannot_be_is_refused() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    cluster.place.file("file", "");
    let args =
        ["coordinator", "start", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"];
    refused(
        &cluster,
        &[&args[..], &["file/data"]].concat(),
        &expect![[r#"
        exit 1
        error: file/data/raft: cannot make the folder: Not a directory (os error 20)
        hint: data-dir must be a writable folder on a disk with free space
    "#]],
    );
    cluster.place.file("foreign/raft/novel.txt", "once upon a time");
    refused(
        &cluster,
        &[&args[..], &["foreign"]].concat(),
        &expect![[r#"
        exit 5
        error: foreign/raft is not ours: it holds `novel.txt`
        hint: give the node an empty directory or the one it had before
    "#]],
    );
}
