//! Description of an opened dataset for a trainer.

use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_socket::SocketError;
use shardfeed_source::{DamagedRecord, LeftOut};

use crate::catalog::Opened;

/// Rows of a dataset's table in one message.
const ROWS_PER_MESSAGE: usize = 4096;

/// Maximum bytes of the rows' paths in one message.
const ROW_BYTES_PER_MESSAGE: usize = 1 << 20;

/// Maximum number of damaged files, and of damaged records, reported to a trainer.
const DAMAGED_MAX: usize = 1000;

/// Bytes of a sample map in one message.
const MAP_PART_BYTES: usize = 1 << 20;

/// Maximum bytes of a number in a message.
const COUNT_BYTES_MAX: usize = 10;

/// Sends the description of a dataset: its shards, and the samples that a program makes of them.
/// - `source`: the source of a mixture that it is; empty: none.
pub(super) fn describe(
    source: &str,
    opened: &Opened,
    send: &mut dyn FnMut(Message) -> Result<(), SocketError>,
) -> Result<(), SocketError> {
    let Opened { name, rules, content, dataset, missing } = opened;
    let (shards, samples) = (dataset.manifest().shards(), dataset.samples());
    let damaged = samples.map(|maps| &maps.damaged[..]).unwrap_or_default();
    send(Message::Dataset(wire::Dataset {
        name: name.clone(),
        root: dataset.root().display().to_string(),
        content: content.as_bytes().to_vec(),
        shards: shards.len() as u64,
        compression: rules.compression.to_string(),
        corrupt: rules.corrupt.to_string(),
        left_out: dataset.left_out().iter().take(DAMAGED_MAX).map(left_out_to).collect(),
        left_out_total: dataset.left_out().len() as u64,
        has_maps: samples.is_some(),
        damaged: damaged.iter().take(DAMAGED_MAX).map(damaged_to).collect(),
        damaged_total: samples.map_or(0, |maps| maps.damaged_total),
        source: source.to_owned(),
        missing: missing.clone().unwrap_or_default(),
    }))?;
    let mut rows = wire::Shards::default();
    let mut bytes = 0;
    for shard in shards {
        if rows.paths.len() == ROWS_PER_MESSAGE || bytes > ROW_BYTES_PER_MESSAGE {
            send(Message::Shards(std::mem::take(&mut rows)))?;
            bytes = 0;
        }
        bytes += shard.path.len();
        rows.paths.push(shard.path.clone());
        rows.records.push(shard.records);
        rows.digests.extend(samples.map(|_| shard.digest.as_bytes().to_vec()));
    }
    send(Message::Shards(rows))?;
    for map in samples.iter().flat_map(|maps| maps.maps()) {
        let map = map.get();
        let (bytes, counts) = (map.to_bytes(), map.pack_counts().unwrap_or_default());
        let counts = counts.chunks(MAP_PART_BYTES / COUNT_BYTES_MAX);
        let last = |counts: &[u64]| (vec![], counts.to_vec());
        let parts = bytes.chunks(MAP_PART_BYTES).map(|content| (content.to_vec(), vec![]));
        let mut parts = parts.chain(counts.map(last)).peekable();
        while let Some((content, pack_counts)) = parts.next() {
            let is_last = parts.peek().is_none();
            send(Message::MapPart(wire::MapPart { content, is_last, pack_counts }))?;
        }
    }
    Ok(())
}

fn left_out_to(left: &LeftOut) -> wire::LeftOut {
    let LeftOut { shard, ordinal, offset, is_whole, reason } = left.clone();
    wire::LeftOut { shard: shard.into(), ordinal, offset, is_whole, reason }
}

fn damaged_to(damaged: &DamagedRecord) -> wire::Skipped {
    let DamagedRecord { shard, ordinal, offset, reason } = damaged.clone();
    wire::Skipped { shard: shard.into(), ordinal, offset, reason, record: None }
}
