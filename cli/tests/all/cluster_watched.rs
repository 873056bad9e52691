//! Monitoring of processes: service managers, probes, Prometheus; and the options of processes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};

use expect_test::expect;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{Cluster, PATIENCE, Process, until};
use crate::fixture::Place;

const TTL_MS: u64 = 5_000;

/// Returns the status code and the text of a page.
fn page(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A service manager that receives the notifications of one process.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
    child: Child,
}

impl Manager {
    fn start(place: &Place, args: &[&str]) -> Self {
        let path = place.path("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut command = place.command(args);
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "100000");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { socket, heard: vec![], child }
    }

    /// Waits for a notification line that begins with `what`.
    fn hears(&mut self, what: &str) {
        until(what, || {
            let mut buffer = [0; 4096];
            while let Ok(read) = self.socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..read]);
                self.heard.extend(text.lines().map(ToOwned::to_owned));
            }
            let at = self.heard.iter().position(|line| line.starts_with(what))?;
            self.heard.drain(..=at);
            Some(())
        });
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_service_manager_hears_when_a_coordinator_is_ready_alive_and_ends() {
    let place = Place::new();
    let args = ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0"];
    let mut manager = Manager::start(&place, &[&args[..], &["--listen", "127.0.0.1:0"]].concat());
    manager.hears("READY=1");
    manager.hears("STATUS=coordinator ready: grpc 127.0.0.1:");
    manager.hears("WATCHDOG=1");
    manager.hears("WATCHDOG=1");
    kill_process(Pid::from_child(&manager.child), Signal::TERM).unwrap();
    manager.hears("STOPPING=1");
    assert_eq!(until("its end", || manager.child.try_wait().unwrap()).code(), Some(0));
}

#[test]
fn one_that_waits_is_alive_and_says_for_what() {
    let place = Place::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["worker", "start", "--socket", "w.sock", "--coordinator", &free];
    let mut manager = Manager::start(&place, &args);
    manager.hears("EXTEND_TIMEOUT_USEC=");
    manager.hears("STATUS=starting: it waits for the coordinator at ");
    manager.hears("WATCHDOG=1");
    let args = ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0", "--listen", &free];
    let (_coordinator, _) = Process::ready(&place, "c.log", &args);
    manager.hears("READY=1");
}

#[test]
fn a_worker_is_ready_once_it_was_in_a_cluster_and_stays_so_without_one() {
    let place = Place::with_shards(&[40]);
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (address, http) = (free(), free());
    let args = ["worker", "start", "--socket", "w.sock", "--http", &http];
    let (worker, first) =
        Process::spawn(&place, "w.log", &[&args[..], &["--coordinator", &address]].concat());
    until("the port", || TcpStream::connect(&http).ok());
    assert_eq!(page(&http, "/livez"), (200, "ok\n".into()));
    let (code, reason) = page(&http, "/readyz");
    assert!(code == 503 && reason.contains(&address), "{code} {reason}");
    let asked = place.fails(&["health", "--http", &http]);
    assert!(asked.contains("exit 1\n") && asked.contains("waits for the coordinator"), "{asked}");

    let args =
        ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0", "--listen", &address];
    let (coordinator, _) = Process::ready(&place, "c.log", &args);
    assert!(first().unwrap().ends_with(&format!(" http {http}")));
    assert_eq!(place.ok(&["health", "--http", &http]), "ok\n");
    let named = place.ok(&["health", "--worker", "--socket", "w.sock"]);
    assert!(named.starts_with("worker ") && named.ends_with(" serves\n"), "{named}");
    let (_, metrics) = page(&http, "/metrics");
    assert!(metrics.contains("\nshardfeed_worker_connected 1\n"), "{metrics}");

    assert_eq!(coordinator.terminate(), Some(0));
    until("it has no coordinator", || {
        page(&http, "/metrics").1.contains("\nshardfeed_worker_connected 0\n").then_some(())
    });
    assert_eq!(page(&http, "/readyz"), (200, "ok\n".into()));
    assert_eq!(worker.terminate(), Some(0));
    let gone = place.fails(&["health", "--worker", "--socket", "w.sock"]);
    assert!(gone.starts_with("exit 6\n"), "{gone}");
}

#[test]
fn garbage_and_silence_do_not_keep_others_from_a_workers_pages() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let http = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["worker", "start", "--socket", "w.sock", "--http", &http, "--coordinator"];
    let (_worker, _) =
        Process::ready(&cluster.place, "w.log", &[&args[..], &[&cluster.address]].concat());
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&http).unwrap()).collect();
    let mut garbage = TcpStream::connect(&http).unwrap();
    garbage.write_all(&[0xff; 4096]).unwrap();
    assert_eq!(page(&http, "/readyz").0, 200);
    assert_eq!(page(&http, "/nothing").0, 404);
    drop(silent);
}

#[test]
fn a_process_that_says_nothing_is_told_from_one_that_is_not_there() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let late = place.fails(&["health", "--http", &address, "--timeout", "100ms"]);
    assert!(late.starts_with("exit 7\nerror: no answer from http://127.0.0.1:"), "{late}");
    drop(silent);
    let nobody = place.fails(&["health", "--http", &address]);
    assert!(nobody.starts_with("exit 1\nerror: cannot ask"), "{nobody}");
}

#[test]
fn options_are_those_of_flags_then_the_environment_then_the_file() {
    let place = Place::new();
    place.file("c.toml", "listen = \"127.0.0.1:1\"\nnode-id = 3\n");
    let mut command = place.command(&["config", "show", "coordinator", "c.toml", "--origin"]);
    let output = command.env("SHARDFEED_COORDINATOR__NODE_ID", "5").output().unwrap();
    expect![[r#"
        OPTION                  VALUE                                    ORIGIN
        advertise               (the address in `peers`, else `listen`)  default
        cluster-name            "shardfeed"                              default
        data-dir                ""                                       default
        election-max-ms         600                                      default
        election-min-ms         300                                      default
        endpoint-file           (none is written)                        default
        heartbeat-ms            2000                                     default
        http                    "127.0.0.1:7071"                         default
        insecure                false                                    default
        join                    []                                       default
        listen                  "127.0.0.1:1"                            file
        node-id                 5                                        environment
        peer-heartbeat-ms       100                                      default
        peers                   []                                       default
        session-ttl-ms          10000                                    default
        snapshot-every          10000                                    default
        tls                     (none: callers are not authenticated)    default
        unreferenced-bytes-max  4294967296                               default
    "#]]
    .assert_eq(&String::from_utf8(output.stdout).unwrap());

    // The process itself reads the options in the same way.
    let start = ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0", "--node-id", "7"];
    let mut command = place.command(&start);
    command.env("SHARDFEED_COORDINATOR__CONFIG", place.path("c.toml"));
    command.env("SHARDFEED_COORDINATOR__NODE_ID", "5");
    let mut child = command
        .env("SHARDFEED_COORDINATOR__LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = [0; 64];
    let read = child.stdout.as_mut().unwrap().read(&mut first).unwrap();
    let ready = String::from_utf8_lossy(&first[..read]).into_owned();
    let address = ready.split(' ').nth(3).unwrap_or_else(|| panic!("{ready}")).to_owned();
    let status = place.json(&["status", "--coordinator", &address]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(status["node"], 7);
}

#[test]
fn a_wrong_option_is_named_before_anything_starts() {
    let place = Place::new();
    place.file("c.toml", "data-dir = \"d\"\nheartbeat-ms = 4000\n");
    place.file("w.toml", "coordinator = \"a:1\"\nmemory-bugdet = 1\n");
    place.file("good.toml", "coordinator = \"a:1\"\nmemory-budget = \"1GiB\"\n");
    let said = [
        place.fails(&["config", "validate", "coordinator", "c.toml"]),
        place.fails(&["config", "validate", "worker", "w.toml"]),
        place.fails(&["config", "validate", "worker"]),
        place.ok(&["config", "validate", "worker", "good.toml"]),
    ];
    expect![[r#"
        exit 2
        error: c.toml: option `heartbeat-ms`: is 4000, but two may be lost within session-ttl-ms=10000; use 1 to 3333

        exit 2
        error: w.toml: unknown field `memory-bugdet`, expected one of `coordinator`, `tls`, `token-file`, `join-token-file`, `insecure`, `socket`, `name`, `memory-budget`, `threads`, `cache-dir`, `cache-bytes`, `index`, `allow-uid`, `allow-gid`, `socket-gid`, `data-root`, `http`, `cluster-id`
        hint: `--help` lists the options, their units and their defaults

        exit 2
        error: the worker needs the address of its coordinator
        hint: give --coordinator HOST:PORT, SHARDFEED_COORDINATOR, or `coordinator` in --config FILE

        good.toml: valid options of a worker
    "#]].assert_eq(&said.join("\n"));
    let mut command = place.command(&["config", "validate", "worker", "good.toml"]);
    let output = command.env("SHARDFEED_WORKER__THREADS", "none").output().unwrap();
    expect![[r#"
        error: in the environment: invalid value 'none' for '--threads <N>': must be a whole number, at least 1
        hint: `shardfeed config show --help` says how the variables are named
    "#]].assert_eq(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(place.names("."), ["c.toml", "good.toml", "w.toml"]);
}

#[test]
fn scripts_wait_for_what_they_need() {
    let cluster = Cluster::start(Place::with_shards(&[30]), TTL_MS);
    assert_eq!(cluster.ok(&["wait", "leader"]), "node 1 leads\n");
    let late = cluster.fails(&["wait", "dataset", "train", "--for", "300ms"]);
    assert!(late.starts_with("exit 7\nerror: dataset `train`, waited for "), "{late}");
    let worker = cluster.worker("w");
    assert_eq!(cluster.ok(&["wait", "worker", "w"]), "worker w is live\n");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cluster.ok(&["wait", "dataset", "train"]));
        cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
        assert_eq!(waits.join().unwrap(), "dataset train is ready\n");
        let gone = scope.spawn(|| cluster.ok(&["wait", "worker", "w", "--until", "gone"]));
        assert_eq!(worker.terminate(), Some(0));
        assert_eq!(gone.join().unwrap(), "worker w is gone\n");
    });
    let failed = cluster.fails(&["wait", "epoch", "--job", "j", "--epoch", "0", "--for", "1ms"]);
    assert!(failed.starts_with("exit 7\n"), "{failed}");
}

#[test]
fn a_script_waits_for_coordinators_too() {
    let place = Place::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["wait", "leader", "--coordinator", &free, "--for", "30s"];
    let waits = place.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let args = ["coordinator", "start", "--data", "d", "--http", "127.0.0.1:0", "--listen", &free];
    let (_coordinator, _) = Process::ready(&place, "c.log", &args);
    let output = waits.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"node 1 leads\n"[..]));
}

#[test]
fn lists_are_lines_for_scripts() {
    let cluster = Cluster::start(Place::with_shards(&[30, 20]), TTL_MS);
    let _workers = [cluster.worker("a"), cluster.worker("b")];
    let names = cluster.ok(&["worker", "list", "-o", "name"]);
    let mut names: Vec<_> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    let lines = cluster.ok(&["worker", "list", "-o", "jsonl"]);
    let states: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["state"].clone())
        .collect();
    assert_eq!(states, ["live", "live"]);
    let rows = cluster.ok(&["worker", "list", "--no-headers"]);
    assert!(rows.lines().count() == 2 && !rows.contains("STATE"), "{rows}");
    assert_eq!(cluster.ok(&["dataset", "list", "--no-headers"]), "");
    let refused = cluster.fails(&["status", "-o", "name"]);
    assert!(refused.starts_with("exit 2\nerror: this command lists nothing"), "{refused}");
    let refused = cluster.fails(&["dataset", "add", "t", "s-0.tfrecord", "--watch"]);
    assert!(
        refused.starts_with("exit 2\nerror: --watch is only for read-only commands"),
        "{refused}"
    );
}

#[test]
fn a_view_is_shown_again_until_nobody_reads_it() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let args = ["status", "-w", "-o", "jsonl", "--coordinator", &cluster.address];
    let mut child = cluster.place.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(lines.next().unwrap().unwrap().contains("\"node\":1"));
    }
    drop(lines);
    assert_eq!(until("its end", || child.try_wait().unwrap()).code(), Some(0));
}

#[test]
fn shells_and_man_know_every_command() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.ok(&["completion", shell]).contains("cordon"), "{shell}");
    }
    fs::create_dir(place.path("man")).unwrap();
    assert_eq!(place.ok(&["man", "man"]), "");
    let pages = place.names("man");
    for page in ["shardfeed.1", "shardfeed-shard-list.1", "shardfeed-coordinator-start.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    let refused = place.fails(&["man", "nowhere"]);
    assert!(refused.starts_with("exit 1\nerror: cannot write pages to nowhere\n"), "{refused}");
}

#[test]
fn clusters_have_names() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let place = &cluster.place;
    assert_eq!(place.ok(&["context", "list"]), "no contexts\n");
    let missing = place.fails(&["status", "--context", "prod"]);
    assert!(missing.starts_with("exit 3\nerror: there is no context `prod`\nhint: "), "{missing}");
    place.ok(&["context", "set", "prod", "--coordinator", &cluster.address]);
    place.ok(&["context", "set", "gone", "--coordinator", "127.0.0.1:1"]);
    assert_eq!(place.json(&["status", "--context", "prod"])["node"], 1);
    place.ok(&["context", "use", "prod"]);
    assert_eq!(place.json(&["status"])["coordinator"], cluster.address.as_str());
    let other = place.fails(&["status", "--context", "gone"]);
    assert!(other.starts_with("exit 6\n") && other.contains("127.0.0.1:1"), "{other}");
    // A flag overrides the context.
    let mut command = place.command(&["status", "--coordinator", &cluster.address]);
    assert!(command.env("SHARDFEED_CONTEXT", "gone").output().unwrap().status.success());
    assert_eq!(place.ok(&["context", "list", "-o", "name"]), "gone\nprod\n");
    let listed = place.json(&["context", "remove", "prod"]);
    assert_eq!(listed["contexts"].as_array().unwrap().len(), 1);
    assert_eq!(listed["contexts"][0]["is_current"], false);
    place.file("config/shardfeed/contexts.toml", "current = 1");
    let broken = place.fails(&["status"]);
    assert!(broken.contains("contexts.toml: ") && broken.contains("hint: repair"), "{broken}");
}

#[test]
fn the_doctor_looks_at_this_host_and_its_coordinator() {
    let cluster = Cluster::start(Place::new(), TTL_MS);
    let _worker = cluster.worker("w");
    let looked = cluster.json(&["doctor", "--data", ".", "--socket", "w.sock"]);
    let verdict = |name: &str| {
        let checks = looked["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["check"] == name);
        found.unwrap_or_else(|| panic!("{name}: {looked}"))["verdict"].as_str().unwrap().to_owned()
    };
    for name in ["coordinator", "release", "clock", "worker", "shared memory"] {
        assert_eq!(verdict(name), "ok", "{looked}");
    }
    assert!(["ok", "note"].contains(&verdict("GPU").as_str()));
    let ran = cluster.place.run(&["doctor", "--data", "nowhere", "--coordinator", "127.0.0.1:1"]);
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    let fails = ran.stdout.lines().find(|line| line.contains("FAIL")).unwrap();
    assert!(fails.starts_with("fsync") && fails.contains("nowhere: "), "{fails}");
    assert!(
        ran.stdout.lines().any(|line| line.starts_with("coordinator") && line.contains("warn"))
    );
    assert_eq!(ran.stderr, "error: 1 check failed\n");
}

#[test]
fn the_doctor_looks_at_what_a_file_of_options_names() {
    let place = Place::new();
    place.ok(&["tls", "init", "pki", "--coordinator", "localhost"]);
    let key = fs::Permissions::from_mode(0o644);
    fs::set_permissions(place.path("pki/localhost/tls.key"), key).unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let options = format!(
        "data-dir = \"data/new\"\nlisten = \"{address}\"\nhttp = \"127.0.0.1:0\"\ntls = \"pki/localhost\"\n"
    );
    place.file("coordinator.toml", options);
    let args = ["doctor", "--config", "coordinator.toml", "--coordinator", "127.0.0.1:1"];
    let looked = place.json(&args);
    let found = |name: &str| {
        let checks = looked["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["check"] == name)?;
        Some(format!("{}: {}", found["verdict"].as_str()?, found["found"].as_str()?))
    };
    assert_eq!(found("port of gRPC"), Some(format!("note: {address} is in use")));
    assert_eq!(found("port of HTTP").unwrap(), "ok: 127.0.0.1:0: a free one is taken");
    assert_eq!(found("port of a worker"), None);
    assert_eq!(
        found("certificates").unwrap(),
        "ok: pki/localhost: coordinator:localhost, good for 364 days"
    );
    assert_eq!(
        found("certificate's key").unwrap(),
        "warn: pki/localhost/tls.key can be read by everybody on this host"
    );
    assert!(!place.path("data").exists());

    place.file("worker.toml", format!("coordinator = \"a:1\"\nhttp = \"{address}\"\n"));
    let looked = place.ok(&["doctor", "--config", "worker.toml", "--coordinator", "127.0.0.1:1"]);
    let port = looked.lines().find(|line| line.starts_with("port of a worker")).unwrap();
    assert!(port.ends_with(&format!("{address} is in use")), "{port}");
    assert!(!looked.contains("port of gRPC"), "{looked}");
    expect![[r#"
        exit 1
        error: cannot read nowhere.toml
          cause: No such file or directory (os error 2)
        hint: check the path
    "#]]
    .assert_eq(&place.fails(&["doctor", "--config", "nowhere.toml"]));
}
