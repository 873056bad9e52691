//! Connections: ports, links to other nodes, joining a cluster, pages for monitoring.

pub(crate) mod bootstrap;
pub(crate) mod front;
pub(crate) mod http;
pub(crate) mod links;
pub(crate) mod port;
mod strangers;
