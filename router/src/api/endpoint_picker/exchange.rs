//! One request between Envoy and the picker: the answers to each message. Pure.
//!
//! Envoy sends the body in one of several modes. With `FULL_DUPLEX_STREAMED`, required by the inference
//! extension, and `BUFFERED`, the picker reads the whole body before it answers. In the other modes the
//! answer is due earlier, and the pick considers only load.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use skein_proto::envoy::config::core::v3::{HeaderMap as Headers, Metadata};
use skein_proto::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use skein_proto::envoy::service::ext_proc::v3::processing_request::Request as Message;
use skein_proto::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
};

use super::destination::Destination;
use super::messages;
use crate::links::allowed::Allowed;
use crate::refusal::Refusal;

/// Namespace and key of the endpoints that the proxy allows.
const SUBSET: (&str, &str) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");

/// Action after a message.
#[derive(Debug)]
pub enum Next {
    /// Send these answers, possibly none.
    Send(Vec<ProcessingResponse>),
    /// Pick an endpoint, then call [`Exchange::picked`].
    Pick(RequestParts),
    /// Refuse the request.
    Refuse(Refusal),
}

/// Request data received from the proxy so far.
#[derive(Debug, Default)]
pub struct RequestParts {
    pub path: String,
    pub headers: HeaderMap,
    /// `None` = no body, or the pick cannot wait for it.
    pub body: Option<Bytes>,
    /// Endpoints that the proxy allows; `None` = all.
    pub only: Option<Vec<Allowed>>,
}

/// Message to which the pick is the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Headers,
    Body,
    /// The body ended without its trailers.
    Trailers,
}

#[derive(Debug)]
pub struct Exchange {
    /// Longest body, in bytes.
    limit: usize,
    request_mode: BodySendMode,
    response_mode: BodySendMode,
    parts: RequestParts,
    body: BytesMut,
    due: Option<Due>,
    is_picked: bool,
    status: Option<u16>,
}

impl Exchange {
    /// Exchange before its first message. Unless the proxy specifies its modes, those of the inference
    /// extension apply.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            request_mode: BodySendMode::FullDuplexStreamed,
            response_mode: BodySendMode::FullDuplexStreamed,
            parts: RequestParts::default(),
            body: BytesMut::new(),
            due: None,
            is_picked: false,
            status: None,
        }
    }

    /// Whether the destination has been sent to the proxy.
    pub fn is_picked(&self) -> bool {
        self.is_picked
    }

    /// Status of the endpoint's response, once it has started.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Handles the next message from the proxy.
    pub fn handle(&mut self, message: ProcessingRequest) -> Next {
        if let Some(config) = &message.protocol_config {
            self.request_mode = config.request_body_mode();
            self.response_mode = config.response_body_mode();
        }
        if let Some(only) = message.metadata_context.as_ref().and_then(subset) {
            self.parts.only = Some(only);
        }
        match message.request {
            Some(Message::RequestHeaders(headers)) => self.request_headers(headers),
            Some(Message::RequestBody(body)) => self.request_body(body),
            Some(Message::RequestTrailers(_)) if self.waits_for_body() => self.pick(Due::Trailers),
            Some(Message::RequestTrailers(_)) => Next::Send(vec![messages::request_trailers()]),
            Some(Message::ResponseHeaders(headers)) => {
                self.status = Some(status(&headers));
                Next::Send(vec![messages::response_headers()])
            }
            Some(Message::ResponseBody(body)) => {
                let echoed = self.response_mode == BodySendMode::FullDuplexStreamed;
                Next::Send(if echoed {
                    messages::response_body(body)
                } else {
                    vec![messages::response_body_kept()]
                })
            }
            Some(Message::ResponseTrailers(_)) => Next::Send(vec![messages::response_trailers()]),
            None => Next::Send(Vec::new()),
        }
    }

    fn request_headers(&mut self, HttpHeaders { headers, end_of_stream }: HttpHeaders) -> Next {
        self.parts.path = value(headers.as_ref(), ":path");
        self.parts.headers = header_map(pairs(headers.as_ref()));
        match self.request_mode {
            _ if end_of_stream => self.pick(Due::Headers),
            BodySendMode::FullDuplexStreamed => Next::Send(Vec::new()),
            BodySendMode::Buffered => Next::Send(vec![messages::request_headers()]),
            _ => self.pick(Due::Headers),
        }
    }

    fn request_body(&mut self, HttpBody { body, end_of_stream }: HttpBody) -> Next {
        if !self.waits_for_body() {
            return Next::Send(vec![messages::request_body_kept()]);
        }
        if self.body.len() + body.len() > self.limit {
            return Next::Refuse(Refusal::TooLarge { limit: self.limit });
        }
        self.body.extend_from_slice(&body);
        if end_of_stream || self.request_mode == BodySendMode::Buffered {
            self.pick(Due::Body)
        } else {
            Next::Send(Vec::new())
        }
    }

    fn waits_for_body(&self) -> bool {
        let whole = matches!(self.request_mode, BodySendMode::FullDuplexStreamed | BodySendMode::Buffered);
        whole && !self.is_picked && self.due.is_none()
    }

    fn pick(&mut self, due: Due) -> Next {
        self.due = Some(due);
        let mut parts = std::mem::take(&mut self.parts);
        if due != Due::Headers {
            parts.body = Some(self.body.clone().freeze());
        }
        Next::Pick(parts)
    }

    /// Answers that route the request to `to`.
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

/// Status of the response; 0 if missing or not a number.
fn status(headers: &HttpHeaders) -> u16 {
    value(headers.headers.as_ref(), ":status").parse().unwrap_or(0)
}

/// Allowed endpoints: a list, or a string with commas.
fn subset(metadata: &Metadata) -> Option<Vec<Allowed>> {
    use prost_types::value::Kind;
    let (namespace, key) = SUBSET;
    let listed = metadata.filter_metadata.get(namespace)?.fields.get(key)?;
    let text = |value: &prost_types::Value| match &value.kind {
        Some(Kind::StringValue(text)) => Some(text.clone()),
        _ => None,
    };
    let entries: Vec<String> = match &listed.kind {
        Some(Kind::ListValue(list)) => list.values.iter().filter_map(text).collect(),
        _ => vec![text(listed)?],
    };
    Some(entries.iter().flat_map(|entries| Allowed::of_list(entries)).collect())
}

/// Headers of `HttpHeaders` that are valid in HTTP.
fn header_map<'a>(pairs: impl Iterator<Item = (&'a str, &'a [u8])>) -> HeaderMap {
    let valid = |(name, value): (&str, &[u8])| {
        Some((
            http::HeaderName::from_bytes(name.as_bytes()).ok()?,
            http::HeaderValue::from_bytes(value).ok()?,
        ))
    };
    pairs.filter_map(valid).collect()
}
