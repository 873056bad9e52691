//! Both ends of connections; certificates that are issued, renewed, invalid, and checked with
//! OpenSSL.
#![allow(clippy::unwrap_used)] // Fixtures are tests too; clippy sees only functions marked so.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use shardfeed_tls::{Authority, ClientTls, Folder, Identity, Role, ServerTls, Subject, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

fn subject(role: Role, name: &str, hosts: &[&str]) -> Subject {
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
    Subject { identity: Identity { role, name: name.into() }, hosts }
}

/// Creates an authority with a coordinator and a worker.
fn made(home: &Path) -> Authority {
    let authority = Authority::create(home, "test").unwrap();
    let coordinator = subject(Role::Coordinator, "c1", &["localhost", "127.0.0.1", "::1"]);
    authority.issue(&coordinator, 30, &home.join("c1")).unwrap();
    authority.issue(&subject(Role::Worker, "w1", &[]), 30, &home.join("w1")).unwrap();
    authority
}

/// Connects both sides. Returns the client's authenticated identity, or the error of either side.
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
    // A client without a certificate has no identity yet.
    fs::create_dir(home.join("anonymous")).unwrap();
    fs::copy(home.join("ca.crt"), home.join("anonymous/ca.crt")).unwrap();
    let anonymous = client(&home.join("anonymous"));
    assert_eq!(meet(&server, &anonymous, "localhost:1").await.unwrap(), None);
    // A certificate is valid for the hosts that it names.
    let error = meet(&server, &worker, "head-2:7070").await.unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
    // Only a coordinator may listen.
    let error = ServerTls::open(Folder::new(home.join("w1"))).unwrap_err().to_string();
    assert_eq!(
        error.replace(home.to_str().unwrap(), "DIR"),
        "DIR/w1/tls.crt: is of worker:w1, not of a coordinator; make one by `shardfeed tls issue \
         ... coordinator`, or with the alternative name spiffe://DOMAIN/coordinator/NAME"
    );
    // Neither side trusts another authority.
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
async fn who_is_refused_while_it_speaks_is_told_why() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    made(home.path());
    made(other.path());
    fs::copy(home.path().join("ca.crt"), other.path().join("w1/ca.crt")).unwrap();
    let (server, stranger) = (server(&home.path().join("c1")), client(&other.path().join("w1")));
    let (here, there) = tokio::io::duplex(1 << 16);
    let call = async {
        // With TLS 1.3 a client's handshake ends before the server has checked its certificate.
        let mut stream = stranger.connect("localhost:1", there).await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
            stream.write_all(&[0; 100]).await.unwrap();
            stream.flush().await.unwrap();
        }
        stream.read_u8().await.unwrap_err()
    };
    let (served, said) = tokio::join!(server.accept(here), call);
    assert!(served.is_err());
    assert_eq!(said.kind(), std::io::ErrorKind::InvalidData, "{said}");
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
    assert_eq!(
        error.replace(home.to_str().unwrap(), "DIR"),
        "DIR/c1/tls.crt: was signed by an earlier authority; `shardfeed tls rotate` renews it first"
    );
    // One side is renewed before the other.
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
    let told = |error: TlsError| error.to_string().replace(home.to_str().unwrap(), "DIR");
    let refused = |path: &str| told(ClientTls::open(Folder::new(home.join(path))).unwrap_err());
    let mut said = vec![refused("nowhere")];
    fs::copy(home.join("c1/tls.key"), home.join("w1/tls.key")).unwrap();
    said.push(refused("w1"));
    fs::remove_file(home.join("w1/tls.key")).unwrap();
    said.push(refused("w1"));
    fs::write(home.join("w1/tls.key"), "").unwrap();
    said.push(refused("w1"));
    let no_key = "-----BEGIN PRIVATE KEY-----\n*\n-----END PRIVATE KEY-----\n";
    fs::write(home.join("w1/tls.key"), no_key).unwrap();
    said.push(refused("w1"));
    let no_certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    fs::write(home.join("w1/tls.crt"), no_certificate).unwrap();
    said.push(refused("w1"));
    fs::write(home.join("w1/tls.crt"), no_certificate.replace("MAA=", "*")).unwrap();
    said.push(refused("w1"));
    fs::remove_file(home.join("w1/tls.crt")).unwrap();
    said.push(refused("w1"));
    fs::write(home.join("w1/ca.crt"), no_certificate).unwrap();
    fs::remove_file(home.join("w1/tls.key")).unwrap();
    said.push(refused("w1"));
    fs::write(home.join("w1/ca.crt"), "text").unwrap();
    said.push(refused("w1"));
    fs::File::create(home.join("w1/ca.crt")).unwrap().set_len(1 << 40).unwrap();
    said.push(refused("w1"));
    fs::create_dir(home.join("anonymous")).unwrap();
    fs::copy(home.join("ca.crt"), home.join("anonymous/ca.crt")).unwrap();
    let server = ServerTls::open(Folder::new(home.join("anonymous"))).unwrap_err();
    said.push(told(server));
    for (hours, name) in [((-5, -3), "old"), ((3, 50), "early")] {
        fs::create_dir(home.join(name)).unwrap();
        fs::copy(home.join("ca.crt"), home.join(name).join("ca.crt")).unwrap();
        signed(home, &home.join(name), None, hours);
        said.push(refused(name));
    }
    assert_eq!(
        said,
        [
            "DIR/nowhere/ca.crt: cannot read: No such file or directory (os error 2)",
            "DIR/w1/tls.crt: and tls.key beside it do not belong together",
            "DIR/w1/tls.key: is missing: the key of tls.crt beside it",
            "DIR/w1/tls.key: holds no key in PEM",
            "DIR/w1/tls.key: is no key in PEM: base64 decode error: InvalidCharacter(42)",
            "DIR/w1/tls.crt: is no certificate: Parsing requires 1 bytes/chars",
            "DIR/w1/tls.crt: is no certificate in PEM: base64 decode error: InvalidCharacter(42)",
            "DIR/w1/tls.crt: is missing: the certificate of tls.key beside it",
            "DIR/w1/ca.crt: holds a certificate that cannot be an authority's: invalid peer \
             certificate: BadEncoding",
            "DIR/w1/ca.crt: holds no certificate in PEM",
            "DIR/w1/ca.crt: cannot read: 1099511627776 bytes, more than certificates have",
            "DIR/anonymous/tls.crt: is missing, with tls.key: a coordinator needs its own \
             certificate",
            "DIR/old/tls.crt: the certificate expired 2 hours ago; renew it (`shardfeed tls rotate`), \
             or mend the clock",
            "DIR/early/tls.crt: the certificate becomes good in 3 hours; renew it (`shardfeed tls \
             rotate`), or mend the clock",
        ]
    );
    let many: Vec<String> = (0..65).map(|host| format!("h{host}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let said = [
        ("", Role::Worker, &[][..], 30),
        ("../x", Role::Worker, &[], 30),
        ("c2", Role::Coordinator, &[], 30),
        ("c2", Role::Coordinator, &many, 30),
        ("c2", Role::Coordinator, &["h\u{e4}"], 30),
        ("w2", Role::Worker, &["h"], 30),
        ("w2", Role::Worker, &[], 0),
    ]
    .map(|(name, role, hosts, days)| {
        let subject = subject(role, name, hosts);
        told(authority.issue(&subject, days, &home.join("x")).unwrap_err())
    });
    assert_eq!(
        said,
        [
            "\"\" is no name: 1 to 100 letters, digits, `.`, `_` and `-`, the first a letter or \
             digit",
            "\"../x\" is no name: 1 to 100 letters, digits, `.`, `_` and `-`, the first a letter \
             or digit",
            "a coordinator is reached at a name or an address, and its certificate must say it; \
             give --host",
            "--host: more than 64 of them",
            "cannot make a certificate: Invalid IA5String: 'hä'",
            "--host: no client connects to a worker",
            "0 days: certificates are good for 1 to 3650 days",
        ]
    );
    let file = home.join("file");
    fs::write(&file, "text").unwrap();
    let other = subject(Role::Admin, "ada", &[]);
    let mut said = vec![
        told(authority.issue(&other, 30, &home.join("c1")).unwrap_err()),
        told(authority.issue(&other, 30, &file).unwrap_err()),
        told(authority.renew(&home.join("nowhere"), 30).unwrap_err()),
        told(authority.renew(&home.join("old"), 30).unwrap_err()),
        told(Authority::create(home, "x").unwrap_err()),
        told(Authority::open(home.join("c1")).unwrap_err()),
        "robot".parse::<Role>().unwrap_err(),
    ];
    let mode = |path: &str| fs::metadata(home.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ca.key"), mode("c1/tls.key"), mode("c1/tls.crt")), (0o600, 0o600, 0o644));
    fs::write(home.join("ca.key"), "no key").unwrap();
    said.push(told(authority.issue(&other, 30, &home.join("x")).unwrap_err()));
    fs::write(home.join("ca.crt"), [0xff]).unwrap();
    said.push(told(authority.issue(&other, 30, &home.join("x")).unwrap_err()));
    assert_eq!(
        said,
        [
            "DIR/c1/tls.crt is there already; it belongs to another identity; name another folder",
            "DIR/file: cannot write: File exists (os error 17)",
            "DIR/nowhere/tls.crt: is missing; `shardfeed tls issue` makes a certificate",
            "DIR/old/tls.crt: names no identity; renew it where it was made",
            "DIR/ca.key is there already; an authority is made once; `shardfeed tls rotate --ca` \
             replaces it",
            "DIR/c1/ca.key: is missing: no authority; `shardfeed tls init` makes one",
            "there is no role `robot`; there are: coordinator, worker, trainer, viewer, operator, \
             admin",
            "DIR/ca.key: is no key: PEM error: malformedframing",
            "DIR/ca.crt: is no text",
        ]
    );
}

/// Writes a certificate that the authority in `home` signed by another tool than ours.
/// - `from`, `to`: start and end of validity, in hours from now.
fn signed(home: &Path, folder: &Path, uri: Option<&str>, (from, to): (i64, i64)) {
    let signer = KeyPair::from_pem(&fs::read_to_string(home.join("ca.key")).unwrap()).unwrap();
    let authority = fs::read_to_string(home.join("ca.crt")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&authority, signer).unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params
        .subject_alt_names
        .extend(uri.map(|uri| SanType::URI(uri.to_owned().try_into().unwrap())));
    let now = time::OffsetDateTime::now_utc();
    // Half an hour more, so that the hours in messages do not depend on the seconds.
    let at = |hours: i64| now + time::Duration::minutes(60 * hours + 30);
    (params.not_before, params.not_after) = (at(from), at(to));
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
    fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
}

/// A server at a coordinator's address with a certificate of another role is rejected.
#[tokio::test]
async fn a_client_refuses_whoever_is_no_coordinator() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    made(home);
    let worker = client(&home.join("w1"));
    let mut said = Vec::new();
    for uri in [None, Some("spiffe://shardfeed/worker/w7")] {
        signed(home, home, uri, (-2, 2));
        let chain = CertificateDer::pem_file_iter(home.join("tls.crt")).unwrap();
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(home.join("tls.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (here, there) = tokio::io::duplex(1 << 16);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (_, called) = tokio::join!(acceptor.accept(here), worker.connect("localhost:1", there));
        said.push(called.map(drop).unwrap_err().to_string());
    }
    assert_eq!(
        said,
        [
            "its certificate does not say that it is a coordinator: it has no alternative name \
             spiffe://DOMAIN/coordinator/NAME",
            "its certificate is of worker:w7, not of a coordinator",
        ]
    );
}

/// OpenSSL accepts the certificates.
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
