//! `dataset write` of a list of files, with and without boxes.

use std::fs;

use expect_test::expect;
use serde_json::json;
use shardfeed_tfrecord::example::{Value, encode_example};

use crate::fixture::{Place, records};

/// Returns the header of a PNG of this size: only the header is read.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8], data: &[u8]| {
        let body = [kind, data].concat();
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&crc32(&body).to_be_bytes());
    };
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    chunk(b"IHDR", &[&size[..], &[8, 0, 0, 0, 0]].concat());
    chunk(b"IDAT", b"");
    chunk(b"IEND", b"");
    bytes
}

/// The checksum of PNG's chunks.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

fn annotation(width: u32, height: u32, objects: &[(&str, [u32; 4])]) -> String {
    let object = |(name, [xmin, ymin, xmax, ymax]): &(&str, [u32; 4])| {
        format!(
            "<object><name>{name}</name><difficult>0</difficult>\n<bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin>\
             <xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>\n"
        )
    };
    let objects: String = objects.iter().map(object).collect();
    format!(
        "<annotation>\n<size><width>{width}</width><height>{height}</height><depth>3</depth></size>\n\
         {objects}</annotation>\n"
    )
}

fn record(features: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut record = Vec::new();
    encode_example(features, &mut record);
    record
}

fn written(place: &Place) -> Vec<Vec<u8>> {
    let names = place.names("out");
    let mut all: Vec<_> =
        names.iter().flat_map(|name| records(&place.path("out").join(name))).collect();
    all.sort();
    all
}

/// Two images, one with two objects and one with none.
fn voc() -> Place {
    let place = Place::new();
    place.file("in/a.png", png(200, 100));
    place.file("in/more/b.png", png(30, 40));
    place.file("in/list.txt", "a.png\nmore/b.png\n");
    let objects = [("dog", [50, 0, 100, 100]), ("cat", [1, 25, 200, 50])];
    place.file("boxes/a.xml", annotation(200, 100, &objects));
    place.file("boxes/b.xml", annotation(30, 40, &[]));
    place
}

const WRITE_VOC: [&str; 6] = ["dataset", "write", "in/list.txt", "out", "--voc", "boxes"];

#[test]
fn every_line_is_a_record_with_its_label() {
    let place = Place::new();
    for name in ["a", "b c"] {
        place.file(&format!("in/{name}"), format!("<{name}>"));
    }
    place.file("in/list.txt", "a 7\nb c -1\na 8\n");
    let told = place.json(&["dataset", "write", "in/list.txt", "out"]);
    assert_eq!((&told["records"], &told["classes"]), (&json!(3), &json!(null)));
    let entry = |path: &str, label| {
        let data = format!("<{path}>");
        record(&[
            ("data", Value::Bytes(&[data.as_bytes()])),
            ("path", Value::Bytes(&[path.as_bytes()])),
            ("label", Value::Int64(&[label])),
        ])
    };
    let mut expected = [entry("a", 7), entry("b c", -1), entry("a", 8)];
    expected.sort();
    assert_eq!(written(&place), expected);
}

#[test]
fn names_behind_tabs_are_classes() {
    let place = Place::new();
    place.file("a", "1");
    place.file("list.txt", format!("a\tdog\n{}\tcat\n", place.path("a").display()));
    let told = place.json(&["dataset", "write", "list.txt", "out"]);
    assert_eq!(told["classes"], json!({"first_label": 0, "names": ["cat", "dog"]}));
    let mut features = vec![("data", Value::Bytes(&[b"1"])), ("path", Value::Bytes(&[b"a"]))];
    features.push(("class", Value::Bytes(&[b"dog"])));
    features.push(("label", Value::Int64(&[1])));
    assert!(written(&place).contains(&record(&features)));
}

#[test]
fn boxes_are_written_as_detection_models_read_them() {
    let place = voc();
    let told = place.json(&WRITE_VOC);
    assert_eq!(told["classes"], json!({"first_label": 1, "names": ["cat", "dog"]}));
    let (first, second) = (png(200, 100), png(30, 40));
    let none: [&[u8]; 0] = [];
    let mut expected = [
        record(&[
            ("image/encoded", Value::Bytes(&[&first])),
            ("image/format", Value::Bytes(&[b"png"])),
            ("image/filename", Value::Bytes(&[b"a.png"])),
            ("image/source_id", Value::Bytes(&[b"a.png"])),
            ("image/width", Value::Int64(&[200])),
            ("image/height", Value::Int64(&[100])),
            ("image/object/bbox/xmin", Value::Float32(&[0.25, 0.005])),
            ("image/object/bbox/ymin", Value::Float32(&[0.0, 0.25])),
            ("image/object/bbox/xmax", Value::Float32(&[0.5, 1.0])),
            ("image/object/bbox/ymax", Value::Float32(&[1.0, 0.5])),
            ("image/object/class/text", Value::Bytes(&[b"dog", b"cat"])),
            ("image/object/class/label", Value::Int64(&[2, 1])),
            ("image/object/difficult", Value::Int64(&[0, 0])),
            ("image/object/truncated", Value::Int64(&[0, 0])),
        ]),
        record(&[
            ("image/encoded", Value::Bytes(&[&second])),
            ("image/format", Value::Bytes(&[b"png"])),
            ("image/filename", Value::Bytes(&[b"b.png"])),
            ("image/source_id", Value::Bytes(&[b"more/b.png"])),
            ("image/width", Value::Int64(&[30])),
            ("image/height", Value::Int64(&[40])),
            ("image/object/bbox/xmin", Value::Float32(&[])),
            ("image/object/bbox/ymin", Value::Float32(&[])),
            ("image/object/bbox/xmax", Value::Float32(&[])),
            ("image/object/bbox/ymax", Value::Float32(&[])),
            ("image/object/class/text", Value::Bytes(&none)),
            ("image/object/class/label", Value::Int64(&[])),
            ("image/object/difficult", Value::Int64(&[])),
            ("image/object/truncated", Value::Int64(&[])),
        ]),
    ];
    expected.sort();
    assert!(written(&place) == expected);
}

#[test]
fn classes_may_be_numbered_for_all_parts_of_a_dataset() {
    let place = voc();
    place.file("classes.txt", "person\ndog\n\ncat\n");
    let write = [&WRITE_VOC[..], &["--classes", "classes.txt"]].concat();
    let told = place.json(&write);
    assert_eq!(told["classes"]["names"], json!(["person", "dog", "cat"]));
    let stats = place.json(&["dataset", "stats", "out/*"]);
    let features = stats["features"].as_array().unwrap();
    let labels = features.iter().find(|feature| feature["name"] == "image/object/class/label");
    assert_eq!(
        labels.unwrap()["labels"],
        json!([{"value": 2, "count": 1}, {"value": 3, "count": 1}])
    );
    place.file("classes.txt", "person\ndog\n");
    expect![[r#"
        exit 1
        error: boxes/a.xml: line 5: class `cat` is not in --classes
        hint: add it to that file, or fix the annotation
    "#]]
    .assert_eq(&place.fails(&[&write[..], &["--force"]].concat()));
    place.file("classes.txt", "dog\ncat\ndog\n");
    expect![[r#"
        exit 1
        error: classes.txt: line 3: `dog` is there twice
        hint: name each class once
    "#]]
    .assert_eq(&place.fails(&[&write[..], &["--force"]].concat()));
}

#[test]
fn a_list_may_have_labels_beside_boxes() {
    let place = voc();
    place.file("in/list.txt", "a.png\tindoor\nmore/b.png\toutdoor\n");
    place.ok(&WRITE_VOC);
    let stats = place.json(&["dataset", "stats", "out/*"]);
    let features = stats["features"].as_array().unwrap();
    let labels = |name: &str| {
        let found = features.iter().find(|feature| feature["name"] == name);
        found.unwrap()["labels"].clone()
    };
    let counts = |values: [serde_json::Value; 2]| {
        let [first, second] = values;
        json!([{"value": first, "count": 1}, {"value": second, "count": 1}])
    };
    assert_eq!(labels("image/class/text"), counts([json!("indoor"), json!("outdoor")]));
    assert_eq!(labels("image/class/label"), counts([json!(0), json!(1)]));
}

#[test]
fn annotations_that_do_not_fit_are_refused_by_name() {
    let refused = |change: &dyn Fn(&Place)| {
        let place = voc();
        change(&place);
        let text = place.fails(&WRITE_VOC);
        assert!(!place.path("out").exists(), "it is removed again");
        text
    };
    let boxed = |sides| {
        move |place: &Place| {
            place.file(
                "boxes/a.xml",
                annotation(200, 100, &[("cat", [0, 0, 9, 9]), ("dog", sides)]),
            );
        }
    };
    expect![[r#"
        exit 1
        error: boxes/a.xml: line 5: the box of `dog` is not inside of the image: xmin 0, xmax 201, of 200 pixels
        hint: fix the annotation, or leave its image out of the list
    "#]].assert_eq(&refused(&boxed([0, 0, 201, 9])));
    expect![[r#"
        exit 1
        error: boxes/a.xml: line 5: the box of `dog` is inverted or empty: ymin 20, ymax 20
        hint: fix the annotation, or leave its image out of the list
    "#]]
    .assert_eq(&refused(&boxed([10, 20, 30, 20])));
    expect![[r#"
        exit 1
        error: cannot read boxes/b.xml
          cause: No such file or directory (os error 2)
        hint: check the path
    "#]]
    .assert_eq(&refused(&|place| fs::remove_file(place.path("boxes/b.xml")).unwrap()));
    expect![[r#"
        exit 1
        error: boxes/b.xml: is for an image of 40 x 30 pixels, but in/more/b.png has 30 x 40
        hint: boxes would be at other places: annotate the image as it is, or take the one that was annotated
    "#]]
        .assert_eq(&refused(&|place| place.file("boxes/b.xml", annotation(40, 30, &[]))));
    expect![[r#"
        exit 1
        error: boxes/b.xml: line 1: has a document type, which annotations need not have
        hint: fix the annotation, or leave its image out of the list
    "#]]
    .assert_eq(&refused(&|place| place.file("boxes/b.xml", "<!DOCTYPE x [<!ENTITY a 'b'>]>")));
    expect![[r#"
        exit 1
        error: in/a.png: neither JPEG nor PNG: 16 bytes that begin with "GIF89a a"; other formats have to be converted when the dataset is written
        hint: leave it out of the list, or convert it to JPEG or PNG
    "#]].assert_eq(&refused(&|place| place.file("in/a.png", "GIF89a and so on")));
}

#[test]
fn lists_that_make_no_dataset_are_refused() {
    let refused = |list: &str| {
        let place = voc();
        place.file("in/list.txt", list);
        place.fails(&["dataset", "write", "in/list.txt", "out"])
    };
    expect![[r#"
        exit 1
        error: in/list.txt: names no files
        hint: write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one
    "#]].assert_eq(&refused("\n"));
    expect![[r#"
        exit 1
        error: in/list.txt: line 2: has no label, as line 1 has
        hint: write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one
    "#]].assert_eq(&refused("a.png 1\nmore/b.png\n"));
    expect![[r#"
        exit 1
        error: in/list.txt: line 2: cannot read in/none.png
          cause: No such file or directory (os error 2)
        hint: check the path
    "#]]
    .assert_eq(&refused("a.png\nnone.png\n"));
    expect![[r#"
        exit 1
        error: in/list.txt: line 2: has no path before its label
        hint: write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one
    "#]].assert_eq(&refused("a.png\t1\n\t2\n"));
    // A list one byte longer than the maximum, as a sparse file.
    let place = voc();
    fs::File::create(place.path("in/list.txt")).unwrap().set_len((1 << 30) + 1).unwrap();
    expect![[r#"
        exit 1
        error: in/list.txt: more than 1073741824 bytes
        hint: write the list in parts
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "in/list.txt", "out"]));
    expect![[r#"
        exit 1
        error: in/list.txt: line 1: in/more is a folder
        hint: write the paths of its files
    "#]]
    .assert_eq(&refused("more\n"));
    let place = voc();
    expect![[r#"
        exit 2
        error: in: boxes belong to the images of a list
        hint: with --voc give a .txt file that names the images, one a line
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "in", "out", "--voc", "boxes"]));
}
