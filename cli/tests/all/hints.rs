//! Rare errors and their hints.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use expect_test::expect;
use serde_json::{Value, json};
use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{ClusterOptions, Delivery, LoaderOptions};

use crate::cluster::{Cluster, PATIENCE};
use crate::fixture::Place;

/// Returns verdict and hint of a check of `doctor`.
fn check(shown: &str, name: &str) -> (String, String) {
    let shown: Value = serde_json::from_str(shown).unwrap();
    let checks = shown["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == name).unwrap();
    let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("hint"))
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn a_host_that_is_not_fit_is_told_why() {
    let place = Place::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["doctor", "-o", "json", "--coordinator", &closed, "--timeout", "1s"];
    let output = place
        .command(&[&args[..], &["--data", "/proc/nowhere"]].concat())
        .env("SHARDFEED_CACHE_DIR", "/proc/nowhere")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let hints = ["coordinator", "fsync", "index cache"].map(|name| check(&shown, name));
    expect![[r#"
        [
            (
                "warn",
                "give --coordinator, unless this host needs none",
            ),
            (
                "fail",
                "name a folder that this user may write to: --data DIR",
            ),
            (
                "warn",
                "set SHARDFEED_CACHE_DIR to a folder that this user may write to",
            ),
        ]
    "#]]
    .assert_debug_eq(&hints);

    let mut command = place.command(&args);
    for name in ["SHARDFEED_CACHE_DIR", "XDG_CACHE_HOME", "HOME"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    expect![[r#"
        (
            "warn",
            "without a cache every start scans all files again",
        )
    "#]]
    .assert_debug_eq(&check(&shown, "index cache"));

    let script =
        format!("ulimit -n 200; exec {} {}", env!("CARGO_BIN_EXE_shardfeed"), args.join(" "));
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    expect![[r#"
        (
            "warn",
            "raise `ulimit -n`",
        )
    "#]]
    .assert_debug_eq(&check(&shown, "descriptors"));

    // The file size limit is 0: writing fails with an error, not a signal.
    let script = format!(
        "trap '' XFSZ; ulimit -f 0; exec {} {}",
        env!("CARGO_BIN_EXE_shardfeed"),
        args.join(" ")
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    expect![[r#"
        (
            "fail",
            "a seccomp profile or `ulimit -f` forbids it; workers cannot hand batches over without",
        )
    "#]]
    .assert_debug_eq(&check(&shown, "shared memory"));
}

#[test]
fn a_file_of_contexts_that_is_none_is_to_be_mended() {
    let place = Place::new();
    fs::create_dir_all(place.path("config/shardfeed")).unwrap();
    fs::write(place.path("config/shardfeed/contexts.toml"), "current = 7\n").unwrap();
    expect![[r#"
        exit 1
        error: $DIR/config/shardfeed/contexts.toml: invalid type: integer `7`, expected a string
        hint: repair or remove the file; `shardfeed context set` writes a new one
    "#]]
    .assert_eq(&place.fails(&["context", "list"]));
}

#[test]
fn a_page_that_does_not_come_and_one_that_is_none() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let said = place.fails(&["health", "--http", &address, "--timeout", "200ms"]);
    expect![[r#"
        exit 7
        error: no answer from http://$ADDRESS/readyz in 200 ms
        hint: the process hangs, or its host does not let this one in
    "#]]
    .assert_eq(&said.replace(&address, "$ADDRESS"));
    let answering = std::thread::spawn(move || {
        // The first client, which is gone, used this connection.
        drop(silent.accept().unwrap());
        let (mut stream, _) = silent.accept().unwrap();
        let mut asked = vec![];
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            asked.extend(byte);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").unwrap();
    });
    let said = place.fails(&["health", "--http", &address]);
    answering.join().unwrap();
    expect![[r#"
        exit 1
        error: cannot ask http://$ADDRESS/readyz
          cause: the answer is no page: error reading a body from connection
    "#]]
    .assert_eq(&said.replace(&address, "$ADDRESS"));
}

#[test]
fn jobs_and_epochs_that_are_not_there_yet() {
    let cluster = Cluster::start(Place::with_shards(&[8]), 10_000);
    let _worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let options = LoaderOptions {
        dataset: Some("train".into()),
        batch_size: 4,
        job: Some("j".into()),
        cluster: Some(ClusterOptions {
            worker: Some(cluster.place.path("w.sock")),
            timeout: PATIENCE,
            run: Some("run-1".into()),
            ..ClusterOptions::new(&cluster.address, &GrpcCluster)
        }),
        ..LoaderOptions::default()
    };
    let mut loader = shardfeed_embedded::open(options, &mut |_| true).unwrap();
    expect![[r#"
        exit 1
        error: job `j` has not started yet
        hint: start its ranks first
    "#]]
    .assert_eq(&cluster.fails(&["epoch", "show", "--job", "j"]));
    while matches!(loader.next(PATIENCE).unwrap(), Delivery::Pending) {}
    let planned = cluster.json(&["epoch", "show", "--job", "j", "--epoch", "7"]);
    assert_eq!((&planned["state"], &planned["age_ms"]), (&json!("planned"), &json!(null)));
    fs::write(cluster.place.path("t.tsv"), "a\t1\n").unwrap();
    let refused = [
        "wait epoch --job j --epoch 3 --for 200ms",
        "bench j --table t.tsv",
        "bench j --rank 3",
        "job cancel j",
        "dataset add x @/proc/nowhere",
    ];
    let told = |line: &&str| format!("$ {line}\n{}", cluster.fails(&words(line)));
    expect![[r#"
        $ wait epoch --job j --epoch 3 --for 200ms
        exit 7
        error: epoch 3 of job `j`, waited for 200 ms: 0 of 2 steps are done
        hint: --for gives it more time
        $ bench j --table t.tsv
        exit 1
        error: t.tsv: is no table
        hint: write one with shardfeed.write_table
        $ bench j --rank 3
        exit 2
        error: --rank 3 is not below job `j`'s world size of 1
        hint: ranks count from 0
        $ job cancel j
        exit 2
        error: the trainers of job `j` would fail; this cannot be undone
        hint: pass --yes to confirm
        $ dataset add x @/proc/nowhere
        exit 1
        error: dataset `x` cannot be scanned
        cause: /proc/nowhere: cannot read: No such file or directory (os error 2)
    "#]]
    .assert_eq(&refused.iter().map(told).collect::<String>());
}

#[test]
fn a_cluster_to_try_needs_a_folder() {
    let place = Place::new();
    let mut command = place.command(&["up", "--listen", "127.0.0.1:0"]);
    let output = command.env("TMPDIR", "/proc/nowhere").output().unwrap();
    expect![[r#"
        error: cannot make a folder in /proc/nowhere: entity not found
        hint: set TMPDIR to a folder that this user may write to, or give --data DIR
    "#]]
    .assert_eq(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn names_and_places_that_cannot_be_used() {
    let place = Place::with_shards(&[8, 8]);
    fs::create_dir(place.path("a\u{7}b")).unwrap();
    fs::write(place.path("a\u{7}b/x"), b"x").unwrap();
    expect![[r#"
        exit 2
        error: the source's name makes no prefix: it holds a slash or a control character
        hint: name one with --prefix
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "a\u{7}b", "out"]));
    expect![[r#"
        exit 1
        error: make the directory for the trainer socket /proc/nowhere/w.sock: No such file or directory (os error 2)
        hint: choose another path with --socket, in a folder that this user may write to
    "#]].assert_eq(
        &place
            .fails(&words("worker start --coordinator 127.0.0.1:1 --socket /proc/nowhere/w.sock")),
    );
    expect![[r#"
        exit 2
        error: --lanes 4 does not divide the global batch of 6 (--batch-size 2 x --world-size 3)
        hint: use --batch-size 4 or 8, or one of --lanes 2, 3, 6
    "#]]
    .assert_eq(
        &place.fails(&words("plan show s-*.tfrecord --lanes 4 --world-size 3 --batch-size 2")),
    );
}
