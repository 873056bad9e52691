//! Datasets and workers of a cluster, in the three formats.

use expect_test::expect;
use shardfeed_tfrecord::Compression;

use crate::cluster::{Cluster, until};
use crate::fixture::{Place, strings};

#[test]
fn a_dataset_is_added_once_and_shown() {
    let cluster = Cluster::start(Place::with_shards(&[25, 0, 17]), 5_000);
    cluster.place.shard("z.gz", Compression::Gzip, &["a", "b"]);
    expect![[r#"
        no datasets
    "#]]
    .assert_eq(&cluster.ok(&["dataset", "list"]));
    let _worker = cluster.worker("w");

    expect![[r#"
        dataset  train
        state  ready
        patterns  $DIR/s-*.tfrecord
        compression  auto
        root  $DIR
        shards  3
        records  42
        stored  1,240 bytes (1.24 kB)
        content digest  93fc5c77b9ae9381cdc7318803fd5c75fde87164a1588b237681689f8eb40c2c
        added  $TIME ago
    "#]]
    .assert_eq(&cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]));
    // A repetition changes nothing.
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord", "--wait"]);
    let zipped = ["dataset", "add", "zipped", "--compression", "gzip", "z.gz", "-o", "json"];
    let zipped: serde_json::Value = serde_json::from_str(
        &cluster.place.ok(&[&zipped[..], &["--coordinator", &cluster.address]].concat()),
    )
    .unwrap();
    assert_eq!((&zipped["state"], &zipped["records"]), (&"ready".into(), &2.into()));

    expect![[r#"
        DATASET  STATE  SHARDS  RECORDS  SIZE  AGE
        train  ready  3  42  1.24 kB  $TIME
        zipped  ready  1  2  41 B  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["dataset", "list"]));
    expect![[r#"
        DATASET  STATE  SHARDS  RECORDS  SIZE  AGE  COMPRESSION  ROOT  CONTENT DIGEST
        train  ready  3  42  1.24 kB  $TIME  auto  $DIR  93fc5c77b9ae9381cdc7318803fd5c75fde87164a1588b237681689f8eb40c2c
        zipped  ready  1  2  41 B  $TIME  gzip  $DIR  e7b72a40ee8fffc7629a91c8271313f405484fbebea4db856078dc279d16f5d6
    "#]].assert_eq(&cluster.ok(&["dataset", "list", "-o", "wide"]));
    let listed = cluster.json(&["dataset", "list"]);
    assert_eq!(strings(&listed["datasets"], "name"), ["train", "zipped"]);
    assert_eq!(strings(&listed["datasets"], "state"), ["ready", "ready"]);

    let shown = cluster.json(&["dataset", "show", "train"]);
    let inspected = cluster.place.json(&["dataset", "inspect", "s-*.tfrecord"]);
    for field in ["content_digest", "records", "shard_count", "stored_bytes", "root"] {
        assert_eq!(shown[field], inspected[field], "{field}");
    }
    assert_eq!(shown["failure"], serde_json::Value::Null);
    assert_eq!(shown["shards_scanned"], 3);
    assert!(shown["age_ms"].is_u64());
    assert_eq!(shown["manifest_chunks"].as_array().unwrap().len(), 1);
}

#[test]
fn a_dataset_that_cannot_be_scanned_says_why() {
    let cluster = Cluster::start(Place::with_shards(&[25, 3]), 5_000);
    let _worker = cluster.worker("w");
    cluster.place.damage("s-1.tfrecord", 2);
    expect![[r#"
        exit 1
        error: dataset `bad` cannot be scanned
        cause: $DIR/s-1.tfrecord: not a TFRecord file: the checksum of the first record's length is wrong, in record 0 at byte 0
        hint: check that this is a TFRecord file; gzip and zlib are recognised, other compression must be unpacked first
    "#]].assert_eq(&cluster.fails(&["dataset", "add", "bad", "s-*.tfrecord"]));
    expect![[r#"
        exit 3
        error: dataset `none` cannot be scanned
        cause: $DIR/nowhere-*: no file matches (looked for $DIR/nowhere-*)
        hint: check the pattern and the folder
    "#]]
    .assert_eq(&cluster.fails(&["dataset", "add", "none", "nowhere-*"]));
    expect![[r#"
        dataset  none
        state  failed
        failure  $DIR/nowhere-*: no file matches (looked for $DIR/nowhere-*); check the pattern and the folder
        reported by  w of worker:w
        patterns  $DIR/nowhere-*
        compression  auto
        root  -
        shards  0
        records  0
        stored  0 bytes
        content digest  -
        added  $TIME ago
    "#]].assert_eq(&cluster.ok(&["dataset", "show", "none"]));
    let shown = cluster.json(&["dataset", "show", "bad"]);
    assert_eq!((&shown["state"], &shown["failure"]["kind"]), (&"failed".into(), &"corrupt".into()));
    let file = shown["failure"]["file"].as_str().unwrap();
    assert_eq!(file, cluster.place.path("s-1.tfrecord").to_str().unwrap());
    expect![[r#"
        exit 5
        error: dataset `bad` exists with other patterns: $DIR/s-*.tfrecord
        hint: use another name
    "#]]
    .assert_eq(&cluster.fails(&["dataset", "add", "bad", "s-0.tfrecord"]));
    expect![[r#"
        exit 3
        error: dataset `remote` cannot be scanned
        cause: hdfs://bucket/x: `hdfs://` is not known
        hint: use a path, file://, s3://, gs://, az://, http:// or https://
    "#]]
    .assert_eq(&cluster.fails(&["dataset", "add", "remote", "hdfs://bucket/x"]));
}

#[test]
fn without_a_worker_nobody_waits_in_silence() {
    let cluster = Cluster::start(Place::with_shards(&[25]), 5_000);
    let added = cluster.ok(&["dataset", "add", "train", "s-*.tfrecord", "--no-wait"]);
    assert!(added.contains("state  listing"), "{added}");
    let args = ["dataset", "add", "train", "s-*.tfrecord", "--coordinator", &cluster.address];
    let (waiting, first) = crate::cluster::Process::spawn(&cluster.place, "add.log", &args);
    until("a word about it", || waiting.log().contains("no worker is live").then_some(()));
    let _worker = cluster.worker("w");
    assert!(first().unwrap().starts_with("dataset"));
    assert_eq!(waiting.ended(), Some(0));
}

#[test]
fn workers_come_and_go() {
    let cluster = Cluster::start(Place::new(), 1_000);
    let first = cluster.worker("first");
    let second = cluster.worker("second");
    let listed = cluster.json(&["worker", "list"]);
    assert_eq!(strings(&listed["workers"], "name"), ["first", "second"]);
    expect![[r#"
        WORKER  STATE  HOST  RANKS  SCANS  SEEN  AGE
        first  live  $HOST  0  0  $TIME  $TIME
        second  live  $HOST  0  0  $TIME  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["worker", "list"]));
    let decoders = [shardfeed_image::PIXEL_CONTRACT, shardfeed_image::JPEG_LIBRARY].join(", ");
    let wide = cluster.ok(&["worker", "list", "-o", "wide"]);
    expect!["WORKER  STATE  HOST  RANKS  SCANS  SEEN  AGE  SESSION  IN PROCESS  VERSION  DECODERS  SOCKET"]
        .assert_eq(wide.lines().next().unwrap());
    assert!(wide.contains(&format!("  {decoders}  first.sock\n")), "{wide}");
    let shown = cluster.ok(&["worker", "show", "second"]).replace(&decoders, "$DECODERS");
    let session = cluster.json(&["worker", "show", "second"])["session"].to_string();
    let shown = shown.replace(&format!("session  {session}\n"), "session  $SESSION\n");
    expect![[r#"
        worker  second
        state  live
        host  $HOST
        session  $SESSION
        in process  no
        version  0.1.0
        decoders  $DECODERS
        socket  second.sock
        scans  0
        last heartbeat  $TIME
        joined  $TIME ago
        ranks served  0
    "#]]
    .assert_eq(&shown);

    drop(first); // Killed.
    until("its session's end", || {
        let listed = cluster.json(&["worker", "list"]);
        (strings(&listed["workers"], "name") == ["second"]).then_some(())
    });
    let all = cluster.json(&["worker", "list", "--all"]);
    assert_eq!(strings(&all["workers"], "state"), ["live", "expired"]);
    expect![[r#"
        WORKER  STATE  HOST  RANKS  SCANS  SEEN  AGE
        second  live  $HOST  0  0  $TIME  $TIME
        first  expired  $HOST  0  0  -  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["worker", "list", "--all"]));
    assert_eq!(second.terminate(), Some(0));
    expect![[r#"
        no live workers
    "#]]
    .assert_eq(&cluster.ok(&["worker", "list"]));
    // A worker that comes back under its name is shown in its current state.
    let _first = cluster.worker("first");
    assert_eq!(cluster.json(&["worker", "show", "first"])["state"], "live");
    let status = cluster.json(&["status"]);
    let applied = format!("applied index  {}\n", status["applied_index"]);
    expect![[r#"
        cluster  $CLUSTER
        coordinator  $ADDRESS (version 0.1.0)
        node  1
        leader  1
        term  1
        applied index  $INDEX
        snapshot index  0
        uptime  $TIME
        workers  1
        datasets  0, 0 ready
        jobs  0
        ranks served  0
    "#]]
    .assert_eq(&cluster.ok(&["status"]).replace(&applied, "applied index  $INDEX\n"));
    assert_eq!(status["cluster_id"], cluster.id);
    assert_eq!(status["counts"]["workers"], 1);
}
