//! `shardfeed context`: named clusters, for people who work with several.
//!
//! They are in `contexts.toml` in the user's configuration folder, which is replaced atomically.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use shardfeed_agent::{CredentialOptions, Whereabouts};

use crate::error::{Exit, Problem};
use crate::output::listing::{self, Column, Shown, column};
use crate::output::{Format, Report, list_report};

const EXAMPLES: &str = "\
They are kept in $XDG_CONFIG_HOME/shardfeed/contexts.toml, else ~/.config/shardfeed/contexts.toml. \
The first of these that is set selects the cluster: --coordinator, SHARDFEED_COORDINATOR, \
--context, SHARDFEED_CONTEXT, the one in use, 127.0.0.1:7070.

Examples:
  shardfeed context set prod --coordinator head-1:7070,head-2:7070,head-3:7070
  shardfeed context use prod
  shardfeed status --context staging";

const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum ContextCommand {
    /// List the named clusters
    List,
    /// Name a cluster, or change the address of a named one
    #[command(after_help = EXAMPLES)]
    Set {
        name: String,
        /// Address of the coordinator, or several with commas, or @PATH of an endpoint file
        #[arg(long, value_name = "HOST:PORT")]
        coordinator: Whereabouts,
        /// Folder with ca.crt, tls.crt and tls.key, as for --tls of other commands
        #[arg(long, value_name = "DIR")]
        tls: Option<PathBuf>,
        /// File with an access token, as for --token-file of other commands
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
    },
    /// Use this cluster by default from now on
    Use { name: String },
    /// Remove a name
    Remove { name: String },
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Cluster>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Cluster {
    coordinator: Whereabouts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

list_report!(ContextsReport { contexts: ContextReport }, "name", "contexts");

#[derive(Debug, Serialize)]
struct ContextReport {
    name: String,
    /// Addresses, or `@PATH` of an endpoint file.
    coordinator: String,
    /// Folder with certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<String>,
    /// File with an access token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<String>,
    /// True for the context in use.
    is_current: bool,
}

/// Returns the address and credentials of a context, or of the current one; `None`: there is none.
///
/// # Errors
/// The context does not exist; the file is invalid.
pub(super) fn cluster(name: Option<&str>) -> Result<Option<(Whereabouts, CredentialOptions)>> {
    let Contexts { current, contexts } = load()?;
    let Some(name) = name.map(ToOwned::to_owned).or(current) else {
        return Ok(None);
    };
    let found = contexts.get(&name).cloned().map(|cluster| {
        let Cluster { coordinator, tls, token_file } = cluster;
        Some((coordinator, CredentialOptions { tls, token_file, token: None }))
    });
    found.ok_or_else(|| unknown(&name, &contexts))
}

impl ContextCommand {
    pub(crate) fn run(&self, format: Format) -> Result<()> {
        let mut known = load()?;
        match self {
            Self::List => {}
            Self::Set { name, coordinator, tls, token_file } => {
                // Absolute paths are valid in every folder.
                let coordinator = coordinator.absolute().context("look where this folder is")?;
                let whole = |path: &PathBuf| std::path::absolute(path);
                let tls = tls.as_ref().map(whole).transpose()?;
                let token_file = token_file.as_ref().map(whole).transpose()?;
                let cluster = Cluster { coordinator, tls, token_file };
                known.contexts.insert(name.clone(), cluster);
                save(&known)?;
            }
            Self::Use { name } => {
                if !known.contexts.contains_key(name) {
                    return Err(unknown(name, &known.contexts));
                }
                known.current = Some(name.clone());
                save(&known)?;
            }
            Self::Remove { name } => {
                if known.contexts.remove(name).is_none() {
                    return Err(unknown(name, &known.contexts));
                }
                known.current.take_if(|current| current == name);
                save(&known)?;
            }
        }
        let Contexts { current, contexts } = known;
        let contexts = contexts.into_iter().map(|(name, cluster)| ContextReport {
            is_current: current.as_ref() == Some(&name),
            coordinator: cluster.coordinator.to_string(),
            tls: cluster.tls.map(|path| path.display().to_string()),
            token_file: cluster.token_file.map(|path| path.display().to_string()),
            name,
        });
        Ok(format.print(&ContextsReport { contexts: contexts.collect(), all: true })?)
    }
}

fn unknown(name: &str, known: &BTreeMap<String, Cluster>) -> anyhow::Error {
    let names: Vec<_> = known.keys().map(String::as_str).collect();
    let hint = match names.is_empty() {
        true => "`shardfeed context set NAME --coordinator HOST:PORT` makes one".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    };
    Problem::failed(format!("there is no context `{name}`")).exit(Exit::NotFound).hint(hint).into()
}

fn path() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
    let folder = folder.ok_or_else(|| {
        Problem::failed("there is no folder for contexts: neither XDG_CONFIG_HOME nor HOME is set")
            .hint("set one of them, or give --coordinator")
    })?;
    Ok(folder.join("shardfeed").join("contexts.toml"))
}

fn load() -> Result<Contexts> {
    // Without a home folder there are no contexts; an attempt to save one fails.
    let Ok(path) = path() else {
        return Ok(Contexts::default());
    };
    let name = path.display();
    let size = match fs::metadata(&path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
    };
    if size > FILE_BYTES_MAX {
        let what = format!("{name}: {size} bytes, more than contexts have");
        return Err(Problem::failed(what).into());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
    toml::from_str(&text).map_err(|error| {
        let said = error.message().replace('\n', ", ");
        Problem::failed(format!("{name}: {said}"))
            .hint("repair or remove the file; `shardfeed context set` writes a new one")
            .into()
    })
}

fn save(contexts: &Contexts) -> Result<()> {
    let path = path()?;
    let failed = || format!("cannot write {}", path.display());
    let folder = path.parent().unwrap_or(&path);
    fs::create_dir_all(folder).with_context(failed)?;
    let text = toml::to_string(contexts).with_context(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    file.persist(&path).with_context(failed)?;
    Ok(())
}

fn columns() -> [Column<ContextReport>; 3] {
    [
        column("NAME", |context| context.name.clone()),
        column("COORDINATOR", |context| context.coordinator.clone()),
        column("IN USE", |context| if context.is_current { "yes" } else { "" }.to_owned()),
    ]
}
