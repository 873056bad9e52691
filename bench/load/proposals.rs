//! Durable entries: each client registers an existing job repeatedly.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::calls::{connections, percentile_ms};
use crate::paper::{self, Files};

const JOB: &str = "load";

pub(crate) async fn measure(addresses: &[&str], clients: usize, time: Duration) -> Value {
    let mut clients = connections(addresses, clients).await;
    let job = paper::job(addresses, &mut clients[0], JOB, Files::few()).await;
    let began = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let job = job.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                while began.elapsed() < time {
                    let register = job.register();
                    let call = Instant::now();
                    client.register_job(register).await.unwrap();
                    took.push(call.elapsed().as_nanos() as u64);
                }
                took
            })
        })
        .collect();
    let clients = tasks.len();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.unwrap());
    }
    let seconds = began.elapsed().as_secs_f64();
    took.sort_unstable();
    json!({
        "op": "proposals", "clients": clients, "per_s": took.len() as f64 / seconds,
        "p50_ms": percentile_ms(&took, 0.5), "p99_ms": percentile_ms(&took, 0.99),
    })
}
