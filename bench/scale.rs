//! Measures the state machine alone, from 10 to 10,000 ranks and 1,000 to 1,000,000 shards: first
//! grants of all ranks, size of the state, snapshot and restore. `cargo bench -p shardfeed-bench
//! --bench scale`. Prints one line of JSON per size, for bench/plot_scale.py.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::Instant;

use serde_json::json;
use shardfeed_plan::{
    DECODER_NONE, Digest, Intent, JobIdentity, Mode, ORDER_VERSION, Records, Segment, Shuffle, Tail,
};
use shardfeed_scheduler::{
    Answer, CLAIMS_MAX, Change, Claim, Command, CursorReport, DoubtPolicy, JoinSession, LeaseRef,
    PoolFacts, RegisterJob, StartRank, State,
};

/// Records per shard.
const RECORDS: u64 = 1_000;
/// Splits per group of a dynamic job.
const INTERLEAVE: u64 = 4;
const BATCH: u64 = 64;
/// Ranks per host.
const RANKS_OF_WORKER: u64 = 8;
/// Number of epochs of history before a restart.
const EPOCHS: u64 = 10;

struct Machine {
    state: State,
    index: u64,
}

impl Machine {
    fn apply(&mut self, change: Change) -> Answer {
        self.index += 1;
        let request_id = format!("00000000-0000-4000-8000-{:012x}", self.index);
        let principal = "bench".to_owned();
        let command =
            Command { request_id, principal, scope: vec![], now_ms: 1_000 + self.index, change };
        // As a replica applies it: from the bytes of the log.
        let command = Command::from_bytes(&command.to_bytes()).unwrap();
        self.state.apply(self.index, &command).answer.unwrap()
    }
}

fn identity(mode: Mode) -> JobIdentity {
    let content = Digest::from_bytes([7; 32]);
    let shuffle = Shuffle {
        digest: content,
        seed: 1,
        enabled: true,
        window: 1_000,
        interleave: INTERLEAVE,
        block_length: 1,
    };
    let tail = if mode == Mode::Dynamic { Tail::Uneven } else { Tail::Drop };
    let (records, decoder) = (Records::Operators(String::new()), DECODER_NONE.to_owned());
    JobIdentity { order: ORDER_VERSION, content, shuffle, lanes: 1, tail, records, decoder, mode }
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn facts(shards: u64, at: u64) -> PoolFacts {
    let groups = shards.div_ceil(INTERLEAVE);
    let next = vec![RECORDS * INTERLEAVE; (groups - at.min(groups)).min(256) as usize];
    PoolFacts { groups, samples: shards * RECORDS, at, next }
}

fn measure(ranks: u64, shards: u64) {
    let before = resident_bytes();
    let mut machine = Machine { state: State::new(), index: 0 };
    let sessions: Vec<u64> = (0..ranks.div_ceil(RANKS_OF_WORKER))
        .map(|worker| {
            let join = JoinSession {
                worker: format!("worker-{worker}"),
                host: format!("host-{worker}"),
                incarnation: "i".into(),
                version: "0.1.0".into(),
                in_process: false,
                ttl_ms: 10_000,
                endpoint: String::new(),
                decoders: vec![],
                proved: false,
                data_roots: vec![],
            };
            match machine.apply(Change::JoinSession(join)) {
                Answer::Joined { session } => session,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    let start = |machine: &mut Machine, job: &str, rank: u64, lanes: u64| {
        let segments = vec![Segment::start(lanes, BATCH, ranks).unwrap()];
        let intent =
            Intent::Start { state_generation: None, epoch: 0, segments, is_reshard: false };
        let start = StartRank {
            job: job.into(),
            run: Some("r".into()),
            rank,
            world_size: ranks,
            limit: None,
            session: sessions[(rank / RANKS_OF_WORKER) as usize],
            trainer: format!("{rank:036}"),
            intent,
            left: None,
            doubt: DoubtPolicy::default(),
            mixture: None,
            left_out: shardfeed_plan::LeftOut::default(),
            peer: None,
            replaces: None,
        };
        match machine.apply(Change::StartRank(start)) {
            Answer::Started(started) => {
                LeaseRef { job: job.into(), generation: 0, rank, fencing: started.fencing }
            }
            other => panic!("{other:?}"),
        }
    };
    let register = |machine: &mut Machine, name: &str, mode| {
        let (identity, dataset) = (identity(mode), String::new());
        machine.apply(Change::RegisterJob(RegisterJob {
            name: name.into(),
            identity,
            dataset,
            mixture: None,
            record_spec_chunks: vec![],
        }));
    };
    register(&mut machine, "plan", Mode::Deterministic);
    let began = Instant::now();
    let leases: Vec<LeaseRef> =
        (0..ranks).map(|rank| start(&mut machine, "plan", rank, ranks)).collect();
    let deterministic = began.elapsed();

    register(&mut machine, "deal", Mode::Dynamic);
    let dynamic: Vec<LeaseRef> =
        (0..ranks).map(|rank| start(&mut machine, "deal", rank, 1)).collect();
    let began = Instant::now();
    let (mut at, mut granted) = (0, 0);
    for many in dynamic.chunks(CLAIMS_MAX) {
        let take = |lease: &LeaseRef| Claim {
            lease: lease.clone(),
            epoch: 0,
            step: 0,
            started: 0,
            known: 0,
            wants: 1,
            ahead: 0,
            released: None,
            version: None,
            facts: facts(shards, at),
        };
        match machine.apply(Change::ClaimGroups { takes: many.iter().map(take).collect() }) {
            Answer::Taken(taken) => {
                let pieces: usize =
                    taken.into_iter().map(|taken| taken.unwrap().pieces.len()).sum();
                (at, granted) = (at + pieces as u64, granted + pieces);
            }
            other => panic!("{other:?}"),
        }
    }
    let first_grants = began.elapsed();

    for epoch in 1..=EPOCHS {
        for many in leases.chunks(4096) {
            let report = |lease: &LeaseRef| CursorReport { lease: lease.clone(), epoch, step: 1 };
            machine.apply(Change::Report { cursors: many.iter().map(report).collect() });
        }
    }
    let resident = resident_bytes().saturating_sub(before);
    let began = Instant::now();
    let snapshot = machine.state.snapshot();
    let saved = began.elapsed();
    let began = Instant::now();
    let again = State::from_snapshot(&snapshot).unwrap();
    let restored = began.elapsed();
    assert_eq!(again.applied(), machine.state.applied());
    println!(
        "{}",
        json!({
            "ranks": ranks, "shards": shards, "granted": granted,
            "start_ms": deterministic.as_secs_f64() * 1e3,
            "first_grants_ms": first_grants.as_secs_f64() * 1e3,
            "grants_per_s": granted as f64 / first_grants.as_secs_f64(),
            "state_bytes_per_rank": resident / ranks,
            "snapshot_bytes": snapshot.len(),
            "snapshot_ms": saved.as_secs_f64() * 1e3,
            "restore_ms": restored.as_secs_f64() * 1e3,
        })
    );
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, one, ranks, shards] = words.as_slice()
        && one == "--one"
    {
        return measure(ranks.parse().unwrap(), shards.parse().unwrap());
    }
    for ranks in [10_u64, 100, 1_000, 10_000] {
        for shards in [1_000_u64, 10_000, 100_000, 1_000_000] {
            if shards / INTERLEAVE >= ranks {
                // Measured in a separate process, so that its memory contains nothing else.
                let mut one = std::process::Command::new(std::env::current_exe().unwrap());
                let sizes = [ranks.to_string(), shards.to_string()];
                assert!(one.arg("--one").args(sizes).status().unwrap().success());
            }
        }
    }
}
