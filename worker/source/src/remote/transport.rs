//! HTTP transport for object_store that keeps the contents of refusals, which object_store drops.

use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

/// Maximum bytes kept of a refusal's text.
const TEXT_MAX: usize = 4096;

/// Refusal by a server.
#[derive(Clone, Debug, thiserror::Error)]
#[error("HTTP status {status}{text}")]
pub(super) struct Refused {
    pub(super) status: u16,
    /// Pause that the server requests.
    pub(super) retry_after: Option<Duration>,
    pub(super) text: String,
}

impl Refused {
    /// True if the same request may succeed later.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self.status, 408 | 425 | 429 | 500..)
    }
}

/// Creates clients that keep refusals.
#[derive(Debug, Default)]
pub(super) struct StoreConnector;

impl HttpConnector for StoreConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Client(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Client(HttpClient);

#[async_trait::async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_put = request.method().as_str() == "PUT";
        let response = self.0.execute(request).await?;
        let status = response.status().as_u16();
        // object_store gives these statuses a special meaning, others where it wants credentials.
        let has_meaning = matches!(status, 304 | 409 | 412) || (is_put && status < 500);
        if response.status().is_success() || has_meaning {
            return Ok(response);
        }
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let retry_after = header("retry-after")
            .and_then(|text| text.trim().parse().ok())
            .map(Duration::from_secs);
        let location = header("location");
        // If the body cannot be read, the status is sufficient.
        let body = response.into_body().bytes().await.unwrap_or_default();
        let body = String::from_utf8_lossy(&body[..body.len().min(TEXT_MAX)]).into_owned();
        let text = match (text_of(&body), location) {
            (text, None) => text,
            (text, Some(location)) => format!("{text} (redirected to {location})"),
        };
        let refused = Refused { status, retry_after, text };
        // The first kind is retried by object_store where configured, the other never.
        let kind = match refused.is_passing() {
            true => HttpErrorKind::Request,
            false => HttpErrorKind::Decode,
        };
        Err(HttpError::new(kind, refused))
    }
}

/// Returns the relevant text of an error's body: S3's code and message, else its first line.
pub(super) fn text_of(body: &str) -> String {
    let tag = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0.trim().to_owned())
    };
    let parts: Vec<String> = [tag("Code"), tag("Message")].into_iter().flatten().collect();
    let text = match parts.is_empty() {
        false => parts.join(": "),
        true if body.trim_start().starts_with('<') => String::new(),
        true => body.lines().next().unwrap_or_default().trim().to_owned(),
    };
    let text: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
    if text.is_empty() { text } else { format!(" ({text})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_told_in_a_line() {
        let s3 = "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request \
                  rate.</Message></Error>";
        assert_eq!(text_of(s3), " (SlowDown: Reduce your request rate.)");
        assert_eq!(text_of("<html><h1>502</h1></html>"), "");
        assert_eq!(text_of("no such thing\nmore"), " (no such thing)");
        assert_eq!(text_of(""), "");
    }
}
