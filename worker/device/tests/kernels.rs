//! Compares the results of the committed kernels, in the fake driver's PTX interpreter, with those
//! of the worker's operators on the same columns.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod consumer;
#[allow(dead_code)]
mod standin;

use std::sync::Arc;

use consumer::{Consumer, lent};
use serde_json::{Value, json};
use shardfeed_device::{Change, Device, DeviceBatch, Float, Number, Step};
use shardfeed_handoff::{BufferLayout, BufferRange, SlotPool};
use shardfeed_pipeline::{
    Assembler, ColumnKind, DrawKey, Dtype, ParseSpec, RecordSpec, Row, Schema,
};
use shardfeed_plan::{OrderDigest, Sample};
use shardfeed_tfrecord::encode_footer;
use shardfeed_tfrecord::example::{DType, Feature, FeatureSpec, Value as Field, encode_example};
use standin::{run, wait_for_the_thread};

const NUMBERS: [(Dtype, Number); 12] = [
    (Dtype::Bool, Number::Bool),
    (Dtype::Uint8, Number::Uint8),
    (Dtype::Int8, Number::Int8),
    (Dtype::Uint16, Number::Uint16),
    (Dtype::Int16, Number::Int16),
    (Dtype::Uint32, Number::Uint32),
    (Dtype::Int32, Number::Int32),
    (Dtype::Int64, Number::Int64),
    (Dtype::Float16, Number::Float16),
    (Dtype::Bfloat16, Number::Bfloat16),
    (Dtype::Float32, Number::Float32),
    (Dtype::Float64, Number::Float64),
];

fn number(dtype: Dtype) -> Number {
    NUMBERS.iter().find(|(named, _)| *named == dtype).unwrap().1
}

/// One operator, in the form for a job and in the form for a device.
#[derive(Clone)]
struct Op(Value, Step);

fn cast(to: Dtype) -> Op {
    Op(json!({"cast": {"input": "x", "dtype": to.name()}}), Step::Cast { to: number(to) })
}

fn normalize(mean: &[f64], std: &[f64], float: Float) -> Op {
    let dtype = if float == Float::Float32 { "float32" } else { "float64" };
    Op(
        json!({"normalize": {"input": "x", "mean": mean, "std": std, "dtype": dtype}}),
        Step::Normalize { mean: mean.to_vec(), std: std.to_vec(), float },
    )
}

/// Layout of images that are `[rows, columns]` of contiguous items.
fn layout(to: &str, rows: u32, columns: u32) -> Op {
    Op(json!({"layout": {"input": "x", "to": to}}), Step::Transpose { rows, columns })
}

/// A column, and operators on it.
struct Case {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Bytes of its rows.
    bytes: Vec<u8>,
    operators: Vec<Op>,
}

impl Case {
    fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }

    fn name(&self) -> String {
        let operators: Vec<_> = self.operators.iter().map(|op| op.0.to_string()).collect();
        format!("{} of {:?}: {}", self.dtype, self.shape, operators.join(", "))
    }

    /// Returns the worker's result: the oracle.
    fn on_the_host(&self) -> (Dtype, Vec<u8>) {
        let decode = json!({"decode_raw": {
            "input": "x", "dtype": self.dtype.name(), "shape": self.shape, "little_endian": true,
        }});
        let all = [decode].into_iter().chain(self.operators.iter().map(|op| op.0.clone()));
        let operators: Vec<_> =
            all.map(|operation| json!({"output": "x", "operation": operation})).collect();
        let feature = Feature::FixedLen { shape: vec![], dtype: DType::Bytes, default: None };
        let spec = RecordSpec {
            parse: Some(ParseSpec::Example(vec![FeatureSpec { name: "x".into(), feature }])),
            operators: serde_json::from_value(operators.into()).unwrap(),
            outputs: Some(vec!["x".into()]),
            ..RecordSpec::default()
        };
        let schema = Arc::new(Schema::new(spec).unwrap());
        let records = self.bytes.chunks_exact(self.row_bytes()).map(|row| {
            let mut record = vec![];
            encode_example(&[("x", Field::Bytes(&[row]))], &mut record);
            let footer = encode_footer(&record);
            record.extend_from_slice(&footer);
            record
        });
        let records: Vec<_> = records.collect();
        let rows = records.iter().enumerate().map(|(ordinal, stored)| {
            Row::of_record(Sample { shard: 0, ordinal: ordinal as u64 }, stored)
        });
        let rows: Vec<_> = rows.collect();
        let digest = OrderDigest::of_parts([b"kernels".as_slice()]);
        let key = DrawKey { digest, seed: 7, epoch: 0, sources: [].into() };
        let mut batch = Assembler::new(schema, SlotPool::new(1)).assemble(&rows, &key).unwrap();
        let column = batch.columns[0].clone();
        let ColumnKind::Dense { dtype, .. } = column.kind else { panic!("it is dense") };
        (dtype, batch.slot.read(&column.values))
    }
}

/// Returns the device's results for all cases, as parts of one batch.
fn on_the_device(cases: &[Case]) -> Vec<Vec<u8>> {
    let device = Device::open(0).unwrap();
    let change = |(part, case): (usize, &Case)| {
        let steps: Vec<_> = case.operators.iter().map(|op| op.1.clone()).collect();
        Change::new(part, number(case.dtype), &steps)
    };
    device.change(cases.iter().enumerate().map(change).collect()).unwrap();
    let mut host = BufferLayout::default();
    let parts: Vec<BufferRange> = cases.iter().map(|case| host.push(case.bytes.len())).collect();
    let pool = SlotPool::sealed(1);
    let mut slot = pool.take(host.bytes()).unwrap();
    for (part, case) in parts.iter().zip(cases) {
        slot.bytes_mut()[part.bytes()].copy_from_slice(&case.bytes);
    }
    let mut slot = slot.share();
    let work = device.prepare(&mut slot, &parts);
    device.stage(work);
    let mut batch = slot.companion().take().unwrap().downcast::<DeviceBatch>().unwrap();
    let address = lent(&mut batch);
    let consumer = Consumer::new();
    batch.read(consumer.stream()).unwrap();
    let there = |place: &BufferRange| consumer.bytes(address + place.start as u64, place.len);
    let found = batch.places().iter().map(there).collect();
    drop((batch, slot, pool));
    device.close();
    drop(device);
    wait_for_the_thread();
    found
}

/// True if bit-identical; NaN equals NaN with any bits.
fn is_same(dtype: Dtype, ours: &[u8], theirs: &[u8]) -> bool {
    let width = dtype.bytes();
    let is_nan = |bytes: &[u8]| match dtype {
        Dtype::Float16 => {
            let bits = u16::from_le_bytes(bytes.try_into().unwrap());
            bits & 0x7c00 == 0x7c00 && bits & 0x3ff != 0
        }
        Dtype::Bfloat16 => {
            f32::from_bits(u32::from(u16::from_le_bytes(bytes.try_into().unwrap())) << 16).is_nan()
        }
        Dtype::Float32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::Float64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    };
    let mut pairs = ours.chunks_exact(width).zip(theirs.chunks_exact(width));
    let same = |(a, b): (&[u8], &[u8])| a == b || is_nan(a) && is_nan(b);
    ours.len() == theirs.len() && pairs.all(same)
}

fn compare(test: &str, cases: &[Case]) {
    let end = run(test, &[], || {
        for (case, found) in cases.iter().zip(on_the_device(cases)) {
            let (dtype, expected) = case.on_the_host();
            let width = dtype.bytes();
            let differs = (0..expected.len() / width).find(|at| {
                let bytes = at * width..(at + 1) * width;
                !is_same(dtype, &found[bytes.clone()], &expected[bytes])
            });
            assert_eq!((differs, found.len()), (None, expected.len()), "{}", case.name());
        }
    });
    let Some(end) = end else { return };
    end.is_clean();
}

/// Pseudorandom bytes, always the same.
fn random(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Random numbers. For bool 0 and 1, as decode_raw makes them.
fn random_of(dtype: Dtype, count: usize) -> Vec<u8> {
    let mut bytes = random(count * dtype.bytes());
    if dtype == Dtype::Bool {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    bytes
}

/// All numbers of one or two bytes; for wider types boundary values and random ones.
fn numbers(dtype: Dtype) -> Vec<u8> {
    let edges_f64: Vec<f64> =
        [0.0, 0.5, 1.0, 1.5, 2.5, 127.5, 128.0, 255.5, 256.0, 32768.0, 65504.0]
            .into_iter()
            .chain([65519.99, 65520.0, 65536.0, 2_147_483_647.5, 2_147_483_648.0, 4_294_967_295.5])
            .chain([9_223_372_036_854_774_784.0, 9_223_372_036_854_775_808.0, 1e19, 3.4e38, 3.5e38])
            .chain([1e300, 1e-300, 5e-324, 1e-45, 1.2e-38, 5.9e-8, 2.9e-8, 6.0e-5, f64::INFINITY])
            .chain([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0])
            .flat_map(|x| [x, -x])
            .chain([f64::NAN])
            .collect();
    let edges_i64 = (0..64).flat_map(|bit| {
        let power = 1_i64 << bit;
        [power, power.wrapping_sub(1), power.wrapping_neg(), power.wrapping_add(1)]
    });
    // Includes whole numbers of float32 that lie between two of float16, bfloat16 or int32.
    let mut bytes: Vec<u8> = match dtype.bytes() {
        1 => (0..=u8::MAX).collect(),
        2 => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
        _ => match dtype {
            Dtype::Float32 => edges_f64.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
            Dtype::Float64 => edges_f64.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::Int64 => edges_i64.flat_map(i64::to_le_bytes).collect(),
            _ => edges_i64.flat_map(|x| (x as i32).to_le_bytes()).collect(),
        },
    };
    if dtype.bytes() > 2 {
        bytes.extend(random(2048 * dtype.bytes()));
        // Random bits are mostly huge or tiny floats, so some of usual size are added.
        let usual = (0..1024).map(|at| (f64::from(at) - 500.3) * 0.37);
        match dtype {
            Dtype::Float32 => bytes.extend(usual.flat_map(|x| (x as f32).to_le_bytes())),
            Dtype::Float64 => bytes.extend(usual.flat_map(f64::to_le_bytes)),
            _ => {}
        }
    }
    bytes
}

#[test]
fn casts_are_those_of_the_worker_for_all_pairs_of_types() {
    let pairs =
        NUMBERS.iter().flat_map(|(from, _)| NUMBERS.iter().map(move |(to, _)| (*from, *to)));
    let case = |(from, to): (Dtype, Dtype)| {
        let bytes = numbers(from);
        let shape = vec![bytes.len() / from.bytes()];
        Case { dtype: from, shape, bytes, operators: vec![cast(to)] }
    };
    let cases: Vec<_> = pairs.map(case).collect();
    compare("casts_are_those_of_the_worker_for_all_pairs_of_types", &cases);
}

#[test]
fn normalization_is_that_of_the_worker_to_the_bit() {
    let mut cases = vec![];
    for (dtype, _) in NUMBERS {
        for float in [Float::Float32, Float::Float64] {
            let bytes = numbers(dtype);
            let shape = vec![bytes.len() / dtype.bytes()];
            let one = normalize(&[0.449], &[0.226], float);
            cases.push(Case { dtype, shape, bytes, operators: vec![one] });
            let three = normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225], float);
            let bytes = random_of(dtype, 4 * 5 * 7 * 3);
            let shape = vec![5, 7, 3];
            cases.push(Case { dtype, shape, bytes, operators: vec![three] });
        }
    }
    // Values as for images, and different numbers of means and deviations.
    let images = random(2 * 9 * 11 * 3);
    let values = [([123.675, 116.28, 103.53].as_slice(), [58.395, 57.12, 57.375].as_slice())];
    let more = [([127.5].as_slice(), [1.0, 2.0, 3.0].as_slice()), (&[1.0, 2.0, 3.0], &[0.1])];
    for (mean, std) in values.into_iter().chain(more) {
        let operators = vec![normalize(mean, std, Float::Float32)];
        cases.push(Case {
            dtype: Dtype::Uint8,
            shape: vec![9, 11, 3],
            bytes: images.clone(),
            operators,
        });
    }
    compare("normalization_is_that_of_the_worker_to_the_bit", &cases);
}

#[test]
fn layouts_are_those_of_the_worker() {
    let mut cases = vec![];
    let shapes =
        [[1, 1, 1], [1, 1, 3], [5, 7, 3], [7, 5, 1], [3, 17, 16], [16, 16, 4], [2, 129, 2]];
    for [height, width, channels] in shapes {
        for (dtype, _) in NUMBERS {
            let pixels = (height * width) as u32;
            let bytes = random_of(dtype, 3 * height * width * channels);
            let (shape, first) = (vec![height, width, channels], channels as u32);
            let operators = vec![layout("chw", pixels, first)];
            cases.push(Case { dtype, shape, bytes: bytes.clone(), operators });
            let shape = vec![channels, height, width];
            let operators = vec![layout("hwc", first, pixels)];
            cases.push(Case { dtype, shape, bytes, operators });
        }
    }
    compare("layouts_are_those_of_the_worker", &cases);
}

#[test]
fn chains_are_those_of_the_worker() {
    let (mean, std) = ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]);
    let imagenet = || normalize(&mean, &std, Float::Float32);
    let chw = || layout("chw", 35, 3);
    // For [3, 5, 7], where the last dimension is the width.
    let by_column: Vec<f64> = (0..7).map(|at| f64::from(at) + 0.1).collect();
    let chains = [
        vec![imagenet(), chw()],
        vec![chw(), normalize(&by_column, &by_column, Float::Float32)],
        vec![cast(Dtype::Float32), imagenet(), chw(), cast(Dtype::Bfloat16)],
        vec![imagenet(), cast(Dtype::Float16), chw()],
        vec![imagenet(), cast(Dtype::Int8)],
        vec![imagenet(), cast(Dtype::Bool)],
        vec![cast(Dtype::Int8), cast(Dtype::Float32), chw()],
        vec![chw(), layout("hwc", 3, 35)],
        vec![chw(), cast(Dtype::Float64), normalize(&[1.0], &[3.0], Float::Float32)],
        vec![imagenet(), normalize(&[0.5], &[0.1], Float::Float64), cast(Dtype::Float32), chw()],
        vec![cast(Dtype::Float16), cast(Dtype::Float64), cast(Dtype::Int64), chw()],
    ];
    let mut cases = vec![];
    for (dtype, _) in NUMBERS {
        for operators in &chains {
            let bytes = random_of(dtype, 2 * 5 * 7 * 3);
            cases.push(Case { dtype, shape: vec![5, 7, 3], bytes, operators: operators.clone() });
        }
    }
    compare("chains_are_those_of_the_worker", &cases);
}

const ROWS: usize = 4;
const IMAGE: [usize; 3] = [4, 5, 3];

/// The usual operators on images.
fn images(bytes: Vec<u8>) -> Case {
    let operators = vec![
        normalize(&[123.675, 116.28, 103.53], &[58.395, 57.12, 57.375], Float::Float32),
        layout("chw", 20, 3),
    ];
    Case { dtype: Dtype::Uint8, shape: IMAGE.to_vec(), bytes, operators }
}

/// Takes batches of images through a device, and checks some of them.
/// - Returns the stream that read them, which must exist until they were returned.
fn train(
    device: &Device,
    batches: u64,
    is_looked_at: impl Fn(u64) -> bool,
    works_us: u32,
) -> Consumer {
    let bytes = ROWS * IMAGE.iter().product::<usize>();
    let (pool, consumer) = (SlotPool::sealed(4), Consumer::new());
    let case = images(random(bytes));
    let steps: Vec<_> = case.operators.iter().map(|op| op.1.clone()).collect();
    device.change(vec![Change::new(0, Number::Uint8, &steps)]).unwrap();
    for batch in 0..batches {
        let mut slot = pool.take(bytes).unwrap();
        let content: Vec<_> =
            case.bytes.iter().map(|byte| byte.wrapping_add(batch as u8)).collect();
        slot.bytes_mut()[..bytes].copy_from_slice(&content);
        let mut slot = slot.share();
        let work = device.prepare(&mut slot, &[BufferRange { start: 0, len: bytes }]);
        device.stage(work);
        let mut there = slot.companion().take().unwrap().downcast::<DeviceBatch>().unwrap();
        let address = lent(&mut there) + there.places()[0].start as u64;
        assert_eq!(there.places()[0].len, 4 * bytes);
        there.read(consumer.stream()).unwrap();
        if works_us > 0 {
            consumer.works(address, 4 * bytes, works_us);
        }
        if is_looked_at(batch) {
            let found = consumer.bytes(address, 4 * bytes);
            assert!(found == images(content).on_the_host().1, "batch {batch}");
        }
    }
    consumer
}

#[test]
fn kernels_run_between_the_copy_and_the_trainer() {
    let environment =
        [("STANDIN_TRACE", "1"), ("STANDIN_COPY_US", "1000"), ("STANDIN_KERNEL_US", "2000")];
    let end = run("kernels_run_between_the_copy_and_the_trainer", &environment, || {
        let device = Device::with_turns(0, 2).unwrap();
        // The loop only queues: slots are filled while others, and then these, are read.
        let consumer = train(&device, 12, |_| false, 3_000);
        device.close();
        drop(device);
        wait_for_the_thread();
        drop(consumer);
    });
    let Some(end) = end else { return };
    end.is_clean();
    let trace = end.trace();
    let ends_of = |kind: &str, which: &str| -> Vec<usize> {
        let places = trace.iter().enumerate().filter(|(_, t)| t.1 == kind && t.2 == which);
        places.map(|(place, _)| place).collect()
    };
    // The first copy is that of the table.
    let copied = ends_of("copy_in", "end").split_off(1);
    let (begun, done) = (ends_of("kernel", "begin"), ends_of("kernel", "end"));
    let worked = ends_of("work", "begin");
    assert_eq!((copied.len(), begun.len(), done.len(), worked.len()), (12, 12, 12, 12));
    for step in 0..12 {
        assert!(copied[step] < begun[step], "kernel {step} begins after its copy");
        assert!(done[step] < worked[step], "work on batch {step} begins after its kernel");
    }
    let stream = |kind: &str| trace.iter().find(|piece| piece.1 == kind).map(|piece| piece.0);
    assert_eq!(stream("kernel"), stream("copy_in"), "both are on the stream that copies");
    assert_ne!(stream("kernel"), stream("work"));
}

#[test]
fn ten_thousand_changed_batches_leave_nothing() {
    let end = run("ten_thousand_changed_batches_leave_nothing", &[], || {
        let device = Device::open(0).unwrap();
        let consumer = train(&device, 10_000, |batch| batch % 1000 == 999, 0);
        device.close();
        drop(device);
        wait_for_the_thread();
        drop(consumer);
    });
    let Some(end) = end else { return };
    end.is_clean();
    assert_eq!(end.number("kernels"), 10_000, "one for each batch");
    let images = ROWS * IMAGE.iter().product::<usize>();
    let batch = images.next_multiple_of(256) + 4 * images;
    let peak = end.number("device_bytes_peak");
    assert!(peak <= 3 * SlotPool::slot_bytes(batch) as u64 + 24, "inputs and outputs: {peak}");
}

#[test]
fn kernels_that_cannot_be_loaded_are_an_error_that_says_what_to_do() {
    let name = "kernels_that_cannot_be_loaded_are_an_error_that_says_what_to_do";
    let end = run(name, &[("STANDIN_FAIL", "cuModuleLoadData:1:222")], || {
        let device = Device::open(0).unwrap();
        let steps = [Step::Cast { to: Number::Float32 }];
        let error = device.change(vec![Change::new(0, Number::Uint8, &steps)]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("(222)") && text.contains("without on_device() the worker does the same"),
            "{text}"
        );
        drop(device);
        wait_for_the_thread();
    });
    let Some(end) = end else { return };
    end.is_clean();
}

#[test]
fn a_kernel_that_fails_ends_the_device() {
    let environment = [("STANDIN_FAIL", "cuLaunchKernel:3:700")];
    let end = run("a_kernel_that_fails_ends_the_device", &environment, || {
        let device = Device::open(0).unwrap();
        let train = std::panic::AssertUnwindSafe(|| drop(train(&device, 4, |_| false, 0)));
        let told = std::panic::catch_unwind(train).unwrap_err();
        let told = told.downcast_ref::<String>().unwrap();
        assert!(told.contains("cuLaunchKernel") && told.contains("ILLEGAL_ADDRESS"), "{told}");
        assert!(device.check().is_err());
        drop(device);
        wait_for_the_thread();
    });
    let Some(end) = end else { return };
    assert_eq!((end.signal, &end.report["violation"]), (None, &"".into()));
}
