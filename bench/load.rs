//! Closed-loop clients of coordinators, for bench/coordinators.py:
//! `load ADDRESS[,ADDRESS...] proposals|grants|heartbeats --clients N --seconds S [--batch B] [--ranks R]`.
//!
//! - `proposals`: each client registers a job that exists, under a new request id: one durable entry.
//! - `grants`: each request takes a group for each of B ranks of a dynamic job (`dataset` "load").
//! - `heartbeats`: R workers with a rank each, all heard once in S seconds.
//!
//! Prints one line of JSON.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use shardfeed_proto::COORDINATOR_PROTOCOL;
use shardfeed_proto::common::v1::{JobIdentity, Tail};
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::{
    Context, GetStatusRequest, HeartbeatRequest, JoinRequest, RegisterJobRequest,
};
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

type Clients = WorkerServiceClient<Channel>;

fn context() -> Option<Context> {
    Some(Context {
        request_id: Uuid::new_v4().to_string(),
        principal: "bench:load".into(),
        cluster_id: String::new(),
        protocol: COORDINATOR_PROTOCOL,
    })
}

/// A connection to whoever leads.
async fn leader(addresses: &[&str]) -> Channel {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        for address in addresses {
            let endpoint =
                Endpoint::from_shared(format!("http://{address}")).unwrap().tcp_nodelay(true);
            let Ok(channel) = endpoint.connect().await else { continue };
            let mut admin = AdminServiceClient::new(channel.clone());
            let Ok(status) = admin.get_status(GetStatusRequest { context: context() }).await else {
                continue;
            };
            let status = status.into_inner();
            if status.leader == Some(status.node) {
                // A connection of its own for each client, as workers have.
                return endpoint.connect().await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nobody leads among {addresses:?}");
}

fn identity() -> Option<JobIdentity> {
    Some(JobIdentity {
        content: vec![7; 32],
        seed: 1,
        shuffle: true,
        window: 100,
        interleave: 4,
        block_length: 1,
        lanes: 1,
        tail: Tail::Drop.into(),
        operators: String::new(),
        decoder: "none".into(),
        ..JobIdentity::default()
    })
}

fn register(name: &str) -> RegisterJobRequest {
    let (name, dataset) = (name.to_owned(), String::new());
    RegisterJobRequest { context: context(), name, dataset, identity: identity() }
}

/// What all clients did, and how long each call took, ns.
#[derive(Debug, Default)]
struct Tally {
    calls: AtomicU64,
    items: AtomicU64,
}

fn percentile(sorted: &[u64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 - 1.0) * part).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or(0) as f64 / 1e6
}

async fn proposals(addresses: &[&str], clients: usize, time: Duration) -> serde_json::Value {
    let mut first = Clients::new(leader(addresses).await);
    first.register_job(register("load")).await.unwrap();
    let tally = Arc::new(Tally::default());
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (mut client, tally) = (Clients::new(leader(addresses).await), Arc::clone(&tally));
        tasks.push(tokio::spawn(async move {
            let (began, mut took) = (Instant::now(), Vec::new());
            while began.elapsed() < time {
                let call = Instant::now();
                client.register_job(register("load")).await.unwrap();
                took.push(call.elapsed().as_nanos() as u64);
                tally.calls.fetch_add(1, Ordering::Relaxed);
            }
            took
        }));
    }
    let began = Instant::now();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.unwrap());
    }
    let seconds = began.elapsed().as_secs_f64();
    took.sort_unstable();
    let calls = tally.calls.load(Ordering::Relaxed);
    json!({
        "op": "proposals", "clients": clients, "per_s": calls as f64 / seconds,
        "p50_ms": percentile(&took, 0.5), "p99_ms": percentile(&took, 0.99),
    })
}

async fn heartbeats(addresses: &[&str], workers: usize, every: Duration) -> serde_json::Value {
    const CONNECTIONS: usize = 64;
    const JOINS: usize = 256;
    const ROUNDS: usize = 4;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Clients::new(leader(addresses).await));
    }
    let mut sessions = Vec::new();
    for first in (0..workers).step_by(JOINS) {
        let joins = (first..workers.min(first + JOINS)).map(|worker| {
            let mut client = clients[worker % CONNECTIONS].clone();
            tokio::spawn(async move {
                let join = JoinRequest {
                    context: context(),
                    worker: format!("load-{worker}"),
                    host: "load".into(),
                    incarnation: Uuid::new_v4().to_string(),
                    version: "0".into(),
                    in_process: false,
                    endpoint: String::new(),
                };
                client.join(join).await.unwrap().into_inner().session
            })
        });
        for join in joins.collect::<Vec<_>>() {
            sessions.push(join.await.unwrap());
        }
    }
    let tally = Arc::new(Tally::default());
    let began = Instant::now();
    let mut tasks = Vec::new();
    for (worker, session) in sessions.into_iter().enumerate() {
        let (mut client, tally) = (clients[worker % CONNECTIONS].clone(), Arc::clone(&tally));
        tasks.push(tokio::spawn(async move {
            let phase = every.mul_f64(worker as f64 / workers as f64);
            tokio::time::sleep(phase).await;
            for _ in 0..ROUNDS {
                let call = Instant::now();
                let (ranks, scans) = (vec![], vec![]);
                let heartbeat = HeartbeatRequest { context: context(), session, ranks, scans };
                if client.heartbeat(heartbeat).await.is_ok() {
                    tally.items.fetch_add(1, Ordering::Relaxed);
                }
                tally.calls.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(every.saturating_sub(call.elapsed())).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    let calls = tally.calls.load(Ordering::Relaxed);
    let good = tally.items.load(Ordering::Relaxed);
    json!({"op": "heartbeats", "workers": workers, "per_s": calls as f64 / seconds, "good": good, "calls": calls})
}

fn option(name: &str, default: u64) -> u64 {
    let mut words = std::env::args().skip_while(|word| word != name).skip(1);
    words.next().map_or(default, |word| word.parse().unwrap())
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let addresses: Vec<&str> = words[1].split(',').collect();
    let clients = option("--clients", 64) as usize;
    let time = Duration::from_secs(option("--seconds", 4));
    let found = match words[2].as_str() {
        "proposals" => proposals(&addresses, clients, time).await,
        "heartbeats" => heartbeats(&addresses, clients, time).await,
        other => panic!("{other} is none of proposals, grants, heartbeats"),
    };
    println!("{found}");
}
