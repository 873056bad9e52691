//! `shardfeed dataset verify`: checks every byte of a dataset.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use rayon::prelude::*;
use serde::Serialize;
use shardfeed_source::{Found, LoadError, Sidecars, StoredFile};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, ReadError, ReadErrorKind,
};

use crate::files::{FilesArgs, InputFile};
use crate::output::{self, Format, Grid, ROWS_LISTED, Report};
use crate::problem::Problem;
use crate::progress::{self, Counted};
use crate::sidecar::{self, FaultReport};

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset verify 'train/*.tfrecord'
  shardfeed dataset verify --exclude whole.txt 'train/*'; shardfeed dataset add whole @whole.txt
  shardfeed dataset verify -o json 'train/*' | jq '.files[] | select(.damage != [])'";

/// Read every byte and report every damaged record
///
/// Checks the length and the data of each record against their checksums. After damaged data
/// reading continues; after a damaged length, a cut or a damaged compressed stream no further
/// record of the file can be found. Offsets are of the uncompressed file. Numbers of records are
/// compared with the .idx files of tfrecord2idx and TFDS's dataset_info.json beside the files: a
/// file that ends too early between two records looks whole otherwise. --exclude lists whole files;
/// `@OUT` then names them wherever files are named. To use the good records of damaged files, too,
/// train with corrupt="skip-record". Exits with 1 if anything is damaged or numbers differ.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArgs {
    #[command(flatten)]
    files: FilesArgs,
    /// Write the paths of undamaged files to OUT, one per line, for use as the dataset @OUT
    #[arg(long, value_name = "OUT")]
    exclude: Option<PathBuf>,
    /// Show all files, not only damaged ones and the first 20 others
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct Verification {
    root: String,
    /// Number of files.
    file_count: usize,
    /// Number of files that are damaged or could not be read.
    files_damaged: usize,
    records_ok: u64,
    records_damaged: u64,
    stored_bytes: u64,
    /// Files in the bytewise order of their paths.
    files: Vec<FileReport>,
    /// Wrong or damaged information in files beside these.
    sidecar_faults: Vec<FaultReport>,
    #[serde(skip)]
    good_listed: usize,
}

#[derive(Debug, Default, Serialize)]
struct FileReport {
    /// Path relative to `root`.
    path: String,
    /// Compression of the file; `null` if it could not be opened.
    compression: Option<Compression>,
    stored_bytes: u64,
    records_ok: u64,
    records_damaged: u64,
    /// True if the file was read to its end; otherwise there may have been more records.
    complete: bool,
    /// Damage in file order.
    damage: Vec<Damage>,
}

#[derive(Debug, Serialize)]
struct Damage {
    /// Number of the record in the file.
    ordinal: u64,
    /// Offset of its header in the uncompressed file, bytes.
    offset: u64,
    kind: DamageKind,
    /// Description of the damage.
    reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum DamageKind {
    NotATfrecord,
    Length,
    Data,
    Truncated,
    TooLarge,
    Decompress,
    /// The file could not be read; its records may be undamaged.
    Unreadable,
}

pub fn run(args: &VerifyArgs, format: Format) -> Result<()> {
    let found = args.files.discover()?;
    let verification = verify(&found, args.files.compression, args.all)?;
    format.print(&verification)?;
    if let Some(out) = &args.exclude {
        verification.write_whole(out).with_context(|| format!("write {}", out.display()))?;
    }
    verification.verdict()
}

fn verify(found: &Found, compression: CompressionChoice, all: bool) -> Result<Verification> {
    let files = InputFile::of(found);
    let bar = progress::bytes_bar("verifying", files.iter().map(InputFile::size_bytes).sum());
    let files: Vec<_> =
        files.into_par_iter().map(|file| verify_file(file, compression, &bar)).collect();
    bar.finish_and_clear();
    let sidecars = Sidecars::beside(&found.root, &found.paths, &mut |_| true)?;
    // The number of records of a damaged file is not compared.
    let records = files.iter().map(|file| (!file.is_damaged()).then_some(file.records_ok));
    let records: Vec<_> = records.collect();
    Ok(Verification {
        root: found.root.display().to_string(),
        file_count: files.len(),
        files_damaged: files.iter().filter(|file| file.is_damaged()).count(),
        records_ok: files.iter().map(|file| file.records_ok).sum(),
        records_damaged: files.iter().map(|file| file.records_damaged).sum(),
        stored_bytes: files.iter().map(|file| file.stored_bytes).sum(),
        files,
        sidecar_faults: sidecar::faults(&sidecars, &found.paths, &records),
        good_listed: if all { usize::MAX } else { ROWS_LISTED },
    })
}

fn verify_file(input: InputFile, compression: CompressionChoice, bar: &ProgressBar) -> FileReport {
    let InputFile { name, path, stamp } = input;
    let mut report = FileReport { path: name, ..FileReport::default() };
    let opened = StoredFile::open(&path, stamp.as_ref()).map_err(|error| match error {
        LoadError::Io { source, .. } => ReadErrorKind::Open(source),
        error => ReadErrorKind::Open(io::Error::other(error)),
    });
    let name = path.display().to_string();
    let read = opened.and_then(|file| read_file(file, &name, compression, bar, &mut report));
    if let Err(kind) = read {
        report.add(0, 0, &kind);
    }
    report
}

/// Reads a file into its report; fails if it cannot be opened.
fn read_file(
    file: StoredFile,
    name: &str,
    compression: CompressionChoice,
    bar: &ProgressBar,
    report: &mut FileReport,
) -> Result<(), ReadErrorKind> {
    report.stored_bytes = file.size_bytes;
    let source = Decoder::new(Counted { file, bar }, compression)?;
    report.compression = Some(source.compression());
    read_records(ChunkReader::new(source, name, ChunkOptions::default()), report);
    Ok(())
}

fn read_records(mut chunks: ChunkReader<impl Read>, report: &mut FileReport) {
    loop {
        match chunks.next_chunk() {
            Ok(Some(chunk)) => {
                report.records_ok += chunk.records.len() as u64;
                chunks.recycle(chunk.bytes);
            }
            Ok(None) => {
                report.complete = true;
                return;
            }
            Err(ReadError { offset, ordinal, kind, .. }) => {
                report.add(ordinal, offset, &kind);
                if !chunks.resume_after_error() {
                    return;
                }
            }
        }
    }
}

impl FileReport {
    fn is_damaged(&self) -> bool {
        !self.damage.is_empty()
    }

    fn add(&mut self, ordinal: u64, offset: u64, kind: &ReadErrorKind) {
        let reason = kind.to_string();
        let kind = DamageKind::of(kind);
        if kind != DamageKind::Unreadable {
            self.records_damaged += 1;
        }
        self.damage.push(Damage { ordinal, offset, kind, reason });
    }
}

impl DamageKind {
    fn of(kind: &ReadErrorKind) -> Self {
        match kind {
            ReadErrorKind::NotATfrecord { .. } => Self::NotATfrecord,
            ReadErrorKind::LengthCrc { .. } => Self::Length,
            ReadErrorKind::DataCrc { .. } => Self::Data,
            ReadErrorKind::TruncatedHeader { .. } | ReadErrorKind::TruncatedData { .. } => {
                Self::Truncated
            }
            ReadErrorKind::TooLarge { .. } => Self::TooLarge,
            ReadErrorKind::Decompress { .. } => Self::Decompress,
            _ => Self::Unreadable,
        }
    }
}

impl Verification {
    fn verdict(&self) -> Result<()> {
        if self.files_damaged == 0 && self.sidecar_faults.is_empty() {
            return Ok(());
        }
        if self.files_damaged == 0 {
            let faults = output::counted(self.sidecar_faults.len() as u64, "fault");
            let what =
                format!("no damage, but the metadata beside the files contradicts them: {faults}");
            return Err(Problem::failed(what)
                .hint(
                    "a file may end too early, between two records: copy it again from its source; \
                     or regenerate the .idx files",
                )
                .into());
        }
        let what = format!(
            "{} of {} damaged or unreadable, with {} found",
            self.files_damaged,
            output::counted(self.file_count as u64, "file"),
            output::counted(self.records_damaged, "damaged record")
        );
        Err(Problem::failed(what)
            .hint("copy these files again from their source, or rewrite them")
            .into())
    }

    /// Writes the absolute paths of all undamaged files, one per line.
    fn write_whole(&self, out: &Path) -> Result<()> {
        let mut text = String::new();
        for file in self.files.iter().filter(|file| !file.is_damaged()) {
            let path = Path::new(&self.root).join(&file.path).display().to_string();
            if path.contains('\n') {
                let what = format!("{path:?} has an end of line in its name");
                return Err(Problem::failed(what)
                    .hint("rename it: the list has a path a line")
                    .into());
            }
            text.push_str(&path);
            text.push('\n');
        }
        Ok(std::fs::write(out, text)?)
    }

    fn write_files(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut grid = Grid::new(&["FILE", ">OK", ">DAMAGED", ">STORED BYTES", "READ"]);
        let mut good = 0;
        for file in &self.files {
            if !file.is_damaged() {
                good += 1;
                if good > self.good_listed {
                    continue;
                }
            }
            grid.row([
                file.path.clone(),
                file.records_ok.to_string(),
                file.records_damaged.to_string(),
                file.stored_bytes.to_string(),
                if file.complete { "whole" } else { "in part" }.into(),
            ]);
        }
        write!(out, "\n{grid}")?;
        output::write_rest(out, good.saturating_sub(self.good_listed), "good files")
    }

    fn write_damage(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.files_damaged == 0 {
            return Ok(());
        }
        let mut grid = Grid::new(&["DAMAGED FILE", ">RECORD", ">OFFSET", "REASON"]);
        for file in &self.files {
            for Damage { ordinal, offset, reason, .. } in &file.damage {
                let (ordinal, offset) = (ordinal.to_string(), offset.to_string());
                grid.row([file.path.clone(), ordinal, offset, reason.clone()]);
            }
        }
        write!(out, "\n{grid}")
    }
}

impl Report for Verification {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let facts = [
            ("root", self.root.clone()),
            ("files", output::count(self.file_count as u64)),
            ("files damaged", output::count(self.files_damaged as u64)),
            ("records ok", output::count(self.records_ok)),
            ("records damaged", output::count(self.records_damaged)),
            ("stored", output::bytes(self.stored_bytes)),
        ];
        output::write_facts(out, &facts)?;
        self.write_files(out)?;
        self.write_damage(out)?;
        sidecar::write_faults(out, &self.sidecar_faults)
    }
}
