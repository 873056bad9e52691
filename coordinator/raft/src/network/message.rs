//! Messages between nodes, in our own encoding: one frame per message, one frame per answer.
//!
//! `from u64 | its incarnation [16] | to u64 | its incarnation [16] | head length u32 | head |
//! tail`, in a frame with the cluster's id. An unknown incarnation is zero. The head is JSON: the
//! type of the message and its fields. The tail has raw bytes: log entries, each
//! `length u32 | record`, or a part of a snapshot.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::storage::framing::{self, FrameError, FrameKind};
use crate::storage::record::{Position, Record, Vote};
use crate::storage::snapshot::SnapshotMeta;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) from: Speaker,
    pub(crate) to: Speaker,
}

/// A node and its incarnation. A directory that is created again gets a new incarnation, which is
/// not bound by the promises of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Speaker {
    pub(crate) node: u64,
    pub(crate) incarnation: Option<Uuid>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// Entries of a leader; none in a heartbeat.
    Append {
        vote: Vote,
        previous: Option<Position>,
        committed: Option<Position>,
        #[serde(skip)]
        records: Vec<Record>,
    },
    /// Request for a vote.
    Vote(Ballot),
    /// Query of a node whether it would get a vote.
    PreVote(Ballot),
    /// Part of a leader's snapshot.
    Part(SnapshotPart),
    /// A leader names its successor.
    Transfer { vote: Vote, to: u64, last: Option<Position> },
    /// Query for a peer's incarnation and whether it is pristine; also checks that it is reachable.
    Hello,
    /// New address of a member.
    Moved { address: String },
    /// Request of a leader that has stepped down to its successor to remove it.
    Remove { node: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ballot {
    pub(crate) vote: Vote,
    pub(crate) last: Option<Position>,
    /// True if the leader itself requested the election.
    pub(crate) transfer: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotPart {
    pub(crate) vote: Vote,
    pub(crate) meta: SnapshotMeta,
    /// SHA-256 of the whole state, hexadecimal.
    pub(crate) hash: String,
    /// Length of the whole state, bytes.
    pub(crate) total: u64,
    pub(crate) offset: u64,
    #[serde(skip)]
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PeerAnswer {
    /// All entries are durable on this node.
    Appended,
    /// The entries up to this one are durable.
    AppendedUpto { last: Option<Position> },
    /// The entry before the first one differs from this node's entry.
    Conflict,
    /// This node follows, or votes for, a node of a later election.
    Later { vote: Vote },
    /// Answer to a request for a vote.
    Voted { vote: Vote, granted: bool, last: Option<Position> },
    /// Number of snapshot bytes received so far: the sender continues there.
    Held { bytes: u64 },
    /// The snapshot is durable, and the machine is restored from it.
    Installed { vote: Vote },
    /// Answer to a hello. Pristine: the node is in no cluster's history yet.
    Here { pristine: bool },
    /// The request is done.
    Done,
    /// The request failed, for this reason.
    Failed { reason: String },
}

const ENVELOPE_BYTES: usize = 48;

impl Message {
    pub(crate) fn encode(&self, cluster: Uuid, envelope: Envelope) -> Vec<u8> {
        let mut tail = Vec::new();
        match self {
            Self::Append { records, .. } => {
                for record in records {
                    let record = record.encode(cluster);
                    tail.extend_from_slice(&length(&record));
                    tail.extend_from_slice(&record);
                }
            }
            Self::Part(part) => tail.extend_from_slice(&part.bytes),
            _ => {}
        }
        seal(FrameKind::Message, cluster, envelope, self, &tail)
    }

    pub(crate) fn decode(cluster: Uuid, bytes: &[u8]) -> Result<(Envelope, Self), FrameError> {
        let (envelope, mut message, tail) = open::<Self>(FrameKind::Message, cluster, bytes)?;
        match &mut message {
            Self::Append { records, .. } => *records = take_records(cluster, tail)?,
            Self::Part(part) => part.bytes = tail.to_vec(),
            _ if tail.is_empty() => {}
            _ => return Err(malformed("a tail that does not belong there")),
        }
        Ok((envelope, message))
    }
}

impl PeerAnswer {
    pub(crate) fn encode(&self, cluster: Uuid, envelope: Envelope) -> Vec<u8> {
        seal(FrameKind::Answer, cluster, envelope, self, &[])
    }

    pub(crate) fn decode(cluster: Uuid, bytes: &[u8]) -> Result<(Envelope, Self), FrameError> {
        match open(FrameKind::Answer, cluster, bytes)? {
            (envelope, answer, []) => Ok((envelope, answer)),
            _ => Err(malformed("an answer with a tail")),
        }
    }
}

fn seal(
    kind: FrameKind,
    cluster: Uuid,
    envelope: Envelope,
    head: &impl Serialize,
    tail: &[u8],
) -> Vec<u8> {
    let head = serde_json::to_vec(head).expect("numbers and strings are always JSON");
    let mut body = Vec::with_capacity(ENVELOPE_BYTES + 4 + head.len() + tail.len());
    for speaker in [envelope.from, envelope.to] {
        body.extend_from_slice(&speaker.node.to_le_bytes());
        body.extend_from_slice(speaker.incarnation.unwrap_or_default().as_bytes());
    }
    body.extend_from_slice(&length(&head));
    body.extend_from_slice(&head);
    body.extend_from_slice(tail);
    framing::seal(kind, cluster, &body)
}

fn open<T: DeserializeOwned>(
    kind: FrameKind,
    cluster: Uuid,
    bytes: &[u8],
) -> Result<(Envelope, T, &[u8]), FrameError> {
    let (_, body) = framing::open(kind, Some(cluster), bytes)?;
    let cut = || malformed("a message that is cut off");
    let (envelope, rest) = body.split_at_checked(ENVELOPE_BYTES).ok_or_else(cut)?;
    let (head, tail) = take_sized(rest).ok_or_else(cut)?;
    let head = serde_json::from_slice(head)
        .map_err(|e| malformed(format!("a message of another sort: {e}")))?;
    let envelope = Envelope { from: speaker(&envelope[..24]), to: speaker(&envelope[24..]) };
    Ok((envelope, head, tail))
}

fn speaker(bytes: &[u8]) -> Speaker {
    let node = u64::from_le_bytes(bytes[..8].try_into().expect("the slice has 8 bytes"));
    let incarnation = Uuid::from_slice(&bytes[8..24]).expect("the slice has 16 bytes");
    Speaker { node, incarnation: Some(incarnation).filter(|id| !id.is_nil()) }
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("callers bound bodies far below 4 GiB").to_le_bytes()
}

fn take_sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn take_records(cluster: Uuid, mut tail: &[u8]) -> Result<Vec<Record>, FrameError> {
    let mut records = Vec::new();
    while !tail.is_empty() {
        let (record, rest) = take_sized(tail).ok_or_else(|| malformed("entries cut off"))?;
        records.push(Record::decode(cluster, record)?);
        tail = rest;
    }
    Ok(records)
}

fn malformed(what: impl Into<String>) -> FrameError {
    FrameError::Malformed { what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::record::Payload;

    const CLUSTER: Uuid = Uuid::from_bytes([7; 16]);

    fn envelope() -> Envelope {
        Envelope {
            from: Speaker { node: 1, incarnation: Some(Uuid::from_bytes([1; 16])) },
            to: Speaker { node: 2, incarnation: None },
        }
    }

    fn messages() -> Vec<Message> {
        let vote = Vote { term: 3, node: 1, committed: true };
        let position = |index| Position { term: 3, node: 1, index };
        let record = |index, payload| Record { position: position(index), payload };
        let ballot = Ballot { vote, last: None, transfer: true };
        vec![
            Message::Append { vote, previous: None, committed: None, records: Vec::new() },
            Message::Append {
                vote,
                previous: Some(position(4)),
                committed: Some(position(3)),
                records: vec![
                    record(5, Payload::Blank),
                    record(6, Payload::Command(vec![9; 70_000].into())),
                    record(7, Payload::Members(crate::storage::record::Members::default())),
                ],
            },
            Message::Vote(ballot.clone()),
            Message::PreVote(ballot),
            Message::Part(SnapshotPart {
                vote,
                meta: SnapshotMeta::default(),
                hash: "00".to_owned(),
                total: 9,
                offset: 3,
                bytes: vec![1, 2, 3],
            }),
            Message::Transfer { vote, to: 2, last: Some(position(u64::MAX)) },
            Message::Hello,
            Message::Moved { address: "b:1".to_owned() },
            Message::Remove { node: 3 },
        ]
    }

    #[test]
    fn messages_and_answers_come_back() {
        for message in messages() {
            let bytes = message.encode(CLUSTER, envelope());
            assert_eq!(Message::decode(CLUSTER, &bytes), Ok((envelope(), message)));
        }
        let vote = Vote { term: 3, node: 1, committed: false };
        for answer in [
            PeerAnswer::Appended,
            PeerAnswer::AppendedUpto { last: None },
            PeerAnswer::AppendedUpto { last: Some(Position { term: 1, node: 2, index: 3 }) },
            PeerAnswer::Conflict,
            PeerAnswer::Later { vote },
            PeerAnswer::Voted { vote, granted: true, last: None },
            PeerAnswer::Held { bytes: 7 },
            PeerAnswer::Installed { vote },
            PeerAnswer::Here { pristine: true },
            PeerAnswer::Done,
            PeerAnswer::Failed { reason: "no".to_owned() },
        ] {
            let bytes = answer.encode(CLUSTER, envelope());
            assert_eq!(PeerAnswer::decode(CLUSTER, &bytes), Ok((envelope(), answer)));
        }
    }

    #[test]
    fn bytes_of_others_are_refused() {
        for message in messages() {
            let bytes = message.encode(CLUSTER, envelope());
            let other = Uuid::from_bytes([8; 16]);
            let error = Message::decode(other, &bytes).unwrap_err();
            assert!(matches!(error, FrameError::OtherCluster { .. }), "{error}");
            assert_eq!(PeerAnswer::decode(CLUSTER, &bytes), Err(FrameError::Foreign));
            for cut in [0, 1, 30, 60, bytes.len() - 1] {
                assert!(Message::decode(CLUSTER, &bytes[..cut]).is_err());
            }
        }
    }

    /// The checksum detects damage; these checks detect a malicious sender.
    #[test]
    fn wrong_lengths_in_a_sound_frame_are_errors() {
        let good = messages().swap_remove(1).encode(CLUSTER, envelope());
        let (_, body) = framing::open(FrameKind::Message, Some(CLUSTER), &good).unwrap();
        for at in 48..body.len().min(400) {
            for byte in [0, 0x7f, 0xff] {
                let mut bad = body.to_vec();
                bad[at] = byte;
                let bad = framing::seal(FrameKind::Message, CLUSTER, &bad);
                // An error or another message: never a panic, never an allocation for missing
                // bytes.
                drop(Message::decode(CLUSTER, &bad));
            }
        }
        for cut in 0..body.len().min(400) {
            let cut = framing::seal(FrameKind::Message, CLUSTER, &body[..cut]);
            drop(Message::decode(CLUSTER, &cut));
        }
    }

    #[test]
    fn the_bytes_of_version_1_are_fixed() {
        let bytes = Message::Remove { node: 3 }.encode(CLUSTER, envelope());
        let (_, body) = framing::open(FrameKind::Message, Some(CLUSTER), &bytes).unwrap();
        let mut fixed = Vec::new();
        fixed.extend_from_slice(&1_u64.to_le_bytes());
        fixed.extend_from_slice(&[1; 16]);
        fixed.extend_from_slice(&2_u64.to_le_bytes());
        fixed.extend_from_slice(&[0; 16]);
        fixed.extend_from_slice(&21_u32.to_le_bytes());
        fixed.extend_from_slice(br#"{"remove":{"node":3}}"#);
        assert_eq!(body, fixed);
        let hello = serde_json::to_string(&Message::Hello).unwrap();
        assert_eq!(hello, r#""hello""#);
        let vote = Vote { term: 3, node: 1, committed: true };
        let append = Message::Append { vote, previous: None, committed: None, records: vec![] };
        assert_eq!(
            serde_json::to_string(&append).unwrap(),
            r#"{"append":{"vote":{"term":3,"node":1,"committed":true},"previous":null,"committed":null}}"#
        );
    }

    #[test]
    fn every_refusal_of_a_sound_frame_says_what_is_wrong_in_it() {
        let of = |body: &[u8]| {
            let frame = framing::seal(FrameKind::Message, CLUSTER, body);
            Message::decode(CLUSTER, &frame).unwrap_err().to_string()
        };
        let hello = Message::Hello.encode(CLUSTER, envelope());
        let (_, hello) = framing::open(FrameKind::Message, None, &hello).unwrap();
        let append = messages().swap_remove(0).encode(CLUSTER, envelope());
        let (_, append) = framing::open(FrameKind::Message, None, &append).unwrap();
        let head = ENVELOPE_BYTES + 4;
        let other = [&hello[..head], &b"\"jello\""[..]].concat();
        assert_eq!(of(&hello[..20]), "a message that is cut off");
        assert_eq!(of(&[hello, b"x"].concat()), "a tail that does not belong there");
        assert_eq!(of(&[append, b"xy"].concat()), "entries cut off");
        assert!(of(&other).starts_with("a message of another sort: unknown variant `jello`"));
        let done = PeerAnswer::Done.encode(CLUSTER, envelope());
        let (_, done) = framing::open(FrameKind::Answer, None, &done).unwrap();
        let long = framing::seal(FrameKind::Answer, CLUSTER, &[done, b"x"].concat());
        let error = PeerAnswer::decode(CLUSTER, &long).unwrap_err();
        assert_eq!(error.to_string(), "an answer with a tail");
    }
}
