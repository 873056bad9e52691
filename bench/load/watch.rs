//! One rank that claims group after group and reports the duration of every wait.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shardfeed_plan::Mode;
use shardfeed_proto::coordinator::v1::{ClaimGroupsRequest, HeartbeatRequest};
use shardfeed_proto::{ErrorKind, WireError};
use tokio::time::timeout;

use crate::calls::{Clients, connections, context, join, try_leader};
use crate::paper::{self, Files};

/// Shorter waits are not reported.
const GAP_LEAST: Duration = Duration::from_millis(20);
/// Time after which a coordinator that does not answer is skipped.
const ATTEMPT: Duration = Duration::from_millis(300);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(2);

/// Prints `ready`, then `gap MS` for each wait, until its standard input ends.
pub(crate) async fn measure(addresses: &[&str], files: u64) {
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().lines().last();
        ends.store(true, Ordering::Relaxed);
    });
    let mut client = connections(addresses, 1).await.pop().unwrap();
    let files = Files { count: files, records: 8, mode: Mode::Dynamic };
    let name = format!("watch-{}", uuid::Uuid::new_v4());
    let job = paper::job(addresses, &mut client, &name, files).await;
    let session = join(&mut client, name).await;
    let lease = job.start(&mut client, session, 0, 1).await;
    let (mut known, mut samples) = (0, 0);
    let (mut granted, mut heard) = (Instant::now(), Instant::now());
    say("ready");
    while !is_over.load(Ordering::Relaxed) {
        let take = ClaimGroupsRequest {
            context: context(),
            session,
            lease: Some(lease.clone()),
            epoch: 0,
            step: 0,
            started: samples,
            known,
            wants: 1,
            ahead: 0,
            released: None,
            version: 0,
            known_version: None,
            wait_ms: 0,
        };
        match timeout(ATTEMPT, client.claim_groups(take)).await {
            Ok(Ok(taken)) => {
                let taken = taken.into_inner();
                assert!(!taken.pieces.is_empty(), "all groups are granted: {taken:?}");
                (known, samples) = (taken.first + taken.pieces.len() as u64, taken.samples);
                let gap = granted.elapsed();
                granted = Instant::now();
                if gap >= GAP_LEAST {
                    say(&format!("gap {}", gap.as_millis()));
                }
            }
            Ok(Err(status)) if WireError::from_status(&status).kind == ErrorKind::Fenced => {
                panic!("the rank is fenced: {status}");
            }
            _ => client = again(addresses).await,
        }
        if heard.elapsed() > HEARTBEAT_EVERY {
            let (ranks, scans) = (vec![], vec![]);
            let heartbeat = HeartbeatRequest { context: context(), session, ranks, scans };
            if let Ok(Ok(_)) = timeout(ATTEMPT, client.heartbeat(heartbeat)).await {
                heard = Instant::now();
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Connects to the current leader.
async fn again(addresses: &[&str]) -> Clients {
    loop {
        if let Ok(Some(channel)) = timeout(ATTEMPT, try_leader(addresses)).await {
            return Clients::new(channel);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Ignore errors: the reader may have exited.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
