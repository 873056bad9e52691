//! Encoding of commands in the log.
//!
//! A command is JSON, so that people and later releases can read a log. Claims are the exception:
//! there are many, and the values that the claims of one command share are written once.

use serde::{Deserialize, Serialize};

use crate::log::command::{Change, Claim, Command, PoolFacts};
use crate::log::id::LeaseRef;

/// First byte of claims in postcard; JSON begins with `{`.
const TAKES: u8 = 1;

/// The bytes are not a command that this release knows.
#[derive(Debug, thiserror::Error)]
pub enum EncodingError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Takes(#[from] postcard::Error),
    /// Further bytes follow, which only a later release understands.
    #[error("{bytes} bytes follow it")]
    Longer { bytes: usize },
    #[error("claim {take} refers to {what}, which is missing")]
    Missing { take: usize, what: &'static str },
}

/// A command of claims, as it is written.
#[derive(Serialize, Deserialize)]
struct Takes {
    request_id: String,
    principal: String,
    now_ms: u64,
    pools: Vec<(String, u64, u64)>,
    facts: Vec<PoolFacts>,
    takes: Vec<Row>,
}

/// One claim, without the values that it shares with others.
#[derive(Serialize, Deserialize)]
struct Row {
    /// Index of its pool: job, generation and epoch.
    pool: usize,
    facts: usize,
    rank: u64,
    fencing: u64,
    step: u64,
    started: u64,
    known: u64,
    wants: u64,
    ahead: u64,
    released: Released,
}

/// Position where a claim cuts the list. The first two variants have the bytes of an `Option<u64>`,
/// which earlier releases wrote.
#[derive(Serialize, Deserialize)]
enum Released {
    No,
    From(u64),
    Versioned { from: u64, version: u64 },
}

impl Released {
    fn new(from: Option<u64>, version: Option<u64>) -> Self {
        match (from, version) {
            (None, _) => Self::No,
            (Some(from), None) => Self::From(from),
            (Some(from), Some(version)) => Self::Versioned { from, version },
        }
    }

    fn into_parts(self) -> (Option<u64>, Option<u64>) {
        match self {
            Self::No => (None, None),
            Self::From(from) => (Some(from), None),
            Self::Versioned { from, version } => (Some(from), Some(version)),
        }
    }
}

impl Command {
    pub fn to_bytes(&self) -> Vec<u8> {
        let Change::ClaimGroups { takes } = &self.change else {
            return serde_json::to_vec(self).expect("a command is plain data with string keys");
        };
        let mut written = Takes {
            request_id: self.request_id.clone(),
            principal: self.principal.clone(),
            now_ms: self.now_ms,
            pools: vec![],
            facts: vec![],
            takes: Vec::with_capacity(takes.len()),
        };
        takes.iter().for_each(|take| written.push(take));
        postcard::to_extend(&written, vec![TAKES]).expect("claims are plain data")
    }

    /// Reads the output of [`Command::to_bytes`] of this release or an earlier one.
    ///
    /// # Errors
    /// [`EncodingError`]; only a later release could have written such a command.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EncodingError> {
        match bytes {
            [TAKES, takes @ ..] => match postcard::take_from_bytes::<Takes>(takes)? {
                (takes, []) => takes.into_command(),
                (_, more) => Err(EncodingError::Longer { bytes: more.len() }),
            },
            json => Ok(serde_json::from_slice(json)?),
        }
    }
}

impl Takes {
    fn push(&mut self, take: &Claim) {
        let Claim { lease, epoch, step, started, known, wants, ahead, released, version, facts } =
            take;
        let is_pool = |(job, generation, of): &(String, u64, u64)| {
            (job, generation, of) == (&lease.job, &lease.generation, epoch)
        };
        let pool = self.pools.iter().rposition(is_pool).unwrap_or_else(|| {
            self.pools.push((lease.job.clone(), lease.generation, *epoch));
            self.pools.len() - 1
        });
        let known_facts = self.facts.iter().rposition(|known| known == facts);
        let facts = known_facts.unwrap_or_else(|| {
            self.facts.push(facts.clone());
            self.facts.len() - 1
        });
        self.takes.push(Row {
            pool,
            facts,
            rank: lease.rank,
            fencing: lease.fencing,
            step: *step,
            started: *started,
            known: *known,
            wants: *wants,
            ahead: *ahead,
            released: Released::new(*released, *version),
        });
    }

    fn into_command(self) -> Result<Command, EncodingError> {
        let Self { request_id, principal, now_ms, pools, facts, takes } = self;
        let take = |(number, row): (usize, Row)| {
            let missing = |what| EncodingError::Missing { take: number, what };
            let (job, generation, epoch) = pools.get(row.pool).ok_or(missing("a pool"))?;
            let facts = facts.get(row.facts).ok_or(missing("facts"))?.clone();
            let Row { rank, fencing, step, started, known, wants, ahead, released, .. } = row;
            let lease = LeaseRef { job: job.clone(), generation: *generation, rank, fencing };
            let epoch = *epoch;
            let (released, version) = released.into_parts();
            Ok(Claim { lease, epoch, step, started, known, wants, ahead, released, version, facts })
        };
        let takes =
            takes.into_iter().enumerate().map(take).collect::<Result<_, EncodingError>>()?;
        let change = Change::ClaimGroups { takes };
        Ok(Command { request_id, principal, scope: vec![], now_ms, change })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn takes() -> Command {
        let take = |job: &str, rank, next: Vec<u64>| Claim {
            lease: LeaseRef { job: job.to_owned(), generation: 3, rank, fencing: 900 + rank },
            epoch: 1,
            step: 2,
            started: 3,
            known: 4,
            wants: 5,
            ahead: 12,
            released: (rank == 1).then_some(6),
            version: None,
            facts: PoolFacts { groups: 7, samples: 8, at: 1, next },
        };
        let takes = vec![
            take("a", 0, vec![9, 10]),
            take("a", 1, vec![]),
            take("b", 0, vec![]),
            take("a", 2, vec![]),
        ];
        Command {
            request_id: "q".to_owned(),
            principal: "p".to_owned(),
            scope: vec![],
            now_ms: 11,
            change: Change::ClaimGroups { takes },
        }
    }

    #[test]
    fn takes_come_back_as_they_were_written_and_are_short() {
        let command = takes();
        let bytes = command.to_bytes();
        assert_eq!(Command::from_bytes(&bytes).unwrap(), command);
        let json = serde_json::to_vec(&command).unwrap();
        assert!(bytes.len() * 5 < json.len(), "{} and {}", bytes.len(), json.len());
        // Earlier releases wrote claims as JSON.
        assert_eq!(Command::from_bytes(&json).unwrap(), command);
        let mut versioned = command;
        if let Change::ClaimGroups { takes } = &mut versioned.change {
            takes[1].version = Some(7);
        }
        assert_eq!(Command::from_bytes(&versioned.to_bytes()).unwrap(), versioned);
    }

    /// Logs on disks hold these bytes: another form needs another first byte.
    #[test]
    fn takes_are_written_as_they_always_were() {
        let hex: String = takes().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        expect!["01017101700b0201610301016203010207080102090a07080100040000008407020304050c000001018507020304050c01060101008407020304050c000001028607020304050c00"].assert_eq(&hex);
    }

    #[test]
    fn what_is_no_command_is_refused() {
        let bytes = takes().to_bytes();
        for end in 0..bytes.len() {
            assert!(Command::from_bytes(&bytes[..end]).is_err(), "{end} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        let error = Command::from_bytes(&longer).unwrap_err().to_string();
        assert_eq!(error, "1 bytes follow it");
        for bytes in [b"{}".as_slice(), b"\xff", br#"{"principal":"a","now_ms":1,"change":"x"}"#] {
            assert!(Command::from_bytes(bytes).is_err());
        }
        let alone = Takes {
            request_id: String::new(),
            principal: String::new(),
            now_ms: 0,
            pools: vec![],
            facts: vec![],
            takes: vec![Row {
                pool: 0,
                facts: 0,
                rank: 0,
                fencing: 0,
                step: 0,
                started: 0,
                known: 0,
                wants: 0,
                ahead: 0,
                released: Released::No,
            }],
        };
        let bytes = postcard::to_extend(&alone, vec![TAKES]).unwrap();
        let error = Command::from_bytes(&bytes).unwrap_err().to_string();
        assert_eq!(error, "claim 0 refers to a pool, which is missing");
    }
}
