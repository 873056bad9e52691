//! Acknowledged data survives stops and kills; one process at a time owns a folder.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use shardfeed_coordinator::{Coordinator, StartError};
use shardfeed_proto::coordinator::v1::*;

use crate::fixture::{DEADLINE, Fixture, clients, context, eventually, options, refused};
use crate::worker::{add, join, lease, ready, register, start};

/// Set for a child process: the folder of its coordinator.
const FOLDER: &str = "SHARDFEED_TEST_COORDINATOR";

/// Returns everything that users see, without ages.
async fn views(fixture: &Fixture) -> String {
    let mut admin = fixture.admin.clone();
    let datasets = ListDatasetsRequest { context: context() };
    let mut datasets = admin.list_datasets(datasets).await.unwrap().into_inner().datasets;
    datasets.iter_mut().for_each(|dataset| dataset.age_ms = 0);
    let mut jobs = Vec::new();
    let listed = ListJobsRequest { context: context() };
    for job in admin.list_jobs(listed).await.unwrap().into_inner().jobs {
        let request = GetJobRequest { context: context(), job: job.name };
        let mut job = admin.get_job(request).await.unwrap().into_inner().job.unwrap();
        job.age_ms = 0;
        for generation in job.generation.iter_mut().chain(&mut job.history) {
            generation.age_ms = 0;
        }
        jobs.push(job);
    }
    let workers = ListWorkersRequest { context: context(), all: true };
    let mut workers = admin.list_workers(workers).await.unwrap().into_inner().workers;
    for worker in &mut workers {
        (worker.age_ms, worker.seen_ms) = (0, None);
    }
    format!("{datasets:#?}{jobs:#?}{workers:#?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_everything() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    let started = fixture.worker.start_rank(start(session, "train", 0, 2)).await.unwrap();
    add(&mut fixture, "unlisted").await;
    let (before, cluster) = (views(&fixture).await, fixture.running.cluster_id().to_owned());
    let mut fixture = fixture.restart().await;
    assert_eq!(views(&fixture).await, before);
    assert_eq!(fixture.running.cluster_id(), cluster);
    // The lease is still valid, and the chunks exist.
    let lease = lease("train", 0, started.get_ref());
    let request = EndRankRequest {
        context: context(),
        lease: Some(lease),
        failure: None,
        is_told: true,
        position: None,
    };
    fixture.worker.end_rank(request).await.unwrap();
    let digest = crate::worker::get(&fixture, "photos").await.chunks.remove(0);
    let request = GetChunkRequest { context: context(), digest };
    fixture.worker.get_chunk(request).await.unwrap();
    fixture.stop().await;
}

/// Child process of the test below, which kills it.
#[tokio::test(flavor = "multi_thread")]
async fn child_serves_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let running = Coordinator::start(options(&folder.join("data"))).await.unwrap();
    let part = folder.join("address.part");
    std::fs::write(&part, running.grpc_address().to_string()).unwrap();
    std::fs::rename(part, folder.join("address")).unwrap();
    std::future::pending::<()>().await;
}

/// Kills the child when a test fails, too.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn spawn(folder: &Path) -> (Killed, std::net::SocketAddr) {
    let address = folder.join("address");
    let _ = std::fs::remove_file(&address);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restart::child_serves_until_it_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = Killed(child);
    let address = eventually("the child serves", || async {
        std::fs::read_to_string(&address).ok()?.parse().ok()
    })
    .await;
    (child, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for round in 0..3 {
        let (child, address) = spawn(folder.path()).await;
        let (mut worker, admin) = clients(address).await;
        let list = ListDatasetsRequest { context: context() };
        let known = admin.clone().list_datasets(list).await.unwrap().into_inner().datasets;
        let known: Vec<_> = known.into_iter().map(|dataset| dataset.name).collect();
        // Only the one unanswered call of each round may be there as well.
        assert!(names.iter().all(|name| known.contains(name)), "{names:?} in {known:?}");
        assert!(known.len() <= names.len() + 4 * round, "{names:?} in {known:?}");
        let joined = join(&mut worker, "w0").await;
        let chunk = crate::worker::put(&mut worker, vec![round as u8; 1000]).await;
        // The kill arrives while calls are running.
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..4 {
            let mut admin = admin.clone();
            callers.spawn(async move {
                let mut answered = Vec::new();
                for number in 0.. {
                    let name = format!("d-{round}-{caller}-{number:04}");
                    let request = AddDatasetRequest {
                        context: context(),
                        name: name.clone(),
                        patterns: vec!["/a".into()],
                        compression: String::new(),
                        corrupt: String::new(),
                        listing: None,
                        program: vec![],
                    };
                    match admin.add_dataset(request).await {
                        Ok(_) => answered.push(name),
                        Err(_) => break,
                    }
                }
                answered
            });
        }
        eventually("some calls are answered", || async {
            let list = ListDatasetsRequest { context: context() };
            let datasets = admin.clone().list_datasets(list).await.unwrap().into_inner().datasets;
            (datasets.len() >= names.len() + 20).then_some(())
        })
        .await;
        drop(child);
        let answered = tokio::time::timeout(DEADLINE, callers.join_all()).await.unwrap();
        names.extend(answered.into_iter().flatten());
        let (child, address) = spawn(folder.path()).await;
        let (mut worker, _) = clients(address).await;
        let request = GetChunkRequest { context: context(), digest: chunk };
        let content = worker.get_chunk(request).await.unwrap().into_inner().content;
        assert_eq!(content, vec![round as u8; 1000]);
        crate::worker::beat(&mut worker, joined.session, vec![]).await.unwrap();
        drop(child);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_and_a_port_have_one_master() {
    let folder = tempfile::tempdir().unwrap();
    let (child, address) = spawn(folder.path()).await;
    let data = folder.path().join("data");
    let error = Coordinator::start(options(&data)).await.unwrap_err().to_string();
    assert!(error.contains("is in use") && error.contains(data.to_str().unwrap()), "{error}");
    let other = tempfile::tempdir().unwrap();
    let mut taken = options(other.path());
    taken.listen = address;
    let error = Coordinator::start(taken).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { option: "listen", .. }), "{error}");
    assert!(error.to_string().contains("stop what uses the port"), "{error}");
    drop(child);
    let running = Coordinator::start(options(&data)).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = Coordinator::start(options(&file.join("data"))).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("file/data") && error.contains("cannot make the folder"), "{error}");
    // A log that another program wrote.
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("raft")).unwrap();
    std::fs::write(data.join("raft/log.redb"), vec![7; 9000]).unwrap();
    let error = Coordinator::start(options(&data)).await.unwrap_err();
    assert!(matches!(error, StartError::Node(_)), "{error}");
    let error = Coordinator::start(options(Path::new(""))).await.unwrap_err();
    assert!(error.to_string().contains("`data-dir`: is empty"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_stop_calls_are_cut_off_cleanly() {
    let mut fixture = Fixture::start().await;
    join(&mut fixture.worker, "w0").await;
    let mut client = fixture.worker.clone();
    fixture.stop().await;
    let late = LeaveRequest { context: context(), session: 1 };
    let (kind, _) = refused(client.leave(late).await);
    assert_eq!(kind, shardfeed_proto::ErrorKind::Retry);
}
