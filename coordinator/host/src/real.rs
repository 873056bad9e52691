//! The host of a real process.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use rustix::time::{ClockId, clock_gettime};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{ByteStream, Disk, Host, Listener, RealDisk};

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealHost;

impl Host for RealHost {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn suspended(&self) -> Duration {
        let time = |clock| {
            let time = clock_gettime(clock);
            // These clocks start at 0 and never go backwards.
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let running = time(ClockId::Monotonic);
        time(ClockId::Boottime).saturating_sub(running)
    }

    fn random(&self) -> u64 {
        // All bits except the six for version and variant are random. The low half has two of these
        // six, so both halves are mixed.
        let (high, low) = Uuid::new_v4().as_u64_pair();
        high ^ low.rotate_left(32)
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let address = address.to_owned();
        async move {
            let stream = TcpStream::connect(address).await?;
            // A request must not wait for further bytes; a socket without the option works too.
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        }
        .boxed()
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(RealListener(listener)) as Box<dyn Listener>)
        }
        .boxed()
    }

    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(RealDisk::new(folder)?))
    }

    fn open_files_max(&self) -> u64 {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
    }

    fn process_page(&self) -> String {
        shardfeed_telemetry::process::page()
    }

    fn has_threads(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct RealListener(TcpListener);

impl Listener for RealListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>> {
        async move {
            let (stream, peer) = self.0.accept().await?;
            // A reply must not wait for further bytes; a socket without the option works too.
            let _ = stream.set_nodelay(true);
            Ok((Box::new(stream) as Box<dyn ByteStream>, peer))
        }
        .boxed()
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn connections_carry_bytes_both_ways() {
        let listener = RealHost.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.address().unwrap().to_string();
        let (client, server) = tokio::join!(RealHost.connect(&address), listener.accept());
        let (mut client, (mut server, _)) = (client.unwrap(), server.unwrap());
        client.write_all(b"ping").await.unwrap();
        let mut bytes = [0; 4];
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ping");
        server.write_all(b"pong").await.unwrap();
        client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"pong");
    }

    #[test]
    fn ids_differ() {
        assert_ne!(crate::uuid(&RealHost), crate::uuid(&RealHost));
        assert_eq!(crate::uuid(&RealHost).get_version_num(), 4);
    }
}
