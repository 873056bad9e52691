//! `shardfeed access`: manages access tokens.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::secret::Secret;
use super::{Client, ClusterArgs};
use crate::duration;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, clock};
use crate::output::{Format, Report};

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

const WHOAMI_ABOUT: &str = "\
Show the identity that the cluster assigns to this caller

If the coordinators have no certificates (option `tls`), callers are not authenticated and every \
caller may do anything.";

const EXCHANGE_ABOUT: &str = "\
Exchange a join token for an access token, once

The join token is read from --token-file; the access token is written to --out. `worker start \
--join-token-file` does the same automatically.";

/// Subcommands of `access`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum AccessCommand {
    /// Create an access token
    #[command(after_help = EXAMPLES)]
    Create(CreateArgs),
    /// List the access tokens
    List(TokenListArgs),
    /// Revoke a token immediately and permanently
    Revoke(RevokeArgs),
    /// Exchange a join token for an access token, once
    #[command(long_about = EXCHANGE_ABOUT)]
    Exchange(ExchangeArgs),
    /// Show the caller's identity in the cluster
    #[command(long_about = WHOAMI_ABOUT)]
    Whoami(WhoamiArgs),
}

/// Role of a token.
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

/// Arguments of `access create`.
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
    /// Lifetime of the token: min, h or d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration::parse_long)]
    ttl: Duration,
    /// Create a join token, to be exchanged once for a token of this role
    #[arg(long)]
    join: bool,
    /// With --join: lifetime of the token that it is exchanged for
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = duration::parse_long)]
    #[arg(requires = "join")]
    joined_ttl: Duration,
    /// Write the token to this file, readable by its owner only [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `access list`.
#[derive(Debug, Args)]
pub(crate) struct TokenListArgs {
    /// Also show unusable tokens, as far as they are kept
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `access revoke`.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// Id of the token
    id: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `access exchange`.
#[derive(Debug, Args)]
pub(crate) struct ExchangeArgs {
    /// Name of the new token's holder, for lists and logs
    name: String,
    /// Write the new token to this file, readable by its owner only
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `access whoami`.
#[derive(Debug, Args)]
pub(crate) struct WhoamiArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Result of `access create`.
#[derive(Debug, Serialize)]
struct CreatedReport {
    id: String,
    name: String,
    role: String,
    jobs: Vec<String>,
    is_join: bool,
    /// File with the token; `null`: it is in `token`.
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Result of `access list`.
#[derive(Debug, Serialize)]
struct TokensReport {
    tokens: Vec<TokenReport>,
}

/// An access token.
#[derive(Debug, Serialize)]
struct TokenReport {
    id: String,
    name: String,
    role: String,
    jobs: Vec<String>,
    /// `good`, `expired`, `revoked`, `join` or `used`.
    state: &'static str,
    created_ms: u64,
    created_by: String,
    expires_ms: u64,
    revoked_ms: Option<u64>,
    used_for: Option<String>,
}

/// Result of commands that change a token.
#[derive(Debug, Serialize)]
struct Changed {
    id: String,
    #[serde(skip)]
    told: String,
}

/// Result of `access whoami`.
#[derive(Debug, Serialize)]
struct WhoamiReport {
    principal: String,
    role: Option<String>,
    jobs: Vec<String>,
    expires_ms: Option<u64>,
}

impl AccessCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Create(args) => create(args, format),
            Self::List(args) => list(args, format),
            Self::Revoke(args) => revoke(args, format),
            Self::Exchange(args) => {
                let client = args.cluster.client()?;
                let secret = Secret::new();
                let staged = secret.stage(&args.out)?;
                exchange(&client, &args.name, &secret)?;
                staged.keep()?;
                let told = format!("written to {}", args.out.display());
                Ok(format.print(&Changed { id: secret.id, told })?)
            }
            Self::Whoami(args) => whoami(args, format),
        }
    }
}

/// Exchanges the client's join token for a new token.
pub(crate) fn exchange(client: &Client, name: &str, secret: &Secret) -> anyhow::Result<()> {
    let request = wire::ExchangeAccessRequest {
        context: None,
        id: secret.id.clone(),
        digest: secret.digest.clone(),
        name: name.to_owned(),
    };
    client.call(|mut admin, context| async move {
        admin.exchange_access(wire::ExchangeAccessRequest { context, ..request }).await
    })?;
    Ok(())
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
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
    client.call(|mut admin, context| async move {
        admin.create_access(wire::CreateAccessRequest { context, ..request }).await
    })?;
    staged.map_or(Ok(()), |staged| staged.keep())?;
    Ok(format.print(&CreatedReport {
        id: secret.id,
        name: args.name.clone(),
        role,
        jobs: args.job.clone(),
        is_join: args.join,
        file: args.out.as_ref().map(|path| path.display().to_string()),
        token: args.out.is_none().then_some(secret.token),
    })?)
}

fn list(args: &TokenListArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let (tokens, now) = (
        client.call(|mut admin, context| async move {
            admin.list_access(wire::ListAccessRequest { context }).await
        })?,
        client.call(|mut admin, context| async move {
            admin.get_status(wire::GetStatusRequest { context }).await
        })?,
    );
    let report = |token: wire::AccessToken| {
        let wire::AccessToken { id, name, role, jobs, created_ms, created_by, expires_ms, .. } =
            token.clone();
        let wire::AccessToken { revoked_ms, join, used_for, .. } = token;
        let state = match (&revoked_ms, &used_for) {
            (Some(_), _) => "revoked",
            (None, Some(_)) => "used",
            _ if expires_ms <= now.clock_ms => "expired",
            _ if join => "join",
            _ => "good",
        };
        TokenReport {
            id,
            name,
            role,
            jobs,
            state,
            created_ms,
            created_by,
            expires_ms,
            revoked_ms,
            used_for,
        }
    };
    let mut tokens: Vec<_> = tokens.tokens.into_iter().map(report).collect();
    tokens.retain(|token| args.all || matches!(token.state, "good" | "join"));
    Ok(format.print(&TokensReport { tokens })?)
}

fn revoke(args: &RevokeArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let id = args.id.clone();
    client.call(|mut admin, context| async move {
        admin.revoke_access(wire::RevokeAccessRequest { context, id }).await
    })?;
    Ok(format.print(&Changed { id: args.id.clone(), told: "revoked".to_owned() })?)
}

fn whoami(args: &WhoamiArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    let told = client.call(|mut admin, context| async move {
        admin.who_am_i(wire::WhoAmIRequest { context }).await
    })?;
    let wire::WhoAmIResponse { principal, role, jobs, expires_ms } = told;
    let role = Some(role).filter(|role| !role.is_empty());
    Ok(format.print(&WhoamiReport { principal, role, jobs, expires_ms })?)
}

fn columns() -> Vec<Column<TokenReport>> {
    vec![
        column("ID", |token| token.id.clone()),
        column("NAME", |token| token.name.clone()),
        column("ROLE", |token| token.role.clone()),
        column("JOBS", |token| match token.jobs.is_empty() {
            true => "all".to_owned(),
            false => token.jobs.join(","),
        }),
        column("STATE", |token| token.state.to_owned()),
        column("EXPIRES", |token| clock(token.expires_ms)),
        wide("CREATED", |token| clock(token.created_ms)),
        wide("BY", |token| token.created_by.clone()),
        wide("USED FOR", |token| token.used_for.clone().unwrap_or_else(|| NONE.into())),
    ]
}

impl Report for TokensReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("tokens", "id"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        listing::write(
            out,
            "access tokens",
            &self.tokens,
            &columns(),
            Shown { is_wide: false, all: true },
        )
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        listing::write(
            out,
            "access tokens",
            &self.tokens,
            &columns(),
            Shown { is_wide: true, all: true },
        )
    }
}

impl Report for CreatedReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        match (&self.token, &self.file) {
            // The token is alone on its line, for use in a file or a variable.
            (Some(token), _) => writeln!(out, "{token}"),
            (None, file) => {
                let file = file.as_deref().unwrap_or_default();
                writeln!(
                    out,
                    "access token {} of {} ({}) written to {file}",
                    self.id, self.name, self.role
                )
            }
        }
    }
}

impl Report for Changed {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "access token {}: {}", self.id, self.told)
    }
}

impl Report for WhoamiReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { principal, role, jobs, expires_ms } = self;
        match role {
            None => writeln!(out, "{principal}; this cluster does not authenticate callers"),
            Some(role) => {
                let jobs = if jobs.is_empty() { "all jobs".to_owned() } else { jobs.join(", ") };
                write!(out, "{principal}; role {role}, {jobs}")?;
                match expires_ms {
                    Some(at) => writeln!(out, ", until {}", clock(*at)),
                    None => writeln!(out),
                }
            }
        }
    }
}
