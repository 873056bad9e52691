//! The way to a coordinator: one connection, calls with a deadline, and errors in words.

use std::error::Error;
use std::future::Future;
use std::io;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::{COORDINATOR_PROTOCOL, WireError};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use uuid::Uuid;

use super::Address;
use crate::duration;
use crate::process::host_name;

/// Bytes of an answer at most: that of the largest job has a million of them.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Bytes of a name in logs at most; the coordinator takes 256 for the whole principal.
const NAME_BYTES_MAX: usize = 100;

/// Where help lists these options, wherever they stand.
const HEADING: &str = "Cluster";

/// Where the coordinator is.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Address of the coordinator
    #[arg(long, value_name = "HOST:PORT", default_value_t, help_heading = HEADING)]
    #[arg(env = "SHARDFEED_COORDINATOR", hide_env_values = true)]
    coordinator: Address,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = HEADING)]
    #[arg(value_parser = duration::parse)]
    timeout: Duration,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nobody is there, or nobody answers.
    #[error("the coordinator at {address} does not answer: {reason}")]
    Silent {
        /// Where it should be.
        address: Address,
        /// What the system says.
        reason: String,
    },
    /// Somebody is there, and no coordinator.
    #[error("what answers at {address} is no coordinator: {reason}")]
    Stranger {
        /// Where it is.
        address: Address,
        /// What it did.
        reason: String,
    },
    /// The coordinator refuses.
    #[error(transparent)]
    Refused(#[from] WireError),
}

/// A coordinator, connected when first asked.
pub(crate) struct Client {
    address: Address,
    timeout: Duration,
    runtime: Runtime,
    admin: AdminServiceClient<Channel>,
}

impl ClusterArgs {
    /// The coordinator.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start waiting for the network")?;
        let endpoint = Endpoint::from_shared(format!("http://{}", self.coordinator))?
            .connect_timeout(self.timeout)
            .tcp_nodelay(true);
        let channel = {
            let _entered = runtime.enter();
            endpoint.connect_lazy()
        };
        let admin = AdminServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let (address, timeout) = (self.coordinator.clone(), self.timeout);
        Ok(Client { address, timeout, runtime, admin })
    }
}

impl Client {
    /// Where the coordinator is.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// How long an answer is waited for.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes a call.
    pub(crate) fn call<T, F>(
        &self,
        call: impl FnOnce(AdminServiceClient<Channel>, Option<wire::Context>) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.run(call(self.admin.clone(), context())).map(Response::into_inner)
    }

    /// Makes a call, and more of it: reads a stream of answers to its end.
    pub(crate) fn stream<T, F>(
        &self,
        call: impl FnOnce(AdminServiceClient<Channel>, Option<wire::Context>) -> F,
    ) -> Result<Vec<T>, CallError>
    where
        F: Future<Output = Result<Response<tonic::Streaming<T>>, Status>>,
    {
        let opened = call(self.admin.clone(), context());
        self.run(async {
            let mut stream = opened.await?.into_inner();
            let mut messages = Vec::new();
            while let Some(message) = stream.message().await? {
                messages.push(message);
            }
            Ok(messages)
        })
    }

    /// Lets time pass, with the connection alive.
    pub(crate) fn pause(&self, pause: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(pause).await });
    }

    fn run<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, CallError> {
        let answer = async { tokio::time::timeout(self.timeout, answer).await };
        match self.runtime.block_on(answer) {
            Ok(answer) => answer.map_err(|status| self.explain(&status)),
            Err(_) => {
                let reason = format!("no answer within {}", duration::text_of(self.timeout));
                Err(CallError::Silent { address: self.address.clone(), reason })
            }
        }
    }

    /// What a status means: the coordinator's own word has details, the transport's has none.
    fn explain(&self, status: &Status) -> CallError {
        let address = self.address.clone();
        if !status.details().is_empty() {
            return CallError::Refused(WireError::from_status(status));
        }
        if let Some(error) = cause::<io::Error>(status) {
            return CallError::Silent { address, reason: error.to_string() };
        }
        let reason = innermost(status);
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
                CallError::Silent { address, reason }
            }
            _ => CallError::Stranger { address, reason },
        }
    }
}

fn context() -> Option<wire::Context> {
    Some(wire::Context {
        request_id: Uuid::new_v4().to_string(),
        principal: principal(),
        cluster_id: String::new(),
        protocol: COORDINATOR_PROTOCOL,
    })
}

/// Who asks, for the coordinator's log.
fn principal() -> String {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = set("USER").or_else(|| set("LOGNAME"));
    let user = user.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    let short = |name: &str| name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
    format!("cli:{}@{}", short(&user), short(&host_name()))
}

fn causes<'a>(status: &'a Status) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(status.source(), |error| (*error).source())
}

fn cause<T: Error + 'static>(status: &Status) -> Option<&T> {
    causes(status).find_map(|error| error.downcast_ref())
}

fn innermost(status: &Status) -> String {
    let innermost = causes(status).last().map(ToString::to_string);
    innermost.unwrap_or_else(|| match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    })
}
