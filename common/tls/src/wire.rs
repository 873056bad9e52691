//! TLS connections based on a folder of certificates, whose files are read again when they change.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::TlsError;
use crate::folder::{CA_FILE, CERTIFICATE_FILE, Certificate, Folder, Material, Own};
use crate::identity::{Identity, Role};
use crate::watched::Watched;

/// Application protocol inside TLS.
const PROTOCOL: &[u8] = b"h2";

const WHAT: &str = "certificates";

/// Maximum number of bytes that are read from a rejected connection.
const REFUSED_BYTES_MAX: u64 = 1 << 20;

/// Bidirectional byte stream inside TLS.
pub trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static> Stream for T {}

/// TLS of the accepting side.
#[derive(Clone, Debug)]
pub struct ServerTls {
    watched: Arc<Watched<Server, TlsError>>,
}

#[derive(Debug)]
struct Server {
    config: Arc<ServerConfig>,
    certificate: Certificate,
}

/// TLS of the connecting side.
#[derive(Clone, Debug)]
pub struct ClientTls {
    watched: Arc<Watched<Client, TlsError>>,
}

#[derive(Debug)]
struct Client {
    config: Arc<ClientConfig>,
    certificate: Option<Certificate>,
}

impl ServerTls {
    /// Reads a folder, which must hold a coordinator's certificate.
    pub fn open(folder: Folder) -> Result<Self, TlsError> {
        let watched = Watched::open(WHAT, folder.files(), move || server(&folder))?;
        Ok(Self { watched: Arc::new(watched) })
    }

    pub fn not_after(&self) -> SystemTime {
        self.watched.now().certificate.not_after
    }

    /// Accepts a connection. A rejected one ends when its peer closes; the caller bounds the time.
    /// - Returns the stream and the authenticated identity of the peer; `None`: the peer sent no
    ///   certificate, or one without an identity.
    ///
    /// # Errors  The peer does not support TLS 1.3, or its certificate is not trusted.
    pub async fn accept<S: Stream>(
        &self,
        stream: S,
    ) -> io::Result<(impl Stream + use<S>, Option<Identity>)> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.watched.now().config));
        let stream = match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                refuse(stream).await;
                return Err(error);
            }
        };
        let shown = stream.get_ref().1.peer_certificates();
        let identity = shown.and_then(|chain| Identity::of(chain.first()?));
        Ok((stream, identity))
    }
}

/// Ends a connection so that the peer reads the alert.
///
/// The peer may be sending already. Closing with unread bytes would reset the connection, so that
/// the peer's next write fails before it reads the alert.
async fn refuse(mut stream: impl Stream) {
    if stream.shutdown().await.is_ok() {
        let mut rest = stream.take(REFUSED_BYTES_MAX);
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    }
}

impl ClientTls {
    /// Reads a folder. Without a certificate in it, the client sends none.
    pub fn open(folder: Folder) -> Result<Self, TlsError> {
        let watched = Watched::open(WHAT, folder.files(), move || client(&folder))?;
        Ok(Self { watched: Arc::new(watched) })
    }

    /// Returns the identity in the client's certificate, if it has one.
    pub fn identity(&self) -> Option<Identity> {
        self.watched.now().certificate.as_ref()?.identity.clone()
    }

    /// Returns the end of validity of the client's certificate, if it has one.
    pub fn not_after(&self) -> Option<SystemTime> {
        Some(self.watched.now().certificate.as_ref()?.not_after)
    }

    /// Connects to a coordinator.
    /// - `address`: HOST:PORT; the coordinator's certificate must be valid for the host.
    ///
    /// # Errors  The peer does not support TLS 1.3; its certificate is not trusted, or not of a
    /// coordinator; it does not trust ours.
    pub async fn connect<S: Stream>(
        &self,
        address: &str,
        stream: S,
    ) -> io::Result<impl Stream + use<S>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&self.watched.now().config));
        let stream = connector.connect(name, stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        match shown.and_then(Identity::of) {
            Some(Identity { role: Role::Coordinator, .. }) => Ok(stream),
            Some(other) => {
                let said = format!("its certificate is of {other}, not of a coordinator");
                Err(io::Error::new(io::ErrorKind::InvalidData, said))
            }
            None => {
                let said = "its certificate does not say that it is a coordinator: it has no \
                            alternative name spiffe://DOMAIN/coordinator/NAME";
                Err(io::Error::new(io::ErrorKind::InvalidData, said))
            }
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots(
    folder: &Folder,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| {
            let reason = format!("holds a certificate that cannot be an authority's: {error}");
            TlsError::content(folder.path().join(CA_FILE), reason)
        })?;
    }
    Ok(roots)
}

fn server(folder: &Folder) -> Result<Server, TlsError> {
    let path = folder.path().join(CERTIFICATE_FILE);
    let refused = |error: rustls::Error| unusable(folder, &error);
    let Material { roots: believed, own } = folder.load()?;
    let Some(Own { chain, key, certificate }) = own else {
        let reason = "is missing, with tls.key: a coordinator needs its own certificate";
        return Err(TlsError::content(path, reason));
    };
    if certificate.identity.as_ref().is_none_or(|identity| identity.role != Role::Coordinator) {
        let is =
            certificate.identity.map_or("no identity".to_owned(), |identity| identity.to_string());
        let reason = format!(
            "is of {is}, not of a coordinator; make one by `shardfeed tls issue ... coordinator`, or with \
             the alternative name spiffe://DOMAIN/coordinator/NAME"
        );
        return Err(TlsError::content(path, reason));
    }
    let believed = Arc::new(roots(folder, believed)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(believed, provider())
        // A client without a certificate may present a token.
        .allow_unauthenticated()
        .build()
        .map_err(|error| TlsError::content(folder.path().join(CA_FILE), error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(refused)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Every connection authenticates again, so that no resumed session uses an expired certificate.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Server { config: Arc::new(config), certificate })
}

fn client(folder: &Folder) -> Result<Client, TlsError> {
    let refused = |error: rustls::Error| unusable(folder, &error);
    let Material { roots: believed, own } = folder.load()?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_root_certificates(roots(folder, believed)?);
    let (mut config, certificate) = match own {
        Some(Own { chain, key, certificate }) => {
            (builder.with_client_auth_cert(chain, key).map_err(refused)?, Some(certificate))
        }
        None => (builder.with_no_client_auth(), None),
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Client { config: Arc::new(config), certificate })
}

fn unusable(folder: &Folder, error: &rustls::Error) -> TlsError {
    let reason = match error {
        rustls::Error::InconsistentKeys(_) => {
            "and tls.key beside it do not belong together".to_owned()
        }
        other => format!("cannot be used: {other}"),
    };
    TlsError::content(folder.path().join(CERTIFICATE_FILE), reason)
}
