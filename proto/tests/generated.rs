//! Checks that the generated code in `src/generated` matches the .proto files. After a change of
//! these run `SHARDFEED_WRITE_GENERATED=1 cargo test -p shardfeed-proto --test generated`.
#![allow(clippy::unwrap_used)]

use std::path::Path;

const FILES: [&str; 6] = [
    "shardfeed/common/v1/account.proto",
    "shardfeed/common/v1/job.proto",
    "shardfeed/common/v1/record.proto",
    "shardfeed/coordinator/v1/coordinator.proto",
    "shardfeed/coordinator/v1/peer.proto",
    "shardfeed/trainer/v1/trainer.proto",
];

/// Messages that commands print as JSON, which docs/FIELDS.md describes, and their fields that have
/// another name or form there than on the wire: `skip` (absent), `list` (absent if it is empty),
/// `> NAME`, or a function of `src/json.rs`.
const JSON: &str = "
common.v1.Error: kind word ErrorKind, leader skip
common.v1.JobIdentity: order_digest digest, content_digest digest, window > shuffle_window, \
    tail word Tail, mode word Mode, record_spec digest
coordinator.v1.AccessToken: join skip
coordinator.v1.AuditEntry: claimed known, role known, object known, detail known, message known, \
    request_id known
coordinator.v1.Dataset: state word DatasetState, root known, content > content_digest, \
    content digest, files > shard_count, bytes > stored_bytes, files_scanned > shards_scanned, \
    corrupt skip, waiting known, failure_from known, program digest, chunks > manifest_chunks, chunks digests
common.v1.JobMixture: Version.content digest, Version.order_digest digest, \
    Version.record_spec skip
coordinator.v1.Epoch: state word EpochState, samples_per_second positive, age_ms skip, \
    policy skip, sources list
coordinator.v1.EpochSource:
coordinator.v1.Event: job known, worker known, dataset known, ranks list
coordinator.v1.Generation: number > generation
coordinator.v1.GetBatchResponse.Row: shard > shard_ordinal, path > shard, source_epoch skip
coordinator.v1.GetClusterResponse: node > seen_by, committed > committed_index, members skip
coordinator.v1.GetEpochMapResponse.Cell:
coordinator.v1.GetShardHistoryResponse: shard > ordinal, tenures > leases, returns list
coordinator.v1.GetStatusResponse: applied > applied_index, snapshot > snapshot_index, \
    leader_address skip, clock_ms skip
coordinator.v1.Held: hold word Hold
coordinator.v1.Job: digest digest, phase word JobPhase, history skip
coordinator.v1.Lease:
coordinator.v1.Member: role word MemberRole, matched > matched_index, state_hash skip
coordinator.v1.Rank: state word RankState, worker known, host known, trainer known, account skip, \
    sources list
coordinator.v1.RankInDoubt:
coordinator.v1.Shard: shard > ordinal, state word ShardState, group skip
coordinator.v1.ShardReturn:
coordinator.v1.SkippedRecord:
coordinator.v1.Tenure: why known, epoch > stood_epoch, step > stood_step
coordinator.v1.WhoAmIResponse: role known
coordinator.v1.Worker: state word WorkerState, cordon word Cordon, endpoint > socket, \
    endpoint known, serving skip, accounts skip
";

/// Returns the serde attribute for a form of [`JSON`].
fn attribute(form: &str) -> String {
    let without_empty = "skip_serializing_if = \"Vec::is_empty\"";
    let inside = match form.split_once(' ') {
        Some((">", name)) => format!("rename = \"{name}\""),
        Some((function, of)) => format!("serialize_with = \"crate::json::{function}::<{of}, _>\""),
        None if form == "skip" => "skip".to_owned(),
        None if form == "list" => without_empty.to_owned(),
        None if form == "digests" => {
            format!("serialize_with = \"crate::json::digests\", {without_empty}")
        }
        None => format!("serialize_with = \"crate::json::{form}\""),
    };
    format!("#[serde({inside})]")
}

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(FILES, [root]).unwrap();
    let out = tempfile::tempdir().unwrap();
    // A loader in one process has the messages without the services, and without tonic.
    let services = "#[cfg(feature = \"services\")]";
    let mut configured = tonic_prost_build::configure()
        .client_mod_attribute(".", services)
        .server_mod_attribute(".", services)
        .out_dir(out.path());
    for (message, fields) in JSON.trim().lines().map(|line| line.split_once(':').unwrap()) {
        let message = format!(".shardfeed.{message}");
        configured = configured.type_attribute(&message, "#[derive(serde::Serialize)]");
        for field in fields.split(", ").filter(|field| !field.is_empty()) {
            let (name, form) = field.trim().split_once(' ').unwrap();
            configured = configured.field_attribute(format!("{message}.{name}"), attribute(form));
        }
    }
    configured.compile_fds(descriptors).unwrap();
    let kept = root.join("src/generated");
    for entry in std::fs::read_dir(out.path()).unwrap() {
        let made = entry.unwrap().path();
        let text = std::fs::read_to_string(&made).unwrap();
        let file = kept.join(made.file_name().unwrap());
        if std::env::var_os("SHARDFEED_WRITE_GENERATED").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(known == text, "{} differs from the .proto files", file.display());
    }
}
