//! A separate folder for each test, and the binary running in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use shardfeed_embedded::{Delivered, LoaderOptions};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, create, open_source,
};
use tempfile::TempDir;

/// A folder in which the binary runs.
pub(crate) struct Place {
    folder: TempDir,
}

/// Result of a run of the binary.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Creates a place with shards `s-0.tfrecord`, ... of `counts` records.
    pub(crate) fn with_shards(counts: &[usize]) -> Self {
        let place = Self::new();
        for (shard, &count) in counts.iter().enumerate() {
            let records: Vec<_> = (0..count).map(|i| format!("record {i} of {shard}")).collect();
            place.shard(&format!("s-{shard}.tfrecord"), Compression::None, &records);
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, data: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }

    pub(crate) fn shard(&self, name: &str, compression: Compression, records: &[impl AsRef<[u8]>]) {
        let mut writer = create(self.path(name), compression).unwrap();
        for record in records {
            writer.write(record.as_ref()).unwrap();
        }
        writer.finish().unwrap();
    }

    /// Inverts the byte at `at` of a file.
    pub(crate) fn damage(&self, name: &str, at: usize) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        bytes[at] ^= 0xff;
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Truncates a file.
    pub(crate) fn truncate(&self, name: &str, len: usize) {
        let bytes = fs::read(self.path(name)).unwrap();
        fs::write(self.path(name), &bytes[..len]).unwrap();
    }

    /// Returns the names in a folder, sorted, including hidden ones.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Options of a loader of the files here, with the binary's defaults.
    pub(crate) fn loader(&self, pattern: &str) -> LoaderOptions {
        LoaderOptions {
            files: vec![self.path(pattern).to_str().unwrap().to_owned()],
            cache: shardfeed_embedded::CacheChoice::Off.into(),
            ..LoaderOptions::default()
        }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardfeed"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .env("SHARDFEED_CACHE_DIR", self.path("cache"))
            .env("TMPDIR", self.folder.path())
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("SHARDFEED_CONTEXT")
            .env_remove("SHARDFEED_PYTHON")
            .env_remove("SHARDFEED_LOG")
            .env_remove("SHARDFEED_COORDINATOR")
            .env_remove("SHARDFEED_WORKER")
            .env_remove("COLUMNS");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran {
            code: output.status.code().expect("no signal ended it"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs a command that must succeed with an empty stderr; returns stdout.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
        ran.stdout
    }

    /// Runs a command that must succeed, with JSON output.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    /// Runs a command that must fail with an empty stdout; returns the exit code and stderr, with
    /// `$DIR` for this folder.
    pub(crate) fn fails(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.stdout, "", "{args:?}");
        format!("exit {}\n{}", ran.code, self.portable(&ran.stderr))
    }

    /// Replaces this folder in the text by `$DIR`.
    pub(crate) fn portable(&self, text: &str) -> String {
        text.replace(self.folder.path().to_str().unwrap(), "$DIR")
    }
}

/// Returns shard, ordinal and validity of a batch's rows.
pub(crate) fn rows_of(delivered: &mut Delivered) -> Vec<(u32, u64, bool)> {
    let batch = &mut delivered.batch;
    let numbers = |bytes: Vec<u8>| -> Vec<i64> {
        bytes.chunks_exact(8).map(|number| i64::from_ne_bytes(number.try_into().unwrap())).collect()
    };
    let shards = numbers(batch.slot.read(&batch.shards));
    let ordinals = numbers(batch.slot.read(&batch.ordinals));
    let valid = batch.slot.read(&batch.valid);
    let rows = shards.into_iter().zip(ordinals).zip(valid);
    rows.map(|((shard, ordinal), valid)| (shard as u32, ordinal as u64, valid != 0)).collect()
}

/// Returns all records of a file.
pub(crate) fn records(path: &Path) -> Vec<Vec<u8>> {
    let source = open_source(path, CompressionChoice::Auto).unwrap();
    let mut reader = ChunkReader::new(source, path.to_string_lossy(), ChunkOptions::default());
    let mut records = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        records.extend(chunk.iter().map(<[u8]>::to_vec));
    }
    records
}

/// Returns the strings in a field of a JSON array's items.
pub(crate) fn strings<'a>(array: &'a Value, field: &str) -> Vec<&'a str> {
    array.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}
