//! Credentials that a client presents to coordinators, and the authority by which it verifies them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_tls::{ClientTls, Folder, Stream, Watched};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::metadata::Ascii;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::transport::Uri;
use tonic::{Request, Status};

use crate::cluster::address::Address;
use crate::traced;

/// Maximum size of a token's file, in bytes.
const FILE_BYTES_MAX: u64 = 4_096;

/// Environment variables, in the order of the fields.
const ENVIRONMENT: [&str; 3] = ["SHARDFEED_TLS", "SHARDFEED_TOKEN_FILE", "SHARDFEED_TOKEN"];

/// Locations of credentials, all optional: without any, nothing is encrypted or authenticated.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CredentialOptions {
    /// Folder of certificates: `ca.crt`, and the client's `tls.crt` and `tls.key`, if it has any.
    pub tls: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    /// The token itself; `token_file` takes precedence.
    pub token: Option<String>,
}

impl fmt::Debug for CredentialOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "(secret)");
        let Self { tls, token_file, .. } = self;
        let mut shown = f.debug_struct("CredentialOptions");
        shown.field("tls", tls).field("token_file", token_file).field("token", &token).finish()
    }
}

impl CredentialOptions {
    /// Reads SHARDFEED_TLS, SHARDFEED_TOKEN_FILE and SHARDFEED_TOKEN.
    pub fn from_environment() -> Self {
        let [tls, token_file, token] =
            ENVIRONMENT.map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        Self { tls: tls.map(PathBuf::from), token_file: token_file.map(PathBuf::from), token }
    }

    /// Fills missing options from `other`.
    pub fn or(self, other: Self) -> Self {
        let has_token = self.token_file.is_some() || self.token.is_some();
        let (token_file, token) = match has_token {
            true => (self.token_file, self.token),
            false => (other.token_file, other.token),
        };
        Self { tls: self.tls.or(other.tls), token_file, token }
    }
}

/// Credentials of a client. Cheap to clone; files are read again when they change.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    tls: Option<ClientTls>,
    bearer: Bearer,
}

impl Credentials {
    /// Reads the credentials.
    ///
    /// # Errors  `Denied`: the file, and its fault.
    pub fn read(options: CredentialOptions) -> Result<Self, WireError> {
        let CredentialOptions { tls, token_file, token } = options;
        let denied = |what: String| WireError::new(ErrorKind::Denied, what);
        let tls = tls.map(|folder| ClientTls::open(Folder::new(folder)));
        let tls = tls.transpose().map_err(|error| denied(format!("tls: {error}")))?;
        let token = match (token_file, token) {
            (Some(path), _) => Some(Token::file(path).map_err(denied)?),
            (None, Some(text)) => {
                let named = |what| denied(format!("{} {what}", ENVIRONMENT[2]));
                Some(Token::Text(header(&text).map_err(named)?))
            }
            (None, None) => None,
        };
        if token.is_some() && tls.is_none() {
            tracing::warn!("an access token is shown inside TLS only; without tls it is kept back");
        }
        let token = token.filter(|_| tls.is_some()).map(Arc::new);
        Ok(Self { tls, bearer: Bearer { token } })
    }

    /// True if connections are encrypted and the coordinators are authenticated.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the expiry of the client certificate, if there is one.
    pub fn certificate_not_after(&self) -> Option<SystemTime> {
        self.tls.as_ref()?.not_after()
    }

    pub(super) fn bearer(&self) -> Bearer {
        self.bearer.clone()
    }

    /// Returns a TLS connector for an address; `None`: connect without TLS.
    pub(super) fn connector(&self, address: &Address) -> Option<TlsConnector> {
        let (tls, address) = (self.tls.clone()?, address.to_string());
        Some(TlsConnector { tls, address })
    }
}

#[derive(Clone, Debug)]
pub(super) struct TlsConnector {
    tls: ClientTls,
    address: String,
}

type Io = TokioIo<Box<dyn Stream>>;

impl Service<Uri> for TlsConnector {
    type Response = Io;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Io>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { tls, address } = self.clone();
        async move {
            let stream = TcpStream::connect(&address).await?;
            // A request must not wait for more data; a socket without the option works too.
            let _ = stream.set_nodelay(true);
            let stream = tls.connect(&address, stream).await?;
            Ok(TokioIo::new(Box::new(stream) as Box<dyn Stream>))
        }
        .boxed()
    }
}

/// Adds the access token and the current operation to calls.
#[derive(Clone, Debug, Default)]
pub struct Bearer {
    token: Option<Arc<Token>>,
}

/// An access token as a header, whose value is marked as sensitive.
#[derive(Debug)]
enum Token {
    File(Watched<MetadataValue<Ascii>, String>),
    Text(MetadataValue<Ascii>),
}

impl Token {
    fn file(path: PathBuf) -> Result<Self, String> {
        Watched::open("access tokens", vec![path.clone()], move || read(&path)).map(Self::File)
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let mut request = traced::mark(request)?;
        if let Some(token) = &self.token {
            let header = match token.as_ref() {
                Token::Text(header) => header.clone(),
                Token::File(watched) => watched.now().as_ref().clone(),
            };
            request.metadata_mut().insert("authorization", header);
        }
        Ok(request)
    }
}

fn read(path: &Path) -> Result<MetadataValue<Ascii>, String> {
    let failed = |what: String| format!("token file {}: {what}", path.display());
    let bytes = fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(failed(format!("{bytes} bytes, more than a token has")));
    }
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    header(&text).map_err(failed)
}

fn header(text: &str) -> Result<MetadataValue<Ascii>, String> {
    let text = text.trim();
    let parts: Vec<_> = text.splitn(3, '_').collect();
    if !matches!(parts[..], ["shardfeed", id, secret] if !id.is_empty() && !secret.is_empty()) {
        return Err("holds no access token; one is written shardfeed_ID_SECRET, as `shardfeed access create` \
                    gave it"
            .into());
    }
    let mut header: MetadataValue<Ascii> = format!("Bearer {text}")
        .parse()
        .map_err(|_| "holds characters that no access token has".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn shown(bearer: &mut Bearer) -> Option<String> {
        let request = bearer.call(Request::new(())).unwrap();
        let header = request.metadata().get("authorization");
        header.map(|header| header.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_token_comes_from_its_file_and_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        fs::write(&path, "shardfeed_a_one\n").unwrap();
        let token = Token::file(path.clone()).unwrap();
        let mut bearer = Bearer { token: Some(Arc::new(token)) };
        assert_eq!(shown(&mut bearer).unwrap(), "Bearer shardfeed_a_one");
        fs::write(&path, "nonsense").unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1200) {
            assert_eq!(shown(&mut bearer).unwrap(), "Bearer shardfeed_a_one");
            std::thread::yield_now();
        }
        fs::write(&path, "shardfeed_b_two").unwrap();
        while shown(&mut bearer).unwrap() != "Bearer shardfeed_b_two" {
            assert!(begun.elapsed() < Duration::from_secs(30), "the file is not read again");
            std::thread::yield_now();
        }
    }

    #[test]
    fn secrets_are_not_shown_and_not_sent_in_the_clear() {
        let token = Some("shardfeed_a_hidden".to_owned());
        let options = CredentialOptions { token, ..CredentialOptions::default() };
        assert!(!format!("{options:?}").contains("hidden"));
        let credentials = Credentials::read(options).unwrap();
        assert!(!format!("{credentials:?}").contains("hidden"));
        assert_eq!(shown(&mut credentials.bearer()), None);
    }

    #[test]
    fn what_is_no_credential_is_told() {
        let refused = |options: CredentialOptions| Credentials::read(options).unwrap_err().message;
        let none = CredentialOptions::default();
        let tls = CredentialOptions { tls: Some("/nowhere".into()), ..none.clone() };
        let token = |text: &str| CredentialOptions { token: Some(text.into()), ..none.clone() };
        let home = tempfile::tempdir().unwrap();
        let (long, bad) = (home.path().join("long"), home.path().join("bad"));
        fs::File::create(&long).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        fs::write(&bad, "secret").unwrap();
        let file = |path: &Path| {
            let token_file = Some(path.to_owned());
            CredentialOptions { token_file, ..none.clone() }
        };
        let said = [
            tls,
            token("secret"),
            token("shardfeed_a_\u{e4}\n\u{1}"),
            file(Path::new("/nowhere")),
            file(&long),
            file(&bad),
        ]
        .map(|options| refused(options).replace(home.path().to_str().unwrap(), "DIR"));
        assert_eq!(
            said,
            [
                "tls: /nowhere/ca.crt: cannot read: No such file or directory (os error 2)",
                "SHARDFEED_TOKEN holds no access token; one is written shardfeed_ID_SECRET, as `shardfeed access \
                 create` gave it",
                "SHARDFEED_TOKEN holds characters that no access token has",
                "token file /nowhere: No such file or directory (os error 2)",
                "token file DIR/long: 4097 bytes, more than a token has",
                "token file DIR/bad: holds no access token; one is written shardfeed_ID_SECRET, as \
                 `shardfeed access create` gave it",
            ]
        );
    }
}
