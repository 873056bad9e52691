//! `shardfeed dataset write`: writes TFRecord shards from a folder, a list of files or a CSV file.

mod csv_source;
mod deal;
mod file_list;
mod folder;
mod lines;
mod source;
mod staging;
mod whole;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use rayon::prelude::*;
use serde::Serialize;
use shardfeed_tfrecord::Compression;

use self::csv_source::CsvSource;
use self::deal::Deal;
use self::file_list::FileList;
use self::source::{Classes, Source};
use self::staging::{ShardNames, Staging};
use crate::files::{SCHEMES, one_of};
use crate::output::{self, Format, Report};
use crate::problem::Problem;
use crate::progress;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset write photos/ out/ --shard-bytes 150MB
  shardfeed dataset write prices.csv out/ --compression gzip --prefix train
  shardfeed dataset write train.txt out/";

/// Write a folder, a file list or a CSV file as TFRecord shards
///
/// A folder: each file is one Example with `data` (bytes, the file) and `path` (bytes, relative to
/// SOURCE). If the files are in subfolders, these are classes: `class` (bytes) is the first folder
/// of the path, `label` (int64) its number in the bytewise order of those that hold files. Names
/// that start with a dot are passed over.
///
/// A .csv file: the first row names the columns, each further row is one Example. A column whose
/// every value is an integer is int64, else if every value is a number float32, else bytes. An
/// empty cell is a feature that is absent.
///
/// A .txt file: each line is the path of a file, relative to the list, with `data` and `path` (as
/// in the list). A label may follow after a tab, or, in all lines, after a space: integers are
/// `label` (int64); if any is no integer, all are names of classes, as folders are above.
///
/// Records are divided among the shards at random, so that shards are alike; the same source and
/// options give the same bytes. The shards appear under their names when all of them are written.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WriteArgs {
    /// Folder of files, or a .csv or .txt file
    source: PathBuf,
    /// Folder for the shards; created if it is missing
    out_dir: PathBuf,
    /// Approximate size of a shard before compression: KB, MB, GB, KiB, MiB or GiB
    #[arg(long, default_value = "150MB", value_name = "SIZE", value_parser = size::parse_bytes)]
    shard_bytes: u64,
    /// Seed of the distribution among the shards
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Compression of the shards
    #[arg(long, default_value = "none", value_name = "SCHEME")]
    #[arg(value_parser = one_of::<Compression>(&SCHEMES[1..]))]
    compression: Compression,
    /// Prefix of the shards' names [default: the source's name]
    #[arg(long, value_name = "NAME", value_parser = parse_prefix)]
    prefix: Option<String>,
    /// Replace existing shards with this prefix in OUT_DIR
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Serialize)]
struct Written {
    /// Folder of the shards.
    folder: String,
    records: u64,
    shard_count: usize,
    stream_bytes: u64,
    stored_bytes: u64,
    compression: Compression,
    /// Classes that the labels refer to; `null` without classes.
    classes: Option<Classes>,
    /// Shards in order.
    shards: Vec<WrittenShard>,
}

#[derive(Debug, Serialize)]
struct WrittenShard {
    name: String,
    records: u64,
    stream_bytes: u64,
    stored_bytes: u64,
}

pub fn run(args: &WriteArgs, format: Format) -> anyhow::Result<()> {
    let kind = SourceKind::of(&args.source)?;
    check_outside(&args.source, &args.out_dir)?;
    let prefix = match &args.prefix {
        Some(prefix) => prefix.clone(),
        None => prefix_of(&args.source)?,
    };
    let staging = Staging::new(&args.out_dir, &prefix, args.force)?;
    let source = kind.open(&args.source)?;
    let deal = Deal::new(source.record_bytes(), args.shard_bytes, args.seed)?;
    let names = ShardNames::new(&prefix, deal.shards(), args.compression);
    let shards = write_shards(source.as_ref(), &deal, &staging, &names)?;
    source.check_unchanged()?;
    let folder = staging.publish(&names)?;
    let written = Written {
        folder: folder.display().to_string(),
        records: shards.iter().map(|shard| shard.records).sum(),
        shard_count: shards.len(),
        stream_bytes: shards.iter().map(|shard| shard.stream_bytes).sum(),
        stored_bytes: shards.iter().map(|shard| shard.stored_bytes).sum(),
        compression: args.compression,
        classes: source.classes(),
        shards,
    };
    Ok(format.print(&written)?)
}

#[derive(Clone, Copy)]
enum SourceKind {
    Folder,
    Csv,
    List,
}

impl SourceKind {
    /// Determines the kind of the source, before anything is created.
    fn of(path: &Path) -> anyhow::Result<Self> {
        let found =
            fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        let extension = path.extension().unwrap_or_default();
        if found.is_dir() {
            Ok(Self::Folder)
        } else if extension.eq_ignore_ascii_case("csv") {
            Ok(Self::Csv)
        } else if extension.eq_ignore_ascii_case("txt") {
            Ok(Self::List)
        } else {
            let what = format!("{}: neither a folder nor a .csv or .txt file", path.display());
            let hint = "give a folder of files, or a file whose name ends in .csv or .txt";
            Err(Problem::usage(what).hint(hint).into())
        }
    }

    fn open(self, path: &Path) -> anyhow::Result<Box<dyn Source>> {
        Ok(match self {
            Self::Folder => Box::new(folder::open(path)?),
            Self::Csv => Box::new(CsvSource::open(path)?),
            Self::List => Box::new(FileList::open(path)?),
        })
    }
}

/// Rejects an output folder inside the source: its shards would become source files.
fn check_outside(source: &Path, out_dir: &Path) -> anyhow::Result<()> {
    let source = resolve(source)?;
    let out_dir = resolve(out_dir)?;
    if !out_dir.starts_with(&source) {
        return Ok(());
    }
    let what = format!("{} is inside the source {}", out_dir.display(), source.display());
    Err(Problem::usage(what).hint("name a folder outside of it").into())
}

/// Resolves links in the existing part of the path.
fn resolve(path: &Path) -> anyhow::Result<PathBuf> {
    let absolute =
        std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))?;
    let resolved = absolute.ancestors().find_map(|ancestor| {
        let there = ancestor.canonicalize().ok()?;
        let rest = absolute.strip_prefix(ancestor).ok()?;
        // Joining an empty path would add a slash.
        Some(if rest.as_os_str().is_empty() { there } else { there.join(rest) })
    });
    Ok(resolved.unwrap_or(absolute))
}

/// Writes the shards in parallel; each thread holds one record in memory.
fn write_shards(
    source: &dyn Source,
    deal: &Deal,
    staging: &Staging,
    names: &ShardNames,
) -> anyhow::Result<Vec<WrittenShard>> {
    let bar = progress::bytes_bar("writing", source.record_bytes().iter().sum());
    let write = |shard: usize| {
        let name = names.name(shard);
        let path = staging.folder.join(&name);
        let context = || format!("cannot write {}", path.display());
        let mut writer =
            shardfeed_tfrecord::create(&path, names.compression).with_context(context)?;
        let mut encoder = source.encoder()?;
        let mut record = Vec::new();
        for &index in deal.records(shard) {
            record.clear();
            encoder.encode(index as usize, &mut record)?;
            writer.write(&record).with_context(context)?;
            bar.inc(record.len() as u64);
        }
        let (records, stream_bytes) = (writer.records(), writer.bytes());
        writer.finish().with_context(context)?;
        let stored_bytes = fs::metadata(&path).with_context(context)?.len();
        Ok(WrittenShard { name, records, stream_bytes, stored_bytes })
    };
    let written = (0..deal.shards()).into_par_iter().map(write).collect();
    bar.finish_and_clear();
    written
}

fn prefix_of(source: &Path) -> anyhow::Result<String> {
    // Canonicalization gives `.` and `..` a name.
    let absolute =
        source.canonicalize().with_context(|| format!("cannot read {}", source.display()))?;
    let name = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
    let name = name.and_then(|name| name.to_str()).unwrap_or_default();
    parse_prefix(name).map_err(|reason| {
        let what = format!("the source's name makes no prefix: {reason}");
        Problem::usage(what).hint("name one with --prefix").into()
    })
}

fn parse_prefix(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    if text.starts_with('.') {
        return Err("it starts with a dot, which hides files".into());
    }
    if text.contains(|c: char| c == '/' || c.is_control()) {
        return Err("it holds a slash or a control character".into());
    }
    Ok(text.to_owned())
}

impl Report for Written {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let mut size = output::bytes(self.stored_bytes);
        if self.compression != Compression::None {
            size += &format!(", {} from {}", self.compression, output::bytes(self.stream_bytes));
        }
        let names = match self.shards.as_slice() {
            [] => String::new(),
            [only] => only.name.clone(),
            [first, .., last] => format!("{} to {}", first.name, last.name),
        };
        let facts = [
            ("records", output::count(self.records)),
            ("shards", output::count(self.shard_count as u64)),
            ("size", size),
            ("folder", self.folder.clone()),
            ("files", names),
        ];
        output::write_facts(out, &facts)
    }
}
