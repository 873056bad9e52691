//! Errors about bad input: the problem, its location, and a hint.

use expect_test::{Expect, expect};
use shardfeed_tfrecord::Compression;

use crate::fixture::Place;

fn check(place: &Place, args: &[&str], expected: &Expect) {
    expected.assert_eq(&place.fails(args));
}

#[test]
fn files_that_are_not_there() {
    let place = Place::with_shards(&[3]);
    place.file("folder/x", "");
    check(
        &place,
        &["dataset", "inspect", "nowhere.tfrecord"],
        &expect![[r#"
        exit 1
        error: nowhere.tfrecord: no such file (looked for $DIR/nowhere.tfrecord)
        hint: check the path
    "#]],
    );
    check(
        &place,
        &["dataset", "verify", "t-*.tfrecord"],
        &expect![[r#"
        exit 1
        error: t-*.tfrecord: no file matches (looked for $DIR/t-*.tfrecord)
        hint: check the pattern and the folder
    "#]],
    );
    check(
        &place,
        &["plan", "show", "folder"],
        &expect![[r#"
        exit 1
        error: folder: is a folder
        hint: name its files, for example folder/*.tfrecord
    "#]],
    );
    check(
        &place,
        &["plan", "show", "hdfs://bucket/x"],
        &expect![[r#"
        exit 1
        error: hdfs://bucket/x: `hdfs://` is not known
        hint: use a path, file://, s3://, gs://, az://, http:// or https://
    "#]],
    );
    check(
        &place,
        &["plan", "show", "s-0.tfrecord", "s-*.tfrecord"],
        &expect![[r#"
        exit 1
        error: `$DIR/s-0.tfrecord` is listed twice
        hint: name each file once: two of FILES match `$DIR/s-0.tfrecord`
    "#]],
    );
    check(
        &place,
        &["dataset", "inspect"],
        &expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          <FILES>...

        Usage: shardfeed dataset inspect <FILES>...

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn files_that_are_no_datasets() {
    let place = Place::with_shards(&[3, 3]);
    place.file("text", "once upon a time there was a file");
    place.truncate("s-1.tfrecord", 40);
    place.shard("empty", Compression::None, &[""; 0]);
    place.shard("x.gz", Compression::Gzip, &["abc"]);
    place.truncate("x.gz", 20);
    check(
        &place,
        &["dataset", "inspect", "text"],
        &expect![[r#"
        exit 1
        error: $DIR/text: not a TFRecord file: the checksum of the first record's length is wrong, in record 0 at byte 0
        hint: check that this is a TFRecord file; gzip and zlib are recognised, other compression must be unpacked first
    "#]],
    );
    check(
        &place,
        &["dataset", "inspect", "s-*.tfrecord"],
        &expect![[r#"
        exit 1
        error: $DIR/s-1.tfrecord: truncated: the file ends 1 bytes before the end of a record's 12-byte header, in record 1 at byte 29
        hint: the copy or the writer stopped early, or is still writing: copy the file again; the records before this one are good; `shardfeed dataset verify` lists all that is damaged
    "#]],
    );
    check(
        &place,
        &["dataset", "inspect", "x.gz"],
        &expect![[r#"
        exit 1
        error: $DIR/x.gz: cannot decompress the gzip stream: the file ends in the middle of it, in record 0 at byte 0
        hint: copy the file again from its source, and check that it was written in this scheme; `shardfeed dataset verify` lists all that is damaged
    "#]],
    );
    check(
        &place,
        &["plan", "show", "empty"],
        &expect![[r#"
        exit 1
        error: the dataset has no records: 1 shards, all empty
        hint: name files that have records, or rewrite them
    "#]],
    );
    check(
        &place,
        &["dataset", "inspect", "--compression", "lz4", "text"],
        &expect![[r#"
        exit 2
        error: invalid value 'lz4' for '--compression <SCHEME>'
          [possible values: auto, none, gzip, zlib]

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn numbers_that_make_no_plan() {
    let place = Place::with_shards(&[30]);
    let check = |more: &[&str], expected: &Expect| {
        let args = ["batch", "show", "s-0.tfrecord", "--step", "0"];
        check(&place, &[&args, more].concat(), expected);
    };
    check(
        &["--lanes", "4", "--batch-size", "10", "--world-size", "3"],
        &expect![[r#"
        exit 2
        error: --lanes 4 does not divide the global batch of 30 (--batch-size 10 x --world-size 3)
        hint: use --batch-size 8 or 12, or one of --lanes 2, 3, 5, 6
    "#]],
    );
    check(
        &["--rank", "4", "--world-size", "4"],
        &expect![[r#"
        exit 2
        error: --rank 4 is not below --world-size 4
        hint: ranks count from 0; give --world-size the number of them
    "#]],
    );
    check(
        &["--batch-size", "0"],
        &expect![[r#"
            exit 2
            error: invalid value '0' for '--batch-size <SAMPLES>': must be a whole number, at least 1 and below 2^64

            For more information, try '--help'.
        "#]],
    );
    check(
        &["--batch-size", "100000000"],
        &expect![[r#"
        exit 2
        error: a global batch of 100000000 samples is too large to show
        hint: --batch-size x --world-size may be 16777216 at most
    "#]],
    );
    check(
        &["--batch-size", "2000000"],
        &expect![[r#"
        exit 2
        error: a batch of 2000000 rows is too large to show
        hint: show a part: with a larger --world-size a rank has 1048576 at most
    "#]],
    );
    check(
        &["--batch-size", "100000000000"],
        &expect![[r#"
        exit 2
        error: `batch_size x world_size` is 100000000000, but may be at most 268435456
    "#]],
    );
    check(
        &["--lanes", "10000000", "--batch-size", "10000000"],
        &expect![[r#"
        exit 2
        error: `lanes` is 10000000, but may be at most 1048576
    "#]],
    );
    check(
        &["--tail", "cut"],
        &expect![[r#"
        exit 2
        error: invalid value 'cut' for '--tail <TAIL>'
          [possible values: drop, pad, uneven]

        For more information, try '--help'.
    "#]],
    );
    check(
        &["--limit", "0"],
        &expect![[r#"
            exit 2
            error: invalid value '0' for '--limit <SAMPLES>': must be a whole number, at least 1 and below 2^64

            For more information, try '--help'.
        "#]],
    );
    check(
        &["--batch-size", "40"],
        &expect![[r#"
        exit 1
        error: epoch 0 has 0 steps for this rank; there is no step 0
        hint: there are fewer samples than a global batch; use --tail pad, or smaller batches
    "#]],
    );
    check(
        &["--find", "s-0.tfrecord:0"],
        &expect![[r#"
        exit 2
        error: the argument '--step <STEP>' cannot be used with '--find <PATH:ORDINAL>'

        Usage: shardfeed batch show --step <STEP> <FILES>...

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn places_that_are_not_there() {
    let place = Place::with_shards(&[30, 2, 3, 4]);
    let show = ["batch", "show", "*.tfrecord"];
    check(
        &place,
        &[&show[..], &["--step", "39"]].concat(),
        &expect![[r#"
        exit 1
        error: epoch 0 has 39 steps for this rank; there is no step 39
        hint: steps count from 0: give --step 0 to 38
    "#]],
    );
    check(
        &place,
        &[&show[..], &["--find", "x.tfrecord:0"]].concat(),
        &expect![[r#"
        exit 1
        error: x.tfrecord: no shard of these files
        hint: name a shard by its path in $DIR: s-0.tfrecord, s-1.tfrecord, s-2.tfrecord, …
    "#]],
    );
    check(
        &place,
        &[&show[..], &["--find", "s-1.tfrecord:2"]].concat(),
        &expect![[r#"
        exit 1
        error: s-1.tfrecord: has 2 records, there is no 2
        hint: records count from 0
    "#]],
    );
    check(
        &place,
        &[&show[..], &["--find", "s-1.tfrecord"]].concat(),
        &expect![[r#"
        exit 2
        error: invalid value 's-1.tfrecord' for '--find <PATH:ORDINAL>': write PATH:ORDINAL, such as train-00003.tfrecord:17

        For more information, try '--help'.
    "#]],
    );
    check(
        &place,
        &show,
        &expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          --step <STEP>

        Usage: shardfeed batch show --step <STEP> <FILES>...

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn the_largest_numbers_are_answered_or_refused() {
    let place = Place::with_shards(&[30]);
    let most = u64::MAX.to_string();
    let names = [
        "--epoch",
        "--seed",
        "--shuffle-window",
        "--interleave",
        "--block-length",
        "--lanes",
        "--batch-size",
        "--world-size",
        "--limit",
        "--step",
        "--rank",
    ];
    for name in names {
        for value in [most.as_str(), "4294967296", "18446744073709551614"] {
            let step: &[&str] = if name == "--step" { &[] } else { &["--step", "0"] };
            let args = [&["batch", "show", "s-0.tfrecord", name, value], step].concat();
            let ran = place.run(&args);
            assert!([0, 1, 2].contains(&ran.code), "{args:?}");
            assert!(!ran.stderr.contains("panicked"), "{args:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn an_environment_that_means_nothing() {
    let place = Place::with_shards(&[3]);
    place.file("cache", "a file where a folder should be");
    let inspected = place.run(&["dataset", "inspect", "s-0.tfrecord"]);
    assert_eq!(inspected.code, 0, "{}", inspected.stderr);
    assert!(inspected.stderr.contains("cannot make the folder"), "{}", inspected.stderr);
    let mut command = place.command(&["plan", "show", "s-0.tfrecord"]);
    let output = command.env("SHARDFEED_LOG", ",=,x=").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    expect![[r#"
        error: SHARDFEED_LOG=,=,x=: invalid filter directive
        hint: use a level (error, warn, info, debug, trace) or target=level, separated by commas
    "#]]
    .assert_eq(&String::from_utf8(output.stderr).unwrap());
}
