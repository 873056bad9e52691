//! Exact error messages of a loader that cannot be created.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use shardfeed_client::{
    CacheChoice, CacheOptions, ClusterOptions, ClusterPort, CorruptBudget, DatasetRequest,
    Delivery, InProcessWorker, Joined, LoadError, Loader, LoaderOptions, OpenProgress, RecordSpec,
    worker_answers,
};
use shardfeed_pipeline::ParseSpec;
use shardfeed_plan::{Corrupt, Mode, Tail};
use shardfeed_socket::{ListenOptions, Listener};
use shardfeed_tfrecord::example::{DType, Feature, FeatureSpec};
use shardfeed_tfrecord::{Compression, create};

type Progress<'a> = &'a mut dyn FnMut(&OpenProgress) -> bool;

/// Returns the error about options that are rejected before any lease is requested.
fn refused(options: LoaderOptions) -> String {
    Loader::open(options, &mut |_| true).map(drop).unwrap_err().to_string()
}

fn of_file(path: &Path) -> LoaderOptions {
    LoaderOptions {
        files: vec![path.display().to_string()],
        cache: CacheOptions { folder: CacheChoice::Off, ..CacheOptions::default() },
        ..LoaderOptions::default()
    }
}

/// Port of options that are rejected before any coordinator is contacted.
#[derive(Debug)]
struct NoCluster;

impl ClusterPort for NoCluster {
    fn await_addresses(&self, _: &ClusterOptions, _: Progress<'_>) -> Result<(), LoadError> {
        panic!("it was to be refused before")
    }

    fn addresses(&self, _coordinator: &str) -> String {
        panic!("it was to be refused before")
    }

    fn open(
        &self,
        _: &LoaderOptions,
        _: &[DatasetRequest],
        _: &str,
        _: Progress<'_>,
    ) -> Result<Joined, LoadError> {
        panic!("it was to be refused before")
    }

    fn join(&self, _: &LoaderOptions, _: &str) -> Result<Box<dyn InProcessWorker>, LoadError> {
        panic!("it was to be refused before")
    }
}

#[test]
fn every_refused_option_says_why_and_what_to_pass() {
    let clustered = |cluster: ClusterOptions| LoaderOptions {
        cluster: Some(cluster),
        mode: Mode::Dynamic,
        tail: Tail::Uneven,
        ..LoaderOptions::default()
    };
    let cluster = || ClusterOptions::new("127.0.0.1:1", &NoCluster);
    let plain = LoaderOptions::default;
    let said = [
        LoaderOptions { limit: Some(0), ..plain() },
        LoaderOptions { prefetch: Some(0), ..plain() },
        LoaderOptions { mode: Mode::Dynamic, ..plain() },
        LoaderOptions { limit: Some(3), ..clustered(cluster()) },
        LoaderOptions { lanes: Some(3), ..clustered(cluster()) },
        LoaderOptions { tail: Tail::Drop, ..clustered(cluster()) },
        LoaderOptions { tail: Tail::Pad, ..clustered(cluster()) },
        LoaderOptions { batch_size: 0, ..plain() },
        LoaderOptions { batch_size: 10, world_size: 3, lanes: Some(4), ..plain() },
        LoaderOptions { dataset: Some("photos".into()), ..plain() },
        plain(),
    ]
    .map(refused);
    assert_eq!(
        said,
        [
            "limit must be at least 1, or None for no limit",
            "prefetch must be at least 1",
            "mode=\"dynamic\" needs a coordinator, which hands the samples out; pass \
             coordinator=\"host:port\", or use mode=\"deterministic\"",
            "limit= cuts the plan of an epoch, and mode=\"dynamic\" has none; leave it out",
            "lanes= are pieces of a planned epoch, and mode=\"dynamic\" plans none; leave it out",
            "mode=\"dynamic\" has tail=\"uneven\" only: with equal steps no rank could take another's \
             work; pass tail=\"uneven\", or mode=\"deterministic\" for tail=\"drop\"",
            "mode=\"dynamic\" has tail=\"uneven\" only: with equal steps no rank could take another's \
             work; pass tail=\"uneven\", or mode=\"deterministic\" for tail=\"pad\"",
            "`batch_size` must be at least 1",
            "lanes=4 does not divide the global batch of 30 (batch_size 10 x world_size 3); use \
             batch_size=8 or 12, or one of lanes=2, 3, 5, 6",
            "dataset=\"photos\" is known to a coordinator only; pass coordinator=",
            "the list of files is empty; name one file at least",
        ]
    );
}

fn open(options: LoaderOptions) -> Result<Loader, LoadError> {
    Loader::open(options, &mut |_| true)
}

/// Returns the error that ends an epoch.
fn ends(loader: &mut Loader) -> String {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is said");
        match loader.next(Duration::from_millis(100)) {
            Ok(Delivery::EpochEnd { .. }) => panic!("the epoch ended well"),
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// Writes a shard of records of 8 bytes.
fn shard(path: &Path, records: u8) {
    let mut writer = create(path, Compression::None).unwrap();
    (0..records).for_each(|record| writer.write(&[record; 8]).unwrap());
    writer.finish().unwrap();
}

#[test]
fn every_refused_file_and_folder_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    shard(&at("a"), 4);
    fs::hard_link(at("a"), at("b")).unwrap();
    let both = vec![at("a").display().to_string(), at("b").display().to_string()];
    let said = [
        of_file(Path::new("/dev/null")),
        of_file(&at("none")),
        LoaderOptions { files: both, ..of_file(&at("a")) },
    ]
    .map(|options| {
        let error = open(options).map(drop).unwrap_err().to_string();
        error.replace(folder.path().to_str().unwrap(), "DIR")
    });
    assert_eq!(
        said,
        [
            "/dev/null: is not a regular file",
            "DIR/none: no such file (looked for DIR/none); check the path",
            "`b` and `a` are one file; a file is read once an epoch, so name it once",
        ]
    );
}

#[test]
fn every_record_that_cannot_be_delivered_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    shard(&good, 100);
    shard(&bad, 100);
    let mut bytes = fs::read(&bad).unwrap();
    bytes[24 * 7 + 12] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let feature = Feature::FixedLen { shape: vec![], dtype: DType::Int64, default: None };
    let parse = ParseSpec::Example(vec![FeatureSpec { name: "x".to_owned(), feature }]);
    let parsed = |corrupt: Corrupt| LoaderOptions {
        records: Some(RecordSpec::from(parse.clone())),
        shuffle: false,
        corrupt,
        ..of_file(&good)
    };
    let plain = || LoaderOptions { shuffle: false, ..of_file(&bad) };
    let corrupt = Corrupt::SkipRecord;
    let none = CorruptBudget::Records(0);
    let said = [
        plain(),
        LoaderOptions { corrupt, corrupt_budget: none, ..plain() },
        parsed(Corrupt::Error),
        parsed(corrupt),
    ]
    .map(|options| {
        let said = ends(&mut open(options).unwrap());
        said.replace(folder.path().to_str().unwrap(), "DIR")
    });
    assert_eq!(
        said,
        [
            "DIR/bad: corrupt record: its 8 bytes do not match their checksum (stored 0xac49f8d1, \
             computed 0x960c8a59), in record 7 at byte 168; copy the file again from its source; \
             the records after this one are readable",
            "corrupt records of epoch 0 were skipped, 1 in all, and corrupt_budget allows 0 on \
             this rank; the first: DIR/bad: record 7 at offset 168: corrupt record: its 8 bytes do \
             not match their checksum (stored 0xac49f8d1, computed 0x960c8a59); copy the files \
             again, leave these out, or raise corrupt_budget=",
            "DIR/good: record 0 at offset 0: not a valid tf.train.Example: the record has a field \
             numbered 0, at byte 0 of it",
            "DIR/good: record 0 at offset 0: not a valid tf.train.Example: the record has a field \
             numbered 0, at byte 0 of it; none of the 64 records nearest to it in the order is \
             good either, so none can replace it: check features and operators, and the files with \
             `shardfeed dataset verify`",
        ]
    );
    let cut = folder.path().join("cut");
    fs::write(&cut, &fs::read(&good).unwrap()[..24 * 50 + 5]).unwrap();
    let left_out =
        LoaderOptions { corrupt: Corrupt::SkipFile, corrupt_budget: none, ..of_file(&cut) };
    let said = open(left_out).map(drop).unwrap_err().to_string();
    assert_eq!(
        said.replace(folder.path().to_str().unwrap(), "DIR"),
        "damaged files were left out, 1 in all, and corrupt_budget allows 0 on this rank; the \
         first: DIR/cut: record 50 at offset 1200: DIR/cut: truncated: the file ends 7 bytes \
         before the end of a record's 12-byte header, in record 50 at byte 1200; copy the files \
         again, leave these out, or raise corrupt_budget="
    );
}

#[test]
fn a_file_that_changed_since_it_was_indexed_is_told_with_both_looks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let looks = |change: &dyn Fn()| {
        shard(&path, 4);
        let mut loader = open(of_file(&path)).unwrap();
        change();
        let said = ends(&mut loader).replace(folder.path().to_str().unwrap(), "DIR");
        // Times differ from run to run.
        let parts: Vec<_> = said.split(" at ").collect();
        let each = parts.iter().enumerate().map(|(place, part)| match place {
            0 => (*part).to_owned(),
            _ => format!("TIME{}", &part[part.find(" s").unwrap()..]),
        });
        each.collect::<Vec<_>>().join(" at ")
    };
    let said = [looks(&|| shard(&path, 5)), looks(&|| fs::remove_file(&path).unwrap())];
    assert_eq!(
        said,
        [
            "DIR/a: changed after it was indexed (96 bytes, modified at TIME s; now 120 bytes, \
             modified at TIME s); leave the files of a dataset alone while it is read, and create \
             the loader again to reindex it",
            "DIR/a: changed after it was indexed (96 bytes, modified at TIME s; now it is gone); \
             leave the files of a dataset alone while it is read, and create the loader again to \
             reindex it",
        ]
    );
}

#[test]
fn a_job_has_a_name_that_a_coordinator_would_accept() {
    let folder = tempfile::tempdir().unwrap();
    shard(&folder.path().join("a"), 4);
    let said = ["", "a\nb", &"x".repeat(201), "train"].map(|job| {
        let options = LoaderOptions { job: Some(job.into()), ..of_file(&folder.path().join("a")) };
        open(options).map(drop).map_err(|error| error.to_string())
    });
    assert_eq!(
        said,
        [
            Err("the job's name is empty".to_owned()),
            Err("the job's name \"a\\nb\" has characters that cannot be printed".to_owned()),
            Err("the job's name has 201 bytes; at most 200 are allowed".to_owned()),
            Ok(()),
        ]
    );
}

#[test]
fn what_needs_a_coordinator_says_so() {
    let folder = tempfile::tempdir().unwrap();
    shard(&folder.path().join("a"), 4);
    let mut loader = open(of_file(&folder.path().join("a"))).unwrap();
    let latest = loader.load_latest(&mut |_| true).unwrap_err().to_string();
    assert_eq!(latest, "resume=\"latest\" needs a coordinator; pass a state_dict()");
}

#[test]
fn a_worker_that_leaves_or_is_none_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.sock");
    let patience = Duration::from_secs(20);
    let answer = || {
        let said = worker_answers(&path, patience).unwrap_err().to_string();
        said.replace(folder.path().to_str().unwrap(), "DIR")
    };
    let mut said = vec![answer()];
    let listener = Listener::bind(&path, ListenOptions::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept(patience)));
        said.push(answer());
    });
    assert_eq!(
        said,
        [
            "no worker at DIR/w.sock: there is no such file; is the worker started, is this its path?",
            "the worker at DIR/w.sock closed the connection at once: it is ending, or see its log",
        ]
    );
}
