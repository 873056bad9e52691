//! Manifests, assembled from the chunks of a dataset; the last few are kept in memory.

use std::sync::Arc;

use shardfeed_plan::{ContentDigest, Digest, Manifest, Shard};
use shardfeed_proto::chunk::{ChunkError, EntriesChunk, ListingChunk};
use shardfeed_proto::{ErrorKind, WireError};

use crate::error::{Result, invalid};
use crate::recent::Recent;
use crate::storage::chunks::ChunkStore;

/// Maximum manifests in memory; one of a million shards has about 150 MB.
const MANIFESTS_MAX: usize = 4;

/// Manifests by their content and their chunks. Content digests do not cover paths: a moved dataset
/// has the same content under other names.
#[derive(Debug, Default)]
pub(crate) struct Manifests(Recent<(ContentDigest, Digest), Manifest, MANIFESTS_MAX>);

impl Manifests {
    /// Returns the manifest in `chunks`, from memory or newly read. Blocks on the disk.
    ///
    /// # Errors  A chunk is missing or damaged, or the whole is not of `content`.
    pub(crate) fn get(
        &self,
        store: &ChunkStore,
        content: ContentDigest,
        chunks: &[Digest],
    ) -> Result<Arc<Manifest>> {
        let name = Digest::of_parts(chunks.iter().map(|chunk| chunk.as_bytes().as_slice()));
        if let Some(known) = self.0.get(&(content, name)) {
            return Ok(known);
        }
        let manifest = assemble(store, chunks)?;
        if manifest.digest() != content {
            let message = format!(
                "the chunks of the dataset hold content {}, not {content}; add the dataset again under \
                 another name",
                manifest.digest()
            );
            return Err(WireError::new(ErrorKind::Corrupt, message));
        }
        Ok(self.0.keep((content, name), manifest))
    }
}

/// Assembles a manifest from the chunks of all parts, in order. Blocks on the disk.
///
/// # Errors  A chunk is missing, damaged or of another kind; its files are not in order.
pub(crate) fn assemble(store: &ChunkStore, chunks: &[Digest]) -> Result<Manifest> {
    let mut shards: Vec<Shard> = Vec::new();
    for chunk in chunks {
        for entry in entries_of(store, chunk)?.entries {
            let (records, digest) = entry.counted();
            let path = entry.path;
            if shards.last().is_some_and(|last| last.path.as_bytes() >= path.as_bytes()) {
                return Err(invalid(format!("chunk {chunk}: `{path}` is not in manifest order")));
            }
            shards.push(Shard { path, records, digest });
        }
    }
    Manifest::new(shards).map_err(|error| invalid(error.to_string()))
}

pub(crate) fn listing_of(store: &ChunkStore, chunk: &Digest) -> Result<ListingChunk> {
    let bytes = store.read(chunk)?;
    ListingChunk::decode(&bytes).map_err(|error| not_believed(chunk, &error))
}

pub(crate) fn entries_of(store: &ChunkStore, chunk: &Digest) -> Result<EntriesChunk> {
    let bytes = store.read(chunk)?;
    EntriesChunk::decode(&bytes).map_err(|error| not_believed(chunk, &error))
}

fn not_believed(chunk: &Digest, error: &ChunkError) -> WireError {
    let kind = match error {
        ChunkError::Version { .. } => ErrorKind::WrongVersion,
        _ => ErrorKind::Invalid,
    };
    WireError::new(kind, format!("chunk {chunk}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use expect_test::expect;
    use shardfeed_host::RealDisk;
    use shardfeed_proto::chunk::FileEntry;
    use tokio::time::Instant;

    use super::*;

    /// Reports are checked before they are accepted; these errors are for a damaged state.
    #[test]
    fn chunks_that_are_not_the_datasets_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::new(folder.path()).unwrap());
        let store = ChunkStore::open(disk, 1 << 20, &BTreeSet::new(), Instant::now()).unwrap();
        let entry = |path: &str| FileEntry {
            path: path.to_owned(),
            size_bytes: 0,
            modified_ns: 1,
            etag: None,
            compression: "none".to_owned(),
            records: 0,
            data_bytes: 0,
            record_bytes_max: 0,
            digest: Digest::of_parts([path.as_bytes()]),
            marks: vec![],
            left_out: None,
            samples: None,
        };
        let put = |path: &str| {
            let chunk = EntriesChunk::new(vec![entry(path)]).encode().unwrap();
            store.put(&chunk, "", Instant::now()).unwrap()
        };
        let (a, b) = (put("a"), put("b"));
        let other = Digest::from_bytes([7; 32]);
        let content = assemble(&store, &[a, b]).unwrap().digest();
        let found = assemble(&store, &[b, a]).unwrap_err();
        let unlike = Manifests::default().get(&store, other, &[a, b]).unwrap_err();
        let named = |error: WireError| {
            let message = error.message.replace(&a.to_string(), "CHUNK-A");
            let message = message.replace(&content.to_string(), "FOUND");
            format!("{:?}: {}\n", error.kind, message.replace(&other.to_string(), "WANTED"))
        };
        expect![[r#"
            Invalid: chunk CHUNK-A: `a` is not in manifest order
            Corrupt: the chunks of the dataset hold content FOUND, not WANTED; add the dataset again under another name
        "#]].assert_eq(&[found, unlike].map(named).concat());
    }
}
