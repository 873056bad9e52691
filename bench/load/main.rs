//! Closed-loop clients of coordinators, for bench/coordinators.py:
//! `load ADDRESS[,ADDRESS...] proposals|grants|heartbeats|watch|lost [--clients N] [--seconds S] [--batch B]
//! [--ranks R] [--files F]`.
//!
//! - `proposals`: each client registers an existing job under a new request id: one durable entry.
//! - `grants`: each request claims one group of files for each of B ranks of a dynamic job, whose
//!   simulated dataset has F files; a grant is answered when a majority has it on disk.
//! - `heartbeats`: N workers with one rank each; every worker sends one heartbeat in S seconds.
//! - `lost`: a worker that has all groups of a job falls silent; measures the time until another
//!   rank is granted some of them.
//! - `watch`: one rank claims group after group and reports every wait, until its standard input
//!   ends.
//!
//! All but `watch` print one line of JSON.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod calls;
mod grants;
mod heartbeats;
mod lost;
mod paper;
mod proposals;
mod watch;

use std::time::Duration;

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
    if words[2] == "watch" {
        return watch::measure(&addresses, option("--files", 200_000)).await;
    }
    let found = match words[2].as_str() {
        "proposals" => proposals::measure(&addresses, clients, time).await,
        "grants" => {
            let (batch, ranks) = (option("--batch", 64), option("--ranks", 1_000));
            let files = option("--files", 200_000);
            grants::measure(&addresses, clients, time, (batch, ranks, files)).await
        }
        "heartbeats" => heartbeats::measure(&addresses, clients, time, option("--files", 5)).await,
        "lost" => lost::measure(&addresses).await,
        other => panic!("{other} is none of proposals, grants, heartbeats, watch, lost"),
    };
    println!("{found}");
}
