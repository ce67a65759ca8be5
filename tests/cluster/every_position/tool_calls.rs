//! Answers with reasoning and tool calls whose worker fails at every position: the client receives the same
//! pieces as in an undisturbed run. Ids of calls are not compared: they depend on the stream's key, and each
//! run has its own. With equal keys it would attach to the other run's stream at the workers.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Map, Value, json};
use skein_proto::sampling::SamplingOptions;
use skein_router::app::{App, Started};
use skein_router::request::{Draft, Journey, Prompt};
use skein_text::formats::tools::{Choice, Function, ToolUse};
use skein_text::formats::{Piece, Splitter};
use skein_text::model_text::ModelText;
use skein_text::sources::TextSources;

use super::{
    AT_ONCE, Cut, CuttingConnector, MODEL, fresh_id, model, router_config, start_router, start_workers,
};

/// Prints the tools' names; its prompt ends inside reasoning.
const TEMPLATE: &str = "{{ bos_token }}{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}\
                        {% for message in messages %}{{ message.content }}{% endfor %}<think>\n{# </think> <tool_call> #}";

/// What a client assembles: each sample's text by kind, its calls with their arguments, its finish reason.
#[derive(Debug, Default, Clone, PartialEq)]
struct Heard {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    reason: Option<&'static str>,
}

fn text(template: &str) -> Arc<ModelText> {
    let sources = TextSources { chat_template: Some(template.to_owned()), ..TextSources::default() };
    Arc::new(ModelText::load_with(&model(), &[MODEL.to_owned()], &sources).expect("it loads"))
}

fn draft(n: i64, seed: i64, choice: Choice) -> Draft {
    let parameters = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
        "required": ["city"], "additionalProperties": false});
    let functions = [
        Function::new("weather".to_owned(), Some(parameters), true),
        Function::new("now".to_owned(), None, true),
    ];
    let shown: Vec<Value> = functions.iter().map(|one| json!({"function": {"name": one.name}})).collect();
    Draft {
        prompt: Prompt::Chat {
            messages: vec![json!({"role": "user", "content": "def weather(city):"})],
            add_generation_prompt: true,
            continue_final_message: false,
            template_kwargs: Map::from_iter([("tools".to_owned(), shown.into())]),
        },
        sampling: SamplingOptions {
            n: Some(n),
            seed: Some(seed),
            temperature: Some(1.2),
            max_tokens: Some(56),
            ..SamplingOptions::default()
        },
        tools: ToolUse { functions: Arc::new(functions), choice, ..ToolUse::default() },
        ..Draft::default()
    }
}

async fn answer(
    text: &Arc<ModelText>,
    workers: &[std::net::SocketAddr],
    draft: Draft,
    cut: Option<(Cut, usize)>,
) -> (Vec<Heard>, Journey, usize) {
    let cluster = start_router(workers, CuttingConnector::new(cut)).await;
    let app = App::new(text.clone(), Arc::new(cluster), router_config());
    let draft = Draft { request_id: Some(fresh_id().into()), ..draft };
    let Started { request, mut stream, split } = app.start(draft).await.expect("it is taken");
    let plan = split.expect("the model has formats");
    let mut splitters: Vec<Splitter> = (0..request.n).map(|_| Splitter::new(plan.clone())).collect();
    let mut heard = vec![Heard::default(); request.n as usize];
    let mut places = heard.len();
    while let Some(delta) = stream.next().await {
        let delta = delta.unwrap_or_else(|refusal| panic!("{cut:?}: {refusal}"));
        let index = delta.sample_index as usize;
        places += delta.tokens.len();
        let mut pieces = splitters[index].push(&delta.text, &delta.control_at);
        if let Some(finish) = &delta.finish {
            pieces.extend(splitters[index].finish());
            heard[index].reason = Some(finish.reason());
        }
        for piece in pieces {
            let heard = &mut heard[index];
            match piece {
                Piece::Content(text) => heard.content += &text,
                Piece::Reasoning(text) => heard.reasoning += &text,
                Piece::Call { name, .. } => heard.calls.push((name, String::new())),
                Piece::Arguments { json, .. } => heard.calls.last_mut().expect("it has begun").1 += &json,
                Piece::CallEnd { .. } => {}
            }
        }
    }
    (heard, stream.journey(), places)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_lost_at_any_position_of_a_call_changes_no_piece() {
    let workers = start_workers().await;
    let thinking = text(TEMPLATE);
    // Without reasoning, which this untrained model never ends.
    let plain = text(&TEMPLATE.replace("<think>\n", "").replace("</think> ", ""));
    let (mut cuts, mut calls) = (0, 0);
    for (how, text, n, seed) in [
        (Cut::Kill, &plain, 1, 3),
        (Cut::Kill, &plain, 2, 4),
        (Cut::Break, &plain, 1, 5),
        (Cut::HandBack, &plain, 1, 6),
        (Cut::Kill, &thinking, 1, 7),
    ] {
        let asked = draft(n, seed, Choice::Required);
        let (undisturbed, _, places) = answer(text, &workers, asked.clone(), None).await;
        calls += undisturbed.iter().map(|heard| heard.calls.len()).sum::<usize>();
        let runs = (0..places).map(|place| {
            let (asked, workers, undisturbed) = (asked.clone(), &workers, &undisturbed);
            async move {
                let (heard, journey, _) = answer(text, workers, asked, Some((how, place))).await;
                assert_eq!(&heard, undisturbed, "{how:?} after {place}");
                assert_eq!(
                    journey,
                    Journey { moves: 1, resume_exact: true, version: journey.version },
                    "{how:?} after {place}"
                );
            }
        });
        cuts += futures::stream::iter(runs).buffer_unordered(AT_ONCE).count().await;
    }
    assert!(calls >= 4, "only {calls} calls");
    println!("{cuts} cuts, {calls} calls");
}
