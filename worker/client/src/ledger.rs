//! Log of every sample that a rank was given, one per line, for external verification.
//!
//! With `SHARDFEED_LEDGER=dir` each rank appends to `dir/rank-R`, a further replica of it to
//! `dir/replica-I/rank-R`: one line
//! `start generation epoch step world_size batch_size` when it begins a generation, and for each
//! entry of a batch that was handed out one line
//! `generation epoch step entry source source_epoch shard sample record row first count valid`. After the
//! start of a generation, each part of its epoch that was left out has a line
//! `left_out generation epoch first end`: the first step, and the first one after it.
//!
//! - `entry`: index in this rank's batch.
//! - `source`, `source_epoch`: of a mixture; otherwise `-` and the epoch.
//! - `shard`: path relative to the dataset of the source; control characters and `%` in it are written as `%XX`.
//! - `sample`: index among the samples of the shard. `record`: index of its record among all records
//!   of the shard; with a filter or `unbatch` the two differ.
//! - `row`: with `unbatch` the index of the record's row, otherwise 0.
//! - `first`, `count`: a pack has a line for each of its parts, with the first token of the record or
//!   row and the number of tokens; an appended token counts as the last one. Otherwise 0 and 1.
//! - `valid`: `1`; `pad` for padding; `skip` for the entry of a corrupt record.
//!
//! A `start` line precedes the first batch of its generation: a rank that dies before writes none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use shardfeed_plan::{Cursor, Planned, Sample};
use shardfeed_source::{LoadError, SamplePart};

use crate::contents::Contents;
use crate::head::Head;
use crate::options::LoaderOptions;
use crate::parts::RecordParts;

#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    text: String,
    parts: RecordParts,
}

impl Ledger {
    /// Opens the ledger of `rank` if `SHARDFEED_LEDGER` is set.
    ///
    /// # Errors  The file cannot be created.
    pub(crate) fn from_environment(
        rank: u64,
        options: &LoaderOptions,
    ) -> Result<Option<Self>, LoadError> {
        let Some(folder) = std::env::var_os("SHARDFEED_LEDGER").filter(|dir| !dir.is_empty())
        else {
            return Ok(None);
        };
        let mut path = PathBuf::from(folder);
        if options.replica > 0 {
            path.push(format!("replica-{}", options.replica));
        }
        path.push(format!("rank-{rank}"));
        let open = || {
            fs::create_dir_all(path.parent().expect("joined to a folder"))?;
            let mut file = OpenOptions::new().create(true).read(true).append(true).open(&path)?;
            cut_torn_line(&mut file)?;
            Ok(file)
        };
        let file = open().map_err(|source| LoadError::Ledger { path: path.clone(), source })?;
        let parts = RecordParts::new(options.shuffle);
        Ok(Some(Self { path, file, text: String::new(), parts }))
    }

    pub(crate) fn begin(&mut self, cursor: &Cursor) -> Result<(), LoadError> {
        let start = cursor.start();
        self.text = format!(
            "start {} {} {} {} {}\n",
            cursor.generation(),
            cursor.epoch(),
            cursor.step(),
            start.world_size,
            start.batch_size
        );
        for (first, end) in cursor.left_out().ranges() {
            let (generation, epoch) = (cursor.generation(), cursor.epoch());
            self.text += &format!("left_out {generation} {epoch} {first} {end}\n");
        }
        self.append()
    }

    /// Records that a batch is consumed.
    pub(crate) fn hand_out(
        &mut self,
        generation: u64,
        head: &Head,
        contents: &Contents,
    ) -> Result<(), LoadError> {
        use std::fmt::Write as _;
        self.text.clear();
        let Head { epoch, step, .. } = head;
        let corrupt = head.skipped.iter().map(|skipped| skipped.sample);
        // Padding may repeat a corrupt record in its own batch, and is not listed as skipped.
        let mut corrupt: Vec<Sample> = corrupt.collect();
        for (entry, &Planned { portion, sample, valid }) in head.samples.iter().enumerate() {
            let valid = match corrupt.iter().position(|one| *one == sample) {
                _ if valid => "1",
                Some(place) => {
                    corrupt.swap_remove(place);
                    "skip"
                }
                None => "pad",
            };
            let (source, source_epoch) = match &contents.mixed {
                Some(mixed) => (mixed.version(sample.shard).order.name(), portion.epoch),
                None => ("-", *epoch),
            };
            for part in self.parts.of(sample, source_epoch, contents.samples.as_deref()) {
                let SamplePart { record, row, first, tokens } = *part;
                let _ = write!(
                    self.text,
                    "{generation} {epoch} {step} {entry} {source} {source_epoch} "
                );
                escape(&contents.shards[sample.shard as usize].path, &mut self.text);
                let ordinal = sample.ordinal;
                let _ = writeln!(self.text, " {ordinal} {record} {row} {first} {tokens} {valid}");
            }
        }
        self.append()
    }

    /// Appends the text entirely or not at all.
    ///
    /// A partial write, after a full disk or a kill, is truncated at once or at the next opening.
    fn append(&mut self) -> Result<(), LoadError> {
        let written = append_whole(&mut self.file, self.text.as_bytes());
        written.map_err(|source| LoadError::Ledger { path: self.path.clone(), source })
    }
}

fn append_whole(file: &mut File, text: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(text).inspect_err(|_| {
        // If this fails too, the torn line is truncated the next time the ledger is opened.
        let _ = file.set_len(before);
    })
}

/// Truncates a last line that has no line end.
fn cut_torn_line(file: &mut File) -> io::Result<()> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    if whole < text.len() { file.set_len(whole as u64) } else { Ok(()) }
}

fn escape(path: &str, out: &mut String) {
    for character in path.chars() {
        if character == '%' || character.is_control() {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(character);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0");
        fs::write(&path, "start 0 0 0 1 1\n0 0 0 0 - 0 a 1 1 0 0 1 1\n0 0 1 0 - 0 a").unwrap();
        let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        cut_torn_line(&mut file).unwrap();
        append_whole(&mut file, b"0 0 1 0 - 0 a 2 2 0 0 1 1\n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "start 0 0 0 1 1\n0 0 0 0 - 0 a 1 1 0 0 1 1\n0 0 1 0 - 0 a 2 2 0 0 1 1\n");
    }

    #[test]
    fn a_path_stays_on_its_line() {
        let mut out = String::new();
        escape("a b/100%\n.tfrecord", &mut out);
        assert_eq!(out, "a b/100%25%0A.tfrecord");
    }
}
