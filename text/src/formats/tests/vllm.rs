//! Values that the parsers of vLLM 0.33.0 gave for whole answers: `extract_tool_calls` and
//! `extract_reasoning` of the parser of each name. Where we differ on purpose, the case says so.

use super::*;

const CITY: &str = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}}";

fn city() -> (&'static str, Value) {
    ("get_weather", json!({"city": "x"}))
}

fn add(arguments: Value) -> (&'static str, Value) {
    ("add", arguments)
}

#[test]
fn longcats_calls_have_its_own_tags() {
    let call = |json: &str| format!("<longcat_tool_call>{json}</longcat_tool_call>");
    let two =
        format!("before\n{}\n{}", call(CITY), call("\n{\"name\": \"add\", \"arguments\": {\"a\": 2}}\n"));
    check("longcat", &two, "before", &[city(), add(json!({"a": 2}))]);
    // vLLM drops text after a call, we show it.
    check("longcat", &format!("{}\nafter", call(CITY)), "after", &[city()]);
    // A mark in a string and nested objects; vLLM ends the call at the mark.
    let nested =
        "{\"name\": \"add\", \"arguments\": {\"a\": {\"b\": [{}]}, \"b\": \"</longcat_tool_call>\"}}";
    check("longcat", &call(nested), "", &[add(json!({"a": {"b": [{}]}, "b": "</longcat_tool_call>"}))]);
    for broken in
        [call("{\"name\": \"add\" \"arguments\": 1}"), call("add"), format!("<tool_call>{CITY}</tool_call>")]
    {
        if broken.contains("longcat") {
            let parts = whole(&plan("longcat", None, Opening::Fresh), &broken);
            assert!(parts.ended.is_empty(), "{broken}: {parts:?}");
        } else {
            check("longcat", &broken, &broken, &[]);
        }
    }
    check("longcat", &call("add"), &call("add"), &[]);
    is_cut("longcat", "<longcat_tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1", "{\"a\": 1");
}

/// The answer was cut within the arguments of a call of `add`: the client has what came.
fn is_cut(parser: &str, text: &str, arguments: &str) {
    let parts = whole(&plan(parser, None, Opening::Fresh), text);
    assert_eq!(parts.calls, [("add".to_owned(), arguments.to_owned())], "{text}");
    assert_eq!((parts.ended, parts.content.as_str()), (vec![], ""), "{text}");
}

#[test]
fn olmos_calls_stand_on_lines() {
    let call = |lines: &str| format!("<function_calls>{lines}</function_calls>");
    check("olmo3", &call("get_weather(city=\"x\")\nadd(a=2)"), "", &[city(), add(json!({"a": 2}))]);
    let values = call("\nadd(a={\"b\": [true, null]}, b=(1, None))\n");
    check("olmo3", &values, "", &[add(json!({"a": {"b": [true, null]}, "b": [1, null]}))]);
    // vLLM drops the text around calls, and ends them at a mark in a string.
    let around = format!("before {} after", call("now()"));
    check("olmo3", &around, "before after", &[("now", json!({}))]);
    let mark = call("get_weather(city=\"</function_calls>\\n\")");
    check("olmo3", &mark, "", &[("get_weather", json!({"city": "</function_calls>\n"}))]);
    // Not a call in vLLM's stream either; its whole answers also take lines without tags.
    for text in [&call("add(a=")[..], &call("other()"), "now()", "[now()]", "<function_calls>"] {
        check("olmo3", text, text, &[]);
    }
    check("olmo3", &call("now()\nand so on"), "and so on</function_calls>", &[("now", json!({}))]);
    let cut = whole(&plan("olmo3", None, Opening::Fresh), "<function_calls>now()\nadd(a");
    assert_eq!((cut.calls.len(), cut.content.as_str()), (1, "add(a"));
}

#[test]
fn granites_list_follows_either_mark() {
    check("granite", &format!("<tool_call>[{CITY}]"), "", &[city()]);
    let two = format!("<|tool_call|>[{CITY}, {{\"name\": \"add\", \"arguments\": {{\"a\": 2}}}}]");
    check("granite", &two, "", &[city(), add(json!({"a": 2}))]);
    let nested = "before <tool_call> [{\"name\": \"add\", \"arguments\": {\"a\": {\"b\": [{}]}, \"b\": \"<tool_call>]\"}}]";
    check("granite", nested, "before", &[add(json!({"a": {"b": [{}]}, "b": "<tool_call>]"}))]);
    check("granite", &format!("<tool_call>[{CITY}] after"), "after", &[city()]);
    // vLLM drops the mark of what is no list.
    for text in ["<tool_call>{}", "<tool_call>x", "<|tool_call|>[1]", "a <tool_call> b"] {
        check("granite", text, text, &[]);
    }
    is_cut("granite", "<tool_call>[{\"name\": \"add\", \"arguments\": {\"a\":", "{\"a\":");
}

#[test]
fn phis_list_follows_functools() {
    for parser in ["phi4_mini_json", "functools"] {
        check(parser, &format!("functools[{CITY}]"), "", &[city()]);
        let two = format!("functools[{CITY},{{\"name\": \"add\", \"parameters\": {{\"a\": 2}}}}]");
        check(parser, &two, "", &[city(), add(json!({"a": 2}))]);
        // vLLM drops the text around the list, and all of an answer whose arguments have a list.
        check(parser, &format!("before {two} after"), "before after", &[city(), add(json!({"a": 2}))]);
        let list = "functools[{\"name\": \"add\", \"arguments\": {\"a\": [{}], \"b\": \"functools[\"}}]";
        check(parser, list, "", &[add(json!({"a": [{}], "b": "functools["}))]);
        for text in ["functools.reduce", "import functools", "functools[0]", "functools[]", "functools"] {
            check(parser, text, text, &[]);
        }
        is_cut(parser, "functools[{\"name\": \"add\", \"arguments\": {\"a\":", "{\"a\":");
    }
    let template = Formats::of_template("functools[{").with(Some("phi4_mini_json"), None).unwrap();
    assert_eq!(template.calls.unwrap().names, ["functools"]);
}

#[test]
fn tags_hold_values_as_they_stand_or_on_lines_of_their_own() {
    let tagged = |open: &str, value: &str| {
        format!(
            "b\n{open}\n<function=get_weather>\n<parameter=city>{value}</parameter>\n<parameter=days>2</parameter>\n</function>\n"
        )
    };
    let call = |city: &str| [("get_weather", json!({"city": city, "days": 2}))];
    check("mimo", &(tagged("<tool_call>", "\nx\n") + "</tool_call>"), "b", &call("\nx\n"));
    check("qwen3_coder", &(tagged("<tool_call>", "\nx\n") + "</tool_call>"), "b", &call("x"));
    check("seed_oss", &(tagged("<seed:tool_call>", "x") + "</seed:tool_call>"), "b", &call("x"));
    // Seed-OSS's template shows a list as Python prints it; vLLM gives a string.
    let list = "<seed:tool_call><function=get_weather><parameter=tags>['a', 'it\\'s']</parameter></function></seed:tool_call>";
    check("seed_oss", list, "", &[("get_weather", json!({"tags": ["a", "it's"]}))]);
    let typed = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">2</｜DSML｜parameter>\n<｜DSML｜parameter name=\"why\" string=\"false\">{\"b\": 1}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    check("deepseek_v32", typed, "", &[("get_weather", json!({"city": "2", "why": {"b": 1}, "days": 2}))]);
    check("minimax_m2", "<invoke name=\"now\"></invoke>", "", &[("now", json!({}))]);
    check("minimax_m2", "<invoke name=now", "<invoke name=now", &[]);
    check("step3", "<｜tool_calls_begin｜>x", "<｜tool_calls_begin｜>x", &[]);
}

#[test]
fn gemmas_arguments_stand_in_braces() {
    let call = |arguments: &str| format!("<|tool_call>call:add{{{arguments}}}<tool_call|>");
    // vLLM gives the text "true" for a bare value in a list.
    let nested = call("a:{b:[<|\"|>y<|\"|>,true,{c:None}],<|\"|>d<|\"|>:-1.5},b:<|\"|>}<tool_call|>{<|\"|>");
    let value = json!({"a": {"b": ["y", true, {"c": null}], "d": -1.5}, "b": "}<tool_call|>{"});
    check("gemma4", &format!("b{nested}after"), "bafter", &[add(value)]);
    // The schema decides what a quoted number or a bare word is.
    let typed =
        "<|tool_call>call:get_weather{city:12345,days:<|\"|>3<|\"|>,tags:[<|\"|>7<|\"|>]}<tool_call|>";
    check("gemma4", typed, "", &[("get_weather", json!({"city": "12345", "days": 3, "tags": ["7"]}))]);
    for text in [
        call("a"),
        call("a:"),
        "<|tool_call>add{}".to_owned(),
        "<|tool_call>call:{}".to_owned(),
        "<|tool_call>call:add{a:1".to_owned(),
    ] {
        check("gemma4", &text, &text, &[]);
    }
    let quoted = "b<start_function_call>call:add{a:<escape>x<escape>,b:<escape>2<escape>}<end_function_call>";
    check("functiongemma", quoted, "b", &[add(json!({"a": "x", "b": 2}))]);
    let thought = "<|channel>thought\nabc\n<channel|>def";
    let parts = whole(&plan("gemma4", Some("gemma4"), Opening::Fresh), thought);
    assert_eq!((parts.reasoning.as_str(), parts.content.as_str()), ("abc", "def"));
}

#[test]
fn xlams_list_is_the_whole_answer_or_follows_a_mark() {
    check("xlam", &format!("[{CITY}]"), "", &[city()]);
    check("xlam", &format!("b<tool_call>[{CITY}]</tool_call>"), "b", &[city()]);
    for text in ["[1, 2]", "[{\"name\": \"Ann\", \"arguments\": {}}]", "It is [{}]"] {
        check("xlam", text, text, &[]);
    }
}

#[test]
fn gigachat_ends_its_text_before_a_call() {
    let call = "function call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}";
    check("gigachat3", &format!("b<|message_sep|>\n\n{call}"), "b", &[("now", json!({}))]);
    check("gigachat3", &format!("b{call}"), "b", &[("now", json!({}))]);
    check("gigachat3", "a function call is", "a function call is", &[]);
}

#[test]
fn the_marks_of_an_answer_behind_reasoning_are_no_content() {
    let check = |reasoning: &str, opening: Opening, text: &str, expected: (&str, &str)| {
        let plan = plan("hermes", Some(reasoning), opening);
        let parts = whole(&plan, text);
        assert_eq!((parts.reasoning.as_str(), parts.content.as_str()), expected, "{text}");
        let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        assert_eq!(given(&plan, text, &bounds).last(), Some(&format!("{parts:?}")), "{text}");
    };
    // White space around marks is dropped; vLLM keeps some of it, other parts whole and streamed.
    let implicit = Formats::default().with(None, Some("ernie45")).unwrap().opening("prompt");
    assert_eq!(implicit, Opening::InReasoning);
    for (text, expected) in [
        ("abc\n</think>\n\n<response>\ndef\n</response>\n", ("abc", "def")),
        ("abc\n</think>\ndef", ("abc", "def")),
        // Cut: vLLM's stream drops the mark, its whole answer keeps it.
        ("abc\n</think>\n\n<response>\ndef", ("abc", "def")),
        ("abc\n</think>\n<response>\nd</resp", ("abc", "d")),
        ("abc", ("abc", "")),
        ("abc</think>x <response> y", ("abc", "x <response> y")),
        ("abc</think><response>a</response>b</response>", ("abc", "a</response>b")),
        ("abc</think>a</response>", ("abc", "a</response>")),
    ] {
        check("ernie45", implicit, text, expected);
    }
    check("hunyuan_a13b", Opening::Fresh, "<think>\nabc\n</think>\n<answer>\ndef\n</answer>", ("abc", "def"));
    check("hunyuan_a13b", Opening::Fresh, "<think>\n\n</think>\n<answer>\ndef", ("", "def"));
    check("hunyuan_a13b", Opening::Fresh, "def", ("", "def"));
    let cohere = "a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>";
    check("cohere_command3", Opening::InReasoning, cohere, ("a", "b"));
    let call = "a</think>\n<response>\nb\n</response>\n<tool_call>{\"name\": \"now\"}</tool_call>";
    check("ernie45", implicit, call, ("a", "b"));
}
