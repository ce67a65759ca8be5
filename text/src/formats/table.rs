//! The formats of all supported model families.

use super::{Body, Format, Ids, Keyed, Reasoning};

const NONE: Format = Format {
    names: &[],
    section_begin: "",
    begin: "",
    body: Body::List,
    ends: &[],
    section_end: "",
    between: "",
    ids: Ids::Long,
};

/// Tool-call formats, each with its names in vLLM.
pub static FORMATS: &[Format] = &[
    // Hermes 2 and 3, Qwen 2.5 and 3.
    Format {
        names: &["hermes", "qwen", "qwen2_5", "qwen3_json", "longcat"],
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
        body: Body::Keyed(Keyed {
            name_open: "\n<function=",
            name_close: ">\n",
            key_open: "<parameter=",
            key_close: ">",
            value_open: "\n",
            value_close: "\n</parameter>\n",
            value_pad: "\n",
            close: "</function>",
        }),
        ends: &["\n</tool_call>"],
        between: "\n",
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
    // Llama 4, and Llama 3.2 with a pythonic template.
    Format {
        names: &["pythonic", "llama4_pythonic", "olmo3"],
        section_begin: "<|python_start|>",
        body: Body::Pythonic,
        section_end: "<|python_end|>",
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
    Format { names: &["mistral"], begin: "[TOOL_CALLS]", body: Body::List, ids: Ids::Nine, ..NONE },
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
    // Phi-4-mini.
    Format {
        names: &["phi4_mini_json"],
        begin: "<|tool_call|>",
        body: Body::List,
        ends: &["<|/tool_call|>"],
        ..NONE
    },
    // Granite 3.
    Format { names: &["granite"], begin: "<|tool_call|>", body: Body::List, ..NONE },
    // GLM-4.5 and later.
    Format {
        names: &["glm45", "glm47"],
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
        }),
        between: "\n",
        ..NONE
    },
    // GPT-OSS.
    Format { names: &["openai", "gpt_oss", "harmony"], body: Body::Harmony, ..NONE },
];

/// Reasoning formats, except GPT-OSS's channels.
pub static REASONING: &[Reasoning] = &[
    Reasoning {
        names: &["qwen3", "glm45", "glm47", "deepseek_v3", "deepseek_v31", "kimi_k2", "holo2", "ernie45"],
        open: "<think>",
        close: "</think>",
        implicit: false,
    },
    Reasoning {
        names: &["deepseek_r1", "minimax_m2", "step3", "step3p5", "step5"],
        open: "<think>",
        close: "</think>",
        implicit: true,
    },
    Reasoning { names: &["mistral"], open: "[THINK]", close: "[/THINK]", implicit: false },
];

/// Names that vLLM's `--reasoning-parser` has for GPT-OSS's channels.
pub const HARMONY_REASONING: [&str; 2] = ["openai_gptoss", "gpt_oss"];
