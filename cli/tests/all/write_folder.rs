//! `dataset write` of a folder.

use std::collections::BTreeMap;
use std::fs;

use expect_test::expect;
use shardfeed_tfrecord::example::{Value, encode_example};

use crate::fixture::{Place, records, strings};

/// Files of two classes, of different sizes, one of them empty.
fn place() -> (Place, BTreeMap<String, Vec<u8>>) {
    let place = Place::new();
    let mut files = BTreeMap::new();
    for index in 0..200_usize {
        let class = ["cat", "Dog"][index % 2];
        let path = format!("{class}/more/{index}.bin");
        let data: Vec<u8> = (0..index * 5).map(|byte| (byte * 7 + index) as u8).collect();
        place.file(&format!("in/{path}"), &data);
        files.insert(path, data);
    }
    place.file("in/.hidden", "no");
    (place, files)
}

fn record(path: &str, data: &[u8], class: Option<(&str, i64)>) -> Vec<u8> {
    let mut record = Vec::new();
    let (data, path) = ([data], [path.as_bytes()]);
    let mut features = vec![("data", Value::Bytes(&data)), ("path", Value::Bytes(&path))];
    let (name, label) = class.map_or(([b"".as_slice()], [0]), |(n, l)| ([n.as_bytes()], [l]));
    if class.is_some() {
        features.push(("class", Value::Bytes(&name)));
        features.push(("label", Value::Int64(&label)));
    }
    encode_example(&features, &mut record);
    record
}

fn written(place: &Place, folder: &str) -> Vec<Vec<u8>> {
    let names = place.names(folder);
    names.iter().flat_map(|name| records(&place.path(folder).join(name))).collect()
}

#[test]
fn every_file_is_one_record_with_its_class() {
    let (place, files) = place();
    let told = place.json(&["dataset", "write", "in", "out", "--shard-bytes", "10KB"]);
    let mut found = written(&place, "out");
    let expected = files.iter().map(|(path, data)| {
        let label = if path.starts_with("cat") { ("cat", 1) } else { ("Dog", 0) };
        record(path, data, Some(label))
    });
    let mut expected: Vec<_> = expected.collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(told["records"], 200);
    assert_eq!(strings(&told["shards"], "name"), place.names("out"));
}

#[test]
fn shards_are_alike() {
    let (place, _) = place();
    let told = place.json(&["dataset", "write", "in", "out", "--shard-bytes", "10KB"]);
    let shards = told["shards"].as_array().unwrap();
    assert!(shards.len() > 10, "{}", shards.len());
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("in-{index:05}-of-{:05}.tfrecord", shards.len());
        assert_eq!(shard["name"], name);
        // The requested size, plus or minus one record; the largest record has 1.1 KB.
        let bytes = shard["stored_bytes"].as_u64().unwrap();
        assert!((8_500..=11_200).contains(&bytes), "{bytes}");
        assert_eq!(fs::metadata(place.path("out").join(name)).unwrap().len(), bytes);
    }
    // Both classes are in all shards.
    for name in place.names("out") {
        let text = |record: &Vec<u8>| String::from_utf8_lossy(record).into_owned();
        let all: String = records(&place.path("out").join(name)).iter().map(text).collect();
        assert!(all.contains("cat") && all.contains("Dog"));
    }
}

#[test]
fn the_seed_decides_every_byte() {
    let (place, _) = place();
    let bytes = |out: &str, seed: &str| -> Vec<Vec<u8>> {
        let size = ["--shard-bytes", "20KB", "--compression", "gzip"];
        place.ok(&[&["dataset", "write", "in", out, "--seed", seed], &size[..]].concat());
        place.names(out).iter().map(|name| fs::read(place.path(out).join(name)).unwrap()).collect()
    };
    let (first, again, other) = (bytes("a", "1"), bytes("b", "1"), bytes("c", "2"));
    assert!(first == again);
    assert!(first != other);
    assert!(place.names("a")[0].ends_with(".tfrecord.gz"));
}

#[test]
fn compression_changes_nothing_but_the_bytes() {
    let (place, _) = place();
    let mut digests = Vec::new();
    for scheme in ["none", "gzip", "zlib"] {
        place.ok(&["dataset", "write", "in", scheme, "--compression", scheme]);
        let found = place.json(&["dataset", "inspect", &format!("{scheme}/*")]);
        assert_eq!((&found["compression"], &found["records"]), (&scheme.into(), &200.into()));
        digests.push(found["content_digest"].clone());
        place.ok(&["dataset", "verify", &format!("{scheme}/*")]);
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}

#[test]
fn files_without_folders_have_no_class() {
    let place = Place::new();
    place.file("in/a.txt", "one");
    place.file("in/b.txt", "");
    place.ok(&["dataset", "write", "in", "out", "--prefix", "p"]);
    assert_eq!(place.names("out"), ["p-00000-of-00001.tfrecord"]);
    let mut found = written(&place, "out");
    found.sort();
    let mut expected = [record("a.txt", b"one", None), record("b.txt", b"", None)];
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn shards_that_are_there_are_replaced_only_by_force() {
    let (place, _) = place();
    place.ok(&["dataset", "write", "in", "out", "--shard-bytes", "30KB"]);
    let before = place.names("out");
    place.file("out/in-notes.txt", "kept");
    expect![[r#"
        exit 1
        error: out already holds 5 files with the prefix `in`, such as in-00000-of-00005.tfrecord
        hint: name another --prefix or folder, or replace them with --force
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "in", "out"]));
    assert_eq!(before.len(), 5);
    place.ok(&["dataset", "write", "in", "out", "--prefix", "other"]);
    // The description of shards that Python's `from_arrays` wrote.
    place.file("out/in.shardfeed.json", "{}");
    let replace = ["dataset", "write", "in", "out", "--force", "--shard-bytes", "70KB"];
    place.ok(&replace);
    let expected = [
        "in-00000-of-00002.tfrecord",
        "in-00001-of-00002.tfrecord",
        "in-notes.txt",
        "other-00000-of-00001.tfrecord",
    ];
    assert_eq!(place.names("out"), expected);
    place.ok(&replace);
    assert_eq!(place.names("out"), expected);
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let (place, _) = place();
    place.ok(&["dataset", "write", "in", "out"]);
    let (names, before) = (place.names("out"), written(&place, "out"));
    std::os::unix::fs::symlink("nowhere", place.path("in/cat/broken")).unwrap();
    let failed = place.fails(&["dataset", "write", "in", "out", "--force"]);
    assert!(failed.contains("error: cannot read in/cat/broken\n"), "{failed}");
    assert_eq!(place.names("out"), names);
    assert!(written(&place, "out") == before);
}

#[test]
fn what_a_killed_process_left_is_told_and_cleared_by_force() {
    let (place, _) = place();
    place.file("out/.in.writing/x", "half");
    expect![[r#"
        exit 1
        error: out/.in.writing is there: another process writes these shards, or one did and was killed
        hint: wait for it, or if there is none, start over with --force
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "in", "out"]));
    place.ok(&["dataset", "write", "in", "out", "--force"]);
    assert_eq!(place.names("out"), ["in-00000-of-00001.tfrecord"]);
}

#[test]
fn another_process_that_writes_is_not_disturbed() {
    let (place, _) = place();
    place.file("out/.in.writing/in-00000-of-00001.tfrecord", "half");
    place.file("out/.in.lock", "");
    let lock = fs::File::open(place.path("out/.in.lock")).unwrap();
    // As Python's `Staging` and another `dataset write` do.
    lock.try_lock().unwrap();
    expect![[r#"
        exit 1
        error: out: another process writes shards with the prefix `in`
        hint: wait for it, or name another --prefix
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "in", "out", "--force"]));
    assert_eq!(place.names("out"), [".in.lock", ".in.writing"]);
    assert_eq!(place.names("out/.in.writing"), ["in-00000-of-00001.tfrecord"]);
    drop(lock);
    place.ok(&["dataset", "write", "in", "out", "--force"]);
    assert_eq!(place.names("out"), ["in-00000-of-00001.tfrecord"]);
}

#[test]
fn sources_that_make_no_dataset_are_refused() {
    let (place, _) = place();
    place.file("in/README", "loose");
    place.file("empty/.hidden", "");
    place.file("x.bin", "");
    let write = |args: &[&str]| place.fails(&[&["dataset", "write"], args].concat());
    expect![[r#"
        exit 1
        error: in/README: is in no class folder, as other files are
        hint: move it into a class folder, or out of the source
    "#]]
    .assert_eq(&write(&["in", "out"]));
    expect![[r#"
        exit 1
        error: empty: holds no files
        hint: names that start with a dot are passed over
    "#]]
    .assert_eq(&write(&["empty", "out"]));
    expect![[r#"
        exit 2
        error: $DIR/in/out is inside the source $DIR/in
        hint: name a folder outside of it
    "#]]
    .assert_eq(&write(&["in", "in/out"]));
    assert!(!place.path("in/out").exists());
    expect![[r#"
        exit 2
        error: x.bin: neither a folder nor a .csv or .txt file
        hint: give a folder of files, or a file whose name ends in .csv or .txt
    "#]]
    .assert_eq(&write(&["x.bin", "out"]));
    expect![[r#"
        exit 1
        error: cannot read nowhere
          cause: No such file or directory (os error 2)
        hint: check the path
    "#]]
    .assert_eq(&write(&["nowhere", "out"]));
    expect![[r#"
        exit 2
        error: invalid value '.a' for '--prefix <NAME>': it starts with a dot, which hides files

        For more information, try '--help'.
    "#]]
    .assert_eq(&write(&["empty", "out", "--prefix", ".a"]));
    expect![[r#"
        exit 2
        error: invalid value '3TB' for '--shard-bytes <SIZE>': `tb` is no unit; use B, KB, MB, GB, KiB, MiB or GiB

        For more information, try '--help'.
    "#]]
    .assert_eq(&write(&["empty", "out", "--shard-bytes", "3TB"]));
    assert!(!place.path("out").exists(), "a source that is refused leaves no folder");
}

#[test]
fn a_link_that_leads_back_is_told() {
    let (place, _) = place();
    std::os::unix::fs::symlink("..", place.path("in/cat/up")).unwrap();
    let failed = place.fails(&["dataset", "write", "in", "out"]);
    assert!(failed.starts_with("exit 1\nerror: "), "{failed}");
    assert!(!place.path("out").exists(), "it is removed again");
}
