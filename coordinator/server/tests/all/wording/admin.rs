//! Messages to operators of the cluster.

use expect_test::expect;
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::*;
use tonic::transport::Endpoint;

use super::Table;
use crate::fixture::{DEADLINE, Fixture, clients, context};
use crate::worker::{entry, join, ready, register, scan_parts, start, wait_ready};

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_members_says_what_can_be_done() {
    let mut fixture = Fixture::start().await;
    let (mut table, admin) = (Table::default(), &mut fixture.admin);
    let ours = fixture.running.grpc_address().to_string();
    table.name(&ours, "HERE");
    let add = |node: u64, address: &str| AddMemberRequest {
        context: context(),
        node,
        address: address.into(),
    };
    let remove = |node: u64| RemoveMemberRequest { context: context(), node };
    let transfer = |to: Option<u64>| TransferLeaderRequest { context: context(), to };
    let nobody = "127.0.0.1:1";
    table.refused("add a node of number 0", admin.add_member(add(0, nobody)).await);
    table.refused("add a node without a port", admin.add_member(add(2, "nowhere")).await);
    table.refused("add a node at another's address", admin.add_member(add(2, &ours)).await);
    table.refused("add a node that does not run", admin.add_member(add(2, nobody)).await);
    let stranger = Fixture::start().await;
    table.name(stranger.running.grpc_address(), "STRANGER");
    table.name(stranger.running.cluster_id(), "THEIRS");
    table.name(fixture.running.cluster_id(), "OURS");
    let theirs = stranger.running.grpc_address().to_string();
    table.refused("add a node of another cluster", admin.add_member(add(2, &theirs)).await);
    stranger.stop().await;
    table.refused("add a node that is a member", admin.add_member(add(1, nobody)).await);
    table.refused("remove the only node", admin.remove_member(remove(1)).await);
    table.refused("hand over without a target", admin.transfer_leader(transfer(None)).await);
    table.refused("hand over to a stranger", admin.transfer_leader(transfer(Some(7))).await);
    fixture.stop().await;

    let everywhere = Fixture::start_with(|options| {
        options.listen = "0.0.0.0:0".parse().unwrap();
        options.insecure = true;
    });
    let fixture = everywhere.await;
    table.name(fixture.running.grpc_address(), "EVERYWHERE");
    let (_, mut admin) = clients(fixture.running.grpc_address()).await;
    let added = admin.add_member(add(2, nobody)).await;
    table.refused("add a node to one that others cannot reach", added);
    table.check(&expect![[r#"
        add a node of number 0
            Invalid: `node` is 0; nodes are numbered from 1 on
        add a node without a port: Invalid
        add a node at another's address: Invalid
        add a node that does not run
            Unreachable: node 2 cannot be reached: 127.0.0.1:1 cannot be reached: Connection refused (os error 111)
        add a node of another cluster: Invalid
        add a node that is a member: Invalid
        remove the only node: Invalid
        hand over without a target: Invalid
        hand over to a stranger: Invalid
        add a node to one that others cannot reach: Invalid
    "#]]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_datasets_and_jobs_says_what_is_wrong_with_them() {
    let mut fixture = Fixture::start().await;
    let (session, dataset) = ready(&mut fixture).await;
    let (mut table, admin) = (Table::default(), &mut fixture.admin);
    let add = |name: &str, pattern: &str| AddDatasetRequest {
        context: context(),
        name: name.into(),
        patterns: vec![pattern.into()],
        compression: String::new(),
        corrupt: String::new(),
        listing: None,
        program: vec![],
    };
    let none = AddDatasetRequest { patterns: vec![], ..add("a", "") };
    let packed = AddDatasetRequest { compression: "xz".into(), ..add("a", "/a") };
    let corrupt = AddDatasetRequest { corrupt: "maybe".into(), ..add("a", "/a") };
    let remove = |name: &str| RemoveDatasetRequest { context: context(), name: name.into() };
    let get = |name: &str| GetDatasetRequest { context: context(), name: name.into() };
    for (what, asked) in [
        ("add a dataset without a name", add("", "/a")),
        ("add a dataset without files", none),
        ("add a dataset of files somewhere", add("a", "files/*")),
        ("add a dataset of an unknown compression", packed),
        ("add a dataset with an unknown corrupt policy", corrupt),
        ("add a dataset under the name of another", add("photos", "/b")),
    ] {
        table.refused(what, admin.add_dataset(asked).await);
    }
    table.refused("look at a dataset that is not there", admin.get_dataset(get("none")).await);
    table.refused("remove a dataset that is not there", admin.remove_dataset(remove("none")).await);

    fixture.worker.register_job(register(&dataset, "train", 2)).await.unwrap();
    table.refused("remove a dataset in use", admin.remove_dataset(remove("photos")).await);
    let job = |job: &str| GetJobRequest { context: context(), job: job.into() };
    table.refused("look at a job that is not there", admin.get_job(job("none")).await);
    let epochs =
        |job: &str| ListEpochsRequest { context: context(), job: job.into(), epoch: Some(0) };
    table.refused("look at epochs of no job", admin.list_epochs(epochs("none")).await);
    let not_yet = admin.list_epochs(epochs("train")).await;
    table.refused("look at an epoch of a job that has not started", not_yet);
    let map = |cells: u64| GetEpochMapRequest {
        context: context(),
        job: "train".into(),
        epoch: None,
        cells,
    };
    table.refused("draw its map", admin.get_epoch_map(map(80)).await);
    table.refused("draw a map without cells", admin.get_epoch_map(map(0)).await);
    let hold = |job: &str, hold: Hold| HoldJobRequest {
        context: context(),
        job: job.into(),
        hold: hold.into(),
        reason: String::new(),
    };
    table.refused("hold a job somehow", admin.hold_job(hold("train", Hold::Unspecified)).await);
    table.refused("pause no job", admin.hold_job(hold("none", Hold::Paused)).await);
    fixture.worker.start_rank(start(session, "train", 0, 1)).await.unwrap();
    let remove = |name: &str| RemoveJobRequest { context: context(), name: name.into() };
    table.refused("remove a job that runs", admin.remove_job(remove("train")).await);
    table.refused("remove a job that is not there", admin.remove_job(remove("none")).await);
    admin.hold_job(hold("train", Hold::Cancelled)).await.unwrap();
    table.refused("pause a cancelled job", admin.hold_job(hold("train", Hold::Paused)).await);
    let cordon = |cordon: Cordon| CordonWorkerRequest {
        context: context(),
        worker: "w0".into(),
        cordon: cordon.into(),
    };
    table
        .refused("cordon a worker somehow", admin.cordon_worker(cordon(Cordon::Unspecified)).await);
    table.check(&expect![[r#"
        add a dataset without a name
            Invalid: the dataset's name is empty
        add a dataset without files: Invalid
        add a dataset of files somewhere: Invalid
        add a dataset of an unknown compression: Invalid
        add a dataset with an unknown corrupt policy: Invalid
        add a dataset under the name of another
            Identity: dataset `photos` exists with other patterns: /data/*; use another name
        look at a dataset that is not there
            NotFound: there is no dataset `none`
        remove a dataset that is not there: NotFound
        remove a dataset in use: Invalid
        look at a job that is not there: NotFound
        look at epochs of no job: NotFound
        look at an epoch of a job that has not started: NotFound
        draw its map: NotFound
        draw a map without cells: Invalid
        hold a job somehow: Invalid
        pause no job: NotFound
        remove a job that runs: Invalid
        remove a job that is not there: NotFound
        pause a cancelled job
            Cancelled: job `train` was cancelled by test:me@here; it starts again after `shardfeed job resume train`
        cordon a worker somehow: Invalid
    "#]]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_of_access_tokens_and_audits_says_what_they_are() {
    let mut fixture = Fixture::start().await;
    let (mut table, admin) = (Table::default(), &mut fixture.admin);
    table.name(fixture.folder.path().display(), "FOLDER");
    let create = |id: &str| CreateAccessRequest {
        context: context(),
        id: id.into(),
        digest: vec![0; 32],
        name: "ada".into(),
        role: "viewer".into(),
        ttl_ms: 60_000,
        ..CreateAccessRequest::default()
    };
    admin.create_access(create("abcd")).await.unwrap();
    for (what, asked) in [
        ("a token with a short id", create("abc")),
        (
            "a token with a digest of another sort",
            CreateAccessRequest { digest: vec![0; 31], ..create("abce") },
        ),
        (
            "a token of an unknown role",
            CreateAccessRequest { role: "king".into(), ..create("abce") },
        ),
        ("a token without an end", CreateAccessRequest { ttl_ms: u64::MAX, ..create("abce") }),
        ("a token with an id that is taken", create("abcd")),
    ] {
        table.refused(what, admin.create_access(asked).await);
    }
    let revoke = RevokeAccessRequest { context: context(), id: "none".into() };
    table.refused("revoke a token that is not there", admin.revoke_access(revoke).await);
    let exchange = ExchangeAccessRequest {
        context: context(),
        id: "abcd".into(),
        digest: vec![0; 32],
        name: "w".into(),
    };
    let exchanged = admin.exchange_access(exchange).await;
    table.refused("exchange a token that is not shown", exchanged);
    let audit =
        |most: u64| ListAuditRequest { context: context(), most, ..ListAuditRequest::default() };
    table.refused("read nothing of the audit", admin.list_audit(audit(0)).await);
    std::fs::remove_dir_all(fixture.folder.path().join("audit")).unwrap();
    table.refused("read an audit that was removed", admin.list_audit(audit(10)).await);
    table.check(&expect![[r#"
        a token with a short id
            Invalid: `id` of a token has 4 to 32 letters and digits
        a token with a digest of another sort: Invalid
        a token of an unknown role: Invalid
        a token without an end: Invalid
        a token with an id that is taken: Invalid
        revoke a token that is not there
            NotFound: there is no access token `none`
        exchange a token that is not shown
            Denied: a join token is exchanged by showing it; give --token-file FILE
        read nothing of the audit: Invalid
        read an audit that was removed
            Storage: FOLDER/audit: cannot read the audit: No such file or directory (os error 2); check the disk of the coordinator
    "#]]);
    fixture.stop().await;
}

/// Returns a client that reads only the first 65,535 bytes of an answer, as a slow one does.
async fn slow(fixture: &Fixture) -> AdminServiceClient<tonic::transport::Channel> {
    let endpoint = format!("http://{}", fixture.running.grpc_address());
    let channel = Endpoint::from_shared(endpoint).unwrap().initial_stream_window_size(65_535);
    let channel = channel.initial_connection_window_size(64 << 20).timeout(DEADLINE);
    AdminServiceClient::new(channel.connect().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_while_others_are_still_being_sent_their_answers_is_told_so() {
    const LISTS_MAX: usize = 32;
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    // Answers of more than a megabyte, which no client reads.
    let path = |number| format!("{number:04}-{}", "x".repeat(480));
    let files: Vec<_> = (0..3_000).map(|number| entry(&path(number), 10)).collect();
    scan_parts(&mut fixture, session, "photos", (&files, 1_000)).await;
    let dataset = wait_ready(&fixture, "photos").await;
    fixture.worker.register_job(register(&dataset, "train", 1)).await.unwrap();
    fixture.worker.start_rank(start(session, "train", 0, 1)).await.unwrap();
    let (mut table, mut admin) = (Table::default(), slow(&fixture).await);
    let save = || SaveSnapshotRequest { context: context() };
    let sent = admin.save_snapshot(save()).await.unwrap();
    table.refused("a second snapshot", fixture.admin.save_snapshot(save()).await);
    let list = || ListShardsRequest {
        context: context(),
        job: "train".into(),
        ..ListShardsRequest::default()
    };
    let mut lists = Vec::new();
    for _ in 0..LISTS_MAX {
        lists.push(admin.list_shards(list()).await.unwrap());
    }
    table.refused("one more list of shards", fixture.admin.list_shards(list()).await);
    drop((sent, lists));
    table.check(&expect![[r#"
        a second snapshot
            Retry: another snapshot is being sent; try again after it
        one more list of shards: Retry
    "#]]);
    fixture.stop().await;
}
