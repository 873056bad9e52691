//! Errors of admin verbs about unreachable coordinators and unknown names.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expect_test::{Expect, expect};

use crate::cluster::Cluster;
use crate::fixture::Place;

fn check(text: &str, address: &str, expected: &Expect) {
    expected.assert_eq(&text.replace(address, "$ADDRESS"));
}

#[test]
fn addresses_where_nobody_is() {
    let place = Place::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    check(
        &place.fails(&["status", "--coordinator", &closed]),
        &closed,
        &expect![[r#"
            exit 6
            error: the coordinator at $ADDRESS does not answer: Connection refused (os error 111)
            hint: check the address (--coordinator or SHARDFEED_COORDINATOR) and that `shardfeed coordinator start` runs there
        "#]],
    );
    let args = ["dataset", "add", "x", "y", "--coordinator", &closed];
    check(
        &place.fails(&args),
        &closed,
        &expect![[r#"
            exit 6
            error: the coordinator at $ADDRESS does not answer: Connection refused (os error 111)
            hint: check the address (--coordinator or SHARDFEED_COORDINATOR) and that `shardfeed coordinator start` runs there
        "#]],
    );
    let output = place.command(&["job", "list"]).env("SHARDFEED_COORDINATOR", &closed).output();
    assert_eq!(output.unwrap().status.code(), Some(6));
    expect![[r#"
        exit 2
        error: invalid value 'here' for '--coordinator <HOST:PORT>': write HOST:PORT, such as 127.0.0.1:7070

        For more information, try '--help'.
    "#]].assert_eq(&place.fails(&["status", "--coordinator", "here"]));
    expect![[r#"
        exit 2
        error: invalid value 'long' for '--timeout <TIME>': write a number and a unit: ms, s, min, h or d, such as 10s

        For more information, try '--help'.
    "#]].assert_eq(&place.fails(&["status", "--timeout", "long"]));
    expect![[r#"
        exit 2
        error: invalid value '0s' for '--timeout <TIME>': must be between 1ms and 3650d

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["status", "--timeout", "0s"]));
}

#[test]
fn somebody_who_does_not_answer() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let args = ["worker", "list", "--timeout", "200ms", "--coordinator", &address];
    // The time left for the last attempt varies.
    let mut said = place.fails(&args);
    if let Some((before, rest)) = said.split_once("within ")
        && let Some((_, after)) = rest.split_once(" ms")
    {
        said = format!("{before}within $LEFT ms{after}");
    }
    check(
        &said,
        &address,
        &expect![[r#"
            exit 6
            error: the coordinator at $ADDRESS does not answer: no answer within $LEFT ms
            hint: check the address (--coordinator or SHARDFEED_COORDINATOR) and that `shardfeed coordinator start` runs there
        "#]],
    );
}

#[test]
fn somebody_who_speaks_something_else() {
    let place = Place::new();
    let strange = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = strange.local_addr().unwrap().to_string();
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    // A client that gets this answer may connect again to make sure.
    let answering = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = strange.accept()
            && !ends.load(Ordering::Relaxed)
        {
            let mut request = [0; 24];
            let asked = stream.read_exact(&mut request);
            let answer = b"220 mail.example.org ESMTP at your service\r\n";
            if asked.is_ok() && stream.write_all(answer).is_ok() {
                // Until the other side closes the connection.
                let _ = stream.read_to_end(&mut vec![]);
            }
        }
    });
    check(
        &place.fails(&["status", "--coordinator", &address]),
        &address,
        &expect![[r#"
            exit 6
            error: the server at $ADDRESS is no coordinator: connection error detected: frame with invalid size
            hint: check the address (--coordinator, SHARDFEED_COORDINATOR); if the coordinators there have certificates, give --tls DIR (SHARDFEED_TLS)
        "#]],
    );
    is_over.store(true, Ordering::Relaxed);
    drop(TcpStream::connect(&address).unwrap());
    answering.join().unwrap();

    let cluster = Cluster::start(place, 5_000);
    let args = ["status", "--coordinator", &cluster.http];
    check(
        &cluster.place.fails(&args),
        &cluster.http,
        &expect![[r#"
            exit 6
            error: the server at $ADDRESS is no coordinator: grpc-status header missing, mapped from HTTP status code 404
            hint: check the address (--coordinator, SHARDFEED_COORDINATOR); if the coordinators there have certificates, give --tls DIR (SHARDFEED_TLS)
        "#]],
    );
}

#[test]
fn names_that_are_not_known() {
    let cluster = Cluster::start(Place::with_shards(&[3]), 5_000);
    let verbs = [
        &["job", "show", "x"][..],
        &["epoch", "list", "--job", "x"],
        &["epoch", "show", "--job", "x"],
        &["epoch", "show", "--job", "x", "--epoch", "3"],
        &["shard", "list", "--job", "x"],
        &["rank", "list", "--job", "x"],
        &["batch", "show", "--job", "x", "--step", "0"],
        &["batch", "show", "--job", "x", "--epoch", "0", "--step", "0"],
    ];
    let said: Vec<_> = verbs.iter().map(|verb| cluster.fails(verb)).collect();
    expect![[r#"
        exit 3
        error: there is no job `x`
        hint: there are no jobs yet
    "#]]
    .assert_eq(&said[0]);
    for text in &said {
        assert_eq!(text, &said[0]);
    }
    expect![[r#"
        exit 3
        error: there is no dataset `x`
        hint: there are no datasets yet
    "#]]
    .assert_eq(&cluster.fails(&["dataset", "show", "x"]));
    expect![[r#"
        exit 3
        error: there is no worker `x`
        hint: there are no workers yet
    "#]]
    .assert_eq(&cluster.fails(&["worker", "show", "x"]));
    cluster.ok(&["dataset", "add", "train", "s-0.tfrecord", "--no-wait"]);
    expect![[r#"
        exit 3
        error: there is no dataset `x`
        hint: there are these datasets: train
    "#]]
    .assert_eq(&cluster.fails(&["dataset", "show", "x"]));
    expect![[r#"
        exit 2
        error: the dataset's name "a b\n" has characters that cannot be printed
    "#]]
    .assert_eq(&cluster.fails(&["dataset", "add", "a b\n", "s-0.tfrecord"]));
}

#[test]
fn a_batch_is_of_files_or_of_a_job() {
    let place = Place::with_shards(&[3]);
    let show = |more: &[&str]| place.fails(&[&["batch", "show", "--step", "0"], more].concat());
    expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          <FILES>...

        Usage: shardfeed batch show --step <STEP> <FILES>...

        For more information, try '--help'.
    "#]]
    .assert_eq(&show(&[]));
    expect![[r#"
        exit 2
        error: the argument '--job <JOB>' cannot be used with '[FILES]...'

        Usage: shardfeed batch show --step <STEP> --job <JOB> [FILES]...

        For more information, try '--help'.
    "#]]
    .assert_eq(&show(&["--job", "x", "s-0.tfrecord"]));
    expect![[r#"
        exit 2
        error: the argument '--job <JOB>' cannot be used with '--seed <SEED>'

        Usage: shardfeed batch show --step <STEP> --job <JOB> [FILES]...

        For more information, try '--help'.
    "#]]
    .assert_eq(&show(&["--job", "x", "--seed", "1"]));
    expect![[r#"
        exit 2
        error: the following required arguments were not provided:
          --job <JOB>

        Usage: shardfeed shard list --job <JOB>

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["shard", "list"]));
    expect![[r#"
        exit 2
        error: invalid value 'lost' for '--state <STATE>'
          [possible values: pending, leased, reading, done, skipped]

        For more information, try '--help'.
    "#]]
    .assert_eq(&place.fails(&["shard", "list", "--job", "x", "--state", "lost"]));
}

/// Returns the error without the log lines before it.
fn error_of(said: &str) -> &str {
    let at = said.find("\nerror: ").unwrap_or_else(|| panic!("{said}"));
    &said[at + 1..]
}

#[test]
fn options_that_do_not_go_together() {
    let place = Place::new();
    expect![[r#"
        exit 2
        error: -f has no end, so it cannot be one JSON document
        hint: use -o jsonl
    "#]]
    .assert_eq(&place.fails(&["events", "-f", "-o", "json"]));
    expect![[r#"
        exit 2
        error: --watch is only for read-only commands
        hint: leave it out, or use `shardfeed wait`
    "#]]
    .assert_eq(&place.fails(&["wait", "leader", "-w"]));
    expect![[r#"
        exit 2
        error: stdout is no terminal
        hint: --once prints one screen; `shardfeed status -w` needs none
    "#]]
    .assert_eq(&place.fails(&["top"]));
    place.file("w.toml", "coordinator = \"a:1\"\n");
    expect![[r#"
        exit 2
        error: this command lists nothing that has names
        hint: use -o json or -o jsonl
    "#]]
    .assert_eq(&place.fails(&["config", "validate", "worker", "w.toml", "-o", "name"]));
}

#[test]
fn contexts_that_are_not_there() {
    let place = Place::new();
    expect![[r#"
        exit 3
        error: there is no context `x`
        hint: `shardfeed context set NAME --coordinator HOST:PORT` makes one
    "#]]
    .assert_eq(&place.fails(&["context", "use", "x"]));
    place.ok(&["context", "set", "a", "--coordinator", "head-1:7070"]);
    expect![[r#"
        exit 3
        error: there is no context `x`
        hint: there are: a
    "#]]
    .assert_eq(&place.fails(&["context", "remove", "x"]));
    let contexts = std::fs::File::create(place.path("config/shardfeed/contexts.toml")).unwrap();
    contexts.set_len((1 << 20) + 1).unwrap();
    expect![[r#"
        exit 1
        error: $DIR/config/shardfeed/contexts.toml: 1048577 bytes, more than contexts have
    "#]]
    .assert_eq(&place.fails(&["context", "list"]));
    let mut command = place.command(&["context", "set", "a", "--coordinator", "head-1:7070"]);
    let output = command.env_remove("XDG_CONFIG_HOME").env_remove("HOME").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    expect![[r#"
        error: there is no folder for contexts: neither XDG_CONFIG_HOME nor HOME is set
        hint: set one of them, or give --coordinator
    "#]]
    .assert_eq(&String::from_utf8(output.stderr).unwrap());
}

#[test]
fn workers_that_cannot_start() {
    let place = Place::new();
    let start = ["worker", "start", "--coordinator", "127.0.0.1:1", "--socket", "w.sock"];
    place.file("join", "shardfeed_x_y");
    let tokens = ["--join-token-file", "join", "--token-file", "token"];
    let said = place.fails(&[&start[..], &tokens].concat());
    assert!(said.starts_with("exit 2\n"), "{said}");
    expect![[r#"
        error: a join token is shown inside TLS only
        hint: give --tls DIR with ca.crt of the cluster
    "#]]
    .assert_eq(error_of(&said));
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let said = place.fails(&[&start[..], &["--http", &address]].concat());
    assert!(said.starts_with("exit 1\n"), "{said}");
    check(
        error_of(&said),
        &address,
        &expect![[r#"
            error: cannot listen at $ADDRESS (option `http`): Address already in use (os error 98)
            hint: stop what uses the port, choose another one, or leave the option out
        "#]],
    );
    place.file("join.toml", "coordinator = \"a:1\"\njoin-token-file = \"join\"\n");
    expect![[r#"
        exit 2
        error: option `join-token-file`: there is no file for the token that it is exchanged for
        hint: set `token-file`, too
    "#]]
    .assert_eq(&place.fails(&["config", "validate", "worker", "join.toml"]));
    place.file("open.toml", "coordinator = \"a:1\"\nhttp = \"0.0.0.0:7072\"\n");
    expect![[r#"
        exit 2
        error: option `http` is 0.0.0.0:7072, where other hosts can look, and there are no certificates
        hint: set `tls`, or `insecure` if everybody on that network may look
    "#]]
    .assert_eq(&place.fails(&["config", "validate", "worker", "open.toml"]));
    std::fs::File::create(place.path("large.toml")).unwrap().set_len((1 << 20) + 1).unwrap();
    expect![[r#"
        exit 2
        error: large.toml: 1048577 bytes, more than options have
    "#]]
    .assert_eq(&place.fails(&["config", "validate", "worker", "large.toml"]));
}
