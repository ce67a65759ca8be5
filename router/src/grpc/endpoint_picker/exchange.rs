//! One request between Envoy and the picker: which message gets which answers. Pure.
//!
//! Envoy sends the body in one of several modes. `FULL_DUPLEX_STREAMED`, which the inference extension asks
//! for, and `BUFFERED` let the picker read the whole body before it answers. In the others the answer is due
//! earlier; then the pick considers load alone.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use skein_proto::envoy::config::core::v3::{HeaderMap as Headers, Metadata};
use skein_proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use skein_proto::envoy::service::ext_proc::v3::processing_request::Request as Message;
use skein_proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};

use super::{header_map, messages};
use crate::refusal::Refusal;

/// Namespace and key of the endpoints to which the proxy limits the pick.
const SUBSET: (&str, &str) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");

/// What to do about a message.
#[derive(Debug)]
pub enum Next {
    /// Send these, perhaps none.
    Say(Vec<ProcessingResponse>),
    /// Pick an endpoint, then call [`Exchange::picked`].
    Pick(Told),
    /// Refuse the request.
    Refuse(Refusal),
}

/// What the proxy has sent of a request so far.
#[derive(Debug, Default)]
pub struct Told {
    pub path: String,
    pub headers: HeaderMap,
    /// `None` = there is none, or the pick cannot wait for it.
    pub body: Option<Bytes>,
    /// The endpoints that the proxy allows; `None` = all.
    pub only: Option<Vec<SocketAddr>>,
}

/// Where a request goes.
#[derive(Debug, Clone)]
pub struct Destination {
    pub endpoint: SocketAddr,
    pub worker: Arc<str>,
}

/// The message that the pick answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Headers,
    Body,
    /// The body ended before its trailers.
    Trailers,
}

#[derive(Debug)]
pub struct Exchange {
    /// Most bytes of a body.
    limit: usize,
    request_mode: BodySendMode,
    response_mode: BodySendMode,
    told: Told,
    body: BytesMut,
    due: Option<Due>,
    is_picked: bool,
    status: Option<u16>,
}

impl Exchange {
    /// An exchange before its first message. Unless the proxy names its modes, those of the inference
    /// extension apply.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            request_mode: BodySendMode::FullDuplexStreamed,
            response_mode: BodySendMode::FullDuplexStreamed,
            told: Told::default(),
            body: BytesMut::new(),
            due: None,
            is_picked: false,
            status: None,
        }
    }

    /// Whether the proxy knows where to send the request.
    pub fn is_picked(&self) -> bool {
        self.is_picked
    }

    /// The status of the endpoint's answer, once it has begun.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Handles the proxy's next message.
    pub fn told(&mut self, message: ProcessingRequest) -> Next {
        if let Some(config) = &message.protocol_config {
            self.request_mode = config.request_body_mode();
            self.response_mode = config.response_body_mode();
        }
        if let Some(only) = message.metadata_context.as_ref().and_then(subset) {
            self.told.only = Some(only);
        }
        match message.request {
            Some(Message::RequestHeaders(headers)) => self.request_headers(headers),
            Some(Message::RequestBody(body)) => self.request_body(body),
            Some(Message::RequestTrailers(_)) if self.waits_for_body() => self.pick(Due::Trailers),
            Some(Message::RequestTrailers(_)) => Next::Say(vec![messages::request_trailers()]),
            Some(Message::ResponseHeaders(headers)) => {
                self.status = Some(status(&headers));
                Next::Say(vec![messages::response_headers()])
            }
            Some(Message::ResponseBody(body)) => {
                let echoed = self.response_mode == BodySendMode::FullDuplexStreamed;
                Next::Say(if echoed {
                    messages::response_body(body)
                } else {
                    vec![messages::response_body_kept()]
                })
            }
            Some(Message::ResponseTrailers(_)) => Next::Say(vec![messages::response_trailers()]),
            None => Next::Say(Vec::new()),
        }
    }

    fn request_headers(&mut self, HttpHeaders { headers, end_of_stream }: HttpHeaders) -> Next {
        self.told.path = value(headers.as_ref(), ":path");
        self.told.headers = header_map(pairs(headers.as_ref()));
        match self.request_mode {
            _ if end_of_stream => self.pick(Due::Headers),
            BodySendMode::FullDuplexStreamed => Next::Say(Vec::new()),
            BodySendMode::Buffered => Next::Say(vec![messages::request_headers()]),
            _ => self.pick(Due::Headers),
        }
    }

    fn request_body(&mut self, HttpBody { body, end_of_stream }: HttpBody) -> Next {
        if !self.waits_for_body() {
            return Next::Say(vec![messages::request_body_kept()]);
        }
        if self.body.len() + body.len() > self.limit {
            return Next::Refuse(Refusal::TooLarge { limit: self.limit });
        }
        self.body.extend_from_slice(&body);
        if end_of_stream || self.request_mode == BodySendMode::Buffered {
            self.pick(Due::Body)
        } else {
            Next::Say(Vec::new())
        }
    }

    fn waits_for_body(&self) -> bool {
        let whole = matches!(self.request_mode, BodySendMode::FullDuplexStreamed | BodySendMode::Buffered);
        whole && !self.is_picked && self.due.is_none()
    }

    fn pick(&mut self, due: Due) -> Next {
        self.due = Some(due);
        let mut told = std::mem::take(&mut self.told);
        if due != Due::Headers {
            told.body = Some(self.body.clone().freeze());
        }
        Next::Pick(told)
    }

    /// The answers that send the request to `to`.
    pub fn picked(&mut self, to: &Destination) -> Vec<ProcessingResponse> {
        self.is_picked = true;
        let body = std::mem::take(&mut self.body).freeze();
        match (self.due, self.request_mode) {
            (Some(Due::Body), BodySendMode::Buffered) => vec![messages::body_sent_to(to)],
            (Some(due @ (Due::Body | Due::Trailers)), _) => {
                let mut all = vec![messages::sent_to(to)];
                all.extend(messages::request_body(body, due == Due::Body));
                all.extend((due == Due::Trailers).then(messages::request_trailers));
                all
            }
            (Some(Due::Headers) | None, _) => vec![messages::sent_to(to)],
        }
    }
}

fn pairs(headers: Option<&Headers>) -> impl Iterator<Item = (&str, &[u8])> {
    headers.into_iter().flat_map(|headers| &headers.headers).map(|header| {
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        (header.key.as_str(), value)
    })
}

fn value(headers: Option<&Headers>, name: &str) -> String {
    let found = pairs(headers).find(|(key, _)| *key == name);
    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

/// The answer's status; 0 if it is missing or not a number.
fn status(headers: &HttpHeaders) -> u16 {
    value(headers.headers.as_ref(), ":status").parse().unwrap_or(0)
}

/// The endpoints to choose from. Entries that are not addresses are left out, because no worker has them.
fn subset(metadata: &Metadata) -> Option<Vec<SocketAddr>> {
    use prost_types::value::Kind;
    let (namespace, key) = SUBSET;
    let listed = metadata.filter_metadata.get(namespace)?.fields.get(key)?;
    let address = |value: &prost_types::Value| match &value.kind {
        Some(Kind::StringValue(text)) => text.trim().parse().ok(),
        _ => None,
    };
    match &listed.kind {
        Some(Kind::ListValue(list)) => Some(list.values.iter().filter_map(address).collect()),
        Some(Kind::StringValue(text)) => {
            Some(text.split(',').filter_map(|part| part.trim().parse().ok()).collect())
        }
        _ => None,
    }
}
