//! A worker with a secret refuses every call without it.

use skein_node::supervisor::Secret;
use tonic::metadata::MetadataValue;

use super::*;

/// Status of each call, by its name. `token` is the bearer token, if any.
async fn answers(address: SocketAddr, token: Option<&str>) -> Vec<(&'static str, Code)> {
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let channel = channel.connect().await.expect("it listens");
    let bearer = token.map(|token| format!("Bearer {token}").parse::<MetadataValue<_>>().expect("ASCII"));
    let with_token = move |mut call: Request<()>| {
        bearer.clone().map(|bearer| call.metadata_mut().insert("authorization", bearer));
        Ok(call)
    };
    let mut worker = WorkerClient::with_interceptor(channel.clone(), with_token.clone());
    let mut health = HealthClient::with_interceptor(channel, with_token);
    fn code<T>(answer: Result<T, Status>) -> Code {
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    }
    vec![
        ("Info", code(worker.info(wire::InfoRequest {}).await)),
        ("Generate", code(worker.generate(wire::GenerateRequest::default()).await)),
        ("Attach", code(worker.attach(wire::AttachRequest::default()).await)),
        ("Release", code(worker.release(wire::ReleaseRequest::default()).await)),
        ("Abort", code(worker.abort(wire::AbortRequest::default()).await)),
        ("Watch", code(worker.watch(wire::WatchRequest::default()).await)),
        ("Health.Check", code(health.check(tonic_health::pb::HealthCheckRequest::default()).await)),
    ]
}

#[tokio::test]
async fn another_process_without_the_secret_is_refused_on_every_method() {
    let secret = Secret::draw().expect("the system has random bytes");
    let served = serve_with_secret(&secret).await;
    let other = Secret::draw().expect("the system has random bytes");
    for token in [None, Some(""), Some(other.expose()), Some(&secret.expose()[1..])] {
        for (method, code) in answers(served.address, token).await {
            assert_eq!(code, Code::Unauthenticated, "{method} with {token:?}");
        }
    }
    for (method, code) in answers(served.address, Some(secret.expose())).await {
        assert_ne!(code, Code::Unauthenticated, "{method} with the secret");
    }
    served.stop().await.expect("it ends as asked");
}

async fn serve_with_secret(secret: &Secret) -> Served {
    serve_with(WorkerConfig { secret: Some(secret.clone()), ..config() }, FakeOptions::default()).await
}

#[tokio::test]
async fn with_the_secret_of_a_cluster_only_health_answers_strangers() {
    let secret = Secret::given("0123456789abcdef").expect("it is long enough");
    let guarded = WorkerConfig { secret: Some(secret.clone()), open_health: true, ..config() };
    let served = serve_with(guarded, FakeOptions::default()).await;
    for (method, code) in answers(served.address, None).await {
        let expected = if method == "Health.Check" { Code::Ok } else { Code::Unauthenticated };
        assert_eq!(code, expected, "{method}");
    }
    for (method, code) in answers(served.address, Some(secret.expose())).await {
        assert_ne!(code, Code::Unauthenticated, "{method} with the secret");
    }
    served.stop().await.expect("it ends as asked");
}
