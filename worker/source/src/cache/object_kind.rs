//! Small files and objects that are addressed by digests: first bytes that name their kind, a
//! checksum with their name, so that one under another name does not match, and a body.

use crc_fast::crc32_iscsi;

/// First bytes of all objects of a kind: `shardfeed NAME VERSION` and a line feed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectKind(pub(crate) &'static str);

impl ObjectKind {
    /// Returns the bytes of an object.
    pub(crate) fn encode(self, name: &str, body: &[u8]) -> Vec<u8> {
        [self.0.as_bytes(), &checksum(name, body).to_le_bytes(), body].concat()
    }

    /// Returns the body of an object; `None` if it is damaged, or of another kind or name.
    pub(crate) fn decode<'a>(self, name: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (crc, body) = bytes.strip_prefix(self.0.as_bytes())?.split_first_chunk::<4>()?;
        (checksum(name, body) == u32::from_le_bytes(*crc)).then_some(body)
    }

    /// Returns the name of the folder for objects of this kind and version.
    pub(crate) fn folder(self) -> String {
        self.0.trim_start_matches("shardfeed ").trim_end().replace(' ', "-")
    }

    /// Returns the name of an object in an index.
    pub(crate) fn in_index(self, name: &str) -> String {
        format!("{}/{name}", self.folder())
    }
}

fn checksum(name: &str, body: &[u8]) -> u32 {
    crc32_iscsi(&[name.as_bytes(), body].concat())
}
