//! Streams of other servers: what a front reads from its workers and a benchmark from a server.

use std::time::Duration;

use prost::Message;
use skein_bench::load::metrics::Record;
use skein_bench::load::sse::StreamReader;
use skein_proto::inference::model_infer_response::InferOutputTensor;
use skein_proto::inference::model_metadata_response::TensorMetadata;
use skein_proto::inference::{InferTensorContents, ModelInferResponse, ModelMetadataResponse};

use crate::input::{choice, cuts, join, parts};
use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "front_stream",
            about: "a worker's server-sent events and the rest of its answer elsewhere",
            run: front_stream,
            seeds: stream_seeds,
            replays: 500,
        },
        Target {
            name: "front_prompt",
            about: "a body of which the front reads only what a choice depends on",
            run: front_prompt,
            seeds: prompt_seeds,
            replays: 1000,
        },
        Target {
            name: "front_kserve",
            about: "metadata and responses of a KServe server, and a body for it",
            run: front_kserve,
            seeds: kserve_seeds,
            replays: 1000,
        },
        Target {
            name: "bench_stream",
            about: "a server's events, as `skein bench serve` reads them",
            run: bench_stream,
            seeds: stream_seeds,
            replays: 500,
        },
    ]
}

const BODY: &[u8] =
    br#"{"messages":[{"role":"user","content":"q"}],"prompt":"p","stream":true,"max_tokens":9}"#;

fn front_stream(data: &[u8]) {
    let parts = parts(data);
    let Some((how, stream)) = choice(parts[0]) else { return };
    let pieces = cuts(stream.len(), how as u64, |_| true);
    skein_front::fuzzing::stream(
        pieces.into_iter().map(|piece| &stream[piece]),
        parts.get(1).copied().unwrap_or(BODY),
    );
}

fn bench_stream(data: &[u8]) {
    let Some((how, stream)) = choice(data) else { return };
    let read = |pieces: Vec<std::ops::Range<usize>>| {
        let (mut reader, mut record) = (StreamReader::default(), Record::default());
        pieces.into_iter().for_each(|piece| reader.take(&stream[piece], Duration::ZERO, &mut record));
        reader.finish(&mut record);
        (record, reader.token_ids)
    };
    let whole = read(std::iter::once(0..stream.len()).collect());
    assert_eq!(whole, read(cuts(stream.len(), how as u64, |_| true)));
}

fn stream_seeds() -> Vec<Vec<u8>> {
    let chat = "data: {\"id\":\"c\",\"model\":\"m\",\"created\":1,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"é\"},\"finish_reason\":null}]}\n\n\
        : ping\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"r\",\"tool_calls\":[]},\"finish_reason\":\"stop\"}]}\r\n\r\ndata: [DONE]\n\n";
    let text = "id: a/1.1\ndata: {\"id\":\"c\",\"choices\":[{\"text\":\"a\",\"token_ids\":[1,2]}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":2,\
        \"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\ndata: [DONE]\n\n";
    let error = "data: {\"error\":{\"code\":500,\"type\":\"internal_error\",\"message\":\"m\"}}\n\n";
    [chat, text, error].map(|stream| [&[5][..], stream.as_bytes()].concat()).into()
}

fn front_prompt(data: &[u8]) {
    skein_front::fuzzing::prompt(data);
}

fn prompt_seeds() -> Vec<Vec<u8>> {
    let long = format!(
        r#"{{"model":"m","prompt":"{}","n":3,"stream":true,"max_tokens":7,"cache_salt":"s"}}"#,
        "word ".repeat(60)
    );
    vec![
        BODY.to_vec(),
        long.into_bytes(),
        br#"{"inputs":[1,2],"system":"s","tools":[],"max_completion_tokens":1}"#.to_vec(),
    ]
}

/// Metadata, a body, then responses.
fn front_kserve(data: &[u8]) {
    let parts = parts(data);
    if let Ok(metadata) = ModelMetadataResponse::decode(parts[0]) {
        skein_front::fuzzing::tensors(metadata, parts.get(1).copied().unwrap_or(BODY));
    }
    let responses = parts.iter().skip(2).filter_map(|part| ModelInferResponse::decode(*part).ok());
    skein_front::fuzzing::completion(&responses.collect::<Vec<_>>());
}

fn kserve_seeds() -> Vec<Vec<u8>> {
    let input = |name: &str, datatype: &str| TensorMetadata {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![-1, 1],
    };
    let metadata =
        |inputs| ModelMetadataResponse { name: "m".to_owned(), inputs, ..ModelMetadataResponse::default() };
    let vllm = metadata(vec![
        input("text_input", "BYTES"),
        input("stream", "BOOL"),
        input("sampling_parameters", "BYTES"),
    ]);
    let tensorrt = metadata(vec![
        input("text_input", "BYTES"),
        input("max_tokens", "INT32"),
        input("temperature", "FP32"),
        input("stop_words", "BYTES"),
    ]);
    let output = |name: &str, datatype: &str, contents| InferOutputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: vec![1],
        contents: Some(contents),
        ..InferOutputTensor::default()
    };
    let counts = || InferTensorContents { uint_contents: vec![3], ..InferTensorContents::default() };
    let text =
        InferTensorContents { bytes_contents: vec![b"a".to_vec().into()], ..InferTensorContents::default() };
    let response = ModelInferResponse {
        outputs: vec![
            output("text_output", "BYTES", text),
            output("num_output_tokens", "UINT32", counts()),
            output("num_input_tokens", "UINT32", counts()),
            output("sequence_index", "UINT32", counts()),
        ],
        ..ModelInferResponse::default()
    };
    let body = br#"{"prompt":"p","stream":false,"max_tokens":9,"temperature":0.5,"stop":["x"]}"#.to_vec();
    let mut most = response.clone();
    for output in most.outputs.iter_mut().filter(|output| output.name.ends_with("tokens")) {
        output.datatype = "UINT64".to_owned();
        let uint64_contents = vec![u64::MAX];
        output.contents = Some(InferTensorContents { uint64_contents, ..InferTensorContents::default() });
    }
    let seed = |metadata: ModelMetadataResponse, response: &ModelInferResponse| {
        let response = response.encode_to_vec();
        join(&[metadata.encode_to_vec(), body.clone(), response.clone(), response])
    };
    vec![seed(vllm, &response), seed(tensorrt, &most)]
}
