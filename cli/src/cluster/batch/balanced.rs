//! Batches of a job whose steps are balanced: computed here, from the sample maps that the
//! coordinators hold.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat;
use std::sync::Arc;

use anyhow::Context;
use shardfeed_agent::{ShardMaps, maps_of_shards};
use shardfeed_embedded::{Plans, SampleCosts};
use shardfeed_plan::{
    BalancedPlan, EpochPlan, JobIdentity, MixtureEpoch, PlanError, Planned, Portion, Sample, Source,
};
use shardfeed_proto::chunk::EntriesChunk;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::get_batch_response::{BalancedOrder, Row};
use shardfeed_proto::{identity_from, mixture_from, segments_from};
use shardfeed_source::SampleMaps;

use super::Client;
use crate::error::Problem;

/// Chunks of the coordinators by their digest.
type Chunks = RefCell<BTreeMap<Vec<u8>, Vec<u8>>>;

/// Returns the rows of the batches.
/// - `answer`: describes the order of the job, as `order`.
pub(super) fn rows(
    client: &Client,
    (epoch, step, rank): (u64, u64, Option<u64>),
    answer: &wire::GetBatchResponse,
    order: BalancedOrder,
) -> anyhow::Result<Vec<Row>> {
    let world_size = answer.world_size;
    let chunks = Chunks::default();
    let dataset = |of| DatasetOf::new(client, &chunks, of);
    let mut datasets: Vec<_> = answer.datasets.iter().map(dataset).collect::<Result<_, _>>()?;
    let window = order.window;
    let (identity, plan) = plan(&mut datasets, order, (epoch, world_size))?;
    let plan = Arc::new(plan);
    if let Some(rank) = rank.filter(|rank| *rank >= world_size) {
        let what =
            format!("rank={rank} is not in 0..{world_size}: ranks count from 0 to world_size - 1");
        return Err(Problem::usage(what).into());
    }
    let ranks = rank.map_or(0..world_size, |rank| rank..rank + 1);
    // With `uneven` some ranks have one step more than others.
    let has_step = |rank| step < plan.rank_steps(rank) || step >= plan.steps();
    let ranks: Vec<_> = ranks.filter(|of| rank.is_some() || has_step(*of)).collect();
    let variant = |portion: Portion| match (identity.shuffle.enabled, plan.mixture()) {
        (false, _) => 0,
        (true, None) => epoch,
        (true, Some(_)) => portion.epoch,
    };
    loop {
        let mut lacks = BTreeSet::new();
        let mut costs: Vec<_> = datasets.iter().map(|_| SampleCosts::default()).collect();
        let cost = |portion: Portion, sample: Sample| {
            let source = portion.source as usize;
            let Some((maps, shard)) = datasets[source].map_of(sample.shard) else {
                lacks.insert((source, sample.shard));
                return 0;
            };
            costs[source].of(maps, Sample { shard, ..sample }, variant(portion))
        };
        let mut balanced = BalancedPlan::new(Arc::clone(&plan), window, cost)?;
        let mut batch = |rank| Ok((rank, balanced.batch(step, rank)?));
        let batches = ranks.iter().map(|rank| batch(*rank));
        let batches: Vec<_> = batches.collect::<Result<_, PlanError>>()?;
        drop(balanced);
        if lacks.is_empty() {
            let rows = batches.into_iter().flat_map(|(rank, rows)| repeat(rank).zip(rows));
            let row = |(rank, Planned { portion, sample, valid })| {
                let source_epoch = if plan.mixture().is_some() { portion.epoch } else { epoch };
                let (path, shard) = datasets[portion.source as usize].shard(sample.shard);
                Row { rank, shard, path, ordinal: sample.ordinal, valid, source_epoch }
            };
            return Ok(rows.map(row).collect());
        }
        for (source, shard) in lacks {
            datasets[source].wanted.insert(shard.into());
        }
        for dataset in &mut datasets {
            dataset.fetch(client, &chunks)?;
        }
    }
}

/// Returns the identity of the job, and its plan without balanced steps.
fn plan(
    datasets: &mut [DatasetOf],
    order: BalancedOrder,
    (epoch, world_size): (u64, u64),
) -> anyhow::Result<(JobIdentity, EpochPlan)> {
    let BalancedOrder { identity, segments, limit, mixture, .. } = order;
    let (identity, segments) = (identity_from(identity)?, segments_from(segments)?);
    identity.check_order()?;
    let rules = (identity.tail, limit);
    let Some(mixture) = mixture else {
        let counts = datasets.first().context("a job without a dataset")?.counts();
        let plan = Plans::new(counts, rules).plan(&identity, epoch, &segments, world_size)?;
        return Ok((identity, Arc::unwrap_or_clone(plan)));
    };
    let mixture = mixture_from(mixture)?;
    let numbers = mixture.mixture()?;
    // The datasets of the epoch are those of its stage, by the names of their sources.
    let stage = &mixture.stages[numbers.stage_of(epoch)];
    let versions = stage.counts.iter().map(|(version, _)| &mixture.versions[*version as usize]);
    let mut names: Vec<_> = versions.map(|version| &version.name).collect();
    names.sort();
    anyhow::ensure!(names.len() == datasets.len(), "the coordinator names other datasets");
    let mut sources = vec![];
    for (name, dataset) in names.into_iter().zip(datasets) {
        dataset.source = format!("{name}:");
        sources.push(Arc::new(Source::new(name, dataset.counts())?));
    }
    let of_epoch = MixtureEpoch::new(&numbers, &sources, &identity.shuffle, epoch)?;
    let plan = EpochPlan::of_mixture(Arc::new(of_epoch), rules, &segments, world_size)?;
    Ok((identity, plan))
}

struct DatasetOf {
    dataset: wire::Dataset,
    /// Ordinal of its first shard in the epoch.
    first_shard: u64,
    /// Name of its source in the mixture and a colon; otherwise empty.
    source: String,
    /// Path and samples of each shard.
    shards: Vec<(String, u64)>,
    /// Ordinals of the shards whose maps are needed.
    wanted: BTreeSet<u64>,
    maps: ShardMaps,
}

impl DatasetOf {
    fn new(
        client: &Client,
        chunks: &Chunks,
        of: &wire::get_batch_response::Dataset,
    ) -> anyhow::Result<Self> {
        let request = wire::GetDatasetRequest { context: None, name: of.name.clone() };
        let dataset = client.call(request)?.dataset;
        let dataset = dataset.with_context(|| format!("dataset {} is gone", of.name))?;
        let mut shards = vec![];
        for chunk in &dataset.chunks {
            let part = EntriesChunk::decode(&get(client, chunks, chunk)?)?;
            shards.extend(part.entries.into_iter().map(|of| (of.path.clone(), of.counted().0)));
        }
        let (source, wanted, maps) = Default::default();
        Ok(Self { dataset, first_shard: of.first_shard, source, shards, wanted, maps })
    }

    fn counts(&self) -> Vec<u64> {
        self.shards.iter().map(|(_, samples)| *samples).collect()
    }

    /// Returns the path of a shard and its ordinal in the epoch.
    fn shard(&self, shard: u32) -> (String, u64) {
        let path = &self.shards[shard as usize].0;
        (format!("{}{path}", self.source), self.first_shard + u64::from(shard))
    }

    /// Returns the maps and the index of the map of a shard, if they were fetched.
    fn map_of(&self, shard: u32) -> Option<(&SampleMaps, u32)> {
        let (maps, places) = &self.maps;
        Some((maps, *places.get(&shard.into())?))
    }

    /// Fetches the maps of the wanted shards.
    fn fetch(&mut self, client: &Client, chunks: &Chunks) -> anyhow::Result<()> {
        if self.wanted.iter().all(|shard| self.maps.1.contains_key(shard)) {
            return Ok(());
        }
        let maps = maps_of_shards(&self.dataset, &self.wanted, |of| get(client, chunks, of))?;
        self.maps = maps.ok_or_else(|| {
            let what = format!(
                "the costs of the samples of dataset {} are in the index of the workers",
                self.dataset.name
            );
            Problem::failed(what).hint(
                "`shardfeed batch show --source MODULE:NAME` reads them there; the ledgers of the \
                 job's trainers (SHARDFEED_LEDGER) name the records of each batch",
            )
        })?;
        Ok(())
    }
}

fn get(client: &Client, chunks: &Chunks, digest: &[u8]) -> anyhow::Result<Vec<u8>> {
    if let Some(known) = chunks.borrow().get(digest) {
        return Ok(known.clone());
    }
    let chunk = client.chunk(digest)?;
    chunks.borrow_mut().insert(digest.to_vec(), chunk.clone());
    Ok(chunk)
}
