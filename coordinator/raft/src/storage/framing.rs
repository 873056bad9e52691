//! Frame around all stored and sent data: its kind, version, cluster and checksum.
//!
//! `kind [4] | version u16 | 0 u16 | cluster [16] | body length u32 | body | masked CRC-32C u32`,
//! little endian. The checksum covers all preceding bytes. The kind comes first to distinguish a
//! stray file from a damaged one.

use uuid::Uuid;

/// Newest version of every frame. Reads upgrade a frame of an older version one step at a time.
pub(crate) const VERSION: u16 = 1;

const HEAD_BYTES: usize = 28;
const CRC_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Header,
    Record,
    Vote,
    Position,
    Snapshot,
    Witness,
    Message,
    Answer,
}

impl FrameKind {
    fn mark(self) -> [u8; 4] {
        match self {
            Self::Header => *b"SFlh",
            Self::Record => *b"SFlr",
            Self::Vote => *b"SFlv",
            Self::Position => *b"SFlp",
            Self::Snapshot => *b"SFls",
            Self::Witness => *b"SFlw",
            Self::Message => *b"SFlm",
            Self::Answer => *b"SFla",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("it does not begin like one of our files")]
    Foreign,
    #[error("format version {found}, known up to {VERSION}")]
    NewerVersion { found: u16 },
    #[error("it belongs to cluster {found}, not to {expected}")]
    OtherCluster { found: Uuid, expected: Uuid },
    #[error("it ends after {have} of {need} bytes")]
    Short { have: usize, need: usize },
    #[error("{extra} bytes follow its end")]
    Long { extra: usize },
    #[error("its checksum is {found:08x}, its bytes give {computed:08x}")]
    Checksum { found: u32, computed: u32 },
    #[error("{what}")]
    Malformed { what: String },
}

pub(crate) fn seal(kind: FrameKind, cluster: Uuid, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("callers bound bodies far below 4 GiB");
    let mut out = Vec::with_capacity(HEAD_BYTES + body.len() + CRC_BYTES);
    out.extend_from_slice(&kind.mark());
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(cluster.as_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(body);
    let crc = masked_crc(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Decodes one whole frame; nothing may follow it.
pub(crate) fn open(
    kind: FrameKind,
    cluster: Option<Uuid>,
    bytes: &[u8],
) -> Result<(Uuid, &[u8]), FrameError> {
    let (found, body, rest) = open_first(kind, cluster, bytes)?;
    if !rest.is_empty() {
        return Err(FrameError::Long { extra: rest.len() });
    }
    Ok((found, body))
}

/// Decodes the first frame; returns its cluster, its body and the bytes that follow.
/// The version is checked before the checksum, as a newer version may compute it differently.
pub(crate) fn open_first(
    kind: FrameKind,
    cluster: Option<Uuid>,
    bytes: &[u8],
) -> Result<(Uuid, &[u8], &[u8]), FrameError> {
    if !bytes.starts_with(&kind.mark()) {
        return Err(FrameError::Foreign);
    }
    let least = HEAD_BYTES + CRC_BYTES;
    if bytes.len() < least {
        return Err(FrameError::Short { have: bytes.len(), need: least });
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version > VERSION {
        return Err(FrameError::NewerVersion { found: version });
    }
    let need = least + u32_at(bytes, 24) as usize;
    if bytes.len() < need {
        return Err(FrameError::Short { have: bytes.len(), need });
    }
    let (frame, rest) = bytes.split_at(need);
    let (checked, crc) = frame.split_at(need - CRC_BYTES);
    let (found, computed) = (u32_at(crc, 0), masked_crc(checked));
    if found != computed {
        return Err(FrameError::Checksum { found, computed });
    }
    let found = Uuid::from_slice(&checked[8..24]).expect("the slice has 16 bytes");
    if let Some(expected) = cluster.filter(|expected| *expected != found) {
        return Err(FrameError::OtherCluster { found, expected });
    }
    Ok((found, &checked[HEAD_BYTES..], rest))
}

/// Masked, so that the checksum of bytes that contain their own checksum is not a constant.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has 4 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: Uuid = Uuid::from_bytes([7; 16]);

    #[test]
    fn what_was_sealed_opens() {
        for body in [&b""[..], b"x", &[0; 4096]] {
            let frame = seal(FrameKind::Record, CLUSTER, body);
            assert_eq!(open(FrameKind::Record, Some(CLUSTER), &frame), Ok((CLUSTER, body)));
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let frame = seal(FrameKind::Record, CLUSTER, b"ab");
        assert_eq!(&frame[..8], b"SFlr\x01\0\0\0");
        assert_eq!(&frame[8..24], &[7; 16]);
        assert_eq!(&frame[24..30], b"\x02\0\0\0ab");
        assert_eq!(frame.len(), 34);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let frame = seal(FrameKind::Vote, CLUSTER, b"a vote");
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(FrameKind::Vote, Some(CLUSTER), &bad).is_err(), "bit {bit}");
        }
        for cut in 0..frame.len() {
            assert!(open(FrameKind::Vote, Some(CLUSTER), &frame[..cut]).is_err(), "cut {cut}");
        }
    }

    #[test]
    fn zeros_are_not_a_frame() {
        assert_eq!(open(FrameKind::Record, None, &[0; 64]), Err(FrameError::Foreign));
    }

    #[test]
    fn a_newer_version_and_another_cluster_are_told_apart_from_damage() {
        let mut newer = seal(FrameKind::Header, CLUSTER, b"");
        newer[4] = 2;
        assert_eq!(
            open(FrameKind::Header, None, &newer),
            Err(FrameError::NewerVersion { found: 2 })
        );
        let other = Uuid::from_bytes([8; 16]);
        let frame = seal(FrameKind::Header, other, b"");
        assert_eq!(
            open(FrameKind::Header, Some(CLUSTER), &frame),
            Err(FrameError::OtherCluster { found: other, expected: CLUSTER })
        );
    }

    #[test]
    fn every_refusal_says_what_stands_there() {
        let frame = seal(FrameKind::Vote, CLUSTER, b"a vote");
        let refused =
            |bytes: &[u8]| open(FrameKind::Vote, Some(CLUSTER), bytes).unwrap_err().to_string();
        let (mut newer, mut flipped) = (frame.clone(), frame.clone());
        newer[4] = 9;
        flipped[30] ^= 1;
        assert_eq!(refused(b"a text"), "it does not begin like one of our files");
        assert_eq!(refused(&frame[..20]), "it ends after 20 of 32 bytes");
        assert_eq!(refused(&frame[..37]), "it ends after 37 of 38 bytes");
        assert_eq!(refused(&[&frame[..], b"xy"].concat()), "2 bytes follow its end");
        assert_eq!(refused(&newer), "format version 9, known up to 1");
        let said = refused(&flipped);
        let (was, is) = said.split_once(", its bytes give ").unwrap();
        assert!(was.starts_with("its checksum is ") && was.len() == 24 && is.len() == 8, "{said}");
        let other = seal(FrameKind::Vote, Uuid::from_bytes([8; 16]), b"a vote");
        assert_eq!(
            refused(&other),
            "it belongs to cluster 08080808-0808-0808-0808-080808080808, not to \
             07070707-0707-0707-0707-070707070707"
        );
    }
}
