//! Two ends of a connection, certificates that are made, renewed, wrong, and looked at by OpenSSL.
#![allow(clippy::unwrap_used)] // Fixtures are tests too; clippy sees only functions marked so.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use shardfeed_tls::{Authority, ClientTls, Folder, Identity, Role, ServerTls, Subject, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn subject(role: Role, name: &str, hosts: &[&str]) -> Subject {
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
    Subject { identity: Identity { role, name: name.into() }, hosts }
}

/// An authority with a coordinator and a worker.
fn made(home: &Path) -> Authority {
    let authority = Authority::create(home, "test").unwrap();
    let coordinator = subject(Role::Coordinator, "c1", &["localhost", "127.0.0.1", "::1"]);
    authority.issue(&coordinator, 30, &home.join("c1")).unwrap();
    authority.issue(&subject(Role::Worker, "w1", &[]), 30, &home.join("w1")).unwrap();
    authority
}

/// What comes of a connection: who the client proved to be, or what either side says.
async fn meet(
    server: &ServerTls,
    client: &ClientTls,
    address: &str,
) -> Result<Option<Identity>, String> {
    let (here, there) = tokio::io::duplex(1 << 16);
    let serve = async {
        let (mut stream, identity) =
            server.accept(here).await.map_err(|error| error.to_string())?;
        stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
        stream.shutdown().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(identity)
    };
    let call = async {
        let mut stream = client.connect(address, there).await.map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.map_err(|error| error.to_string())?;
        assert_eq!(said, b"hello");
        Ok::<_, String>(())
    };
    let (served, called) = tokio::join!(serve, call);
    called.map_err(|error| format!("client: {error}"))?;
    served.map_err(|error| format!("server: {error}"))
}

fn server(path: &Path) -> ServerTls {
    ServerTls::open(Folder::new(path)).unwrap()
}

fn client(path: &Path) -> ClientTls {
    ClientTls::open(Folder::new(path)).unwrap()
}

#[tokio::test]
async fn each_side_proves_who_it_is() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    made(home);
    let server = server(&home.join("c1"));
    let worker = client(&home.join("w1"));
    for address in ["localhost:7070", "127.0.0.1:7070", "[::1]:7070"] {
        let who = meet(&server, &worker, address).await.unwrap().unwrap();
        assert_eq!(who.to_string(), "worker:w1");
    }
    // Who has no certificate is nobody, yet.
    fs::create_dir(home.join("anonymous")).unwrap();
    fs::copy(home.join("ca.crt"), home.join("anonymous/ca.crt")).unwrap();
    let anonymous = client(&home.join("anonymous"));
    assert_eq!(meet(&server, &anonymous, "localhost:1").await.unwrap(), None);
    // A certificate is good for the hosts that it names.
    let error = meet(&server, &worker, "head-2:7070").await.unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
    // Nobody but a coordinator may listen.
    let error = ServerTls::open(Folder::new(home.join("w1"))).unwrap_err().to_string();
    assert!(error.contains("is of worker:w1, not of a coordinator"), "{error}");
    // Somebody else's authority is not believed, by either side.
    let other = tempfile::tempdir().unwrap();
    made(other.path());
    let stranger = client(&other.path().join("w1"));
    let error = meet(&server, &stranger, "localhost:1").await.unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
    fs::copy(home.join("ca.crt"), other.path().join("w1/ca.crt")).unwrap();
    let stranger = client(&other.path().join("w1"));
    let error = meet(&server, &stranger, "localhost:1").await.unwrap_err();
    assert!(
        error.starts_with("client: received fatal alert") || error.contains("UnknownIssuer"),
        "{error}"
    );
}

#[tokio::test]
async fn renewed_certificates_are_used_without_a_restart_and_broken_ones_are_not() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let authority = made(home);
    let (server, worker) = (server(&home.join("c1")), client(&home.join("w1")));
    let before = server.not_after();
    fs::write(home.join("c1/tls.crt"), "nonsense").unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_300) {
        assert!(meet(&server, &worker, "localhost:1").await.unwrap().is_some());
    }
    fs::remove_file(home.join("c1/tls.crt")).unwrap();
    let coordinator = subject(Role::Coordinator, "c1", &["localhost"]);
    authority.issue(&coordinator, 60, &home.join("c1")).unwrap();
    while server.not_after() <= before + Duration::from_secs(29 * 86_400) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the new certificate is not read");
        tokio::task::yield_now().await;
    }
    assert!(meet(&server, &worker, "localhost:1").await.unwrap().is_some());
}

#[tokio::test]
async fn an_authority_is_replaced_while_both_sides_go_on() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let authority = made(home);
    let meets = async || {
        let (server, worker) = (server(&home.join("c1")), client(&home.join("w1")));
        meet(&server, &worker, "localhost:1").await
    };
    authority.replace("test").unwrap();
    assert_eq!(Folder::new(home.join("w1")).authorities().unwrap().len(), 2);
    meets().await.unwrap();
    let error = authority.forget().unwrap_err().to_string();
    assert!(
        error.contains("c1/tls.crt was signed by an earlier authority")
            || error.contains("earlier authority"),
        "{error}"
    );
    // One side before the other.
    authority.renew(&home.join("c1"), 30).unwrap();
    meets().await.unwrap();
    authority.renew(&home.join("w1"), 30).unwrap();
    meets().await.unwrap();
    authority.forget().unwrap();
    assert_eq!(Folder::new(home.join("w1")).authorities().unwrap().len(), 1);
    assert_eq!(meets().await.unwrap().unwrap().to_string(), "worker:w1");
}

#[test]
fn folders_say_what_is_wrong_with_them() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let authority = made(home);
    let refused =
        |path: &str| ClientTls::open(Folder::new(home.join(path))).unwrap_err().to_string();
    assert!(refused("nowhere").contains("ca.crt: cannot read"));
    fs::copy(home.join("c1/tls.key"), home.join("w1/tls.key")).unwrap();
    assert!(refused("w1").contains("do not belong together"), "{}", refused("w1"));
    fs::remove_file(home.join("w1/tls.key")).unwrap();
    assert!(refused("w1").contains("tls.key: is missing"));
    fs::write(home.join("w1/tls.key"), "").unwrap();
    assert!(refused("w1").contains("holds no key"), "{}", refused("w1"));
    fs::write(home.join("w1/ca.crt"), "text").unwrap();
    assert!(refused("w1").contains("holds no certificate"));
    for (name, role, hosts, said) in [
        ("", Role::Worker, &[][..], "is no name"),
        ("../x", Role::Worker, &[], "is no name"),
        ("c2", Role::Coordinator, &[], "give --host"),
        ("w2", Role::Worker, &["h"], "nobody connects to a worker"),
    ] {
        let subject = subject(role, name, hosts);
        let error = authority.issue(&subject, 30, &home.join("x")).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let other = subject(Role::Admin, "ada", &[]);
    let error = authority.issue(&other, 30, &home.join("c1")).unwrap_err();
    assert!(matches!(error, TlsError::Exists { .. }), "{error}");
    assert!(matches!(Authority::create(home, "x"), Err(TlsError::Exists { .. })));
    let mode = |path: &str| fs::metadata(home.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ca.key"), mode("c1/tls.key"), mode("c1/tls.crt")), (0o600, 0o600, 0o644));
}

/// Somebody else's reading of what we make.
#[test]
fn openssl_verifies_them() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    made(home);
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).current_dir(home).output();
        let done = match done {
            Ok(done) => done,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => panic!("{error}"),
        };
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{said} {}", String::from_utf8_lossy(&done.stderr));
        Some(said)
    };
    let verify = ["verify", "-x509_strict", "-CAfile", "ca.crt", "-purpose"];
    if openssl(
        &[&verify[..], &["sslserver", "-verify_hostname", "localhost", "c1/tls.crt"]].concat(),
    )
    .is_none()
    {
        eprintln!("openssl is not here; skipped");
        return;
    }
    openssl(&[&verify[..], &["sslclient", "w1/tls.crt"]].concat());
    let said = openssl(&[
        "x509",
        "-in",
        "w1/tls.crt",
        "-noout",
        "-ext",
        "subjectAltName,extendedKeyUsage",
    ]);
    let said = said.unwrap();
    assert!(said.contains("URI:spiffe://shardfeed/worker/w1"), "{said}");
    assert!(said.contains("TLS Web Client Authentication") && !said.contains("Server"), "{said}");
}
