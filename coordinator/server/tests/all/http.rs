//! /livez, /readyz and /metrics.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Fixture;
use crate::worker::{join, ready};

/// Status code and body of a page.
pub(crate) async fn page(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn says_how_it_is() {
    let mut fixture = Fixture::start().await;
    let address = fixture.running.http_address().unwrap();
    assert_eq!(page(address, "/livez").await, (200, "ok\n".into()));
    assert_eq!(page(address, "/readyz").await, (200, "ok\n".into()));
    assert_eq!(page(address, "/nothing").await.0, 404);
    ready(&mut fixture).await;
    join(&mut fixture.worker, "w1").await;
    let (code, text) = page(address, "/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "shardfeed_coordinator_sessions 2\n",
        "shardfeed_coordinator_datasets 1\n",
        "shardfeed_coordinator_leader 1\n",
        "shardfeed_coordinator_storage_failed 0\n",
        "shardfeed_coordinator_chunks_unreferenced_bytes 0\n",
        "shardfeed_coordinator_requests_total{rpc=\"Join\",outcome=\"Done\"} 2\n",
        "shardfeed_coordinator_request_seconds_count{rpc=\"Join\"} 2\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(!text.contains("photos") && !text.contains("w1"), "{text}");
    fixture.stop().await;
}
