//! The record spec of a job: its way to the coordinator, and its comparison with another one.

use shardfeed_plan::{Digest, JobIdentity, Mode, Records, Tail};
use shardfeed_proto::common::v1 as common;
use shardfeed_proto::common::v1::RecordSpec;
use shardfeed_proto::common::v1::feature::Layout;
use shardfeed_proto::common::v1::record_spec::Parse;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, identity_to, record_spec_chunks, record_spec_digest};

use crate::fixture::{Fixture, context, refused};
use crate::worker::{identity, ready};

/// Returns a spec with many int64 features, and some operators.
fn spec(features: usize, operators: &[(&str, &str)]) -> RecordSpec {
    let feature = |number| common::Feature {
        name: format!("feature/{number:06}/{}", "x".repeat(100)),
        r#type: common::FeatureType::Int64.into(),
        layout: Some(Layout::VarLen(common::VarLen {})),
    };
    let features = (0..features).map(feature).collect();
    let operator = |(output, expression): &(&str, &str)| {
        let text = |name: &str, text: &str| common::Argument {
            name: name.into(),
            value: Some(common::ArgumentValue {
                kind: Some(common::argument_value::Kind::Text(text.into())),
            }),
        };
        let arguments = vec![text("dtype", "float32"), text("expression", expression)];
        let (output, kind) = ((*output).into(), "compute".into());
        common::Operator { output, kind, version: 1, arguments }
    };
    RecordSpec {
        parse: Some(Parse::Example(common::ExampleFeatures { features })),
        operators: operators.iter().map(operator).collect(),
        ..RecordSpec::raw()
    }
}

/// Returns a registration of `encoded`, with the content of one of its chunks.
fn register(dataset: &Dataset, encoded: &[u8], chunk: &[u8]) -> RegisterJobRequest {
    let records = Records::RecordSpec(record_spec_digest(encoded));
    let identity = JobIdentity { records, ..identity(dataset, 1) };
    let chunks = record_spec_chunks(encoded).map(|(digest, _)| digest.as_bytes().to_vec());
    RegisterJobRequest {
        context: context(),
        name: "wide".into(),
        dataset: dataset.name.clone(),
        identity: Some(identity_to(&identity)),
        record_spec_chunks: chunks.collect(),
        chunk: chunk.to_vec(),
        mixture: None,
    }
}

/// Sends the requested chunks until the job is registered; returns the number of calls.
async fn send(fixture: &mut Fixture, dataset: &Dataset, encoded: &[u8]) -> usize {
    let mut chunk: &[u8] = &[];
    for calls in 1.. {
        let request = register(dataset, encoded, chunk);
        let answer = fixture.worker.register_job(request).await.unwrap().into_inner();
        let Some(missing) = answer.missing.first() else { return calls };
        let mut chunks = record_spec_chunks(encoded);
        chunk = chunks.find(|(digest, _)| digest.as_bytes()[..] == missing[..]).unwrap().1;
    }
    unreachable!("a call ends it")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_spec_travels_in_chunks_and_only_once() {
    let mut fixture = Fixture::start().await;
    let (_, dataset) = ready(&mut fixture).await;
    let encoded = spec(20_000, &[]).encode_canonical().unwrap();
    assert_eq!(record_spec_chunks(&encoded).count(), 3);
    assert_eq!(send(&mut fixture, &dataset, &encoded).await, 4);
    assert_eq!(send(&mut fixture, &dataset, &encoded).await, 1, "it is known");

    let get = || GetJobRequest { context: context(), job: "wide".into() };
    let found = fixture.admin.get_job(get()).await.unwrap().into_inner();
    assert!(found.record_spec == encoded);
    let mut fixture = fixture.restart().await;
    let found = fixture.admin.get_job(get()).await.unwrap().into_inner();
    assert!(found.record_spec == encoded, "it is on the disk");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_record_spec_under_the_same_name_is_refused_with_what_differs() {
    let mut fixture = Fixture::start().await;
    let (_, dataset) = ready(&mut fixture).await;
    let known = spec(2, &[("a", "1"), ("b", "2")]).encode_canonical().unwrap();
    send(&mut fixture, &dataset, &known).await;
    let other = spec(3, &[("a", "1"), ("b", "3")]).encode_canonical().unwrap();
    let (kind, said) =
        refused(fixture.worker.register_job(register(&dataset, &other, &other)).await);
    assert_eq!(kind, ErrorKind::Identity);
    let feature = format!(
        "feature `feature/000002/{}` is absent there and var_len int64 here",
        "x".repeat(100)
    );
    assert!(said.contains(&feature), "{said}");
    let operator = r#"operators[1] is b = compute/1(dtype="float32", expression="2") there and b = compute/1(dtype="float32", expression="3") here"#;
    assert!(said.contains(operator), "{said}");
    assert!(!said.contains("record_spec") && !said.contains("operators[0]"), "{said}");
    // A worker of an earlier release sends nothing that could be compared.
    let (kind, said) =
        refused(fixture.worker.register_job(crate::worker::register(&dataset, "wide", 1)).await);
    assert_eq!(kind, ErrorKind::Identity);
    assert!(said.contains("here"), "{said}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_hold_something_else_register_no_job() {
    let mut fixture = Fixture::start().await;
    let (_, dataset) = ready(&mut fixture).await;
    let encoded = spec(2, &[]).encode_canonical().unwrap();
    let mut said = vec![];
    let mut tried = async |request: RegisterJobRequest| {
        let (kind, message) = refused(fixture.worker.register_job(request).await);
        assert_eq!(kind, ErrorKind::Invalid, "{message}");
        said.push(message);
    };
    let good = || register(&dataset, &encoded, &encoded);
    tried(RegisterJobRequest { chunk: b"another".to_vec(), ..good() }).await;
    let other = Digest::of_parts([b"another".as_slice()]).as_bytes().to_vec();
    tried(RegisterJobRequest {
        record_spec_chunks: vec![other],
        chunk: b"another".to_vec(),
        ..good()
    })
    .await;
    tried(RegisterJobRequest { record_spec_chunks: vec![], chunk: vec![], ..good() }).await;
    tried(RegisterJobRequest { record_spec_chunks: vec![vec![0; 32]; 4], ..good() }).await;
    tried(register(&dataset, b"no spec", b"no spec")).await;
    let balance = common::Balance { by: "len(x)".into(), window: 9 };
    let balanced =
        RecordSpec { balance: Some(balance), ..spec(2, &[]) }.encode_canonical().unwrap();
    let records = Records::RecordSpec(record_spec_digest(&balanced));
    let (mode, tail) = (Mode::Dynamic, Tail::Uneven);
    let dynamic = JobIdentity { mode, tail, records, ..identity(&dataset, 1) };
    let dynamic = Some(identity_to(&dynamic));
    tried(RegisterJobRequest { identity: dynamic, ..register(&dataset, &balanced, &balanced) })
        .await;
    assert!(said[0].contains("`chunk` is none of"), "{said:?}");
    assert!(said[1].contains("hold another record spec than"), "{said:?}");
    assert!(said[3].contains("4 entries; at most 3"), "{said:?}");
    assert!(said[4].contains("malformed"), "{said:?}");
    assert!(said[5].contains("has no steps that ranks share"), "{said:?}");
    let get = GetJobRequest { context: context(), job: "wide".into() };
    assert_eq!(refused(fixture.admin.get_job(get).await).0, ErrorKind::NotFound);
    fixture.stop().await;
}
