//! Streams: results on stdout, everything else on stderr, and no error if the reader closed the
//! stream.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::fixture::Place;

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let place = Place::with_shards(&[30_000]);
    let args = ["batch", "show", "s-0.tfrecord", "--batch-size", "30000", "--step", "0"];
    for format in ["table", "json"] {
        let mut command = place.command(&[&args[..], &["-o", format]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{format}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let place = Place::with_shards(&[3]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = place
        .command(&["dataset", "inspect", "s-0.tfrecord"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot write to standard output: "), "{stderr}");
}

#[test]
fn logs_go_to_stderr_and_have_no_color_there() {
    let place = Place::with_shards(&[3]);
    place.ok(&["dataset", "inspect", "s-0.tfrecord"]);
    // A damaged cache is rebuilt, with a warning.
    let folder = place.path("cache/index");
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    let ran = place.run(&["dataset", "inspect", "s-0.tfrecord", "-o", "json"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("WARN") && !ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
    serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
}

#[test]
fn nothing_is_coloured_with_no_color() {
    let place = Place::with_shards(&[3]);
    // If forced, colours are used without a terminal, too.
    let has_colours = |args: &[&str], no_color: &str| {
        let mut command = place.command(args);
        command.env("CLICOLOR_FORCE", "1").env("NO_COLOR", no_color);
        let output = command.output().unwrap();
        [output.stdout, output.stderr].concat().contains(&0x1b)
    };
    let of_clap = [&["--help"][..], &["shard", "list", "-h"], &["shard", "list"], &["nothing"]];
    for args in of_clap {
        assert!(has_colours(args, ""), "{args:?}");
        assert!(!has_colours(args, "1"), "{args:?}");
    }
    let of_ours = [
        &["dataset", "inspect", "s-0.tfrecord"][..],
        &["dataset", "inspect", "nowhere"],
        &["status", "--coordinator", "127.0.0.1:1"],
        &["worker", "start", "--socket", "w.sock"],
    ];
    for args in of_ours {
        assert!(!has_colours(args, ""), "{args:?}");
        assert!(!has_colours(args, "1"), "{args:?}");
    }
}

#[test]
fn versions_are_told() {
    let version = Place::new().ok(&["--version"]);
    assert_eq!(version, format!("shardfeed {}\n", env!("CARGO_PKG_VERSION")));
}
