//! `shardfeed cluster snapshot`: backups of a cluster's state.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;
use shardfeed_coordinator::{CoordinatorOptions, Restored, restore_snapshot};
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::ClusterArgs;
use crate::error::Problem;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Save the cluster's state to a file
    ///
    /// It holds datasets with their manifests, jobs, generations and cursors, from which a new
    /// cluster continues. Records are in the shards, not here. The file is complete or absent.
    Save {
        /// File to create
        file: PathBuf,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    Restore(RestoreArgs),
}

/// Create the data folder of a new cluster from a backup
///
/// The new cluster has a new id and one node: start it over the folder, with the same number and
/// name and as the user who owns the folder, then start others over empty folders with `--join` and
/// add them with `cluster add`. No process of the old cluster may be running, or workers and
/// trainers could not determine which one is valid.
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

pub(super) fn run(command: &SnapshotCommand, format: Format) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Save { file, cluster } => save(file, cluster, format),
        SnapshotCommand::Restore(args) => restore(args, format),
    }
}

fn save(path: &Path, cluster: &ClusterArgs, format: Format) -> anyhow::Result<()> {
    let name = path.display().to_string();
    if path.try_exists().with_context(|| name.clone())? {
        let what = format!("{name} is there already");
        return Err(Problem::failed(what)
            .hint("choose another name, or remove it yourself")
            .into());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let unwritten = || format!("cannot write {name}");
    // The original error names the temporary file, which would confuse the user.
    let file = tempfile::NamedTempFile::new_in(folder);
    let mut file = file.map_err(|error| io::Error::from(error.kind())).with_context(unwritten)?;
    let client = cluster.client()?;
    let mut stream = client.call(wire::SaveSnapshotRequest::default())?;
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
    file.persist_noclobber(path).map_err(|error| error.error).with_context(unwritten)?;
    fs::File::open(folder).and_then(|folder| folder.sync_all()).with_context(unwritten)?;
    let text = output::facts(&[
        ("saved", name.clone()),
        ("size", output::bytes(bytes)),
        ("applied index", output::count(applied_index)),
    ]);
    let fields = json!({ "file": name, "bytes": bytes, "applied_index": applied_index });
    Ok(format.print_brief(fields, text)?)
}

fn restore(args: &RestoreArgs, format: Format) -> anyhow::Result<()> {
    let RestoreArgs { file, data_dir, node_id, advertise, cluster_name } = args;
    let defaults = CoordinatorOptions::new(data_dir);
    let cluster_name = cluster_name.clone().unwrap_or_else(|| defaults.cluster_name.clone());
    let (node_id, advertise) = (*node_id, advertise.clone());
    let options = CoordinatorOptions { node_id, advertise, cluster_name, ..defaults };
    let Restored { cluster, from_cluster, applied, chunks } =
        restore_snapshot(file, data_dir, &options)?;
    let data_dir = data_dir.display().to_string();
    let text = output::facts(&[
        ("data folder", data_dir.clone()),
        ("cluster", cluster.clone()),
        ("backup of cluster", from_cluster.clone()),
        ("applied index", output::count(applied)),
        ("chunks", output::count(chunks)),
    ]);
    let fields = json!({
        "data_dir": data_dir,
        "cluster": cluster,
        "from_cluster": from_cluster,
        "applied_index": applied,
        "chunks": chunks,
    });
    Ok(format.print_brief(fields, text)?)
}
