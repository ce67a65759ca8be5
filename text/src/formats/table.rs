//! The formats of all supported model families.

use super::{Body, Format, Ids, Keyed, Keys, Reasoning};

const NONE: Format = Format {
    names: &[],
    section_begin: "",
    begin: "",
    also_begin: &[],
    body: Body::List(Keys::Name),
    ends: &[],
    section_end: "",
    between: "",
    ids: Ids::Long,
};

/// Tags in the style of Qwen3-Coder, with each value on lines of its own.
const QWEN_LINES: Keyed = Keyed {
    name_open: "\n<function=",
    name_close: ">\n",
    key_open: "<parameter=",
    key_close: ">",
    value_open: "\n",
    value_close: "\n</parameter>\n",
    value_pad: "\n",
    close: "</function>",
    typed: false,
};

/// The same tags, with each value on the line of its tags.
const QWEN_INLINE: Keyed =
    Keyed { value_open: "", value_close: "</parameter>\n", value_pad: "", ..QWEN_LINES };

/// Tags of MiniMax M2. The marker of a call is the tag before its name.
const INVOKE: Keyed = Keyed {
    name_open: "",
    name_close: "\">\n",
    key_open: "<parameter name=\"",
    key_close: "\">",
    value_open: "",
    value_close: "</parameter>\n",
    value_pad: "",
    close: "</invoke>",
    typed: false,
};

/// Tags of DeepSeek V3.2 and later.
const DSML: Keyed = Keyed {
    key_open: "<｜DSML｜parameter name=\"",
    key_close: ">",
    value_close: "</｜DSML｜parameter>\n",
    close: "</｜DSML｜invoke>",
    typed: true,
    ..INVOKE
};

/// Tool-call formats, each with its names in vLLM.
pub static FORMATS: &[Format] = &[
    // Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, ERNIE 4.5.
    Format {
        names: &["hermes", "qwen", "qwen2_5", "qwen3_json", "granite4", "ernie45"],
        begin: "<tool_call>",
        body: Body::Envelope { arguments: "arguments", pad: "\n" },
        ends: &["</tool_call>"],
        between: "\n",
        ..NONE
    },
    // Qwen3-Coder, Qwen 3.5.
    Format {
        names: &["qwen3_coder", "qwen3_xml", "step3p5", "step5"],
        begin: "<tool_call>",
        body: Body::Keyed(QWEN_LINES),
        ends: &["\n</tool_call>"],
        between: "\n",
        ..NONE
    },
    // LongCat Flash.
    Format {
        names: &["longcat"],
        begin: "<longcat_tool_call>",
        body: Body::Envelope { arguments: "arguments", pad: "\n" },
        ends: &["</longcat_tool_call>"],
        between: "\n",
        ..NONE
    },
    // InternLM 2.
    Format {
        names: &["internlm"],
        begin: "<|action_start|><|plugin|>",
        body: Body::Envelope { arguments: "parameters", pad: "\n" },
        ends: &["<|action_end|>"],
        between: "\n",
        ..NONE
    },
    // Granite 20B for function calling.
    Format {
        names: &["granite-20b-fc"],
        begin: "<function_call>",
        body: Body::Envelope { arguments: "arguments", pad: "" },
        between: " ",
        ..NONE
    },
    // GigaChat 3.1, and GigaChat 3 with a message of its own for a call.
    Format {
        names: &["gigachat3"],
        begin: "<|function_call|>",
        also_begin: &["<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"],
        body: Body::Envelope { arguments: "arguments", pad: "" },
        ..NONE
    },
    // Llama 3.1 to 3.3.
    Format {
        names: &["llama3_json", "llama4_json", "llama"],
        section_begin: "<|python_tag|>",
        body: Body::Envelope { arguments: "parameters", pad: "" },
        between: "; ",
        ..NONE
    },
    // Seed-OSS.
    Format {
        names: &["seed_oss"],
        begin: "<seed:tool_call>",
        body: Body::Keyed(QWEN_INLINE),
        ends: &["\n</seed:tool_call>"],
        between: "\n",
        ..NONE
    },
    // MiMo V2.
    Format {
        names: &["mimo"],
        begin: "<tool_call>",
        body: Body::Keyed(QWEN_INLINE),
        ends: &["\n</tool_call>"],
        between: "\n",
        ..NONE
    },
    // MiniMax M2.
    Format {
        names: &["minimax_m2"],
        section_begin: "<minimax:tool_call>\n",
        begin: "<invoke name=\"",
        body: Body::Keyed(INVOKE),
        section_end: "\n</minimax:tool_call>",
        between: "\n",
        ..NONE
    },
    // Dots.
    Format {
        names: &["dots"],
        section_begin: "<dots_function_call>\n",
        begin: "<invoke name=\"",
        body: Body::Keyed(INVOKE),
        section_end: "\n</dots_function_call>",
        between: "\n",
        ..NONE
    },
    // DeepSeek V3.2.
    Format {
        names: &["deepseek_v32"],
        section_begin: "<｜DSML｜function_calls>\n",
        begin: "<｜DSML｜invoke name=\"",
        body: Body::Keyed(DSML),
        section_end: "\n</｜DSML｜function_calls>",
        between: "\n",
        ..NONE
    },
    // DeepSeek V4.
    Format {
        names: &["deepseek_v4"],
        section_begin: "<｜DSML｜tool_calls>\n",
        begin: "<｜DSML｜invoke name=\"",
        body: Body::Keyed(DSML),
        section_end: "\n</｜DSML｜tool_calls>",
        between: "\n",
        ..NONE
    },
    // DeepSeek V4.1.
    Format {
        names: &["deepseek_v41"],
        section_begin: "<｜DSML｜ calls>\n",
        begin: "<｜DSML｜ invoke name=\"",
        body: Body::Keyed(Keyed {
            key_open: "<｜DSML｜ parameter name=\"",
            value_close: "</｜DSML｜ parameter>\n",
            close: "</｜DSML｜ invoke>",
            ..DSML
        }),
        section_end: "\n</｜DSML｜ calls>",
        between: "\n",
        ..NONE
    },
    // Step 3.
    Format {
        names: &["step3"],
        section_begin: "<｜tool_calls_begin｜>",
        begin: "<｜tool_call_begin｜>",
        body: Body::Keyed(Keyed {
            name_open: "function<｜tool_sep｜><steptml:invoke name=\"",
            name_close: "\">",
            key_open: "<steptml:parameter name=\"",
            value_close: "</steptml:parameter>",
            close: "</steptml:invoke>",
            ..INVOKE
        }),
        ends: &["<｜tool_call_end｜>"],
        section_end: "<｜tool_calls_end｜>",
        ..NONE
    },
    // Llama 4, and Llama 3.2 with a pythonic template.
    Format {
        names: &["pythonic", "llama4_pythonic"],
        section_begin: "<|python_start|>",
        body: Body::Pythonic,
        section_end: "<|python_end|>",
        ..NONE
    },
    // OLMo 3.
    Format {
        names: &["olmo3"],
        begin: "<function_calls>",
        body: Body::PythonicLines,
        ends: &["</function_calls>"],
        ..NONE
    },
    // LFM 2.
    Format {
        names: &["lfm2"],
        begin: "<|tool_call_start|>",
        body: Body::Pythonic,
        ends: &["<|tool_call_end|>"],
        ..NONE
    },
    // Mistral's tokenizers up to version 7.
    Format {
        names: &["mistral"],
        begin: "[TOOL_CALLS]",
        body: Body::List(Keys::Name),
        ids: Ids::Nine,
        ..NONE
    },
    // Mistral's tokenizers from version 11 on.
    Format {
        names: &["mistral_v11"],
        begin: "[TOOL_CALLS]",
        body: Body::Named { before: "", after: "[ARGS]", numbered: false },
        ids: Ids::Nine,
        ..NONE
    },
    // DeepSeek V3 and R1.
    Format {
        names: &["deepseek_v3", "deepseek"],
        section_begin: "<｜tool▁calls▁begin｜>",
        begin: "<｜tool▁call▁begin｜>",
        body: Body::Named { before: "function<｜tool▁sep｜>", after: "\n```json\n", numbered: false },
        ends: &["\n```", "<｜tool▁call▁end｜>"],
        section_end: "<｜tool▁calls▁end｜>",
        between: "\n",
        ..NONE
    },
    // DeepSeek V3.1.
    Format {
        names: &["deepseek_v31"],
        section_begin: "<｜tool▁calls▁begin｜>",
        begin: "<｜tool▁call▁begin｜>",
        body: Body::Named { before: "", after: "<｜tool▁sep｜>", numbered: false },
        ends: &["<｜tool▁call▁end｜>"],
        section_end: "<｜tool▁calls▁end｜>",
        ..NONE
    },
    // Kimi K2.
    Format {
        names: &["kimi_k2"],
        section_begin: "<|tool_calls_section_begin|>",
        begin: "<|tool_call_begin|>",
        body: Body::Named { before: "functions.", after: "<|tool_call_argument_begin|>", numbered: true },
        ends: &["<|tool_call_end|>"],
        section_end: "<|tool_calls_section_end|>",
        ids: Ids::Kimi,
        ..NONE
    },
    // Hunyuan A13B, Jamba, Apriel.
    Format { names: &["hunyuan_a13b", "jamba"], begin: "<tool_calls>", ends: &["</tool_calls>"], ..NONE },
    // Nemotron Nano 2. The name is that of NVIDIA's plugin for vLLM.
    Format { names: &["nemotron_json"], begin: "<TOOLCALL>", ends: &["</TOOLCALL>"], ..NONE },
    // Cohere Command R7B and later.
    Format {
        names: &["cohere_command3", "cohere_command4"],
        begin: "<|START_ACTION|>",
        body: Body::List(Keys::ToolName),
        ends: &["<|END_ACTION|>"],
        ..NONE
    },
    // Gemma 4.
    Format {
        names: &["gemma4"],
        begin: "<|tool_call>",
        body: Body::Braced { quote: "<|\"|>" },
        ends: &["<tool_call|>"],
        ..NONE
    },
    // FunctionGemma.
    Format {
        names: &["functiongemma"],
        begin: "<start_function_call>",
        body: Body::Braced { quote: "<escape>" },
        ends: &["<end_function_call>"],
        ..NONE
    },
    // xLAM 2.
    Format { names: &["xlam"], also_begin: &["<tool_call>"], ends: &["</tool_call>"], ..NONE },
    // Phi-4-mini.
    Format {
        names: &["phi4_mini_json"],
        begin: "<|tool_call|>",
        also_begin: &["functools"],
        ends: &["<|/tool_call|>"],
        ..NONE
    },
    // Firefunction, and Phi-4-mini with vLLM's template. The name is ours.
    Format { names: &["functools"], begin: "functools", ..NONE },
    // Granite 3.0, and 3.1 without the bars.
    Format { names: &["granite"], begin: "<|tool_call|>", also_begin: &["<tool_call>"], ..NONE },
    // GLM-4.5 and later.
    Format {
        names: &["glm45", "glm47", "ling3", "poolside_v1"],
        begin: "<tool_call>",
        body: Body::Keyed(Keyed {
            name_open: "",
            name_close: "",
            key_open: "\n<arg_key>",
            key_close: "</arg_key>",
            value_open: "\n<arg_value>",
            value_close: "</arg_value>",
            value_pad: "",
            close: "\n</tool_call>",
            typed: false,
        }),
        between: "\n",
        ..NONE
    },
    // GPT-OSS.
    Format { names: &["openai", "gpt_oss", "harmony"], body: Body::Harmony, ..NONE },
];

const THINK: Reasoning = Reasoning {
    names: &[],
    open: "<think>",
    close: "</think>",
    implicit: false,
    answer_open: &[],
    answer_close: &[],
};

/// Reasoning formats, except GPT-OSS's channels. The first that fits is the one that a template reveals.
pub static REASONING: &[Reasoning] = &[
    // Granite 3.3, and ERNIE 4.5 by its template, which shows whether the prompt opens reasoning.
    Reasoning { answer_open: &["<response>"], answer_close: &["</response>"], ..THINK },
    Reasoning { names: &["hunyuan_a13b"], answer_open: &["<answer>"], answer_close: &["</answer>"], ..THINK },
    Reasoning {
        names: &[
            "qwen3",
            "glm45",
            "glm47",
            "deepseek_v3",
            "deepseek_v31",
            "deepseek_v4",
            "deepseek_v41",
            "kimi_k2",
            "holo2",
            "ling3",
            "mimo",
            "nemotron_v3",
            "granite_thinking_parser",
            "poolside_v1",
        ],
        ..THINK
    },
    Reasoning {
        names: &["deepseek_r1", "minimax_m2", "olmo3", "step3", "step3p5", "step5"],
        implicit: true,
        ..THINK
    },
    Reasoning {
        names: &["ernie45"],
        implicit: true,
        answer_open: &["<response>"],
        answer_close: &["</response>"],
        ..THINK
    },
    Reasoning { names: &["mistral"], open: "[THINK]", close: "[/THINK]", ..THINK },
    Reasoning { names: &["seed_oss"], open: "<seed:think>", close: "</seed:think>", ..THINK },
    Reasoning {
        names: &["cohere_command3", "cohere_command4"],
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        answer_open: &["<|START_RESPONSE|>", "<|START_TEXT|>"],
        answer_close: &["<|END_RESPONSE|>", "<|END_TEXT|>"],
        ..THINK
    },
    Reasoning { names: &["gemma4"], open: "<|channel>thought", close: "<channel|>", ..THINK },
];

/// Names that vLLM's `--reasoning-parser` has for GPT-OSS's channels.
pub const HARMONY_REASONING: [&str; 2] = ["openai_gptoss", "gpt_oss"];
