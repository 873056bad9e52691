//! Messages of a coordinator that cannot start, or waits.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use expect_test::expect;
use futures::FutureExt;
use futures::future::BoxFuture;
use shardfeed_coordinator::{Coordinator, CoordinatorOptions};
use shardfeed_host::{ByteStream, Disk, Host, Listener, RealHost};
use shardfeed_proto::coordinator::v1::*;

use super::Table;
use crate::cluster::Cluster;
use crate::fixture::{Fixture, clients, context, eventually, options};
use crate::http::page;

/// A host on which this process may open no port.
#[derive(Debug)]
struct NoPorts;

impl Host for NoPorts {
    fn now(&self) -> tokio::time::Instant {
        RealHost.now()
    }

    fn wall_ms(&self) -> u64 {
        RealHost.wall_ms()
    }

    fn random(&self) -> u64 {
        RealHost.random()
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        RealHost.connect(address)
    }

    fn listen(&self, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        async { Err(io::ErrorKind::PermissionDenied.into()) }.boxed()
    }

    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        RealHost.disk(folder)
    }

    fn has_threads(&self) -> bool {
        true
    }
}

async fn refused(options: CoordinatorOptions) -> String {
    Coordinator::start(options).await.unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_that_cannot_be_says_what_stands_in_its_way() {
    let fixture = Fixture::start().await;
    let folder = tempfile::tempdir().unwrap();
    let free = || options(&folder.path().join("free"));
    let mut table = Table::default();
    table.name(fixture.folder.path().display(), "TAKEN-FOLDER");
    table.name(fixture.running.grpc_address(), "TAKEN-ADDRESS");
    table.name(fixture.running.cluster_id(), "CLUSTER");
    table.name(folder.path().display(), "FOLDER");
    fs::write(folder.path().join("file"), b"").unwrap();
    table.add("a folder in a file", refused(options(&folder.path().join("file/data"))).await);
    table.add("a folder of another one", refused(options(fixture.folder.path())).await);
    let taken = CoordinatorOptions { listen: fixture.running.grpc_address(), ..free() };
    table.add("a port of another one", refused(taken).await);
    let elsewhere =
        CoordinatorOptions { listen: "192.0.2.1:7070".parse().unwrap(), insecure: true, ..free() };
    table.add("a port of another host", refused(elsewhere).await);
    let low = Coordinator::start_on(Arc::new(NoPorts), free()).await.unwrap_err();
    table.add("a port that it may not have", low);
    let tls = CoordinatorOptions { tls: Some(folder.path().join("none")), ..free() };
    table.add("certificates that are not there", refused(tls).await);

    let Fixture { folder: data, options: before, running, .. } = fixture;
    running.stop().await;
    let other = CoordinatorOptions { node_id: 2, ..before.clone() };
    table.add("a folder of another node", refused(other).await);
    let other = CoordinatorOptions { cluster_name: "other".into(), ..before.clone() };
    table.add("a folder of another cluster", refused(other).await);
    let log = data.path().join("raft/log.redb");
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, vec![7; bytes.len()]).unwrap();
    table.add("a log of another program", refused(before.clone()).await);
    fs::write(&log, b"").unwrap();
    table.add("a log that is empty", refused(before.clone()).await);
    fs::write(&log, &bytes).unwrap();
    let witness = data.path().join("raft/log.witness");
    let known = fs::read(&witness).unwrap();
    fs::write(&witness, b"").unwrap();
    table.add("a log without its witness", refused(before.clone()).await);
    fs::write(&witness, known).unwrap();
    fs::create_dir(data.path().join("chunks/part-1")).unwrap();
    table.add("chunks that cannot be put in order", refused(before.clone()).await);
    fs::remove_dir(data.path().join("chunks/part-1")).unwrap();
    fs::remove_file(&log).unwrap();
    fs::write(data.path().join("raft/notes.txt"), b"").unwrap();
    table.add("a folder of other files", refused(before.clone()).await);
    table.check(&expect![[r#"
        a folder in a file
            FOLDER/file/data/raft: cannot make the folder: Not a directory (os error 20); data-dir must be a writable folder on a disk with free space
        a folder of another one
            TAKEN-FOLDER/raft is in use by another node; stop that one first, or give this one its own directory
        a port of another one
            option `listen`: cannot listen on TAKEN-ADDRESS: Address already in use (os error 98); stop what uses the port, or choose another one
        a port of another host
            option `listen`: cannot listen on 192.0.2.1:7070: Cannot assign requested address (os error 99); use an address of this host
        a port that it may not have
            option `listen`: cannot listen on 127.0.0.1:0: permission denied; choose a port above 1023
        certificates that are not there
            option `tls`: FOLDER/none/ca.crt: cannot read: No such file or directory (os error 2)
        a folder of another node
            TAKEN-FOLDER/raft/log.redb is not ours: it is the log of node 1 of `shardfeed`, the options say node 2 of `shardfeed`; give the node an empty directory or the one it had before
        a folder of another cluster
            TAKEN-FOLDER/raft/log.redb is not ours: it is the log of node 1 of `shardfeed`, the options say node 1 of `other`; give the node an empty directory or the one it had before
        a log of another program
            TAKEN-FOLDER/raft/log.redb is damaged: Not a redb database: magic number mismatch; keep a copy of the directory and restore it from a backup, or let the node rejoin empty under a new node id
        a log that is empty
            TAKEN-FOLDER/raft/log.redb is damaged: it is empty; keep a copy of the directory and restore it from a backup, or let the node rejoin empty under a new node id
        a log without its witness
            TAKEN-FOLDER/raft/log.redb is damaged: its witness: the file `log.witness` is missing or has another length; keep a copy of the directory and restore it from a backup, or let the node rejoin empty under a new node id
        chunks that cannot be put in order
            TAKEN-FOLDER/chunks/part-1: cannot open the chunks: Is a directory (os error 21); data-dir must be a writable folder on a disk with free space
        a folder of other files
            TAKEN-FOLDER/raft is not ours: it holds `notes.txt`; give the node an empty directory or the one it had before
    "#]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_that_has_no_place_in_a_cluster_is_told_how_it_gets_one() {
    let mut cluster = Cluster::start(1).await;
    let mut table = Table::default();
    let there = cluster.address(1).to_string();
    table.name(cluster.running[&1].cluster_id(), "CLUSTER");
    for (node, name) in [(1, "NODE-1"), (2, "NODE-2"), (3, "NODE-3"), (4, "NODE-4")] {
        table.name(cluster.address(node), name);
    }
    let peers: Vec<_> = (1..=3).map(|node| format!("{node}={}", cluster.address(node))).collect();
    cluster.add_options(2, |options| options.peers = peers.clone());
    let founds = cluster.start_node(2).await.unwrap_err();
    table.add("one that is to found an existing cluster", founds);
    cluster.add_options(2, |options| {
        options.join = vec![there.clone()];
        options.cluster_name = "other".into();
    });
    table.add("one of another cluster", cluster.start_node(2).await.unwrap_err());

    // It reports the reason of its wait until it is added; then it loses its disk.
    cluster.add_options(2, |options| options.join = vec![there.clone()]);
    let starting = cluster.listen_node(2).await;
    let http = starting.http_address().unwrap();
    let opening = tokio::spawn(starting.open());
    let waits = async |words: &str, http: SocketAddr| {
        eventually(words, || async {
            let (_, said) = page(http, "/readyz").await;
            said.contains(words).then_some(said)
        })
        .await
    };
    table.add("one that was not added", waits("to be added", http).await.trim_end());
    let (_, mut admin) = cluster.clients(1).await;
    let address = cluster.address(2).to_string();
    let request = AddMemberRequest { context: context(), node: 2, address };
    eventually("it is added", || async { admin.clone().add_member(request.clone()).await.ok() })
        .await;
    cluster.running.insert(2, opening.await.unwrap().unwrap());
    let again = AddMemberRequest { context: context(), node: 2, address: "127.0.0.1:1".into() };
    table.refused("one that is there, at another address", admin.add_member(again).await);
    cluster.running.remove(&2).unwrap().stop().await;
    fs::remove_dir_all(&cluster.options[&2].data_dir).unwrap();
    table.add("one that lost its disk", cluster.start_node(2).await.unwrap_err());
    cluster.stop().await;

    // No other node runs yet.
    let mut cluster = Cluster::new();
    for (node, name) in [(1, "NODE-1"), (2, "NODE-2"), (3, "NODE-3"), (4, "NODE-4")] {
        table.name(cluster.address(node), name);
    }
    cluster.founders(3);
    let seed = cluster.address(1).to_string();
    let starting = cluster.listen_node(1).await;
    let (grpc, first) = (starting.grpc_address(), starting.http_address().unwrap());
    let first_opens = tokio::spawn(starting.open());
    let both = |said: &String| said.matches("refused").count() == 2;
    let said = waits("found a cluster", first).await;
    assert!(both(&said), "{said}");
    table.add("a founder that is alone", said.trim_end());
    let (_, mut admin) = clients(grpc).await;
    let list = ListJobsRequest { context: context() };
    table.refused("a caller of it", admin.list_jobs(list).await);
    // Its list has the address of the first node under the number of the second.
    let (second, third) = (cluster.address(2), cluster.address(3));
    let peers = vec![format!("3={third}"), format!("1={second}"), format!("2={seed}")];
    cluster.add_options(3, |options| options.peers = peers);
    cluster.add_options(4, |options| options.join = vec![seed]);
    let starting = cluster.listen_node(4).await;
    let fourth = starting.http_address().unwrap();
    let fourth_opens = tokio::spawn(starting.open());
    table.add("one that is to join it", waits("has no cluster", fourth).await.trim_end());
    let starting = cluster.listen_node(3).await;
    let third = starting.http_address().unwrap();
    let third_opens = tokio::spawn(starting.open());
    table.add("one that has them in another order", waits("is node", third).await.trim_end());
    [first_opens, third_opens, fourth_opens].iter().for_each(|opening| opening.abort());
    table.check(&expect![[r#"
        one that is to found an existing cluster
            option `peers`: NODE-1 is part of cluster CLUSTER already, which does not know node 2; give this node `join`, too, and add it to the cluster
        one of another cluster
            NODE-1 is of cluster `shardfeed`, this node is to be of `other`; check the address and the option `cluster-name`
        one that was not added
            waits to be added to cluster CLUSTER: run `shardfeed cluster add 2 NODE-2` there
        one that is there, at another address
            Invalid: node 2 is a member already, at `NODE-2`; a node that moves says so itself
        one that lost its disk
            node 2 of cluster CLUSTER lost its disk: its data folder is empty, but the cluster knows it; remove it from the cluster and add it under a number that was never used
        a founder that is alone
            waits for all of its peers to found a cluster; missing: NODE-2 (NODE-2 cannot be reached: Connection refused (os error 111)), NODE-3 (NODE-3 cannot be reached: Connection refused (os error 111))
        a caller of it
            Retry: this coordinator is not part of a cluster yet: waits for all of its peers to found a cluster; missing: NODE-2 (NODE-2 cannot be reached: Connection refused (os error 111)), NODE-3 (NODE-3 cannot be reached: Connection refused (os error 111))
        one that is to join it
            waits for a node of the cluster to join: NODE-1 (has no cluster yet)
        one that has them in another order
            waits for all of its peers to found a cluster; missing: NODE-2 (NODE-2 cannot be reached: Connection refused (os error 111)), NODE-1 (is node 1)
    "#]]);
    cluster.stop().await;
}
