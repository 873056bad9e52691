//! Grants of a dynamic job's groups to ranks that claim one after the other.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardfeed_plan::Mode;
use shardfeed_proto::coordinator::v1::batch_claim_groups_response::result::Result as Outcome;
use shardfeed_proto::coordinator::v1::{
    BatchClaimGroupsRequest, ClaimGroupsRequest, ClaimGroupsResponse, HeartbeatRequest, Lease,
};

use crate::calls::{Clients, connections, context, join, percentile_ms};
use crate::paper::{self, Files};

/// State of a rank's grants.
#[derive(Debug)]
struct Rank {
    lease: Lease,
    known: u64,
    samples: u64,
}

impl Rank {
    fn take(&self, session: u64) -> ClaimGroupsRequest {
        ClaimGroupsRequest {
            context: None,
            session,
            lease: Some(self.lease.clone()),
            epoch: 0,
            step: 0,
            // It starts everything granted at once, and so is granted more.
            started: self.samples,
            known: self.known,
            wants: 1,
            ahead: 0,
            released: None,
            version: 0,
            known_version: None,
            wait_ms: 0,
        }
    }

    fn hear(&mut self, taken: &ClaimGroupsResponse) -> u64 {
        let pieces = taken.pieces.len() as u64;
        self.known = taken.first + pieces;
        self.samples = taken.samples;
        pieces
    }
}

/// Measures grants.
/// - `batch`: ranks per request; `ranks`: ranks of the job; `files`: groups that can be granted.
pub(crate) async fn measure(
    addresses: &[&str],
    clients: usize,
    time: Duration,
    (batch, ranks, files): (u64, u64, u64),
) -> Value {
    let mut clients = connections(addresses, clients).await;
    let begun = Instant::now();
    let files = Files { count: files, records: 8, mode: Mode::Dynamic };
    let name = format!("deal-{}", uuid::Uuid::new_v4());
    let job = paper::job(addresses, &mut clients[0], &name, files).await;
    let set_up = begun.elapsed();
    let count = clients.len() as u64;
    let mut tasks = Vec::new();
    for (client_number, mut client) in clients.into_iter().enumerate() {
        let job = job.clone();
        tasks.push(tokio::spawn(async move {
            let worker = format!("load-{batch}-{client_number}-{}", uuid::Uuid::new_v4());
            let session = join(&mut client, worker).await;
            let mut own = vec![];
            for rank in (client_number as u64..ranks).step_by(count as usize) {
                let lease = job.start(&mut client, session, rank, ranks).await;
                own.push(Rank { lease, known: 0, samples: 0 });
            }
            (client, session, own)
        }));
    }
    let mut served = Vec::new();
    for task in tasks {
        served.push(task.await.unwrap());
    }
    let began = Instant::now();
    let tasks: Vec<_> = served
        .into_iter()
        .map(|(client, session, own)| {
            tokio::spawn(async move { deal((client, session), own, batch, (began, time)).await })
        })
        .collect();
    let (mut granted, mut took) = (0, Vec::new());
    for task in tasks {
        let (pieces, each) = task.await.unwrap();
        granted += pieces;
        took.extend(each);
    }
    let seconds = began.elapsed().as_secs_f64();
    took.sort_unstable();
    json!({
        "op": "grants", "clients": count, "batch": batch, "ranks": ranks, "files": files.count,
        "granted": granted, "per_s": granted as f64 / seconds, "set_up_s": set_up.as_secs_f64(),
        "p50_ms": percentile_ms(&took, 0.5), "p99_ms": percentile_ms(&took, 0.99),
    })
}

/// Claims groups for some ranks, `batch` ranks per request, until the time is over.
///
/// Returns the number of grants and the duration of each request in ns.
async fn deal(
    (mut client, session): (Clients, u64),
    mut ranks: Vec<Rank>,
    batch: u64,
    (began, time): (Instant, Duration),
) -> (u64, Vec<u64>) {
    let (mut granted, mut took, mut heard) = (0, vec![], Instant::now());
    loop {
        for some in ranks.chunks_mut(batch as usize) {
            if began.elapsed() >= time {
                return (granted, took);
            }
            if heard.elapsed() > Duration::from_secs(1) {
                heard = Instant::now();
                let (ranks, scans) = (vec![], vec![]);
                let heartbeat = HeartbeatRequest { context: context(), session, ranks, scans };
                client.heartbeat(heartbeat).await.unwrap();
            }
            let takes = some.iter().map(|rank| rank.take(session)).collect();
            let request = BatchClaimGroupsRequest { context: context(), takes };
            let call = Instant::now();
            let answer = client.batch_claim_groups(request).await.unwrap().into_inner();
            took.push(call.elapsed().as_nanos() as u64);
            let before = granted;
            for (rank, result) in some.iter_mut().zip(answer.results) {
                match result.result.unwrap() {
                    Outcome::Taken(taken) => granted += rank.hear(&taken),
                    Outcome::Error(error) => panic!("{error:?}"),
                }
            }
            if granted == before {
                // All groups of the epoch are granted.
                return (granted, took);
            }
        }
    }
}
