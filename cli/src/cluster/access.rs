//! `shardfeed access`: manages access tokens.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;
use shardfeed_proto::coordinator::v1 as wire;

use super::secret::Secret;
use super::{Client, ClusterArgs};
use crate::duration::{self, ms};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{clock, text};
use crate::output::{Format, Report, list_report};

const EXAMPLES: &str = "\
A token's secret is made by this command and shown once; the cluster keeps its SHA-256 only. Its \
holder passes it in a file (--token-file, SHARDFEED_TOKEN_FILE) or in SHARDFEED_TOKEN, never as an \
argument.

Examples:
  shardfeed access create ada --role operator --out ada.token
  shardfeed access create ci --role viewer --job 'nightly-*' --ttl 30d > ci.token
  shardfeed access create rack-7 --role worker --join --ttl 1h --out join.token
  shardfeed access list
  shardfeed access revoke 3f9a01c2b4d5";

#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum AccessCommand {
    #[command(after_help = EXAMPLES)]
    Create(CreateArgs),
    /// List the access tokens
    List {
        /// Also show unusable tokens, as far as they are kept
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Revoke a token immediately and permanently
    Revoke {
        /// Id of the token
        id: String,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Exchange a join token for an access token, once
    ///
    /// The join token is read from --token-file; the access token is written to --out. `worker
    /// start --join-token-file` does the same automatically.
    Exchange {
        /// Name of the new token's holder, for lists and logs
        name: String,
        /// Write the new token to this file, readable by its owner only
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Show the caller's identity in the cluster
    ///
    /// If the coordinators have no certificates (option `tls`), callers are not authenticated and
    /// every caller may do anything.
    Whoami(ClusterArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TokenRole {
    /// Read-only
    Viewer,
    /// Viewer, plus manage jobs, datasets and workers
    Operator,
    /// Operator, plus manage cluster members and access tokens
    Admin,
    /// Read for trainers
    Worker,
    /// Train, and read in the trainer's own process
    Trainer,
}

/// Create an access token
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the holder, for lists and logs
    name: String,
    /// Role of the token
    #[arg(long, value_enum)]
    role: TokenRole,
    /// Limit the token to this job, `*` at the end for any suffix; repeatable or with commas
    /// [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    job: Vec<String>,
    /// Lifetime of the token: ms, s, min, h or d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration::parse)]
    ttl: Duration,
    /// Create a join token, to be exchanged once for a token of this role
    #[arg(long)]
    join: bool,
    /// With --join: lifetime of the token that it is exchanged for
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = duration::parse)]
    #[arg(requires = "join")]
    joined_ttl: Duration,
    /// Write the token to this file, readable by its owner only [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

list_report!(TokensReport { tokens: TokenReport }, "id", "access tokens");

#[derive(Debug, Serialize)]
struct TokenReport {
    #[serde(flatten)]
    token: wire::AccessToken,
    /// `good`, `expired`, `revoked`, `join` or `used`.
    state: &'static str,
}

#[derive(Debug, Serialize)]
struct WhoamiReport(wire::WhoAmIResponse);

impl AccessCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Create(args) => create(args, format),
            Self::List { all, cluster } => list(&cluster.client()?, *all, format),
            Self::Revoke { id, cluster } => {
                let request = wire::RevokeAccessRequest { context: None, id: id.clone() };
                cluster.client()?.call(request)?;
                print_changed(id, "revoked", format)
            }
            Self::Exchange { name, out, cluster } => {
                let client = cluster.client()?;
                let secret = Secret::new();
                let staged = secret.stage(out)?;
                exchange(&client, name, &secret)?;
                staged.keep()?;
                print_changed(&secret.id, &format!("written to {}", out.display()), format)
            }
            Self::Whoami(cluster) => {
                let caller = cluster.client()?.call(wire::WhoAmIRequest::default())?;
                Ok(format.print(&WhoamiReport(caller))?)
            }
        }
    }
}

pub(crate) fn exchange(client: &Client, name: &str, secret: &Secret) -> anyhow::Result<()> {
    client.call(wire::ExchangeAccessRequest {
        context: None,
        id: secret.id.clone(),
        digest: secret.digest.clone(),
        name: name.to_owned(),
    })?;
    Ok(())
}

fn print_changed(id: &str, change: &str, format: Format) -> anyhow::Result<()> {
    let text = format!("access token {id}: {change}\n");
    Ok(format.print_brief(json!({ "id": id }), text)?)
}

fn create(args: &CreateArgs, format: Format) -> anyhow::Result<()> {
    let secret = Secret::new();
    let role =
        args.role.to_possible_value().map_or_else(String::new, |role| role.get_name().to_owned());
    let request = wire::CreateAccessRequest {
        context: None,
        id: secret.id.clone(),
        digest: secret.digest.clone(),
        name: args.name.clone(),
        role: role.clone(),
        jobs: args.job.clone(),
        ttl_ms: ms(args.ttl),
        join_ttl_ms: args.join.then(|| ms(args.joined_ttl)),
    };
    let client = args.cluster.client()?;
    // The file is prepared first: a token that cannot be stored would be useless. An existing file
    // is replaced only after the token was created.
    let staged = args.out.as_ref().map(|path| secret.stage(path)).transpose()?;
    client.call(request)?;
    staged.map_or(Ok(()), |staged| staged.keep())?;
    let Secret { id, token, .. } = secret;
    let (name, out) = (&args.name, args.out.as_ref().map(|path| path.display().to_string()));
    let mut fields = json!({
        "id": id,
        "name": name,
        "role": role,
        "jobs": args.job,
        "is_join": args.join,
        "file": out,
    });
    let text = match out {
        Some(file) => format!("access token {id} of {name} ({role}) written to {file}\n"),
        None => {
            fields["token"] = json!(token);
            // The token is alone on its line, for use in a file or a variable.
            format!("{token}\n")
        }
    };
    Ok(format.print_brief(fields, text)?)
}

fn list(client: &Client, all: bool, format: Format) -> anyhow::Result<()> {
    let tokens = client.call(wire::ListAccessRequest::default())?.tokens;
    let now_ms = client.status()?.clock_ms;
    let report = |token: wire::AccessToken| {
        let state = match (token.revoked_ms, &token.used_for) {
            (Some(_), _) => "revoked",
            (None, Some(_)) => "used",
            _ if token.expires_ms <= now_ms => "expired",
            _ if token.join => "join",
            _ => "good",
        };
        TokenReport { token, state }
    };
    let mut tokens: Vec<_> = tokens.into_iter().map(report).collect();
    tokens.retain(|token| all || matches!(token.state, "good" | "join"));
    Ok(format.print(&TokensReport { tokens, all: true })?)
}

fn columns() -> [Column<TokenReport>; 9] {
    [
        column("ID", |of| of.token.id.clone()),
        column("NAME", |of| of.token.name.clone()),
        column("ROLE", |of| of.token.role.clone()),
        column("JOBS", |of| match of.token.jobs.is_empty() {
            true => "all".to_owned(),
            false => of.token.jobs.join(","),
        }),
        column("STATE", |of| of.state.to_owned()),
        column("EXPIRES", |of| clock(of.token.expires_ms)),
        wide("CREATED", |of| clock(of.token.created_ms)),
        wide("BY", |of| of.token.created_by.clone()),
        wide("USED FOR", |of| text(of.token.used_for())),
    ]
}

impl Report for WhoamiReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let wire::WhoAmIResponse { principal, role, jobs, expires_ms } = &self.0;
        if role.is_empty() {
            return writeln!(out, "{principal}; this cluster does not authenticate callers");
        }
        let jobs = if jobs.is_empty() { "all jobs".to_owned() } else { jobs.join(", ") };
        let until = expires_ms.map_or(String::new(), |at| format!(", until {}", clock(at)));
        writeln!(out, "{principal}; role {role}, {jobs}{until}")
    }
}
