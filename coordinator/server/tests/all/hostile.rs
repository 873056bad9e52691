//! Clients that are not workers: garbage, another protocol, silence. They harm no other client.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, WireError};

use crate::fixture::{DEADLINE, Fixture, clients, context};
use crate::worker::{beat, join};

/// Sends bytes and reads until the server closes.
async fn say(fixture: &Fixture, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(fixture.running.grpc_address()).await.unwrap();
    // The server may close before all bytes are written.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the server closes");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_port_hurts_nobody() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let noise: Vec<u8> =
        (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let huge_frame = [preface.as_slice(), &[0xff; 64]].concat();
    for bytes in [
        b"".as_slice(),
        b"\0",
        &noise,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /shardfeed.coordinator.v1.WorkerService/Join HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n",
        &preface[..10],
        &huge_frame,
    ] {
        say(&fixture, bytes).await;
        beat(&mut fixture.worker, session, vec![]).await.unwrap();
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_another_service_is_told() {
    let fixture = Fixture::start().await;
    // A client of ours that finds another service than expected.
    let channel = tonic::transport::Endpoint::from_shared(format!(
        "http://{}",
        fixture.running.grpc_address()
    ));
    let mut client = tonic::client::Grpc::new(channel.unwrap().connect().await.unwrap());
    client.ready().await.unwrap();
    let codec = tonic_codec::<GetStatusRequest, GetStatusResponse>();
    let path = "/shardfeed.coordinator.v9.WorkerService/Join".parse().unwrap();
    let request = tonic::Request::new(GetStatusRequest { context: context() });
    let status = client.unary(request, path, codec).await.unwrap_err();
    assert_eq!(WireError::from_status(&status).kind, ErrorKind::WrongVersion);
    // A client that finds the pages for monitoring.
    let (mut lost, _) = clients(fixture.running.http_address().unwrap()).await;
    let status = beat(&mut lost, 1, vec![]).await.unwrap_err();
    assert_eq!(WireError::from_status(&status).kind, ErrorKind::WrongVersion);
    fixture.stop().await;
}

fn tonic_codec<T, U>() -> tonic_prost::ProstCodec<T, U>
where
    T: prost::Message + 'static,
    U: prost::Message + Default + 'static,
{
    tonic_prost::ProstCodec::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_connection_does_not_hold_a_stop_up() {
    let mut fixture = Fixture::start().await;
    join(&mut fixture.worker, "w0").await;
    let silent = TcpStream::connect(fixture.running.grpc_address()).await.unwrap();
    let silent_http = TcpStream::connect(fixture.running.http_address().unwrap()).await.unwrap();
    let client = fixture.worker.clone();
    tokio::time::timeout(DEADLINE, fixture.stop()).await.expect("it stops");
    drop((silent, silent_http, client));
}
