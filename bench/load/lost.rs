//! Time until the groups of a lost worker are granted again: one rank has all groups and falls
//! silent, another one waits.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardfeed_plan::Mode;
use shardfeed_proto::coordinator::v1::{ClaimGroupsRequest, HeartbeatRequest};
use uuid::Uuid;

use crate::calls::{connections, context, join};
use crate::paper::{self, Files};

const FILES: u64 = 200;

pub(crate) async fn measure(addresses: &[&str]) -> Value {
    let mut client = connections(addresses, 1).await.pop().unwrap();
    let files = Files { count: FILES, records: 8, mode: Mode::Dynamic };
    let name = format!("lost-{}", Uuid::new_v4());
    let job = paper::job(addresses, &mut client, &name, files).await;
    let mut sessions = vec![];
    for rank in 0..2 {
        let session = join(&mut client, format!("{name}-{rank}")).await;
        let lease = job.start(&mut client, session, rank, 2).await;
        sessions.push((session, lease));
    }
    let take = |rank: usize, known, wants, wait_ms| ClaimGroupsRequest {
        context: context(),
        session: sessions[rank].0,
        lease: Some(sessions[rank].1.clone()),
        epoch: 0,
        step: 0,
        // All samples count as started, so none are revoked.
        started: known * files.records,
        known,
        wants,
        ahead: 0,
        released: None,
        version: 0,
        known_version: None,
        wait_ms,
    };
    let mut known = 0;
    while known < FILES {
        let taken = client.claim_groups(take(0, known, files.count * 8, 0)).await.unwrap();
        known += taken.get_ref().pieces.len() as u64;
    }
    client.claim_groups(take(0, known, 0, 0)).await.unwrap();
    let heartbeat = |rank: usize| HeartbeatRequest {
        context: context(),
        session: sessions[rank].0,
        ranks: vec![],
        scans: vec![],
    };
    client.heartbeat(heartbeat(0)).await.unwrap();
    let (silent, mut heard) = (Instant::now(), Instant::now());
    loop {
        let taken = client.claim_groups(take(1, 0, 8, 200)).await.unwrap();
        if !taken.get_ref().pieces.is_empty() {
            return json!({ "op": "lost", "ms": silent.elapsed().as_millis() as u64 });
        }
        assert!(silent.elapsed() < Duration::from_secs(120), "nothing came back");
        if heard.elapsed() > Duration::from_millis(300) {
            heard = Instant::now();
            client.heartbeat(heartbeat(1)).await.unwrap();
        }
    }
}
