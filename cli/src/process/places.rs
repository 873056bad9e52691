//! Ports and paths that a process will use on this host, from its options file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use shardfeed_agent::CredentialOptions;
use shardfeed_coordinator::CoordinatorOptions;

use super::config;
use super::worker::WorkerConfig;

#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Purpose and address of each port.
    pub(crate) ports: Vec<(&'static str, SocketAddr)>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) credentials: CredentialOptions,
}

/// Reads the options file of a coordinator or a worker.
///
/// # Errors
/// The file cannot be read, or is valid for neither.
pub(crate) fn places(file: &Path) -> anyhow::Result<Places> {
    let table = config::load(file)?;
    let is_workers = table.contains_key("coordinator");
    match config::typed::<CoordinatorOptions>(Some(file), table.clone()) {
        Ok(options) => Ok(of_coordinator(options)),
        // The error reported is that of the process that the file resembles most.
        Err(error) => match config::typed::<WorkerConfig>(Some(file), table) {
            Ok(config) => Ok(of_worker(config)),
            Err(of_worker) if is_workers => Err(of_worker),
            Err(_) => Err(error),
        },
    }
}

fn of_coordinator(options: CoordinatorOptions) -> Places {
    let http = options.http.map(|address| (HTTP, address));
    Places {
        ports: [(GRPC, options.listen)].into_iter().chain(http).collect(),
        data: Some(options.data_dir).filter(|data| !data.as_os_str().is_empty()),
        socket: None,
        credentials: CredentialOptions { tls: options.tls, ..CredentialOptions::default() },
    }
}

fn of_worker(config: WorkerConfig) -> Places {
    let WorkerConfig { http, socket, tls, token_file, .. } = config;
    Places {
        ports: http.map(|address| (WORKER_HTTP, address)).into_iter().collect(),
        data: None,
        socket,
        credentials: CredentialOptions { tls, token_file, token: None },
    }
}

/// Purposes of ports.
const GRPC: &str = "port of gRPC";
const HTTP: &str = "port of HTTP";
const WORKER_HTTP: &str = "port of a worker";

/// Default ports of processes, and the port of a worker's HTTP pages in all examples.
pub(crate) fn usual_ports() -> Vec<(&'static str, SocketAddr)> {
    let port = |of, port: u16| (of, SocketAddr::from(([127, 0, 0, 1], port)));
    vec![port(GRPC, 7070), port(HTTP, 7071), port(WORKER_HTTP, 7072)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Places, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let name = file.path().display().to_string();
        places(file.path()).map_err(|error| error.to_string().replace(&name, "FILE"))
    }

    #[test]
    fn a_file_of_either_process_is_known() {
        let found = of("data-dir = \"d\"\nlisten = \"10.0.0.1:1\"\ntls = \"t\"").unwrap();
        let http = SocketAddr::from(([127, 0, 0, 1], 7071));
        assert_eq!(found.ports, [(GRPC, "10.0.0.1:1".parse().unwrap()), (HTTP, http)]);
        assert_eq!(found.data, Some("d".into()));
        assert_eq!((found.credentials.tls, found.socket), (Some("t".into()), None));

        let found = of("coordinator = \"a:1\"\nhttp = \"0.0.0.0:7072\"\nsocket = \"s\"\n\
                        token-file = \"f\"")
        .unwrap();
        assert_eq!(found.ports, [(WORKER_HTTP, "0.0.0.0:7072".parse().unwrap())]);
        assert_eq!((found.data, found.socket), (None, Some("s".into())));
        assert_eq!(found.credentials.token_file, Some("f".into()));
    }

    #[test]
    fn a_wrong_file_is_told_of_the_process_that_it_is_of() {
        let wrong = of("coordinator = \"a:1\"\nmemory-bugdet = 1").unwrap_err();
        assert!(wrong.starts_with("FILE: unknown field `memory-bugdet`"), "{wrong}");
        assert!(wrong.contains("`allow-uid`"), "{wrong}");
        let wrong = of("lisen = \"a:1\"").unwrap_err();
        assert!(wrong.starts_with("FILE: unknown field `lisen`"), "{wrong}");
        assert!(wrong.contains("`election-max-ms`"), "{wrong}");
    }
}
