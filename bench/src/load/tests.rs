//! The loops against a small test server that sends tokens at intervals and counts concurrent requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use skein_client::Client;

use super::client::Server;
use super::metrics::{Report, Targets};
use super::workload::{Session, Turn};
use super::{HeldBack, Pace, run};

const TOKEN_TIME: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Seen {
    now: usize,
    most: usize,
    prompts: Vec<Vec<u64>>,
}

/// A server that answers completions with two tokens, but a prompt that starts with token 0 with 503, and one
/// that starts with token 1 with 400 and a message.
async fn server() -> (Server, Arc<Mutex<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let counting = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, counting.clone()));
        }
    });
    let model = Some("mock".to_owned());
    let server = Server::connect(
        Client::new(None, Server::limits(Duration::from_secs(5))),
        &url,
        model,
        None,
        serde_json::json!({}),
    )
    .await;
    (server.expect("a named model needs no question"), seen)
}

async fn answer(mut stream: TcpStream, seen: Arc<Mutex<Seen>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let body = loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await?;
        request.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str::<serde_json::Value>(body)
        {
            break body;
        }
        assert!(count > 0, "the client hung up in its request");
    };
    let prompt: Vec<u64> =
        body["prompt"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).collect();
    if prompt.first() == Some(&0) {
        return stream.write_all(b"HTTP/1.1 503 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    }
    if prompt.first() == Some(&1) {
        let body = serde_json::json!({"error": {"message": format!("too long\u{1b}{}", "!".repeat(300))}})
            .to_string();
        let head = format!("HTTP/1.1 400 x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        return stream.write_all(format!("{head}{body}").as_bytes()).await;
    }
    {
        let mut seen = seen.lock().expect("no test panics with it");
        seen.now += 1;
        seen.most = seen.most.max(seen.now);
        seen.prompts.push(prompt);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await?;
    for token in [901, 902] {
        tokio::time::sleep(TOKEN_TIME).await;
        let event = serde_json::json!({"choices": [{"text": "x", "token_ids": [token], "finish_reason":
            (token == 902).then_some("length")}]});
        stream.write_all(format!("data: {event}\n\n").as_bytes()).await?;
    }
    seen.lock().expect("no test panics with it").now -= 1;
    stream.write_all(b"data: [DONE]\n\n").await
}

fn sessions(count: usize, turns: usize) -> Vec<Session> {
    let turn = |index: usize| Turn { tokens: vec![100 + index as u32], output_tokens: 2 };
    (0..count).map(|_| Session { at: None, turns: (0..turns).map(turn).collect() }).collect()
}

const CLOSED: Pace =
    Pace { request_rate: None, burstiness: 1.0, max_concurrency: Some(3), seed: 1, held_back: None };

#[tokio::test]
async fn a_closed_loop_keeps_so_many_under_way_and_no_more() {
    let (server, seen) = server().await;
    let mut done = 0;
    let records = run(&server, sessions(12, 1), CLOSED, |_| done += 1).await;
    assert_eq!((records.len(), done), (12, 12));
    assert!(records.iter().all(|record| record.error.is_none() && record.output_tokens == 2), "{records:?}");
    assert_eq!(seen.lock().expect("no panic").most, 3);
}

#[tokio::test]
async fn a_turn_continues_the_answer_before_it() {
    let (server, seen) = server().await;
    let records = run(&server, sessions(1, 3), CLOSED, |_| {}).await;
    assert_eq!(records.len(), 3);
    let prompts = &seen.lock().expect("no panic").prompts;
    assert_eq!(prompts[2], [100, 901, 902, 101, 901, 902, 102]);
}

#[tokio::test]
async fn an_open_loop_charges_its_own_lateness_to_the_intended_time() {
    let (server, _) = server().await;
    let pace = Pace { request_rate: Some(500.0), max_concurrency: Some(1), ..CLOSED };
    let records = run(&server, sessions(8, 1), pace, |_| {}).await;
    let report = Report::of(&records, &Targets::default());
    assert_eq!(report.completed, 8);
    // One at a time at 40 ms each, with 2 ms between arrivals: the last one waits for the seven before it.
    assert!(report.ttft_from_intended.max > report.ttft.p50 + 5.0 * 2.0 * 20.0, "{report:?}");
}

#[tokio::test]
async fn refusals_are_counted_and_end_a_conversation() {
    let (server, _) = server().await;
    let mut all = sessions(2, 2);
    all[0].turns[0].tokens = vec![0];
    let records = run(&server, all, CLOSED, |_| {}).await;
    let errors: Vec<_> = records.iter().filter_map(|record| record.error.as_deref()).collect();
    assert_eq!((records.len(), errors), (3, vec!["http 503"]));
}

#[tokio::test]
async fn a_refusal_carries_the_servers_reason_and_is_counted_without_it() {
    let (server, _) = server().await;
    let mut all = sessions(1, 1);
    all[0].turns[0].tokens = vec![1];
    let records = run(&server, all, CLOSED, |_| {}).await;
    assert_eq!(records[0].error.as_deref(), Some("http 400"));
    let failure = records[0].failure().expect("it was refused");
    assert!(failure.starts_with("http 400: too long !!!") && failure.len() < 220, "{failure}");
}

#[tokio::test]
async fn held_back_sessions_come_in_batches_one_after_another() {
    let (server, seen) = server().await;
    let held_back = HeldBack { most: 3, delay: Duration::ZERO };
    let records = run(&server, sessions(7, 1), Pace { held_back: Some(held_back), ..CLOSED }, |_| {}).await;
    assert_eq!(records.len(), 7);
    assert!(records.iter().all(|record| record.error.is_none()), "{records:?}");
    assert_eq!(seen.lock().expect("no test panics with it").most, 3);
    // Batches; the first may have started before all sessions arrived.
    let mut sent: Vec<Duration> = records.iter().map(|record| record.sent).collect();
    sent.sort_unstable();
    let batches = 1 + sent.windows(2).filter(|pair| pair[1] - pair[0] >= TOKEN_TIME).count();
    assert!((3..=4).contains(&batches), "{sent:?}");
}

#[tokio::test]
async fn a_batch_waits_its_delay_for_others() {
    let (server, seen) = server().await;
    let held_back = HeldBack { most: 8, delay: Duration::from_millis(300) };
    let pace = Pace { request_rate: Some(50.0), held_back: Some(held_back), ..CLOSED };
    let records = run(&server, sessions(4, 1), pace, |_| {}).await;
    assert_eq!(records.len(), 4);
    assert_eq!(seen.lock().expect("no test panics with it").most, 4, "all four are in one batch");
}
