//! The coordinator before it has a log, and the access to its core afterwards: answers requests for
//! its identity, and reports the reason of its wait.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::UNIX_EPOCH;

use shardfeed_host::Host;
use shardfeed_proto::PEER_PROTOCOL;
use shardfeed_proto::coordinator::v1::{IntroduceRequest, IntroduceResponse};
use shardfeed_tls::{ClientTls, ServerTls};

use crate::config::CoordinatorOptions;
use crate::error::{Result, retry};
use crate::leader::core::Core;
use crate::leader::measures::{self, JobMetrics};
use crate::metrics::Metrics;
use crate::net::links::Channels;

/// Health of a coordinator; may outlive it.
#[derive(Clone, Debug)]
pub struct Health(pub(crate) Arc<Front>);

impl Health {
    /// Returns the reason why requests would not be answered now; `None`: they will be.
    pub fn unready(&self) -> Option<String> {
        self.0.unready()
    }

    /// Returns the reason why only a restart helps; `None`: the process works, or waits for others.
    pub fn dead(&self) -> Option<String> {
        self.0.dead()
    }
}

pub(crate) struct Front {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) options: CoordinatorOptions,
    pub(crate) advertise: String,
    pub(crate) links: Channels,
    /// If set, callers must authenticate; `None`: they are not authenticated.
    pub(crate) tls: Option<ServerTls>,
    pub(crate) metrics: Arc<Metrics>,
    core: OnceLock<Arc<Core>>,
    waiting: Mutex<Option<String>>,
}

impl Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (advertise, waiting) = (&self.advertise, self.waiting());
        f.debug_struct("Front").field("advertise", advertise).field("waiting", &waiting).finish()
    }
}

impl Front {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        options: CoordinatorOptions,
        advertise: String,
        tls: Option<(ServerTls, ClientTls)>,
    ) -> Self {
        let (tls, to_peers) = tls.unzip();
        let metrics = Arc::new(Metrics::new());
        let links = Channels::new(Arc::clone(&host), Arc::clone(&metrics), &options, to_peers);
        Self {
            tls,
            host,
            options,
            advertise,
            links,
            metrics,
            core: OnceLock::new(),
            waiting: Mutex::new(Some("it opens its log".to_owned())),
        }
    }

    pub(crate) fn open(&self, core: Arc<Core>) {
        // It is set once; the first value stays.
        let _ = self.core.set(core);
    }

    /// Sets the reason of the wait, or that there is none.
    pub(crate) fn wait_for(&self, what: Option<String>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    fn waiting(&self) -> Option<String> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the core of the coordinator.
    ///
    /// # Errors  `Retry`: there is no log yet.
    pub(crate) fn core(&self) -> Result<&Arc<Core>> {
        self.core.get().ok_or_else(|| {
            let what = self.waiting().unwrap_or_else(|| "its log".to_owned());
            retry(format!("this coordinator is not part of a cluster yet: {what}"))
        })
    }

    pub(crate) fn unready(&self) -> Option<String> {
        self.waiting().or_else(|| self.core.get()?.unready())
    }

    pub(crate) fn dead(&self) -> Option<String> {
        self.core.get()?.dead()
    }

    pub(crate) fn measured(&self) -> String {
        if let Some(core) = self.core.get() {
            core.measure();
        }
        let ends = self.tls.as_ref().map(ServerTls::not_after);
        let ends = ends.and_then(|ends| ends.duration_since(UNIX_EPOCH).ok());
        self.metrics.certificate_not_after.set(ends.map_or(0, |ends| ends.as_secs() as i64));
        self.metrics.insecure.set(self.tls.is_none().into());
        let jobs = self.core.get().map_or_else(JobMetrics::new, |core| measures::look(core));
        measures::page(&self.metrics, &jobs, &self.host.process_page())
    }

    pub(crate) fn introduction(&self) -> IntroduceRequest {
        IntroduceRequest {
            protocol: PEER_PROTOCOL,
            node: self.options.node_id,
            address: self.advertise.clone(),
            cluster_name: self.options.cluster_name.clone(),
        }
    }

    pub(crate) fn introduce(&self, to: &IntroduceRequest) -> IntroduceResponse {
        let mut answer = IntroduceResponse {
            protocol: PEER_PROTOCOL,
            node: self.options.node_id,
            cluster_name: self.options.cluster_name.clone(),
            ..IntroduceResponse::default()
        };
        if let Some(core) = self.core.get() {
            let members = core.node.members();
            let members: HashMap<u64, String> =
                members.into_iter().map(|member| (member.node, member.address)).collect();
            answer.cluster_id = core.node.cluster_id().to_owned();
            answer.knows_you = members.contains_key(&to.node);
            answer.members = members;
            let status = core.node.status();
            answer.leader = status.leader;
            answer.members_index = status.committed.unwrap_or(0);
        }
        answer
    }
}
