//! A backup, taken while the cluster serves, becomes a new cluster with the same content.

use shardfeed_coordinator::{Coordinator, RestoreError, restore_snapshot};
use shardfeed_proto::coordinator::v1::*;
use tonic::transport::Channel;

use crate::cluster::members;
use crate::fixture::{Fixture, clients, context};
use crate::worker::{get, ready, register, start};

type Admin = admin_service_client::AdminServiceClient<Channel>;

/// Returns the file, and the log index of its state.
pub(crate) async fn save(admin: &mut Admin) -> (Vec<u8>, u64) {
    let request = SaveSnapshotRequest { context: context() };
    let mut parts = admin.save_snapshot(request).await.unwrap().into_inner();
    let (mut bytes, mut applied) = (Vec::new(), 0);
    while let Some(part) = parts.message().await.unwrap() {
        assert!(part.content.len() <= 1 << 20);
        bytes.extend_from_slice(&part.content);
        applied = part.applied;
    }
    (bytes, applied)
}

async fn hash(admin: &mut Admin) -> String {
    members(admin).await.members.remove(0).state_hash
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_gives_the_same_state_and_chunks_under_a_new_cluster_id() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    fixture.worker.start_rank(start(session, "train", 0, 2)).await.unwrap();
    let before = hash(&mut fixture.admin).await;
    let (bytes, applied) = save(&mut fixture.admin).await;
    assert!(applied > 0);
    let cluster = fixture.running.cluster_id().to_owned();
    let chunks = get(&fixture, "photos").await.chunks;
    let restored_options = fixture.options.clone();
    let folder = fixture.stop().await;

    let (file, data) = (folder.path().join("backup"), folder.path().join("restored"));
    std::fs::write(&file, bytes).unwrap();
    let full = restore_snapshot(&file, folder.path(), &restored_options).unwrap_err();
    assert!(matches!(full, RestoreError::NotEmpty { .. }), "{full}");
    let restored = restore_snapshot(&file, &data, &restored_options).unwrap();
    assert_eq!((&restored.from_cluster, restored.applied), (&cluster, applied));
    assert_ne!(restored.cluster, cluster);

    let options = shardfeed_coordinator::CoordinatorOptions { data_dir: data, ..restored_options };
    let running = Coordinator::start(options).await.unwrap();
    assert_eq!(running.cluster_id(), restored.cluster);
    let (mut worker, mut admin) = clients(running.grpc_address()).await;
    assert_eq!(hash(&mut admin).await, before);
    assert!(chunks.len() > 1);
    for digest in chunks {
        let request = GetChunkRequest { context: context(), digest };
        worker.get_chunk(request).await.unwrap();
    }
    // The session continues there.
    crate::worker::beat(&mut worker, session, vec![]).await.unwrap();
    let job = GetJobRequest { context: context(), job: "train".into() };
    admin.get_job(job).await.unwrap();
    running.stop().await;
}
