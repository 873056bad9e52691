//! Client of the coordinators: calls with a deadline and credentials.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use shardfeed_agent::{
    Address, Coordinator, CredentialOptions, Credentials, Patience, Request, Whereabouts,
};
use shardfeed_proto::coordinator::v1 as wire;
use tonic::Streaming;

use super::context;
use super::secret::warn_of_open_files;
use crate::duration;
use crate::host::host_name;

pub(crate) use shardfeed_agent::CallError;

/// Maximum length of a name in logs, bytes; the coordinator accepts 256 for the whole principal.
const NAME_BYTES_MAX: usize = 100;

/// Help heading of these options in all commands.
const HEADING: &str = "Cluster";

/// Time after which a wait for coordinators that do not answer is reported.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// Options to reach the coordinators.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Address of the coordinator, or several with commas, or @PATH of an endpoint file [default:
    /// that of the context, else 127.0.0.1:7070]
    #[arg(long, value_name = "HOST:PORT", help_heading = HEADING)]
    #[arg(env = "SHARDFEED_COORDINATOR", hide_env_values = true)]
    coordinator: Option<Whereabouts>,
    /// Name of the cluster in `shardfeed context` [default: the current context]
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    #[arg(env = "SHARDFEED_CONTEXT", hide_env_values = true)]
    context: Option<String>,
    /// Folder with ca.crt, if coordinators have certificates, and with the caller's tls.crt and
    /// tls.key [default: that of the context]
    #[arg(long, value_name = "DIR", help_heading = HEADING)]
    #[arg(env = "SHARDFEED_TLS", hide_env_values = true)]
    tls: Option<PathBuf>,
    /// File with the caller's access token; alternatively SHARDFEED_TOKEN holds the token [default:
    /// that of the context]
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    #[arg(env = "SHARDFEED_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// Time to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = HEADING)]
    #[arg(value_parser = duration::parse)]
    timeout: Duration,
}

/// Client of the coordinators, connected at the first call.
#[derive(Clone)]
pub(crate) struct Client {
    coordinator: Coordinator,
    patience: Patience,
}

impl ClusterArgs {
    /// Creates the client.
    ///
    /// # Errors
    /// The context does not exist; the certificates or the token cannot be read.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let (place, options) = match &self.coordinator {
            Some(place) => (place.clone(), CredentialOptions::default()),
            None => context::cluster(self.context.as_deref())?.unwrap_or_default(),
        };
        let options = self.credentials().or(options);
        warn_of_open_files(&options);
        let credentials = Credentials::read(options)?;
        Ok(Client::new(place, self.timeout, credentials))
    }

    pub(crate) fn credentials(&self) -> CredentialOptions {
        let token = CredentialOptions::from_environment().token;
        CredentialOptions { tls: self.tls.clone(), token_file: self.token_file.clone(), token }
    }
}

impl Client {
    pub(crate) fn new(place: Whereabouts, timeout: Duration, credentials: Credentials) -> Self {
        let coordinator = Coordinator::of(place, principal(), timeout, None, credentials);
        Self { coordinator, patience: Patience::IfSomebodyIsThere }
    }

    /// Returns a client that keeps waiting for coordinators that do not answer, which may return.
    pub(crate) fn patient(&self) -> Self {
        Self { patience: Patience::Wait, ..self.clone() }
    }

    /// Address of the coordinator that answered last.
    pub(crate) fn address(&self) -> Address {
        let answered = self.coordinator.leader();
        let listed = || Some(self.coordinator.addresses()?.first().clone());
        answered.or_else(listed).unwrap_or_default()
    }

    /// Makes a request. It is retried elsewhere with the same request id if necessary.
    pub(crate) fn call<R: Request>(&self, request: R) -> Result<R::Response, CallError> {
        let most = self.coordinator.timeout();
        self.coordinator.ask(self.patience, most, &mut waiting(), request)
    }

    pub(crate) fn chunk(&self, digest: &[u8]) -> Result<Vec<u8>, CallError> {
        let request = wire::GetChunkRequest { context: None, digest: digest.to_vec() };
        Ok(self.call(request)?.content)
    }

    /// Makes a request and reads its stream of answers to the end.
    pub(crate) fn stream<T, R>(&self, request: R) -> Result<Vec<T>, CallError>
    where
        T: Send + 'static,
        R: Request<Response = Streaming<T>>,
    {
        let most = self.coordinator.timeout();
        self.coordinator.ask_stream(self.patience, most, &mut waiting(), request)
    }

    /// Returns the next answer of a stream that is too long to be kept in memory.
    pub(crate) fn next<T: Send + 'static>(
        &self,
        stream: Streaming<T>,
    ) -> Result<Option<(T, Streaming<T>)>, CallError> {
        self.coordinator.next_of(&self.address(), stream)
    }

    /// Asks one node about itself, once.
    pub(crate) fn ask_at<R: Request>(
        &self,
        address: &Address,
        request: R,
    ) -> Result<R::Response, CallError> {
        // A node that is down does not justify a long wait: the others have answered.
        let limit = self.coordinator.timeout().min(Duration::from_secs(2));
        self.coordinator.ask_at(address, limit, request)
    }

    pub(crate) fn status(&self) -> Result<wire::GetStatusResponse, CallError> {
        self.call(wire::GetStatusRequest::default())
    }
}

/// Returns a callback of a wait, which reports coordinators that do not answer, once.
fn waiting() -> impl FnMut(&str) -> bool {
    let (begun, mut is_told) = (Instant::now(), false);
    move |note| {
        if !is_told && !note.is_empty() && begun.elapsed() > TOLD_AFTER {
            is_told = true;
            tracing::warn!("{note}; trying again");
        }
        true
    }
}

fn principal() -> String {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = set("USER").or_else(|| set("LOGNAME"));
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let short = |name: &str| name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
    format!("cli:{}@{}", short(&user), short(&host_name()))
}
