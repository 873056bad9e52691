//! A job as declared by another process: its identity message and its record spec.

use prost::Message;
use shardfeed_pipeline::{RecordSpec, Schema};
use shardfeed_proto::{identity_from, identity_to, segments_from};
use shardfeed_reader::EncodedSpec;

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "job", run, seeds };

/// Declarations as sent by trainers.
const SPECS: [&str; 8] = [
    r#"{"operators":[{"output":"x","operation":{"decode_raw":{"input":"record","dtype":"float32","shape":[2,3],"little_endian":true}}},{"output":"y","operation":{"transpose":{"input":"x","perm":[1,0]}}}],"outputs":["y"]}"#,
    r#"{"operators":[{"output":"i","operation":{"decode_image":{"input":"record","channels":3,"dtype":"uint8"}}},{"output":"i","operation":{"random_resized_crop":{"input":"i","scale":[0.1,1.0],"ratio":[0.5,2.0]}}},{"output":"i","operation":{"resize":{"input":"i","size":[8,8],"method":"bilinear","antialias":true}}}]}"#,
    r#"{"parse":[{"name":"n","feature":{"fixed_len":{"shape":[],"dtype":"int64","default":null}}}],"operators":[{"output":"c","operation":{"compute":{"expression":"where(n > 0, tanh(n / 4), -1) and not n","dtype":"float32"}}},{"output":"o","operation":{"one_hot":{"input":"n","depth":4,"on":1.0,"off":0.0,"dtype":"uint8"}}}]}"#,
    r#"{"parse":[{"name":"v","feature":{"var_len":{"dtype":"int64"}}}],"operators":[{"output":"p","operation":{"padded_batch":{"input":"v","length":5,"value":0.0,"truncate":true}}},{"output":"s","operation":{"slice":{"input":"p","begin":[1],"size":[-1]}}},{"output":"g","operation":{"select":{"input":"p","axis":0,"indices":[3,1]}}}]}"#,
    r#"{"operators":[{"output":"l","operation":{"lookup":{"input":"record","table":{"digest":"0000000000000000000000000000000000000000000000000000000000000000"},"column":"x","dtype":"float32","shape":[4],"missing":0.0}}}]}"#,
    r#"{"parse":[{"name":"v","feature":{"var_len":{"dtype":"int64"}}},{"name":"w","feature":{"var_len":{"dtype":"int64"}}}],"operators":[{"output":"x","operation":{"rename":{"input":"v"}}},{"output":"b","operation":{"concat":{"inputs":["x","w"],"axis":0}}},{"output":"p","operation":{"pad":{"input":"b","size":[3,4],"value":-1.0,"side":"both","truncate":true}}}]}"#,
    r#"{"operators":[{"output":"b","operation":{"constant":{"value":[0.0,0.1,0.5,1.0],"shape":[4],"dtype":"float32"}}},{"output":"t","operation":{"constant":{"value":["a"],"shape":[],"dtype":"bytes"}}},{"output":"i","operation":{"decode_image":{"input":"record","channels":3,"dtype":"uint8"}}},{"output":"i","operation":{"crop":{"input":"i","box":{"column":"b","format":"yxyx","normalized":true}}}},{"output":"i","operation":{"pad":{"input":"i","size":[8,9],"value":0.0,"side":"end","truncate":true}}},{"output":"i","operation":{"color_jitter":{"input":"i","brightness":[0.5,1.5],"hue":[-0.1,0.1]}}}]}"#,
    r#"{"parse":{"context":[],"lists":[{"name":"s","feature":{"fixed_len_sequence":{"shape":[2],"dtype":"float32","allow_missing":false}}}]}}"#,
];

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        SPECS.iter().map(|spec| [b"J", spec.as_bytes()].concat()).collect();
    for spec in SPECS {
        let spec: RecordSpec = serde_json::from_str(spec).expect("it is one");
        let schema = Schema::new(spec).expect("it can be met");
        let encoded = EncodedSpec::of(&schema).expect("it is small");
        seeds.push([b"L", encoded.bytes()].concat());
    }
    let identity = shardfeed_proto::common::v1::JobIdentity {
        order_version: shardfeed_plan::ORDER_VERSION,
        order_digest: vec![3; 32],
        content_digest: vec![4; 32],
        seed: 7,
        lanes: 4,
        interleave: 2,
        block_length: 1,
        operators: "raw/1".to_owned(),
        decoder: "none/1".to_owned(),
        ..Default::default()
    };
    seeds.push([b"P".to_vec(), identity.encode_to_vec()].concat());
    let record_spec = vec![5; 32];
    let identity = shardfeed_proto::common::v1::JobIdentity {
        operators: String::new(),
        record_spec,
        ..identity
    };
    seeds.push([b"P".to_vec(), identity.encode_to_vec()].concat());
    seeds
}

fn schema(spec: RecordSpec) -> String {
    match Schema::new(spec) {
        Err(error) => gist(error),
        Ok(schema) => {
            // Another process that receives the encoding builds the same schema.
            let Ok(encoded) = EncodedSpec::of(&schema) else { return "too large".to_owned() };
            let decoded = EncodedSpec::decode(encoded.bytes());
            let decoded = decoded.unwrap_or_else(|error| panic!("{error}: {:?}", schema.spec()));
            let again = Schema::new(decoded).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(EncodedSpec::of(&again).ok(), Some(encoded));
            assert_eq!(again.columns(), schema.columns());
            format!("{} columns of {}", schema.columns().len(), size(schema.fixed_row_bytes()))
        }
    }
}

fn run(input: &[u8]) -> String {
    let Some((&which, rest)) = input.split_first() else {
        return "empty".to_owned();
    };
    let text = || std::str::from_utf8(rest).ok();
    match which {
        b'P' => {
            let identity = shardfeed_proto::common::v1::JobIdentity::decode(rest);
            let identity =
                identity.map_err(gist).and_then(|one| identity_from(Some(one)).map_err(gist));
            identity.map_or_else(
                |what| what,
                |identity| {
                    let again = identity_from(Some(identity_to(&identity)));
                    assert_eq!(again.map_err(gist), Ok(identity));
                    "identity".to_owned()
                },
            )
        }
        b'S' => {
            let segment = shardfeed_proto::common::v1::Segment::decode(rest);
            let segment =
                segment.map_err(gist).and_then(|one| segments_from(vec![one]).map_err(gist));
            segment.map_or_else(|what| what, |_| "segment".to_owned())
        }
        b'L' => match EncodedSpec::decode(rest) {
            Ok(spec) => {
                if let Ok(known) = Schema::new(spec.clone()) {
                    let encoded = EncodedSpec::of(&known).expect("it was not larger before");
                    assert_eq!(encoded.bytes(), rest, "two encodings of {spec:?}");
                }
                format!("spec {}", schema(spec))
            }
            Err(error) => gist(error),
        },
        _ => match text().map(serde_json::from_str) {
            Some(Ok(spec)) => schema(spec),
            Some(Err(error)) => gist(error),
            None => "no text".to_owned(),
        },
    }
}
