//! Reports of a cluster about a job, compared with the batches that its trainers received.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use expect_test::expect;
use serde_json::Value;
use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{ClusterOptions, Delivery, Loader, LoaderOptions};
use shardfeed_plan::{Mode, Tail};

use crate::cluster::{Cluster, PATIENCE, until};
use crate::fixture::{Place, rows_of, strings};

const COUNTS: [usize; 5] = [25, 0, 17, 29, 31];
const RANKS: u64 = 2;
const BATCH: u64 = 4;

/// Rows of one rank's batch: shard, ordinal, validity.
type Rows = Vec<(u32, u64, bool)>;

fn loader(cluster: &Cluster, rank: u64) -> Loader {
    shardfeed_embedded::open(options(cluster, rank), &mut |_| true).unwrap()
}

fn options(cluster: &Cluster, rank: u64) -> LoaderOptions {
    LoaderOptions {
        dataset: Some("train".into()),
        batch_size: BATCH,
        rank,
        world_size: RANKS,
        shuffle_window: 10,
        job: Some("j".into()),
        cluster: Some(ClusterOptions {
            worker: Some(cluster.place.path("w.sock")),
            fallback: false,
            timeout: PATIENCE,
            run: Some("run-1".into()),
            ..ClusterOptions::new(&cluster.address, &GrpcCluster)
        }),
        ..LoaderOptions::default()
    }
}

/// Returns the next batch of each rank.
fn step(loaders: &mut [Loader]) -> Vec<Rows> {
    let next = |loader: &mut Loader| {
        until("a batch", || match loader.next(Duration::from_millis(100)).unwrap() {
            Delivery::Batch(mut delivered) => Some(rows_of(&mut delivered)),
            Delivery::EpochEnd { .. } | Delivery::Pending => None,
        })
    };
    loaders.iter_mut().map(next).collect()
}

/// Waits until the output of `epoch show` satisfies `is`.
fn epoch(cluster: &Cluster, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, || Some(cluster.json(&["epoch", "show", "--job", "j"])).filter(&is))
}

/// Waits until the job's cursor, which is committed about once a second, is at this position.
fn written_down(cluster: &Cluster, epoch: u64, step: u64) {
    until("a cursor in the log", || {
        let job = cluster.json(&["job", "show", "j"]);
        let cursor = (&job["generation"]["cursor_epoch"], &job["generation"]["cursor_step"]);
        (cursor == (&epoch.into(), &step.into())).then_some(())
    });
}

fn rows_shown(batch: &Value) -> BTreeMap<u64, Rows> {
    let mut ranks = BTreeMap::<u64, Rows>::new();
    for sample in batch["samples"].as_array().unwrap() {
        let number = |field: &str| sample[field].as_u64().unwrap();
        let rows = ranks.entry(number("rank")).or_default();
        assert_eq!(number("row"), rows.len() as u64);
        let shard = number("shard_ordinal") as u32;
        assert_eq!(sample["shard"], format!("s-{shard}.tfrecord"));
        rows.push((shard, number("ordinal"), sample["valid"] == true));
    }
    ranks
}

#[test]
fn views_agree_with_what_trainers_received() {
    let cluster = Cluster::start(Place::with_shards(&COUNTS), 1_000);
    let worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let mut loaders: Vec<_> = (0..RANKS).map(|rank| loader(&cluster, rank)).collect();
    let received: Vec<_> = (0..5).map(|_| step(&mut loaders)).collect();

    let shown = epoch(&cluster, "five steps", |epoch| epoch["steps_done"] == 5);
    assert_eq!((&shown["total"], &shown["delivered"]), (&102.into(), &40.into()));
    assert_eq!((&shown["dropped"], &shown["steps"]), (&6.into(), &12.into()));
    assert_eq!(
        (&shown["state"], &shown["waiting_for"]),
        (&"running".into(), &Value::Array(vec![]))
    );
    written_down(&cluster, 0, 5);
    check_shards(&cluster, &received);
    check_batches(&cluster, &received);
    check_shard_tables(&cluster);
    check_shard_filters(&cluster);
    check_lists(&cluster);
    check_fields(&cluster);

    for _ in 5..12 {
        step(&mut loaders);
    }
    let sealed = until("the epoch's seal", || {
        let shown = cluster.json(&["epoch", "show", "--job", "j", "--epoch", "0"]);
        (shown["state"] == "sealed").then_some(shown)
    });
    for (field, count) in [("delivered", 96), ("dropped", 6), ("lost", 0), ("duplicated", 0)] {
        assert_eq!(sealed[field], count, "{field}");
    }
    assert!(sealed["took_ms"].is_u64());
    let shards = cluster.json(&["shard", "list", "--job", "j", "--epoch", "0"]);
    assert_eq!(strings(&shards["shards"], "state"), ["done"; 5]);
    let listed = cluster.json(&["epoch", "list", "--job", "j"]);
    assert_eq!(strings(&listed["epochs"], "state")[0], "sealed");

    check_waiting(&cluster, loaders, worker);
}

/// Checks that each shard shows the records that were received, and that all shards together have
/// all records.
fn check_shards(cluster: &Cluster, received: &[Vec<Rows>]) {
    let mut counted = [0; COUNTS.len()];
    for (shard, _, valid) in received.iter().flatten().flatten() {
        counted[*shard as usize] += u64::from(*valid);
    }
    let listed = cluster.json(&["shard", "list", "--job", "j"]);
    let shards = listed["shards"].as_array().unwrap();
    let done: Vec<_> = shards.iter().map(|shard| shard["records_done"].as_u64().unwrap()).collect();
    assert_eq!(done, counted);
    assert_eq!(done.iter().sum::<u64>(), RANKS * BATCH * received.len() as u64);
    for (shard, records) in shards.iter().zip(COUNTS) {
        assert_eq!(shard["records"], records);
        assert!(shard["first_rank"].as_u64() <= shard["last_rank"].as_u64());
        assert!(shard["last_rank"].as_u64().unwrap() < RANKS);
        let workers = shard["workers"].as_array().unwrap();
        assert!(records == 0 || workers == &["w"], "{shard}");
        assert!(records == 0 || shard["age_ms"].is_u64(), "{shard}");
    }
    let reading = cluster.json(&["shard", "list", "--job", "j", "--state", "reading,leased"]);
    for state in strings(&reading["shards"], "state") {
        assert!(["reading", "leased"].contains(&state), "{state}");
    }
    let counts = listed["counts"].as_object().unwrap().values().map(|n| n.as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), COUNTS.len() as u64);
}

/// Checks that batches are shown as they were received, for one rank and for all.
fn check_batches(cluster: &Cluster, received: &[Vec<Rows>]) {
    for (step, ranks) in received.iter().enumerate() {
        let step = step.to_string();
        let args = ["batch", "show", "--job", "j", "--epoch", "0", "--step", &step];
        let shown = rows_shown(&cluster.json(&args));
        assert_eq!(shown.into_values().collect::<Vec<_>>(), *ranks, "step {step}");
    }
    // Without --epoch, the current epoch is used.
    let args = ["batch", "show", "--job", "j", "--step", "3", "--rank", "1"];
    let one = cluster.json(&args);
    assert_eq!(rows_shown(&one), [(1, received[3][1].clone())].into());
    assert_eq!(
        (&one["rank"], &one["epoch"], &one["world_size"]),
        (&1.into(), &0.into(), &2.into())
    );
    expect![[r#"
        RANK  ROW  SHARD  ORDINAL  VALID
        1  0  s-0.tfrecord  4  yes
        1  1  s-3.tfrecord  18  yes
        1  2  s-0.tfrecord  8  yes
        1  3  s-0.tfrecord  13  yes
    "#]]
    .assert_eq(&cluster.ok(&args));
    let args = ["batch", "show", "--job", "j", "--step"];
    expect![[r#"
        exit 3
        error: epoch 0 has 12 steps for this rank; there is no step 12
    "#]]
    .assert_eq(&cluster.fails(&[&args[..], &["12"]].concat()));
    expect![[r#"
        exit 2
        error: rank=2 is not in 0..2: ranks count from 0 to world_size - 1
    "#]]
    .assert_eq(&cluster.fails(&[&args[..], &["0", "--rank", "2"]].concat()));
}

fn check_shard_tables(cluster: &Cluster) {
    expect![[r#"
        epoch 0 of j, generation 0: 5 shards: 1 done, 4 reading

        SHARD  STATE  RANKS  WORKER  DONE  RECORDS  PROGRESS
        s-0.tfrecord  reading  1  w  44.0 %  25  $TIME
        s-1.tfrecord  done  0  -  -  0  -
        s-2.tfrecord  reading  0  w  52.9 %  17  $TIME
        s-3.tfrecord  reading  0-1  w  31.0 %  29  $TIME
        s-4.tfrecord  reading  0-1  w  35.4 %  31  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["shard", "list", "--job", "j"]));
    expect![[r#"
        epoch 0 of j, generation 0: 5 shards: 1 done, 4 reading

        SHARD  STATE  RANKS  WORKER  DONE  RECORDS  PROGRESS  RECORDS DONE  ORDINAL  ALL WORKERS
        s-0.tfrecord  reading  1  w  44.0 %  25  $TIME  11  0  w
        s-1.tfrecord  done  0  -  -  0  -  0  1
        s-2.tfrecord  reading  0  w  52.9 %  17  $TIME  9  2  w
        s-3.tfrecord  reading  0-1  w  31.0 %  29  $TIME  9  3  w
        s-4.tfrecord  reading  0-1  w  35.4 %  31  $TIME  11  4  w
    "#]]
    .assert_eq(&cluster.ok(&["shard", "list", "--job", "j", "-o", "wide"]));
}

#[test]
fn a_script_goes_on_when_an_epoch_is_over() {
    let cluster = Cluster::start(Place::with_shards(&[40, 40]), 10_000);
    let _worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let mut loaders: Vec<_> = (0..RANKS).map(|rank| loader(&cluster, rank)).collect();
    step(&mut loaders);
    let args = ["wait", "epoch", "--job", "j", "--epoch"];
    expect![[r#"
        exit 7
        error: epoch 99 of job `j`, waited for 1 ms: 0 of 10 steps are done
        hint: --for gives it more time
    "#]]
    .assert_eq(&cluster.fails(&[&args[..], &["99", "--for", "1ms"]].concat()));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cluster.ok(&[&args[..], &["0"]].concat()));
        until("the end of the epoch", || {
            step(&mut loaders);
            waits.is_finished().then_some(())
        });
        let said = waits.join().unwrap();
        assert_eq!(said, "epoch 0 of j is over: 80 samples delivered\n");
    });
    // The condition stays met.
    let waited = cluster.json(&[&args[..], &["0", "--for", "1ms"]].concat());
    assert_eq!(waited["what"], "epoch 0 of j is over: 80 samples delivered");
}

#[test]
fn a_script_that_waits_in_vain_is_told_why() {
    let cluster = Cluster::start(Place::new(), 10_000);
    let late = |what: &[&str]| cluster.fails(&[&["wait"][..], what, &["--for", "1ms"]].concat());
    expect![[r#"
        exit 7
        error: worker `w`, waited for 1 ms: no such worker has joined
        hint: --for gives it more time
    "#]]
    .assert_eq(&late(&["worker", "w"]));
    expect![[r#"
        exit 7
        error: dataset `none`, waited for 1 ms: there is no dataset `none`
        hint: --for gives it more time
    "#]]
    .assert_eq(&late(&["dataset", "none"]));
    let worker = cluster.worker("w");
    expect![[r#"
        exit 7
        error: worker `w`, waited for 1 ms: it is live
        hint: --for gives it more time
    "#]]
    .assert_eq(&late(&["worker", "w", "--until", "gone"]));
    cluster.ok(&["dataset", "add", "none", "nowhere-*", "--no-wait"]);
    expect![[r#"
        exit 1
        error: dataset `none` cannot be scanned: $DIR/nowhere-*: no file matches (looked for $DIR/nowhere-*); check the pattern and the folder
    "#]]
    .assert_eq(&cluster.fails(&["wait", "dataset", "none"]));
    assert_eq!(worker.terminate(), Some(0));
    expect![[r#"
        exit 7
        error: worker `w`, waited for 1 ms: it is gone
        hint: --for gives it more time
    "#]]
    .assert_eq(&late(&["worker", "w"]));
}

/// Returns the paths that `shard list` shows with these options.
fn listed(cluster: &Cluster, options: &[&str]) -> Vec<String> {
    let shown = cluster.json(&[&["shard", "list", "--job", "j"], options].concat());
    strings(&shown["shards"], "path").into_iter().map(ToOwned::to_owned).collect()
}

fn check_shard_filters(cluster: &Cluster) {
    let all = ["s-0.tfrecord", "s-1.tfrecord", "s-2.tfrecord", "s-3.tfrecord", "s-4.tfrecord"];
    assert_eq!(listed(cluster, &["--rank", "0"]), [all[2], all[3], all[4]]);
    assert_eq!(listed(cluster, &["--rank", "1"]), [all[0], all[3], all[4]]);
    assert_eq!(listed(cluster, &["--rank", "2"]), [""; 0]);
    // No rank reads the empty shard.
    assert_eq!(listed(cluster, &["--worker", "w"]), [all[0], all[2], all[3], all[4]]);
    assert_eq!(listed(cluster, &["--worker", "v"]), [""; 0]);
    assert_eq!(listed(cluster, &["--file=-3.tf"]), [all[3]]);
    assert_eq!(listed(cluster, &["--file", "s-", "--state", "done"]), [all[1]]);
    let one = ["--rank", "0", "--worker", "w", "--file", "4"];
    assert_eq!(listed(cluster, &one), [all[4]]);
    // Shards excluded by the filters are counted.
    expect![[r#"
        epoch 0 of j, generation 0: 5 shards: 1 done, 4 reading

        SHARD  STATE  RANKS  WORKER  DONE  RECORDS  PROGRESS
        s-4.tfrecord  reading  0-1  w  35.4 %  31  $TIME
    "#]]
    .assert_eq(&cluster.ok(&[&["shard", "list", "--job", "j"], &one[..]].concat()));
    expect![[r#"
        epoch 0 of j, generation 0: 5 shards: 1 done, 4 reading

        no shards
    "#]]
    .assert_eq(&cluster.ok(&["shard", "list", "--job", "j", "--worker", "v"]));
    let shown = cluster.ok(&["shard", "history", "--job", "j", "s-3"]);
    assert!(shown.starts_with("s-3.tfrecord, 29 records, in epoch 0 of j\n"), "{shown}");
    expect![[r#"
        exit 2
        error: `tfrec` is in the paths of several shards
        hint: say more of it: s-0.tfrecord or s-1.tfrecord
    "#]]
    .assert_eq(&cluster.fails(&["shard", "history", "--job", "j", "tfrec"]));
    expect![[r#"
        exit 3
        error: no shard's path has `nowhere` in it
        hint: `shardfeed shard list --all` shows them
    "#]]
    .assert_eq(&cluster.fails(&["shard", "history", "--job", "j", "nowhere"]));
}

/// Returns the rows of each rank's batches until the epoch is consumed; no rank waits for another
/// one.
fn dynamic_epoch(loaders: &mut [Loader]) -> Vec<Rows> {
    let mut received = step(loaders);
    let mut open = vec![true; loaders.len()];
    until("the end of the epoch", || {
        for (rank, loader) in loaders.iter_mut().enumerate() {
            if !open[rank] {
                continue;
            }
            match loader.next(Duration::from_millis(10)).unwrap() {
                Delivery::Batch(mut delivered) => received[rank].extend(rows_of(&mut delivered)),
                Delivery::EpochEnd { .. } => open[rank] = false,
                Delivery::Pending => {}
            }
        }
        open.iter().all(|open| !open).then_some(())
    });
    received
}

#[test]
fn shards_of_a_dynamic_jobs_rank_are_those_of_which_it_received_something() {
    let cluster = Cluster::start(Place::with_shards(&COUNTS), 10_000);
    let _worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let dynamic = |rank| {
        let (mode, tail) = (Mode::Dynamic, Tail::Uneven);
        // Groups have two shards; another rank may get samples that a rank has not begun.
        let (interleave, prefetch) = (Some(2), Some(2));
        LoaderOptions { mode, tail, interleave, prefetch, ..options(&cluster, rank) }
    };
    let open = |rank| shardfeed_embedded::open(dynamic(rank), &mut |_| true).unwrap();
    let mut loaders: Vec<_> = (0..RANKS).map(open).collect();
    let mut received = dynamic_epoch(&mut loaders);
    received.iter_mut().for_each(|rows| rows.retain(|(.., valid)| *valid));
    assert_eq!(received.iter().flatten().count(), COUNTS.iter().sum::<usize>());
    let mut all = BTreeSet::new();
    for (rank, rows) in received.iter().enumerate() {
        let shards: BTreeSet<_> = rows.iter().map(|(shard, ..)| *shard).collect();
        let paths: Vec<_> = shards.iter().map(|shard| format!("s-{shard}.tfrecord")).collect();
        let rank = rank.to_string();
        assert_eq!(listed(&cluster, &["--epoch", "0", "--rank", &rank]), paths, "rank {rank}");
        let of_worker = ["--epoch", "0", "--rank", &rank, "--worker", "w"];
        assert_eq!(listed(&cluster, &of_worker), paths, "rank {rank}");
        all.extend(paths);
    }
    let of_worker = listed(&cluster, &["--epoch", "0", "--worker", "w"]);
    assert_eq!(of_worker, all.into_iter().collect::<Vec<_>>());
    assert_eq!(of_worker.len(), 4, "all but the empty one");
    assert_eq!(listed(&cluster, &["--epoch", "0", "--file", "s-0"]), ["s-0.tfrecord"]);
}

fn check_lists(cluster: &Cluster) {
    let heading = |args: &[&str]| cluster.ok(args).lines().next().unwrap().to_owned();
    expect![
        "RANK  STATE  WAITS  WORKER  EPOCH  STEP  READY  PROGRESS  LIMITED BY  HOST  TRAINER  GENERATION  FENCING  SOURCES"
    ]
    .assert_eq(&heading(&["rank", "list", "--job", "j", "-o", "wide"]));
    expect!["RANK  STATE  WAITS  WORKER  EPOCH  STEP  READY  PROGRESS"]
        .assert_eq(&heading(&["rank", "list", "--job", "j"]));
    expect!["EPOCH  STATE  DONE  DELIVERED  TOTAL  STEPS  SPEED  TIME LEFT  WAITING FOR"]
        .assert_eq(&heading(&["epoch", "list", "--job", "j"]));
    expect!["EPOCH  STATE  DONE  DELIVERED  TOTAL  STEPS  SPEED  TIME LEFT  WAITING FOR  GENERATION  DROPPED  LEFT OUT  SKIPPED  LOST  DUPLICATED  REDELIVERED  IN DOUBT  TOOK"].assert_eq(&heading(&["epoch", "list", "--job", "j", "-o", "wide"]));
    expect![[r#"
        JOB  DATASET  STATE  GENERATION  RANKS  EPOCH  STEP  AGE
        j  train  running  0  2 of 2  0  5  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["job", "list"]));
    expect![[r#"
        JOB  DATASET  STATE  GENERATION  RANKS  EPOCH  STEP  AGE  RUN  GLOBAL BATCH  TAIL  DIGEST
        j  train  running  0  2 of 2  0  5  $TIME  run-1  8  drop  58154799c639c8818a2667d66c4d6ef111fe15db8d4624b14aff76a0684d8cb4
    "#]].assert_eq(&cluster.ok(&["job", "list", "-o", "wide"]));
    expect![[r#"
        job  j
        dataset  train
        state  running
        made known  $TIME ago
        digest  58154799c639c8818a2667d66c4d6ef111fe15db8d4624b14aff76a0684d8cb4
        order version  1
        order digest  a5b23d566cd8867250ba33747bb8adc00a48c555dec7d2d93e50e90eb4ab4972
        content digest  fe40aa65cd5c2337a7ea5c660dcdee405e7377cb87d74289c510fba961410aea
        seed  0
        shuffle window  10
        interleave  16
        block length  1
        lanes  2
        tail  drop
        mode  deterministic
        generations  1

        GENERATION  PARENT  RUN  WORLD SIZE  GLOBAL BATCH  BEGAN AT  STANDS AT  SERVED  AGE
        0  -  run-1  2  8  0:0  0:5  2  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["job", "show", "j"]));
    expect![[r#"
        job  j
        dataset  train
        state  running
        made known  $TIME ago
        digest  58154799c639c8818a2667d66c4d6ef111fe15db8d4624b14aff76a0684d8cb4
        order version  1
        order digest  a5b23d566cd8867250ba33747bb8adc00a48c555dec7d2d93e50e90eb4ab4972
        content digest  fe40aa65cd5c2337a7ea5c660dcdee405e7377cb87d74289c510fba961410aea
        seed  0
        shuffle window  10
        interleave  16
        block length  1
        lanes  2
        tail  drop
        mode  deterministic
        record spec  fb8da7eb5b1b399e7321179dac9e9f65773d7331e1e30554e3911e4325e1ef19
        operators  raw
        decoder  none
        generations  1

        GENERATION  PARENT  RUN  WORLD SIZE  GLOBAL BATCH  BEGAN AT  STANDS AT  SERVED  AGE  LANES  STARTED  SUPERSEDED BY
        0  -  run-1  2  8  0:0  0:5  2  $TIME  2  2  -
    "#]].assert_eq(&cluster.ok(&["job", "show", "j", "-o", "wide"]));
}

fn check_fields(cluster: &Cluster) {
    let job = cluster.json(&["job", "show", "j"]);
    assert_eq!(job["generation"], job["history"][0]);
    let shown = cluster.json(&["dataset", "show", "train"]);
    assert_eq!(job["identity"]["content_digest"], shown["content_digest"]);
    let worker = cluster.json(&["worker", "show", "w"]);
    assert_eq!((&worker["leases"], &worker["serving"][1]["rank"]), (&2.into(), &1.into()));
    let known = cluster.fails(&["job", "show", "k"]);
    assert!(known.ends_with("hint: there are these jobs: j\n"), "{known}");

    let ranks = cluster.json(&["rank", "list", "--job", "j"]);
    for (number, rank) in (0..).zip(ranks["ranks"].as_array().unwrap()) {
        let is = (&rank["rank"], &rank["state"], &rank["worker"], &rank["step"], &rank["steps"]);
        assert_eq!(
            is,
            (&Value::from(number), &"served".into(), &"w".into(), &5.into(), &12.into())
        );
    }
}

/// Removes the lines that depend on the speed of this machine.
fn without_speed(text: &str) -> String {
    let is_steady = |line: &&str| !line.starts_with("speed") && !line.starts_with("time left");
    text.lines().filter(is_steady).map(|line| format!("{line}\n")).collect()
}

/// The epoch waits for a worker that died, and the shards of its ranks have no worker; it does not
/// wait for a trainer that ended.
fn check_waiting(cluster: &Cluster, mut loaders: Vec<Loader>, worker: crate::cluster::Process) {
    written_down(cluster, 1, 0);
    drop(worker); // Killed.
    let waiting = epoch(cluster, "its session's end", |epoch| epoch["waiting_for"][1] == 1);
    assert_eq!(waiting["waiting_for"], Value::from(vec![0, 1]));
    let ranks = cluster.json(&["rank", "list", "--job", "j"]);
    assert_eq!(strings(&ranks["ranks"], "state"), ["unserved"; 2]);
    expect![[r#"
        RANK  STATE  WAITS  WORKER  EPOCH  STEP  READY  PROGRESS
        0  unserved  -  -  1  0 of 12  0  $TIME
        1  unserved  -  -  1  0 of 12  0  $TIME
    "#]]
    .assert_eq(&cluster.ok(&["rank", "list", "--job", "j"]));
    expect![[r#"
        job  j
        epoch  1
        generation  0
        state  running
        delivered  0 of 102 samples
        done  0.0 %
        steps  0 of 12
        dropped  6
        left out  0
        skipped  0
        lost  0
        duplicated  0
        redelivered  0
        in doubt  0
        waiting for  ranks 0, 1
        began  $TIME ago
        took  -
    "#]]
    .assert_eq(&without_speed(&cluster.ok(&["epoch", "show", "--job", "j"])));
    let pending = cluster.json(&["shard", "list", "--job", "j", "--state", "pending"]);
    assert_eq!(pending["shards"].as_array().unwrap().len(), 4, "all but the empty one");

    let _worker = cluster.worker("w");
    until("that it continues", || {
        step(&mut loaders);
        let ranks = cluster.json(&["rank", "list", "--job", "j"]);
        (strings(&ranks["ranks"], "state") == ["served"; 2]).then_some(())
    });
    drop(loaders);
    until("the ranks' end", || {
        let ranks = cluster.json(&["rank", "list", "--job", "j"]);
        (strings(&ranks["ranks"], "state") == ["ended"; 2]).then_some(())
    });
}
