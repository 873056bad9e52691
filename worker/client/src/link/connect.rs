//! Connection setup with this host's worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_pipeline::TableRef;
use shardfeed_plan::Digest;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_proto::{ErrorKind, WireError, digest_from, identity_to, mixture_to};
use shardfeed_reader::{JobSpec, traced};
use shardfeed_socket::{ConnectError, connect};
use shardfeed_source::{
    CountedFile, DamagedRecord, FileRules, HeldMap, LeftOut, LoadError, OnProgress, SampleMap,
    SampleMaps, absolute_pattern, waiting,
};

use crate::contents::{Contents, ShardRow};
use crate::link::exchange::Setting;
use crate::link::outcome::Unavailable;
use crate::link::worker::WorkerLink;
use crate::mixture::joined_contents;
use crate::request::{DatasetRequest, EncodedProgram};

/// Maximum time for a worker to complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Interval between attempts to connect to a missing worker.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Approximate bytes of patterns in one message, and the overhead counted per pattern.
const OPEN_BYTES: usize = 1 << 20;
const PATTERN_BYTES: usize = 8;

/// Path of the worker's socket: `SHARDFEED_WORKER`, else the user's or the system's default path.
pub fn default_worker_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("SHARDFEED_WORKER").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let system = PathBuf::from("/run/shardfeed/worker.sock");
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    match own.map(|dir| PathBuf::from(dir).join("shardfeed/worker.sock")) {
        Some(own) if own.exists() || !system.exists() && !rustix::process::geteuid().is_root() => {
            own
        }
        _ => system,
    }
}

impl From<ConnectError> for Unavailable {
    fn from(error: ConnectError) -> Self {
        let message = error.to_string();
        match error {
            ConnectError::Missing { .. }
            | ConnectError::Dead { .. }
            | ConnectError::Silent { .. }
            | ConnectError::Closed { .. } => Self::Absent(message),
            ConnectError::Version { .. } => {
                Self::Refused(WireError::new(ErrorKind::WrongVersion, message).into())
            }
            _ => Self::Refused(WireError::new(ErrorKind::Invalid, message).into()),
        }
    }
}

/// Connects, performs the handshake, opens the dataset and registers the job if there is one.
pub(crate) fn greet(
    setting: &Setting,
    path: &Path,
    job: Option<&JobSpec>,
    progress: OnProgress<'_>,
) -> Result<(WorkerLink, Contents), Unavailable> {
    let _operation = traced::enter("connect", None);
    let connection = connect(path, HANDSHAKE)?;
    let options = &setting.options;
    let cluster = setting.cluster();
    let hello = wire::Hello {
        trainer: setting.trainer.clone(),
        coordinator: cluster.port.addresses(&cluster.coordinator),
        ranks_on_host: cluster.ranks_on_host,
        timeout_ms: u64::try_from(cluster.timeout.as_millis()).unwrap_or(u64::MAX).max(1),
        ..wire::Hello::default()
    };
    let mut link = WorkerLink::greet(connection, path, hello, progress)?;
    let requests = setting.requests.iter();
    let parts = requests.map(|request| open(&mut link, (setting, request), progress));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let contents = joined_contents(options.mixture.as_ref(), &setting.requests, parts)?;
    if let Some(job) = job {
        register(&mut link, job, progress)?;
    }
    Ok((link, contents))
}

/// As [`greet`], repeated for `patience` while no worker is available.
pub(crate) fn greet_for(
    setting: &Setting,
    path: &Path,
    job: Option<&JobSpec>,
    patience: Duration,
    progress: OnProgress<'_>,
) -> Result<(WorkerLink, Contents), Unavailable> {
    let begun = Instant::now();
    let has_fallback = setting.cluster().fallback;
    loop {
        match greet(setting, path, job, progress) {
            Err(Unavailable::Cordoned(reason)) if has_fallback => {
                return Err(Unavailable::Cordoned(reason));
            }
            Err(Unavailable::Absent(reason) | Unavailable::Cordoned(reason))
                if begun.elapsed() < patience =>
            {
                if !waiting(progress)(&reason) {
                    return Err(Unavailable::Refused(LoadError::Interrupted));
                }
                std::thread::sleep(LOOK_EVERY);
            }
            other => return other,
        }
    }
}

pub(crate) fn register(
    link: &mut WorkerLink,
    job: &JobSpec,
    progress: OnProgress<'_>,
) -> Result<(), Unavailable> {
    let table = |table: &TableRef| {
        let path = table.path.clone()?;
        Some(wire::SideTable { digest: table.digest.to_string(), path })
    };
    let request = wire::Register {
        job: job.name.clone(),
        identity: Some(identity_to(&job.identity)),
        record_spec: job.record_spec.bytes().to_vec(),
        mixture: job.mixture.as_deref().map(mixture_to),
        tables: job.schemas.all().iter().flat_map(|of| of.tables()).filter_map(table).collect(),
    };
    match link.ask(Ask::Register(request), progress)? {
        Message::Registered(wire::Registered { cluster_id }) => {
            // Empty if the worker has reached no coordinator.
            if !cluster_id.is_empty() {
                link.cluster_id = cluster_id;
            }
            link.set_schema(job.schemas.first());
            Ok(())
        }
        other => Err(link.unexpected(&other)),
    }
}

fn open(
    link: &mut WorkerLink,
    (setting, of): (&Setting, &DatasetRequest),
    progress: OnProgress<'_>,
) -> Result<Contents, Unavailable> {
    // The worker has another working directory.
    let files = of.files.iter().map(|file| absolute_pattern(file));
    let mut patterns = files.collect::<Result<Vec<_>, _>>()?;
    // A frame has a maximum size, a list of files has none.
    while let Some(part) = first_part(&mut patterns) {
        link.send(Ask::Open(wire::Open { patterns: part, more: true, ..wire::Open::default() }))?;
    }
    let request = wire::Open {
        dataset: of.dataset.clone().unwrap_or_default(),
        patterns,
        more: false,
        compression: of.rules.compression.to_string(),
        corrupt: of.rules.corrupt.to_string(),
        name_samples: setting.with_samples,
        program: of.program().to_vec(),
        record_spec: of.record_spec.as_ref().map_or_else(Vec::new, |spec| spec.bytes().to_vec()),
        source: of.source.clone(),
        kept: of.kept(&setting.options)?.unwrap_or_default(),
        index: setting.options.cache.index.as_ref().map_or_else(String::new, ToString::to_string),
    };
    let described = match link.ask(Ask::Open(request), progress)? {
        Message::Dataset(dataset) => dataset,
        other => return Err(link.unexpected(&other)),
    };
    let is_mixing = described.source == of.source;
    if !is_mixing || described.has_maps != of.program.is_some() {
        let message = match is_mixing {
            true => "the worker makes no samples of records; upgrade it",
            false => "the worker mixes no datasets; upgrade it",
        };
        return Err(Unavailable::Refused(WireError::new(ErrorKind::WrongVersion, message).into()));
    }
    let total = described.shards as usize;
    let (mut shards, mut digests) = (Vec::new(), Vec::new());
    loop {
        let Message::Shards(rows) = link.wait(progress)? else {
            return Err(link.broken("a dataset without its shards"));
        };
        if rows.paths.len() != rows.records.len() {
            return Err(link.broken("shards without counts"));
        }
        let known = rows.digests.iter().map(|digest| digest_from("digests", digest));
        let known = known.collect::<Result<Vec<_>, _>>();
        digests.extend(known.map_err(|error| link.broken(&error.to_string()))?);
        let rows = rows.paths.into_iter().zip(rows.records);
        shards.extend(rows.map(|(path, records)| ShardRow { path, records }));
        if shards.len() >= total {
            break;
        }
    }
    let bad = |error: String| link.broken(&error);
    let rules = FileRules::parse(&described.compression, &described.corrupt).map_err(bad)?;
    let left_out = described.left_out.into_iter().map(|left| LeftOut {
        shard: left.shard as u32,
        ordinal: left.ordinal,
        offset: left.offset,
        is_whole: left.is_whole,
        reason: left.reason,
    });
    let content = digest_from("content", &described.content);
    let digest = content.map_err(|error| bad(error.to_string()))?;
    let mut samples = None;
    if let Some(program) = &of.program {
        let damaged = described.damaged.into_iter().map(|damaged| {
            let wire::Skipped { shard, ordinal, offset, reason, .. } = damaged;
            DamagedRecord { shard: shard as u32, ordinal, offset, reason }
        });
        let maps = receive_maps(link, program, (&shards, &digests), progress)?;
        let maps = SampleMaps::new(maps, damaged.collect(), described.damaged_total);
        if maps.content(digests.into_iter()) != digest {
            return Err(link.broken("the samples of another dataset"));
        }
        samples = Some(Arc::new(maps));
    }
    Ok(Contents {
        name: described.name,
        root: described.root,
        rules,
        digest,
        shards,
        left_out: left_out.collect(),
        left_out_total: described.left_out_total,
        samples,
        mixed: None,
        missing: Some(described.missing).filter(|reason| !reason.is_empty()),
    })
}

fn receive_maps(
    link: &mut WorkerLink,
    program: &EncodedProgram,
    (shards, digests): (&[ShardRow], &[Digest]),
    progress: OnProgress<'_>,
) -> Result<Vec<HeldMap>, Unavailable> {
    let mut maps = Vec::with_capacity(shards.len());
    for (shard, digest) in shards.iter().zip(digests) {
        let (mut content, mut counts) = (Vec::new(), Vec::new());
        loop {
            let Message::MapPart(part) = link.wait(progress)? else {
                return Err(link.broken("a dataset without its sample maps"));
            };
            content.extend(part.content);
            counts.extend(part.pack_counts);
            if part.is_last {
                break;
            }
        }
        // The worker, which has the files, knows their bytes.
        let (records, data_bytes, digest) = (shard.records, u64::MAX, *digest);
        let file = CountedFile { records, data_bytes, digest };
        let map = SampleMap::from_bytes(&content, file, &program.program, &counts);
        let map = map.ok_or_else(|| link.broken("a sample map of another file"))?;
        maps.push(HeldMap::new(map, digest));
    }
    Ok(maps)
}

/// Splits off the patterns of one message; `None` if all of them fit into one.
fn first_part(patterns: &mut Vec<String>) -> Option<Vec<String>> {
    let mut bytes = 0;
    let beyond = patterns.iter().position(|pattern| {
        bytes += pattern.len() + PATTERN_BYTES;
        bytes > OPEN_BYTES
    })?;
    let rest = patterns.split_off(beyond.max(1));
    Some(std::mem::replace(patterns, rest))
}
