//! `shardfeed cluster snapshot`: backups of what a cluster knows.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::ClusterArgs;
use crate::error::Problem;
use crate::output::{self, Format, Report};

/// What can be done with backups.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Save what the cluster knows as a file
    #[command(long_about = SAVE_ABOUT)]
    Save(SaveArgs),
}

const SAVE_ABOUT: &str = "\
Save what the cluster knows as a file

Datasets with their manifests, jobs, generations, cursors: what a new cluster goes on from. Records are in the \
shards, not here. The file is whole or not there.";

/// Arguments of `cluster snapshot save`.
#[derive(Debug, Args)]
pub(crate) struct SaveArgs {
    /// The file to make
    file: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A backup that was made.
#[derive(Debug, Serialize)]
struct SavedReport {
    file: String,
    bytes: u64,
    /// Index of the last log entry in it.
    applied_index: u64,
}

pub(super) fn run(command: &SnapshotCommand, format: Format) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Save(args) => save(args, format),
    }
}

fn save(args: &SaveArgs, format: Format) -> anyhow::Result<()> {
    let name = args.file.display().to_string();
    if args.file.try_exists().with_context(|| name.clone())? {
        let what = format!("{name} is there already");
        return Err(Problem::failed(what)
            .hint("choose another name, or remove it yourself")
            .into());
    }
    let folder = match args.file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let unwritten = || format!("cannot write {name}");
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(unwritten)?;
    let client = args.cluster.client();
    let mut stream = client.call(|mut admin, context| async move {
        admin.save_snapshot(wire::SaveSnapshotRequest { context }).await
    })?;
    let (mut bytes, mut applied_index) = (0, 0);
    while let Some((part, rest)) = client.next(stream)? {
        file.write_all(&part.content).with_context(unwritten)?;
        bytes += part.content.len() as u64;
        (applied_index, stream) = (part.applied, rest);
    }
    if bytes == 0 {
        return Err(Problem::failed("the coordinator sent an empty snapshot").into());
    }
    file.as_file().sync_all().with_context(unwritten)?;
    file.persist_noclobber(&args.file).map_err(|error| error.error).with_context(unwritten)?;
    fs::File::open(folder).and_then(|folder| folder.sync_all()).with_context(unwritten)?;
    Ok(format.print(&SavedReport { file: name, bytes, applied_index })?)
}

impl Report for SavedReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        output::write_facts(
            out,
            &[
                ("saved", self.file.clone()),
                ("size", output::bytes(self.bytes)),
                ("applied index", output::count(self.applied_index)),
            ],
        )
    }
}
