//! `shardfeed health`: reports whether a process serves, for scripts and images without curl.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use shardfeed_agent::Address;
use shardfeed_embedded::{default_worker_socket, worker_answers};
use tokio::net::TcpStream;

use crate::duration;
use crate::error::Problem;
use crate::output::{self, Format};
use crate::process::runtime;

const EXAMPLES: &str = "\
Exit codes: 0 it serves, 1 it does not (the reason is on stderr), 4 the worker's socket is not for this user, 6 no worker is \
there, 7 no answer in time.

Examples:
  shardfeed health                          # the coordinator of this host
  shardfeed health --live --http 10.0.0.7:7071
  shardfeed health --worker                 # the worker of this host";

/// Maximum size of a page that is read, bytes: a page has only a few words.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Report whether a coordinator or worker of this host serves
///
/// It asks /readyz at the process's HTTP address, or /livez with --live; with --worker it greets a
/// worker on its trainer socket, as a trainer would. For scripts, probes and images that have no
/// curl.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HealthArgs {
    /// HTTP address of the process
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7071")]
    http: Address,
    /// Check only whether the process works, even if it waits for others
    #[arg(long)]
    live: bool,
    /// Ask a worker on its trainer socket
    #[arg(long, conflicts_with_all = ["http", "live"])]
    worker: bool,
    /// Path of the worker's socket [default: SHARDFEED_WORKER, else the default path]
    #[arg(long, value_name = "PATH", requires = "worker")]
    socket: Option<PathBuf>,
    /// Time to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    timeout: Duration,
}

pub(crate) fn run(args: &HealthArgs, format: Format) -> anyhow::Result<()> {
    if args.worker {
        let socket = args.socket.clone().unwrap_or_else(default_worker_socket);
        let name = worker_answers(&socket, args.timeout)?;
        let (asked, said) = (socket.display().to_string(), format!("worker {name} serves"));
        return print(&asked, &said, format);
    }
    let path = if args.live { "/livez" } else { "/readyz" };
    let asked = format!("http://{}{path}", args.http);
    let answer = runtime(Some(1))?
        .block_on(async { tokio::time::timeout(args.timeout, ask(&args.http, path)).await });
    let Ok(answer) = answer else {
        let what =
            format!("no answer from {asked} in {}", duration::text(duration::ms(args.timeout)));
        return Err(Problem::late(what)
            .hint("the process hangs, or its host does not let this one in")
            .into());
    };
    let (code, said) = answer.with_context(|| format!("cannot ask {asked}"))?;
    let said = said.trim_end().to_owned();
    if code != StatusCode::OK {
        return Err(Problem::failed(format!("{asked} says {}: {said}", code.as_u16())).into());
    }
    print(&asked, &said, format)
}

fn print(asked: &str, said: &str, format: Format) -> anyhow::Result<()> {
    let text = format!("{}\n", output::printable(said));
    Ok(format.print_brief(json!({ "asked": asked, "said": said }), text)?)
}

async fn ask(address: &Address, path: &str) -> anyhow::Result<(StatusCode, String)> {
    let stream = TcpStream::connect(address.as_str()).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(hyper::header::HOST, address.as_str())
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let code = response.status();
    let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the answer is no page: {error}"))?;
    Ok((code, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}
