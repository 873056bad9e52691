//! Log entries, votes and positions in our own encoding, which no openraft release changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::storage::framing::{self, FrameError, FrameKind};

/// Position of an entry: the term and leader that appended it, and its index. Ordered like the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Position {
    pub(crate) term: u64,
    pub(crate) node: u64,
    pub(crate) index: u64,
}

/// Vote that this node granted or received. Ordered like elections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Vote {
    pub(crate) term: u64,
    pub(crate) node: u64,
    /// True if a majority granted it, so that it names a leader.
    pub(crate) committed: bool,
}

/// Members of the cluster, as recorded in a log entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Members {
    /// Sets of voters that must each agree: one, or two while the set is being changed.
    pub(crate) voters: Vec<BTreeSet<u64>>,
    /// Address of every member; members in no set of voters are learners.
    pub(crate) addresses: BTreeMap<u64, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) incarnations: BTreeMap<u64, Uuid>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// No content: a new leader marks the start of its term.
    Blank,
    Command(Arc<[u8]>),
    Members(Members),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) position: Position,
    pub(crate) payload: Payload,
}

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERS: u8 = 2;
const POSITION_BYTES: usize = 24;

impl Record {
    /// Returns the size of this record in memory and, approximately, on disk, bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        match &self.payload {
            Payload::Command(command) => 64 + command.len(),
            Payload::Blank | Payload::Members(_) => 64,
        }
    }

    pub(crate) fn encode(&self, cluster: Uuid) -> Vec<u8> {
        let mut body = Vec::with_capacity(1 + POSITION_BYTES + self.size_bytes());
        body.push(match self.payload {
            Payload::Blank => BLANK,
            Payload::Command(_) => COMMAND,
            Payload::Members(_) => MEMBERS,
        });
        put_position(&mut body, self.position);
        match &self.payload {
            Payload::Blank => {}
            Payload::Command(command) => body.extend_from_slice(command),
            Payload::Members(members) => body.extend_from_slice(&members.encode()),
        }
        framing::seal(FrameKind::Record, cluster, &body)
    }

    pub(crate) fn decode(cluster: Uuid, bytes: &[u8]) -> Result<Self, FrameError> {
        let (_, body) = framing::open(FrameKind::Record, Some(cluster), bytes)?;
        let (&tag, rest) = body.split_first().ok_or_else(|| malformed("an empty record"))?;
        let (position, payload) = take_position(rest)?;
        let payload = match tag {
            BLANK if payload.is_empty() => Payload::Blank,
            BLANK => return Err(malformed("a blank record with a payload")),
            COMMAND => Payload::Command(payload.into()),
            MEMBERS => Payload::Members(Members::decode(payload)?),
            other => return Err(malformed(format!("a record of unknown sort {other}"))),
        };
        Ok(Self { position, payload })
    }
}

impl Members {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings are always JSON")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        serde_json::from_slice(bytes).map_err(|e| malformed(format!("a members record: {e}")))
    }
}

impl Vote {
    pub(crate) fn encode(self, cluster: Uuid) -> Vec<u8> {
        let mut body = Vec::with_capacity(17);
        body.extend_from_slice(&self.term.to_le_bytes());
        body.extend_from_slice(&self.node.to_le_bytes());
        body.push(u8::from(self.committed));
        framing::seal(FrameKind::Vote, cluster, &body)
    }

    pub(crate) fn decode(cluster: Uuid, bytes: &[u8]) -> Result<Self, FrameError> {
        let (_, body) = framing::open(FrameKind::Vote, Some(cluster), bytes)?;
        if body.len() != 17 || body[16] > 1 {
            return Err(malformed("a vote of another shape"));
        }
        Ok(Self { term: u64_at(body, 0), node: u64_at(body, 8), committed: body[16] == 1 })
    }
}

impl Position {
    pub(crate) fn encode(self, cluster: Uuid) -> Vec<u8> {
        let mut body = Vec::with_capacity(POSITION_BYTES);
        put_position(&mut body, self);
        framing::seal(FrameKind::Position, cluster, &body)
    }

    pub(crate) fn decode(cluster: Uuid, bytes: &[u8]) -> Result<Self, FrameError> {
        let (_, body) = framing::open(FrameKind::Position, Some(cluster), bytes)?;
        match take_position(body)? {
            (position, []) => Ok(position),
            _ => Err(malformed("a position of another shape")),
        }
    }
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(&position.term.to_le_bytes());
    out.extend_from_slice(&position.node.to_le_bytes());
    out.extend_from_slice(&position.index.to_le_bytes());
}

fn take_position(bytes: &[u8]) -> Result<(Position, &[u8]), FrameError> {
    if bytes.len() < POSITION_BYTES {
        return Err(malformed("a position that is cut off"));
    }
    let position =
        Position { term: u64_at(bytes, 0), node: u64_at(bytes, 8), index: u64_at(bytes, 16) };
    Ok((position, &bytes[POSITION_BYTES..]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has 8 bytes"))
}

fn malformed(what: impl Into<String>) -> FrameError {
    FrameError::Malformed { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Uuid = Uuid::from_bytes([7; 16]);

    fn position() -> Position {
        Position { term: 3, node: 2, index: 41 }
    }

    #[test]
    fn records_come_back() {
        let members = Members {
            voters: vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])],
            addresses: BTreeMap::from([(1, "a:1".to_owned()), (2, String::new())]),
            incarnations: BTreeMap::from([(2, CLUSTER)]),
        };
        for payload in [
            Payload::Blank,
            Payload::Command(b"".as_slice().into()),
            Payload::Command(vec![9; 70_000].into()),
            Payload::Members(members),
        ] {
            let record = Record { position: position(), payload };
            assert_eq!(Record::decode(CLUSTER, &record.encode(CLUSTER)).unwrap(), record);
        }
    }

    #[test]
    fn votes_and_positions_come_back() {
        for committed in [false, true] {
            let vote = Vote { term: u64::MAX, node: 1, committed };
            assert_eq!(Vote::decode(CLUSTER, &vote.encode(CLUSTER)), Ok(vote));
        }
        assert_eq!(Position::decode(CLUSTER, &position().encode(CLUSTER)), Ok(position()));
    }

    #[test]
    fn the_bytes_of_version_1_are_fixed() {
        let record =
            Record { position: position(), payload: Payload::Command(b"hi".as_slice().into()) };
        let hex: String = record.encode(CLUSTER).iter().map(|b| format!("{b:02x}")).collect();
        let fixed = format!(
            "53466c7201000000{}1b00000001{}{}{}6869",
            "07".repeat(16),
            "0300000000000000",
            "0200000000000000",
            "2900000000000000"
        );
        assert_eq!(hex[..hex.len() - 8], fixed);
        let members = Members {
            voters: vec![BTreeSet::from([1])],
            addresses: BTreeMap::from([(1, "a".to_owned())]),
            incarnations: BTreeMap::new(),
        };
        assert_eq!(members.encode(), br#"{"voters":[[1]],"addresses":{"1":"a"}}"#);
    }

    #[test]
    fn one_kind_is_not_read_as_another() {
        let vote = Vote { term: 1, node: 1, committed: true };
        assert_eq!(Record::decode(CLUSTER, &vote.encode(CLUSTER)), Err(FrameError::Foreign));
    }

    /// The checksum detects damage; these errors are for a release with another encoding.
    #[test]
    fn every_refusal_of_a_sound_frame_says_what_is_wrong_in_it() {
        let place = &framing::seal(FrameKind::Position, CLUSTER, &[0; POSITION_BYTES]);
        let (_, place) = framing::open(FrameKind::Position, None, place).unwrap();
        let record = |body: &[u8]| {
            let frame = framing::seal(FrameKind::Record, CLUSTER, body);
            Record::decode(CLUSTER, &frame).unwrap_err().to_string()
        };
        let tagged = |tag: u8, payload: &[u8]| record(&[&[tag], place, payload].concat());
        assert_eq!(record(b""), "an empty record");
        assert_eq!(record(&[COMMAND, 1]), "a position that is cut off");
        assert_eq!(tagged(BLANK, b"x"), "a blank record with a payload");
        assert_eq!(tagged(99, b""), "a record of unknown sort 99");
        assert_eq!(
            tagged(MEMBERS, b""),
            "a members record: EOF while parsing a value at line 1 column 0"
        );
        let vote = framing::seal(FrameKind::Vote, CLUSTER, &[7; 17]);
        let error = Vote::decode(CLUSTER, &vote).unwrap_err();
        assert_eq!(error.to_string(), "a vote of another shape");
        let long = framing::seal(FrameKind::Position, CLUSTER, &[place, b"x"].concat());
        let error = Position::decode(CLUSTER, &long).unwrap_err();
        assert_eq!(error.to_string(), "a position of another shape");
    }
}
