//! The file in which a coordinator publishes its cluster's addresses, for `--coordinator @PATH`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use shardfeed_coordinator::Running;
use shardfeed_proto::Endpoint;

/// Interval of checks whether the cluster's members have changed or the file is gone.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct EndpointFile {
    path: PathBuf,
}

impl EndpointFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Writes the file and replaces an existing one: only a serving coordinator calls this.
    pub(super) async fn write(&self, running: &Running) -> anyhow::Result<()> {
        let written = self.with(running, write).await;
        written.with_context(|| format!("cannot write the endpoint file {}", self.path.display()))
    }

    /// Keeps the file current; never returns. Several nodes may share it: each names all of them.
    pub(super) async fn keep(&self, running: &Running) {
        let mut is_wrong = false;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let kept = self.with(running, keep).await;
            match &kept {
                Ok(true) => tracing::info!(path = %self.path.display(), "endpoint file written"),
                Ok(false) => {}
                Err(error) if is_wrong => tracing::debug!(%error, "endpoint file"),
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "the endpoint file is not kept");
                }
            }
            is_wrong = kept.is_err();
        }
    }

    /// Removes the file if this node wrote it. An error does not prevent the stop.
    pub(super) async fn remove(&self, running: &Running) {
        if let Err(error) = self.with(running, remove).await {
            tracing::warn!(path = %self.path.display(), %error, "the endpoint file stays behind");
        }
    }

    async fn with<T: Send + 'static>(
        &self,
        running: &Running,
        work: fn(&Path, &Endpoint) -> io::Result<T>,
    ) -> io::Result<T> {
        let (path, endpoint) = (self.path.clone(), running.endpoint());
        let done = tokio::task::spawn_blocking(move || work(&path, &endpoint)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

/// Writes the file atomically and readable by this user only.
fn write(path: &Path, endpoint: &Endpoint) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".shardfeed-endpoint-")
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(endpoint.to_json().as_bytes())?;
    // After a crash of the host, the file has its old or its new content.
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Reads the file; `None`: it is missing or invalid.
fn read(path: &Path) -> io::Result<Option<Endpoint>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Endpoint::from_json(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the file if it is missing, invalid or outdated; returns true if it did.
///
/// # Errors
/// A coordinator of another cluster wrote the file.
fn keep(path: &Path, now: &Endpoint) -> io::Result<bool> {
    match read(path)? {
        Some(said) if said.cluster_id != now.cluster_id => {
            let message = format!("cluster {} took it over", said.cluster_id);
            Err(io::Error::other(message))
        }
        Some(said) if said.addresses == now.addresses => Ok(false),
        _ => write(path, now).map(|()| true),
    }
}

fn remove(path: &Path, mine: &Endpoint) -> io::Result<()> {
    let said = read(path)?;
    let is_mine = |said: &Endpoint| (&said.cluster_id, said.node) == (&mine.cluster_id, mine.node);
    match said.as_ref().is_some_and(is_mine) {
        true => fs::remove_file(path),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn endpoint(cluster: &str, node: u64, address: &str) -> Endpoint {
        Endpoint::new(cluster, node, vec![address.to_owned()])
    }

    #[test]
    fn it_is_written_as_a_whole_kept_and_removed_by_who_wrote_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.json");
        let (mine, other) = (endpoint("c", 1, "a:1"), endpoint("c", 2, "a:1"));
        write(&path, &mine).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(read(&path).unwrap(), Some(mine.clone()));

        // Another node of the cluster with the same addresses does not rewrite or remove the file.
        assert!(!keep(&path, &other).unwrap());
        remove(&path, &other).unwrap();
        assert!(keep(&path, &endpoint("c", 2, "b:1")).unwrap(), "a member is elsewhere now");
        remove(&path, &mine).unwrap();
        assert!(path.exists(), "it is node 2's");

        // The file of another cluster is not changed.
        assert!(keep(&path, &endpoint("d", 1, "x:1")).is_err());
        remove(&path, &endpoint("d", 2, "x:1")).unwrap();
        assert!(path.exists());

        fs::write(&path, "novel").unwrap();
        assert!(keep(&path, &mine).unwrap(), "a file without an endpoint is replaced");
        remove(&path, &mine).unwrap();
        assert!(!path.exists());
        remove(&path, &mine).unwrap();
        assert!(keep(&path, &mine).unwrap());
    }
}
