//! `shardfeed cluster snapshot`: backups of a cluster's state.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_coordinator::{CoordinatorOptions, Restored, restore_snapshot};
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::ClusterArgs;
use crate::error::Problem;
use crate::output::{self, Format, Report};

/// Subcommands of `cluster snapshot`.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Save the cluster's state to a file
    #[command(long_about = SAVE_ABOUT)]
    Save(SaveArgs),
    /// Create the data folder of a new cluster from a backup
    #[command(long_about = RESTORE_ABOUT)]
    Restore(RestoreArgs),
}

const RESTORE_ABOUT: &str = "\
Make the data folder of a new cluster from a saved file

The new cluster has a new id and one node: start it over the folder, with the same number and name \
and as the user who owns the folder, then start others over empty folders with `--join` and add \
them with `cluster add`. No process of the old cluster may be running, or workers and trainers \
could not determine which one is valid.";

/// Arguments of `cluster snapshot restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Backup file that `cluster snapshot save` created
    file: PathBuf,
    /// Folder for the new cluster's data; must be empty or missing
    #[arg(long = "data-dir", value_name = "DIR")]
    data_dir: PathBuf,
    /// Number of the node that will use the folder
    #[arg(long, value_name = "NODE", default_value_t = 1)]
    node_id: u64,
    /// Address at which workers and people will reach it [default: its listen address]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Name of the new cluster, as in its nodes' option `cluster-name` [default: shardfeed]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
}

/// Result of `cluster snapshot restore`.
#[derive(Debug, Serialize)]
struct RestoredReport {
    data_dir: String,
    cluster: String,
    from_cluster: String,
    /// Index of the last log entry in the backup.
    applied_index: u64,
    chunks: u64,
}

const SAVE_ABOUT: &str = "\
Save the state of the cluster as a file

It holds datasets with their manifests, jobs, generations and cursors, from which a new cluster \
continues. Records are in the shards, not here. The file is complete or absent.";

/// Arguments of `cluster snapshot save`.
#[derive(Debug, Args)]
pub(crate) struct SaveArgs {
    /// File to create
    file: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Result of `cluster snapshot save`.
#[derive(Debug, Serialize)]
struct SavedReport {
    file: String,
    bytes: u64,
    /// Index of the last log entry in the backup.
    applied_index: u64,
}

pub(super) fn run(command: &SnapshotCommand, format: Format) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Save(args) => save(args, format),
        SnapshotCommand::Restore(args) => restore(args, format),
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
    // The original error names the temporary file, which would confuse the user.
    let file = tempfile::NamedTempFile::new_in(folder);
    let mut file = file.map_err(|error| io::Error::from(error.kind())).with_context(unwritten)?;
    let client = args.cluster.client()?;
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

fn restore(args: &RestoreArgs, format: Format) -> anyhow::Result<()> {
    let RestoreArgs { file, data_dir, node_id, advertise, cluster_name } = args;
    let defaults = CoordinatorOptions::new(data_dir);
    let cluster_name = cluster_name.clone().unwrap_or_else(|| defaults.cluster_name.clone());
    let options = CoordinatorOptions {
        node_id: *node_id,
        advertise: advertise.clone(),
        cluster_name,
        ..defaults
    };
    let Restored { cluster, from_cluster, applied, chunks } =
        restore_snapshot(file, data_dir, &options)?;
    let data_dir = data_dir.display().to_string();
    let applied_index = applied;
    let report = RestoredReport { data_dir, cluster, from_cluster, applied_index, chunks };
    Ok(format.print(&report)?)
}

impl Report for RestoredReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let facts = [
            ("data folder", self.data_dir.clone()),
            ("cluster", self.cluster.clone()),
            ("backup of cluster", self.from_cluster.clone()),
            ("applied index", output::count(self.applied_index)),
            ("chunks", output::count(self.chunks)),
        ];
        output::write_facts(out, &facts)
    }
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
