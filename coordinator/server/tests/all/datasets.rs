//! Datasets from their patterns to their manifest, and errors on the way.

use shardfeed_plan::{Digest, Manifest, Shard};
use shardfeed_proto::ErrorKind;
use shardfeed_proto::chunk::{EntriesChunk, FileEntry, SamplesEntry};
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::coordinator::v1::*;

use crate::fixture::{Fixture, context, eventually, refused};
use crate::worker::{
    Client, add, beat, entry, found, get, join, list, put, ready, take, wait_ready,
};

#[tokio::test(flavor = "multi_thread")]
async fn is_listed_scanned_and_put_together() {
    let mut fixture = Fixture::start().await;
    let (_, dataset) = ready(&mut fixture).await;
    let shards = (0..5).map(|i| entry(&format!("f-{i}.tfrecord"), 100));
    let shards = shards.map(|e| Shard { path: e.path, records: e.records, digest: e.digest });
    let manifest = Manifest::new(shards.collect()).unwrap();
    assert_eq!(dataset.content, manifest.digest().as_bytes());
    assert_eq!((dataset.files, dataset.records, dataset.bytes), (5, 500, 10_000));
    assert_eq!((dataset.files_scanned, dataset.bytes_scanned), (5, 10_000));
    assert_eq!((dataset.root.as_str(), dataset.compression.as_str()), ("/data", "auto"));
    assert_eq!(dataset.chunks.len(), 3);
    for digest in dataset.chunks {
        let request = GetChunkRequest { context: context(), digest: digest.clone() };
        let content = fixture.worker.get_chunk(request).await.unwrap().into_inner().content;
        assert_eq!(Digest::of_parts([content.as_slice()]).as_bytes().as_slice(), digest);
    }
    let request = ListDatasetsRequest { context: context() };
    let listed = fixture.admin.list_datasets(request).await.unwrap().into_inner().datasets;
    assert_eq!((listed.len(), listed[0].chunks.len()), (1, 0));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_seen_while_it_is_scanned() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    add(&mut fixture, "a").await;
    assert_eq!(get(&fixture, "a").await.state(), DatasetState::Listing);
    assert!(beat(&mut fixture.worker, session, vec![]).await.unwrap().has_scans);
    let task = take(&mut fixture.worker, session, 1).await.remove(0);
    assert!(!beat(&mut fixture.worker, session, vec![]).await.unwrap().has_scans);
    let files: Vec<_> = (0..4).map(|i| entry(&format!("f{i}"), 10)).collect();
    let report = ReportListingRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        root: "/data".into(),
        parts: list(&mut fixture.worker, &files, 2).await,
    };
    fixture.worker.report_listing(report).await.unwrap();
    let task = take(&mut fixture.worker, session, 1).await.remove(0);
    let scan = |fencing, files| ScanProgress {
        dataset: "a".into(),
        fencing,
        part: 0,
        files,
        bytes: 10 * files,
        is_listing: false,
        beat: 0,
    };
    for (fencing, seen) in [(task.fencing, 1), (task.fencing + 1, 1)] {
        let scans = vec![scan(fencing, if fencing == task.fencing { 1 } else { 2 })];
        let beat = HeartbeatRequest { context: context(), session, ranks: vec![], scans };
        fixture.worker.heartbeat(beat).await.unwrap();
        let dataset = get(&fixture, "a").await;
        assert_eq!((dataset.files, dataset.files_scanned, dataset.bytes_scanned), (4, seen, 10));
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_of_a_session_that_ends_go_to_another_one() {
    let mut fixture = Fixture::start().await;
    let one = join(&mut fixture.worker, "w0").await.session;
    let other = join(&mut fixture.worker, "w1").await.session;
    add(&mut fixture, "a").await;
    let first = take(&mut fixture.worker, one, 1).await;
    assert!(take(&mut fixture.worker, other, 1).await.is_empty());
    let leave = LeaveRequest { context: context(), session: one };
    fixture.worker.leave(leave).await.unwrap();
    let second = take(&mut fixture.worker, other, 1).await;
    assert!(second[0].fencing > first[0].fencing);
    // The first one returns too late.
    let late = FailScanRequest {
        context: context(),
        session: one,
        dataset: "a".into(),
        fencing: first[0].fencing,
        error: None,
    };
    assert_eq!(refused(fixture.worker.fail_scan(late).await).0, ErrorKind::Fenced);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_that_fails_is_told_whole_and_may_be_tried_again() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    add(&mut fixture, "a").await;
    let task = take(&mut fixture.worker, session, 1).await.remove(0);
    let error = shardfeed_proto::common::v1::Error {
        kind: ErrorKind::Corrupt.into(),
        message: "f0: record 3 at offset 70: damaged".into(),
        file: Some("/data/f0".into()),
        offset: Some(70),
        ordinal: Some(3),
        leader: None,
    };
    let fail = FailScanRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        error: Some(error.clone()),
    };
    fixture.worker.fail_scan(fail).await.unwrap();
    let dataset = get(&fixture, "a").await;
    assert_eq!((dataset.state(), dataset.failure), (DatasetState::Failed, Some(error)));
    add(&mut fixture, "a").await;
    assert_eq!(get(&fixture, "a").await.state(), DatasetState::Listing);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_do_not_fit_their_chunks_are_refused() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    add(&mut fixture, "a").await;
    let client = &mut fixture.worker;
    let task = take(client, session, 1).await.remove(0);
    let files: Vec<_> = (0..4).map(|i| entry(&format!("f{i}"), 10)).collect();
    let parts = list(client, &files, 2).await;
    let report = ReportListingRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        root: "/data".into(),
        parts,
    };
    type Change = fn(&mut Vec<report_listing_request::Part>);
    let wrong: [(Change, ErrorKind, &str); 5] = [
        (|parts| parts.reverse(), ErrorKind::Invalid, "is not after"),
        (|parts| parts[0].files = 3, ErrorKind::Invalid, "is said to have 3 files"),
        (|parts| parts[1].bytes = 1, ErrorKind::Invalid, "is said to have 2 files of 1 bytes"),
        (|parts| parts[1].chunk = vec![7; 32], ErrorKind::NotFound, "there is no chunk 0707"),
        (|parts| parts[1].chunk = vec![7; 31], ErrorKind::Invalid, "a digest has 32"),
    ];
    for (change, kind, words) in wrong {
        let mut report = ReportListingRequest { context: context(), ..report.clone() };
        change(&mut report.parts);
        let (found, message) = refused(client.report_listing(report).await);
        assert!(found == kind && message.contains(words), "{found:?} {message}");
    }
    client.report_listing(report).await.unwrap();
    let task = take(client, session, 1).await.remove(0);
    let scan = ReportScanRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        part: 0,
        chunk: found(client, &files[..2]).await,
        records: 20,
        maps: vec![],
    };
    let others = found(client, &files[2..]).await;
    let nonsense = put(client, b"not a chunk of entries".to_vec()).await;
    let (counted, map) = counted(client, &files[..2], 10).await;
    let wrong = [
        (ReportScanRequest { maps: vec![map.clone()], ..scan.clone() }, "`maps` are other chunks"),
        (ReportScanRequest { chunk: counted.clone(), ..scan.clone() }, "`maps` are other chunks"),
        (
            ReportScanRequest { chunk: counted, maps: vec![map], ..scan.clone() },
            "the samples of a program that the dataset does not have",
        ),
        (ReportScanRequest { records: 19, ..scan.clone() }, "holds 20 records"),
        (ReportScanRequest { chunk: others, ..scan.clone() }, "does not hold the files"),
        (ReportScanRequest { chunk: nonsense, ..scan.clone() }, "does not hold a part's entries"),
    ];
    for (report, words) in wrong {
        let report = ReportScanRequest { context: context(), ..report };
        let (kind, message) = refused(client.report_scan(report).await);
        assert!(kind == ErrorKind::Invalid && message.contains(words), "{kind:?} {message}");
    }
    let stale = ReportScanRequest { context: context(), fencing: 1, ..scan.clone() };
    assert_eq!(refused(client.report_scan(stale).await).0, ErrorKind::Fenced);
    client.report_scan(scan).await.unwrap();
    fixture.stop().await;
}

/// Stores the scan results of some files with samples, and their maps.
async fn counted(client: &mut Client, files: &[FileEntry], samples: u64) -> (Vec<u8>, Vec<u8>) {
    let map = put(client, vec![b'm'; 8 * files.len()]).await;
    let mut chunk = EntriesChunk::new(files.to_vec());
    for entry in &mut chunk.entries {
        let digest = Digest::of_parts([b"samples", &entry.digest.as_bytes()[..]]);
        entry.samples = Some(SamplesEntry { samples, digest, map_bytes: 8 });
    }
    chunk.maps = vec![Digest::from_bytes(map.clone().try_into().unwrap())];
    (put(client, chunk.encode().unwrap()).await, map)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_samples_of_a_program_are_the_records_of_its_manifest() {
    let mut fixture = Fixture::start().await;
    let (session, plain) = ready(&mut fixture).await;
    let client = &mut fixture.worker;
    let files: Vec<_> = (0..5).map(|i| entry(&format!("f-{i}.tfrecord"), 100)).collect();
    let spec = |filter: Option<&str>| {
        let filter = filter.map(str::to_owned);
        RecordSpec { version: 1, filter, ..RecordSpec::default() }.encode_canonical().unwrap()
    };
    let program = put(client, spec(Some("ordinal < 30"))).await;
    let none = put(client, spec(None)).await;
    let listing =
        add_dataset_request::Listing { root: "/data".into(), parts: list(client, &files, 5).await };
    let add = |program: &[u8]| AddDatasetRequest {
        context: context(),
        listing: Some(listing.clone()),
        program: program.to_vec(),
        ..AddDatasetRequest::default()
    };
    for (program, kind, words) in [
        (&none[..], ErrorKind::Invalid, "without filter, unbatch, pack, window and balance"),
        (&plain.chunks[0], ErrorKind::Invalid, "the record spec is malformed"),
        (&[7; 32], ErrorKind::NotFound, "there is no chunk"),
        (&[7; 31], ErrorKind::Invalid, "a digest has 32"),
    ] {
        let (found, message) = refused(fixture.admin.add_dataset(add(program)).await);
        assert!(found == kind && message.contains(words), "{found:?} {message}");
    }
    let name = fixture.admin.add_dataset(add(&program)).await.unwrap().into_inner().name;
    let unfiltered = fixture.admin.add_dataset(add(&[])).await.unwrap().into_inner().name;
    assert_ne!(name, unfiltered);
    let client = &mut fixture.worker;
    let task = take(client, session, 1).await.remove(0);
    assert_eq!((&task.dataset, &task.program), (&name, &program));
    let (chunk, map) = counted(client, &files, 30).await;
    let report = ReportScanRequest {
        context: context(),
        session,
        dataset: name.clone(),
        fencing: task.fencing,
        part: 0,
        chunk: found(client, &files).await,
        records: 500,
        maps: vec![],
    };
    let (kind, message) = refused(client.report_scan(report.clone()).await);
    assert!(kind == ErrorKind::Invalid && message.contains("did not count"), "{message}");
    let maps = vec![map.clone()];
    let report = ReportScanRequest { context: context(), chunk, records: 150, maps, ..report };
    client.report_scan(report).await.unwrap();
    let known = wait_ready(&fixture, &name).await;
    let shards = files.iter().map(|file| {
        let digest = Digest::of_parts([b"samples", &file.digest.as_bytes()[..]]);
        Shard { path: file.path.clone(), records: 30, digest }
    });
    let manifest = Manifest::new(shards.collect()).unwrap();
    assert_eq!((known.records, known.program), (150, program));
    assert_eq!(known.content, manifest.digest().as_bytes());
    let request = GetChunkRequest { context: context(), digest: map };
    assert_eq!(fixture.worker.get_chunk(request).await.unwrap().into_inner().content.len(), 40);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_is_never_served() {
    let mut fixture = Fixture::start().await;
    let (_, dataset) = ready(&mut fixture).await;
    let digest = Digest::from_bytes(dataset.chunks[0].clone().try_into().unwrap());
    let name = digest.to_string();
    let path = fixture.folder.path().join("chunks").join(&name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let request = GetChunkRequest { context: context(), digest: dataset.chunks[0].clone() };
    let (kind, message) = refused(fixture.worker.get_chunk(request).await);
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_bounded() {
    let mut fixture = Fixture::start_with(|options| options.unreferenced_bytes_max = 1 << 20).await;
    let client = &mut fixture.worker;
    let chunk = |bytes| PutChunkRequest { context: context(), content: vec![1; bytes] };
    for bytes in [0, (1 << 20) + 1] {
        let (kind, message) = refused(client.put_chunk(chunk(bytes)).await);
        assert!(kind == ErrorKind::Invalid && message.contains("1 to 1048576"), "{message}");
    }
    client.put_chunk(chunk(1 << 20)).await.unwrap();
    client.put_chunk(chunk(1 << 20)).await.unwrap();
    let (kind, message) = refused(client.put_chunk(chunk(5)).await);
    assert!(kind == ErrorKind::Retry && message.contains("at most 1048576"), "{message}");
    // Beyond the bound on messages: the transport rejects them, and the connection survives.
    assert!(client.put_chunk(chunk(3 << 20)).await.is_err());
    client.put_chunk(chunk(1 << 20)).await.unwrap();
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_part_fails_the_dataset_that_is_put_together() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let files: Vec<_> = (0..4).map(|i| entry(&format!("f{i}"), 10)).collect();
    add(&mut fixture, "a").await;
    let client = &mut fixture.worker;
    let task = take(client, session, 1).await.remove(0);
    let report = ReportListingRequest {
        context: context(),
        session,
        dataset: "a".into(),
        fencing: task.fencing,
        root: "/data".into(),
        parts: list(client, &files, 2).await,
    };
    client.report_listing(report).await.unwrap();
    for task in take(client, session, 2).await {
        let Some(scan_task::Work::Scan(scan)) = task.work else { panic!("{task:?}") };
        let files = &files[2 * scan.part as usize..][..2];
        let chunk = found(client, files).await;
        let name = Digest::from_bytes(chunk.clone().try_into().unwrap()).to_string();
        let report = ReportScanRequest {
            context: context(),
            session,
            dataset: "a".into(),
            fencing: task.fencing,
            part: scan.part,
            chunk,
            records: 20,
            maps: vec![],
        };
        client.report_scan(report).await.unwrap();
        if scan.part == 0 {
            let path = fixture.folder.path().join("chunks").join(&name);
            std::fs::write(path, b"damaged").unwrap();
        }
    }
    let failed = eventually("the dataset fails", || async {
        let dataset = get(&fixture, "a").await;
        (dataset.state() == DatasetState::Failed).then_some(dataset)
    })
    .await;
    assert_eq!(failed.failure.unwrap().kind(), ErrorKind::Corrupt);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_parts_come_out_in_order() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let files: Vec<_> = (0..41).map(|i| entry(&format!("f-{i:03}"), i % 3)).collect();
    crate::worker::scan_dataset(&mut fixture, session, "many", &files).await;
    let dataset = wait_ready(&fixture, "many").await;
    assert_eq!((dataset.files, dataset.records), (41, files.iter().map(|f| f.records).sum()));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_without_progress_goes_to_another_worker_and_its_worker_hears_so() {
    let mut fixture = Fixture::start_with(|options| {
        (options.session_ttl_ms, options.heartbeat_ms) = (400, 100);
    })
    .await;
    let hung = join(&mut fixture.worker, "hung").await.session;
    let well = join(&mut fixture.worker, "well").await.session;
    add(&mut fixture, "a").await;
    let task = take(&mut fixture.worker, hung, 1).await.remove(0);
    let scan = ScanProgress {
        dataset: "a".into(),
        fencing: task.fencing,
        is_listing: true,
        ..ScanProgress::default()
    };
    let worker = fixture.worker.clone();
    let heartbeat = |session, scans: Vec<ScanProgress>| {
        let mut worker = worker.clone();
        let beat = HeartbeatRequest { context: context(), session, ranks: vec![], scans };
        async move { worker.heartbeat(beat).await.unwrap().into_inner() }
    };
    // Its folder hangs while its session lives: the other worker gets the listing.
    let stuck = ScanProgress { beat: 1, ..scan };
    eventually("the other one has work", || async {
        heartbeat(hung, vec![stuck.clone()]).await;
        heartbeat(well, vec![]).await.has_scans.then_some(())
    })
    .await;
    assert_eq!(heartbeat(hung, vec![stuck.clone()]).await.ended_scans, [stuck]);
    assert!(!heartbeat(hung, vec![]).await.has_scans, "others come first");
    let again = take(&mut fixture.worker, well, 1).await.remove(0);
    assert!(again.fencing > task.fencing);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_files_are_one_dataset_by_what_they_are() {
    const FILES: usize = 1_000_000;
    let mut fixture = Fixture::start_with(|options| options.unreferenced_bytes_max = 1 << 30).await;
    let client = &mut fixture.worker;
    let mut parts = vec![];
    for part in 0..FILES / 512 + 1 {
        let numbers = (512 * part)..(512 * (part + 1)).min(FILES);
        let files = numbers.map(|number| shardfeed_proto::chunk::ListedFile {
            path: format!("shard-{number:07}-of-1000000.tfrecord"),
            size: 100,
            etag: None,
            changed_ns: Some(1_700_000_000_000_000_000),
        });
        let files: Vec<_> = files.collect();
        let (count, bytes) = (files.len() as u64, 100 * files.len() as u64);
        let chunk = shardfeed_proto::chunk::ListingChunk::new(files).encode().unwrap();
        let chunk = put(client, chunk).await;
        parts.push(report_listing_request::Part { chunk, files: count, bytes });
    }
    let add = |parts: &[report_listing_request::Part]| {
        let listing = add_dataset_request::Listing { root: "/data".into(), parts: parts.to_vec() };
        AddDatasetRequest { context: context(), listing: Some(listing), ..Default::default() }
    };
    let request = add(&parts);
    let bytes = prost::Message::encoded_len(&request);
    assert!(bytes < 256 << 10, "{bytes} bytes of a message");
    let name = fixture.admin.add_dataset(request).await.unwrap().into_inner().name;
    assert!(name.starts_with("files-"), "{name}");
    let known = get(&fixture, &name).await;
    assert_eq!((known.files, known.state()), (FILES as u64, DatasetState::Scanning));
    // A caller that finds the same files joins it; other files make another dataset.
    let again = fixture.admin.add_dataset(add(&parts)).await.unwrap().into_inner().name;
    assert_eq!(again, name);
    let fewer = fixture.admin.add_dataset(add(&parts[1..])).await.unwrap().into_inner().name;
    assert_ne!(fewer, name);
    let missing = report_listing_request::Part { chunk: vec![7; 32], files: 1, bytes: 1 };
    assert_eq!(refused(fixture.admin.add_dataset(add(&[missing])).await).0, ErrorKind::NotFound);
    let session = join(&mut fixture.worker, "w0").await.session;
    assert_eq!(take(&mut fixture.worker, session, 1).await[0].dataset, name);
    fixture.stop().await;
}
