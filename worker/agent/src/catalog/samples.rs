//! Samples of a cluster's datasets: counted by the worker that scans a part, and taken from its
//! chunks by the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardfeed_pipeline::{SampleProgram, Schema};
use shardfeed_plan::Digest;
use shardfeed_proto::CHUNK_BYTES_MAX;
use shardfeed_proto::chunk::{
    DamagedEntry, EntriesChunk, FileEntry, REASON_BYTES_MAX, SamplesEntry,
};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_reader::EncodedSpec;
use shardfeed_source::{CountedFile, DamagedRecord, HeldMap, LoadError, SampleMap, SampleMaps};

use crate::catalog::entries::invalid;

/// Maximum number of damaged records that the chunk of a part lists.
const DAMAGED_MAX: usize = 500;

/// Returns the program of an encoded record spec.
///
/// # Errors  Another release encoded it.
pub(crate) fn program_of(encoded: &[u8]) -> Result<Arc<SampleProgram>, LoadError> {
    let schema = Schema::new(EncodedSpec::decode(encoded)?)?;
    schema.samples().cloned().ok_or_else(|| invalid("a program without samples"))
}

/// Returns the chunk of a part, with the samples of its files, and the chunks with their maps.
/// - `are_in_index`: the maps are in the index of the workers, and in no chunk.
pub(crate) fn with_samples(
    mut entries: Vec<FileEntry>,
    samples: &SampleMaps,
    are_in_index: bool,
) -> (EntriesChunk, Vec<Vec<u8>>) {
    let mut content = Vec::new();
    for (entry, map) in entries.iter_mut().zip(samples.maps()) {
        let bytes = if are_in_index { vec![] } else { map.get().to_bytes() };
        let digest = map.digest(entry.digest);
        let map_bytes = bytes.len() as u64;
        entry.samples = Some(SamplesEntry { samples: map.samples(), digest, map_bytes });
        content.extend(bytes);
    }
    let maps: Vec<_> = content.chunks(CHUNK_BYTES_MAX).map(<[u8]>::to_vec).collect();
    let chunk = EntriesChunk {
        maps: maps.iter().map(|map| Digest::of_parts([map.as_slice()])).collect(),
        damaged: samples.damaged.iter().take(DAMAGED_MAX).map(damaged_to).collect(),
        damaged_total: samples.damaged_total,
        ..EntriesChunk::new(entries)
    };
    (chunk, maps)
}

/// Returns the samples of the files of a part.
/// - `content`: of its chunks with maps, end to end.
///
/// # Errors  A map is damaged, or of another file.
pub(crate) fn samples_of(
    part: &EntriesChunk,
    content: &[u8],
    files: &[CountedFile],
    program: &SampleProgram,
) -> Result<SampleMaps, LoadError> {
    let (mut maps, mut rest) = (vec![], content);
    for (entry, file) in part.entries.iter().zip(files) {
        let samples = entry.samples.as_ref().ok_or_else(|| invalid("files without samples"))?;
        let bytes = usize::try_from(samples.map_bytes).unwrap_or(usize::MAX);
        let (map, after) = rest.split_at_checked(bytes).ok_or_else(|| invalid("a cut map"))?;
        rest = after;
        let map = SampleMap::from_bytes(map, *file, program, &[]);
        let map = map.filter(|map| (map.samples(), map.digest(file.digest)) == entry.counted());
        let map = map.ok_or_else(|| invalid(format!("`{}` has no valid map", entry.path)))?;
        maps.push(HeldMap::new(map, file.digest));
    }
    let damaged = part.damaged.iter().map(damaged_from).collect();
    Ok(SampleMaps::new(maps, damaged, part.damaged_total))
}

/// Sample maps, and the index of the map of each shard.
pub type ShardMaps = (SampleMaps, BTreeMap<u64, u32>);

/// Returns the sample maps of some shards; `None`: they are in the index of the workers.
/// - `get`: returns the coordinators' chunk of a digest.
///
/// # Errors  Those of `get`; a chunk is damaged.
pub fn maps_of_shards<E: From<LoadError>>(
    dataset: &wire::Dataset,
    shards: &BTreeSet<u64>,
    mut get: impl FnMut(&[u8]) -> Result<Vec<u8>, E>,
) -> Result<Option<ShardMaps>, E> {
    let program = program_of(&get(&dataset.program)?)?;
    let (mut maps, mut places, mut first) = (SampleMaps::default(), BTreeMap::new(), 0);
    for chunk in &dataset.chunks {
        let part = EntriesChunk::decode(&get(chunk)?).map_err(invalid)?;
        let of_part = first..first + part.entries.len() as u64;
        first = of_part.end;
        if shards.range(of_part.clone()).next().is_none() {
            continue;
        }
        if part.maps.is_empty() {
            return Ok(None);
        }
        let mut content = Vec::new();
        for map in &part.maps {
            content.extend(get(map.as_bytes())?);
        }
        let file = |entry: &FileEntry| CountedFile {
            records: entry.records,
            data_bytes: entry.data_bytes,
            digest: entry.digest,
        };
        let files: Vec<_> = part.entries.iter().map(file).collect();
        places.extend(of_part.zip(maps.maps().len() as u32..));
        maps.extend(samples_of(&part, &content, &files, &program)?);
    }
    Ok(Some((maps, places)))
}

fn damaged_to(damaged: &DamagedRecord) -> DamagedEntry {
    let DamagedRecord { shard: entry, ordinal, offset, mut reason } = damaged.clone();
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    DamagedEntry { entry, ordinal, offset, reason }
}

fn damaged_from(damaged: &DamagedEntry) -> DamagedRecord {
    let DamagedEntry { entry: shard, ordinal, offset, reason } = damaged.clone();
    DamagedRecord { shard, ordinal, offset, reason }
}
