//! Messages of nodes that do not lead, or cannot.

use expect_test::expect;
use shardfeed_proto::coordinator::v1::*;

use super::Table;
use crate::cluster::Cluster;
use crate::fixture::{context, eventually, refused};
use crate::http::page;
use crate::worker::{beat, join};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_lead_says_who_does() {
    let cluster = Cluster::start(3).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let mut table = Table::default();
    table.name(format!("node {leader} at {}", cluster.address(leader)), "LEADER");
    table.name(format!("node {follower},"), "node F,");
    table.name(cluster.running[&leader].cluster_id(), "CLUSTER");
    let (_, mut admin) = cluster.clients(follower).await;
    let list = || ListJobsRequest { context: context() };
    table.refused("a list of jobs", admin.list_jobs(list()).await);
    let remove = RemoveMemberRequest { context: context(), node: follower };
    table.refused("the removal of itself", admin.remove_member(remove.clone()).await);

    let (_, mut ruler) = cluster.clients(leader).await;
    ruler.remove_member(RemoveMemberRequest { context: context(), ..remove }).await.unwrap();
    let http = cluster.running[&follower].http_address().unwrap();
    let said = eventually("it knows, or hears of no node", || async {
        let (code, said) = page(http, "/readyz").await;
        (code == 503).then_some(said)
    })
    .await;
    // The node may or may not have learned that it was removed.
    let known = ["was removed from cluster", "the leader says nothing", "no leader: "];
    assert!(known.iter().any(|known| said.contains(known)), "{said}");
    // Readers of this page are not authenticated: they learn no address.
    let leads = cluster.address(leader).to_string();
    assert!(!said.contains(&leads) && !said.contains(&format!("node {leader}")), "{said}");
    let removed = cluster.address(follower).to_string();
    table.name(format!("number {follower} "), "number F ");
    table.name(&removed, "REMOVED");
    let add = |node: u64| AddMemberRequest { context: context(), node, address: removed.clone() };
    table.refused("its number again", ruler.add_member(add(follower)).await);
    table.refused("its folder under another number", ruler.add_member(add(4)).await);
    table.check(&expect![[r#"
        a list of jobs
            NotLeader: this node is not the leader; ask LEADER
        the removal of itself: NotLeader
        its number again
            Invalid: number F was a node's already, which may have voted under it; choose one that was never used
        its folder under another number: Invalid
    "#]]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_majority_says_what_it_lacks() {
    let mut cluster = Cluster::start(1).await;
    let mut table = Table::default();
    let seed = cluster.address(1).to_string();
    cluster.add_options(2, |options| options.join = vec![seed.clone()]);
    table.name(&seed, "NODE-1");
    table.name(cluster.address(2), "NODE-2");
    let opening = tokio::spawn(cluster.listen_node(2).await.open());
    let (mut worker, admin) = cluster.clients(1).await;
    let address = cluster.address(2).to_string();
    let request = AddMemberRequest { context: context(), node: 2, address };
    eventually("it is added", || async { admin.clone().add_member(request.clone()).await.ok() })
        .await;
    let second = opening.await.unwrap().unwrap();
    let session = join(&mut worker, "w0").await.session;
    second.stop().await;
    let put = PutChunkRequest { context: context(), content: b"one copy".to_vec() };
    table.refused("a chunk", worker.put_chunk(put).await);
    let get = GetChunkRequest { context: context(), digest: vec![7; 32] };
    table.refused("a chunk that it does not have", worker.get_chunk(get).await);
    let lonely = eventually("it has lost its quorum", || async {
        let told = beat(&mut worker.clone(), session, vec![]).await;
        told.err().filter(|error| error.message().contains("has lost its quorum"))
    })
    .await;
    table.refused::<()>("a heartbeat", Err(lonely));
    let left = eventually("it rejects requests", || async {
        let told = admin.clone().list_jobs(ListJobsRequest { context: context() }).await;
        let (_, message) = refused(Err::<tonic::Response<()>, _>(told.err()?));
        message.contains("no majority has confirmed").then_some(message)
    })
    .await;
    table.add("a list of jobs", left);
    let http = cluster.running[&1].http_address().unwrap();
    let said = eventually("it is not ready", || async {
        let (code, said) = page(http, "/readyz").await;
        (code == 503).then_some(said)
    })
    .await;
    table.add("its readiness", said.trim_end());
    table.check(&expect![[r#"
        a chunk
            Retry: the chunk is on 1 of the 2 nodes that must have it; try again: NODE-2 cannot be reached: Connection refused (os error 111)
        a chunk that it does not have: Retry
        a heartbeat: Retry
        a list of jobs
            this node leads, but no majority has confirmed it yet; try again, or at another node
        its readiness
            no leader: an election is in progress, or most nodes are gone
    "#]]);
    cluster.stop().await;
}
