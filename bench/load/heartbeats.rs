//! Workers that send heartbeats repeatedly, each with a rank that makes progress.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardfeed_proto::coordinator::v1::{HeartbeatRequest, RankProgress};

use crate::calls::{connections, context, join};
use crate::paper::{self, Files};

const JOB: &str = "heard";
const CONNECTIONS: usize = 64;
/// Number of simultaneous joins and starts.
const AT_ONCE: usize = 256;
const ROUNDS: u64 = 4;
/// Number of epochs by which all ranks advance between heartbeats, to build up history.
const EPOCHS: u64 = 4;

/// Measures heartbeats.
/// - `files`: files of the job's dataset.
pub(crate) async fn measure(
    addresses: &[&str],
    workers: usize,
    every: Duration,
    files: u64,
) -> Value {
    let mut clients = connections(addresses, CONNECTIONS).await;
    let files = Files { count: files, ..Files::few() };
    let job = paper::job(addresses, &mut clients[0], JOB, files).await;
    let set_up = Instant::now();
    let mut ranks = Vec::new();
    for first in (0..workers).step_by(AT_ONCE) {
        let starts = (first..workers.min(first + AT_ONCE)).map(|worker| {
            let (mut client, job) = (clients[worker % CONNECTIONS].clone(), job.clone());
            tokio::spawn(async move {
                let session = join(&mut client, format!("load-{worker}")).await;
                let lease = job.start(&mut client, session, worker as u64, workers as u64).await;
                (session, lease)
            })
        });
        for start in starts.collect::<Vec<_>>() {
            ranks.push(start.await.unwrap());
        }
        // Keeps the sessions alive while others join.
        for (session, _) in &ranks {
            let heartbeat = HeartbeatRequest {
                context: context(),
                session: *session,
                ranks: vec![],
                scans: vec![],
            };
            clients[0].heartbeat(heartbeat).await.unwrap();
        }
    }
    let set_up = set_up.elapsed().as_secs_f64();
    let began = Instant::now();
    let tasks: Vec<_> = ranks
        .into_iter()
        .enumerate()
        .map(|(worker, (session, lease))| {
            let mut client = clients[worker % CONNECTIONS].clone();
            tokio::spawn(async move {
                let mut good = 0_u64;
                for round in 0..ROUNDS {
                    let phase = round as f64 + worker as f64 / workers as f64;
                    tokio::time::sleep_until((began + every.mul_f64(phase)).into()).await;
                    let (lease, epoch) = (Some(lease.clone()), round * EPOCHS);
                    let reading = vec![worker as u32 % 5];
                    let progress =
                        RankProgress { lease, epoch, step: 1, ready: 3, reading, account: None };
                    let heartbeat = HeartbeatRequest {
                        context: context(),
                        session,
                        ranks: vec![progress],
                        scans: vec![],
                    };
                    let heard = client.heartbeat(heartbeat).await;
                    good += u64::from(heard.is_ok_and(|heard| heard.get_ref().verdicts.is_empty()));
                }
                good
            })
        })
        .collect();
    let mut good = 0;
    for task in tasks {
        good += task.await.unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    let calls = ROUNDS * workers as u64;
    json!({
        "op": "heartbeats", "workers": workers, "files": files.count, "per_s": calls as f64 / seconds, "good": good,
        "calls": calls, "seconds": seconds, "set_up_s": set_up,
    })
}
