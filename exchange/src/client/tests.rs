use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::{FutureExt, Stream, StreamExt, stream};
use skein_proto::worker::v1::router_frame::Content as Asked;
use skein_proto::worker::v1::worker_frame::Content;
use skein_proto::worker::v1::{
    Accepted, End, GenerateDelta, GenerateRequest, RouterFrame, RouterFrames, WorkerFrame, WorkerFrames,
};
use tonic::{Code, Request, Status};

use super::{Answers, Deltas, Exchange, Frames, exchange};
use crate::limits::{CREDIT, MESSAGE_BYTES, cost};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn ask(exchange: &Exchange, id: &str, prompt: &[u32]) -> super::Opening {
    let request = GenerateRequest {
        request_id: id.to_owned(),
        prompt_token_ids: prompt.to_vec(),
        ..GenerateRequest::default()
    };
    exchange.generate(Request::new(request))
}

/// Frames that can be sent now.
fn sent(frames: &mut Frames) -> Vec<RouterFrame> {
    let mut all = Vec::new();
    while let Some(Some(message)) = frames.next().now_or_never() {
        all.extend(message.frames);
    }
    all
}

fn frame(call: u64, content: Content) -> WorkerFrame {
    WorkerFrame { call, content: Some(content) }
}

fn accepted(call: u64) -> WorkerFrame {
    frame(call, Content::Accepted(Accepted {}))
}

fn delta(call: u64, token: u32) -> WorkerFrame {
    frame(call, Content::Delta(GenerateDelta { token_ids: vec![token], ..GenerateDelta::default() }))
}

fn end(call: u64, code: Code) -> WorkerFrame {
    frame(call, Content::End(End { code: code as i32, message: "why".to_owned(), metadata: Vec::new() }))
}

/// Has frames read; the exchange stays open while the result is kept.
fn read(answers: Answers, frames: Vec<WorkerFrame>) -> (Option<Option<Status>>, impl Sized) {
    let message = stream::iter([Ok(WorkerFrames { frames })]);
    let mut reading = Box::pin(answers.read(message.chain(stream::pending())));
    ((&mut reading).now_or_never(), reading)
}

/// Tokens that can be read now.
fn tokens(deltas: &mut Deltas) -> Vec<u32> {
    let mut all = Vec::new();
    while let Some(Some(Ok(delta))) = deltas.next().now_or_never() {
        all.extend(delta.token_ids);
    }
    all
}

#[test]
fn calls_made_at_one_moment_travel_in_one_message_each_with_its_credit() {
    let (exchange, mut frames, _answers) = exchange(CREDIT);
    let _calls = [ask(&exchange, "a", &[1, 2]), ask(&exchange, "b", &[3])];
    let Some(Some(RouterFrames { frames: message })) = frames.next().now_or_never() else {
        panic!("there is a message")
    };
    let said: Vec<_> = message.iter().map(|frame| (frame.call, frame.prompt.len(), frame.credit)).collect();
    assert_eq!(said, [(1, 8, CREDIT), (2, 4, CREDIT)]);
    let Some(Asked::Generate(request)) = &message[1].content else { panic!("{:?}", message[1]) };
    assert_eq!((request.request_id.as_str(), request.prompt_token_ids.len()), ("b", 0));
    assert!(frames.next().now_or_never().is_none(), "nothing else");
}

#[test]
fn a_message_ends_once_it_is_long() {
    let (exchange, mut frames, _answers) = exchange(CREDIT);
    let prompt = vec![7; MESSAGE_BYTES / 4 / 2];
    let _calls: Vec<_> = (0..5).map(|_| ask(&exchange, "long", &prompt)).collect();
    let mut lengths = Vec::new();
    while let Some(Some(message)) = frames.next().now_or_never() {
        lengths.push(message.frames.len());
    }
    assert_eq!(lengths, [2, 2, 1]);
}

#[test]
fn frames_reach_their_calls_and_a_refusal_only_its_own() {
    let (exchange, mut frames, answers) = exchange(CREDIT);
    let [a, b, c] = ["a", "b", "c"].map(|id| ask(&exchange, id, &[1]));
    assert_eq!(sent(&mut frames).len(), 3);
    let said = vec![
        accepted(2),
        end(1, Code::ResourceExhausted),
        delta(2, 20),
        accepted(3),
        delta(3, 30),
        delta(2, 21),
    ];
    let _reading = read(answers, said);
    assert_eq!(a.now_or_never().unwrap().unwrap_err().code(), Code::ResourceExhausted);
    let [mut b, mut c] = [b, c].map(|call| call.now_or_never().unwrap().unwrap());
    assert_eq!((tokens(&mut b), tokens(&mut c)), (vec![20, 21], vec![30]));
}

#[test]
fn a_call_ends_as_the_worker_says_after_its_last_delta() {
    for code in [Code::Ok, Code::Unavailable] {
        let (exchange, _frames, answers) = exchange(CREDIT);
        let call = ask(&exchange, "a", &[1]);
        let _reading = read(answers, vec![accepted(1), delta(1, 5), end(1, code)]);
        let mut deltas = call.now_or_never().unwrap().unwrap();
        assert_eq!(deltas.next().now_or_never().unwrap().unwrap().unwrap().token_ids, [5]);
        let last = deltas.next().now_or_never().unwrap().map(|end| end.unwrap_err().code());
        assert_eq!(last, (code != Code::Ok).then_some(code));
        assert!(deltas.next().now_or_never().unwrap().is_none(), "it is over");
        assert!(exchange.is_open());
    }
}

#[test]
fn credit_goes_back_as_deltas_are_read_and_not_before() {
    let (exchange, mut frames, answers) = exchange(CREDIT);
    let call = ask(&exchange, "a", &[1]);
    sent(&mut frames);
    let Some(Content::Delta(one)) = delta(1, 9).content else { panic!() };
    let fits = CREDIT.div_ceil(cost(&one));
    let said = [accepted(1)].into_iter().chain((0..fits).map(|_| delta(1, 9))).collect();
    let _reading = read(answers, said);
    let mut deltas = call.now_or_never().unwrap().unwrap();
    assert!(sent(&mut frames).is_empty(), "nothing is read yet");
    assert_eq!(tokens(&mut deltas).len(), fits as usize);
    let back: u32 = sent(&mut frames).iter().map(|frame| frame.credit).sum();
    assert!(back > CREDIT / 2 && back <= fits * cost(&one), "{back}");
}

#[test]
fn a_worker_that_sends_what_no_worker_may_send_ends_the_exchange() {
    let Some(Content::Delta(one)) = delta(1, 9).content else { panic!() };
    let too_many = [accepted(1)].into_iter().chain((0..=CREDIT.div_ceil(cost(&one))).map(|_| delta(1, 9)));
    let wrong = [
        ("call 2, which was not made", vec![accepted(2)]),
        ("call 0, which was not made", vec![accepted(0)]),
        ("accepted twice", vec![accepted(1), accepted(1)]),
        ("before it was accepted", vec![delta(1, 1)]),
        ("after the end", vec![accepted(1), end(1, Code::Ok), delta(1, 1)]),
        ("without credit", too_many.collect()),
    ];
    for (why, frames) in wrong {
        let (exchange, _sender, answers) = exchange(CREDIT);
        let call = ask(&exchange, "a", &[1]);
        let said = read(answers, frames).0.flatten().expect(why);
        assert!(said.message().contains(why), "{said}");
        assert!(!exchange.is_open());
        drop(call);
        let refused = ask(&exchange, "b", &[1]).now_or_never().expect("it fails at once").unwrap_err();
        assert_eq!(refused.message(), said.message());
    }
}

#[test]
fn a_reader_that_leaves_says_so_once_if_the_worker_may_know_the_call() {
    let (exchange, mut frames, answers) = exchange(CREDIT);
    drop(ask(&exchange, "not sent", &[1]));
    assert!(sent(&mut frames).is_empty());
    let [opening, open] = ["opening", "open"].map(|id| ask(&exchange, id, &[1]));
    sent(&mut frames);
    // Frames to a call that is left are ignored.
    let _reading = read(answers, vec![accepted(3), delta(3, 1), accepted(2)]);
    let open = open.now_or_never().unwrap().unwrap();
    drop((opening, open));
    let left: Vec<_> = sent(&mut frames).into_iter().map(|frame| (frame.call, frame.content)).collect();
    assert!(matches!(left[..], [(2, Some(Asked::Leave(_))), (3, Some(Asked::Leave(_)))]), "{left:?}");
    assert!(exchange.is_open());
}

#[test]
fn the_end_of_the_exchange_fails_its_calls_after_what_had_arrived() {
    let (exchange, mut frames, answers) = exchange(CREDIT);
    let [a, b] = ["a", "b"].map(|id| ask(&exchange, id, &[1]));
    let broken = Status::from_error("reset".into());
    let said = [Ok(WorkerFrames { frames: vec![accepted(1), delta(1, 4)] }), Err(broken)];
    let why = answers.read(stream::iter(said)).now_or_never().expect("it has ended");
    assert!(why.is_some());
    let mut a = a.now_or_never().unwrap().unwrap();
    assert_eq!(a.next().now_or_never().unwrap().unwrap().unwrap().token_ids, [4]);
    let failed = a.next().now_or_never().unwrap().unwrap().unwrap_err();
    assert!(std::error::Error::source(&failed).is_some(), "the cause is kept");
    assert!(b.now_or_never().unwrap().is_err());
    assert!(matches!(frames.next().now_or_never(), Some(None)), "the sender ends, too");
}

#[test]
fn an_exchange_that_is_dropped_ends_after_its_calls() {
    let (exchange, mut frames, answers) = exchange(CREDIT);
    let call = ask(&exchange, "a", &[1]);
    sent(&mut frames);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    drop(exchange);
    assert!(std::pin::Pin::new(&mut frames).poll_next(&mut context).is_pending(), "a call still runs");
    let _reading = read(answers, vec![accepted(1), end(1, Code::Ok)]);
    let mut deltas = call.now_or_never().unwrap().unwrap();
    assert!(deltas.next().now_or_never().unwrap().is_none());
    assert!(woken.0.load(Ordering::Relaxed) > 0, "the sender hears of it");
    assert!(matches!(std::pin::Pin::new(&mut frames).poll_next(&mut context), Poll::Ready(None)));
}
