//! An answer with two calls in every format.

/// Two calls in each family's syntax, after a word where the family allows one.
pub const TWO_CALLS: [(&str, &str, &str); 35] = [
    ("lfm2", "Well.<|tool_call_start|>[get_weather(city='Zürich', days=2), now()]<|tool_call_end|>", "Well."),
    (
        "hermes",
        "Well.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        "Well.",
    ),
    (
        "qwen3_coder",
        "Well.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Well.",
    ),
    (
        "llama3_json",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 2}}; {\"name\": \"now\", \"parameters\": {}}",
        "",
    ),
    ("pythonic", "[get_weather(city=\"Zürich\", days=2), now()]", ""),
    (
        "mistral",
        "Well.[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]",
        "Well.",
    ),
    (
        "mistral_v11",
        "Well.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Zürich\", \"days\": 2}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
        "Well.",
    ),
    (
        "deepseek_v3",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Zürich\", \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Well.",
    ),
    (
        "deepseek_v31",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Zürich\", \"days\": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Well.",
    ),
    (
        "kimi_k2",
        "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Zürich\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "Well.",
    ),
    (
        "phi4_mini_json",
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]<|/tool_call|>",
        "",
    ),
    (
        "glm45",
        "Well.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "Well.",
    ),
    (
        "openai",
        "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Zürich\", \"days\": 2}<|call|><|start|>assistant to=functions.now<|channel|>commentary<|message|>{}<|call|>",
        "Well.",
    ),
    (
        "longcat",
        "Well.\n<longcat_tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}\n</longcat_tool_call>\n<longcat_tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</longcat_tool_call>",
        "Well.",
    ),
    (
        "internlm",
        "Well.<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 2}}<|action_end|>\n<|action_start|><|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>\n",
        "Well.",
    ),
    (
        "granite-20b-fc",
        "Well.<function_call> {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}} <function_call> {\"name\": \"now\", \"arguments\": {}}",
        "Well.",
    ),
    (
        "gigachat3",
        "Well.<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}",
        "Well.",
    ),
    ("olmo3", "Well.\n<function_calls>get_weather(city=\"Zürich\", days=2)\nnow()</function_calls>", "Well."),
    (
        "seed_oss",
        "Well.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich</parameter>\n<parameter=days>2</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        "Well.",
    ),
    (
        "mimo",
        "Well.\n<tool_call>\n<function=get_weather>\n<parameter=city>Zürich</parameter>\n<parameter=days>2</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Well.",
    ),
    (
        "minimax_m2",
        "Well.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Zürich</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        "Well.",
    ),
    (
        "dots",
        "Well.\n<dots_function_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Zürich</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</dots_function_call>",
        "Well.",
    ),
    (
        "deepseek_v32",
        "Well.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Well.",
    ),
    (
        "deepseek_v4",
        "Well.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "Well.",
    ),
    (
        "deepseek_v41",
        "Well.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Zürich</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">2</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"now\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        "Well.",
    ),
    (
        "step3",
        "Well.<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"get_weather\"><steptml:parameter name=\"city\">Zürich</steptml:parameter><steptml:parameter name=\"days\">2</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"now\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
        "Well.",
    ),
    (
        "hunyuan_a13b",
        "Well.\n<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
        "Well.",
    ),
    (
        "nemotron_json",
        "Well.\n<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>",
        "Well.",
    ),
    (
        "cohere_command3",
        "Well.<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich\", \"days\": 2}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
        "Well.",
    ),
    (
        "functools",
        "Well. functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]",
        "Well.",
    ),
    (
        "granite",
        "Well.<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]",
        "Well.",
    ),
    (
        "granite",
        "Well.<tool_call> [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]",
        "Well.",
    ),
    (
        "gemma4",
        "Well.<|tool_call>call:get_weather{city:<|\"|>Zürich<|\"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>",
        "Well.",
    ),
    (
        "functiongemma",
        "Well.<start_function_call>call:get_weather{city:<escape>Zürich<escape>,days:<escape>2<escape>}<end_function_call><start_function_call>call:now{}<end_function_call>",
        "Well.",
    ),
    (
        "xlam",
        "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]",
        "",
    ),
];
