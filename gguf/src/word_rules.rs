//! Rules by which byte-level tokenizers split text into words. A file names its rule in `tokenizer.ggml.pre`;
//! the names are those of llama.cpp (as in llama-cpp-python 0.3.36), the expressions those of the models' own
//! tokenizer.json, which llama.cpp approximates where its expressions lack classes of letters.

use serde_json::{Value as Json, json};

/// Rule of a byte-level tokenizer.
#[derive(Debug)]
pub struct WordRule {
    /// Names of the rule in files.
    pub names: &'static [&'static str],
    /// Regular expressions of words, applied one after another; empty = GPT-2's.
    words: &'static [&'static str],
    /// Whether each digit is its own word, before any other split.
    splits_digits: bool,
    /// Whether text is normalised to Unicode form C.
    pub is_composed: bool,
    /// Whether a word that is a token bypasses the merges.
    pub ignores_merges: bool,
    /// Whether a BOS token is added if the file does not specify it.
    pub adds_bos: bool,
}

const GPT2: WordRule = WordRule {
    names: &[
        "gpt-2",
        "gpt2",
        "phi-2",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "exaone4",
        "gigachat",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "roberta-bpe",
        "jina-es",
        "jina-de",
        "jina-v1-en",
        "jina-v2-es",
        "jina-v2-de",
        "jina-v2-code",
    ],
    words: &[],
    splits_digits: false,
    is_composed: false,
    ignores_merges: false,
    adds_bos: false,
};

/// GPT-2's expression, for rules in which it is one of several.
const GPT2_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// An expression of the kind that GPT-4 introduced: English contractions, letters with what leads them,
/// digits, signs, white space.
macro_rules! gpt4 {
    ($letters:literal, $digits:literal, $signs:literal, $space:literal) => {
        concat!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|", gpt4!(bare $letters, $digits, $signs, $space))
    };
    (bare $letters:literal, $digits:literal, $signs:literal, $space:literal) => {
        concat!(r"[^\r\n\p{L}\p{N}]?", $letters, "|", $digits, "| ?", $signs, "|", $space)
    };
}

/// White space: up to the last newline of a run, then all but the last of it before a word.
const LLAMA3: &str = gpt4!(r"\p{L}+", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+");
const QWEN2: &str = gpt4!(r"\p{L}+", r"\p{N}", r"[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+");
const QWEN35: &str =
    gpt4!(r"[\p{L}\p{M}]+", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+");
const MINICPM5: &str = gpt4!(r"\p{L}+", r"\p{N}+", r"[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+");
const SEED_CODER: &str = gpt4!(r"\p{L}+", r"\p{N}", r"[^\s\p{L}\p{N}\r\n]+", r"\s*[\r\n]+|\s+(?!\S)|\s+");
/// A newline ends a word, so that several are several words.
const BAILING: &str = gpt4!(r"\p{L}+", r"\p{N}", r"[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]|\s+(?!\S)|\s+");
/// Without contractions, so that Turkish suffixes stay with their apostrophe.
const UFAKZEKA: &str =
    gpt4!(bare r"\p{L}+", r"\p{N}", r"[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+");
/// A word may have spaces between single letters.
const EXAONE_MOE: &str = gpt4!(
    r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"\p{N}",
    r"[^\s\p{L}\p{N}]+[\r\n/]?",
    r"\s*[\r\n]|\s+(?!\S)|\s+"
);
/// Runs of white space in powers of two.
const JAIS2: &str = gpt4!(
    r"\p{L}+",
    r"\p{N}{1,3}",
    r"[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s"
);

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-4o's expression: words end before a capital, contractions belong to the word before them.
macro_rules! gpt4o {
    ($upper:literal, $lower:literal, $digits:literal, $after_signs:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            r"+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            r"*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+",
            $after_signs,
            r"*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

const GPT4O: &str =
    gpt4o!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"\p{N}{1,3}", r"[\r\n/]");
const YOUTU: [&str; 2] = [
    r"[가-힣\x{3131}-\x{318E}]+|[！…“”‘’—：；，\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[一-龥\x{3040}-\x{30FF}]+",
    gpt4o!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"\p{N}", r"[\r\n/]"),
];
/// Runs of Chinese characters are words of their own.
const KIMI_K2: &str = concat!(
    r"\p{Han}+|",
    gpt4o!(
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
        r"\p{N}{1,3}",
        r"[\r\n]"
    )
);

/// DeepSeek-V3's words, after digits, and Chinese and Japanese characters.
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK3: [&str; 3] = [r"\p{N}{1,3}", CHINESE_JAPANESE, DEEPSEEK3_WORDS];
const CHINESE_JAPANESE: &str = r"[一-龥\x{3040}-\x{30FF}]+";
/// The same without newlines after signs, and each digit alone.
const SPARK: [&str; 4] = [
    r"\p{N}{1,3}",
    CHINESE_JAPANESE,
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
    r"\p{N}",
];
/// Letters with case in the Unicode of DeepSeek's first tokenizer: not a class that Unicode names.
const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    EAST_ASIAN,
    r"\p{N}+",
];
const DEEPSEEK_CODER: [&str; 5] = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"];
const EAST_ASIAN: &str = r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+";

/// Threes of digits, counted from the end of a number. Three expressions, because one would look ahead from
/// each three to the end of the number.
const DIGITS: &str = r"\p{N}+";
const FIRST_DIGITS: &str = r"^\p{N}{1,2}(?=(?:\p{N}{3})+$)";
const THREE_DIGITS: &str = r"\p{N}{3}";
const AFMOE: [&str; 5] = [
    DIGITS,
    FIRST_DIGITS,
    THREE_DIGITS,
    r"[\x{E40}-\x{EFF}\x{1000}-\x{109F}\x{1100}-\x{11FF}\x{1780}-\x{17FF}\x{2F00}-\x{2FDF}\x{3040}-\x{30FF}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{A9E0}-\x{A9FF}\x{AA60}-\x{AA7F}\x{AC00}-\x{D7AF}\x{F900}-\x{FAFF}\x{FF65}-\x{FF9F}]+",
    DEEPSEEK3_WORDS,
];

/// Words of Finnish models: up to punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CHAMELEON: [&str; 6] = [
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2_WORDS,
];
const FALCON: [&str; 3] = [r"[\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"];
/// llama.cpp's rule for files that name none.
const DEFAULT: [&str; 4] = [r"[\p{P}$+<=>^~|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"];

/// Name of the rule for files that name none.
const DEFAULT_NAME: &str = "default";

/// Rules that do not write bytes as GPT-2's characters; no supported architecture has them.
const NOT_BYTE_LEVEL: [&str; 4] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"];

/// Supported rules.
const RULES: [WordRule; 31] = [
    GPT2,
    WordRule {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        words: &[LLAMA3],
        ignores_merges: true,
        adds_bos: true,
        ..GPT2
    },
    WordRule { names: &["glm4", "glm5"], words: &[LLAMA3], ignores_merges: true, ..GPT2 },
    WordRule { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], words: &[LLAMA3], ..GPT2 },
    WordRule {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"],
        words: &[QWEN2],
        is_composed: true,
        ..GPT2
    },
    WordRule { names: &["stablelm2", "hunyuan", "solar-open", "grok-2"], words: &[QWEN2], ..GPT2 },
    WordRule { names: &["qwen35"], words: &[QWEN35], is_composed: true, ..GPT2 },
    WordRule {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        splits_digits: true,
        ..GPT2
    },
    WordRule { names: &["tekken"], words: &[TEKKEN], ignores_merges: true, adds_bos: true, ..GPT2 },
    WordRule {
        names: &["gpt-4o", "llama4", "o200k", "kanana2", "talkie", "minimax-m2"],
        words: &[GPT4O],
        ..GPT2
    },
    WordRule { names: &["granite-embed-multi-97m"], words: &[GPT4O], ignores_merges: true, ..GPT2 },
    WordRule { names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], words: &DEEPSEEK3, ..GPT2 },
    WordRule { names: &["deepseek-llm"], words: &DEEPSEEK_LLM, ..GPT2 },
    WordRule { names: &["deepseek-coder"], words: &DEEPSEEK_CODER, ..GPT2 },
    WordRule { names: &["spark2_5"], words: &SPARK, ..GPT2 },
    WordRule { names: &["kimi-k2"], words: &[KIMI_K2], ..GPT2 },
    WordRule { names: &["youtu"], words: &YOUTU, ignores_merges: true, ..GPT2 },
    WordRule { names: &["seed-coder"], words: &[SEED_CODER], ..GPT2 },
    WordRule { names: &["bailingmoe", "bailingmoe2", "llada-moe"], words: &[BAILING], ..GPT2 },
    WordRule { names: &["minicpm5"], words: &[r"\p{N}{1,3}", MINICPM5], ignores_merges: true, ..GPT2 },
    WordRule { names: &["ufakzeka"], words: &[UFAKZEKA], ..GPT2 },
    WordRule { names: &["exaone-moe"], words: &[EXAONE_MOE], ..GPT2 },
    WordRule { names: &["jais-2"], words: &[JAIS2], ..GPT2 },
    WordRule { names: &["laguna"], words: &[r"[^\n]+|\n+", QWEN2], ..GPT2 },
    WordRule {
        names: &["tiny_aya", "cohere2moe"],
        words: &[DIGITS, FIRST_DIGITS, THREE_DIGITS, GPT4O],
        ..GPT2
    },
    WordRule { names: &["afmoe"], words: &AFMOE, ..GPT2 },
    WordRule { names: &["superbpe"], words: &[DIGITS, FIRST_DIGITS, THREE_DIGITS], ..GPT2 },
    WordRule { names: &["bloom", "gpt3-finnish", "poro-chat"], words: &[BLOOM], ..GPT2 },
    WordRule { names: &["viking"], words: &[BLOOM, r"\p{N}"], ..GPT2 },
    WordRule { names: &["chameleon"], words: &CHAMELEON, adds_bos: true, ..GPT2 },
    WordRule { names: &["falcon"], words: &FALCON, ..GPT2 },
];
const DEFAULT_RULE: WordRule = WordRule { names: &[DEFAULT_NAME], words: &DEFAULT, ..GPT2 };

impl WordRule {
    /// The rule that a file calls `name`; `None` = the file names none.
    ///
    /// # Errors
    /// What is wrong with the name, in words.
    pub fn named(name: Option<&str>) -> Result<Self, String> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME);
        let mut rules = RULES.into_iter().chain([DEFAULT_RULE]);
        rules.find(|rule| rule.names.contains(&name)).ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            if NOT_BYTE_LEVEL.contains(&name) {
                return format!("{shown:?}, a rule whose tokens are not byte-level");
            }
            let names: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
            format!("{shown:?}; supported: {DEFAULT_NAME}, {}", names.join(", "))
        })
    }

    /// `pre_tokenizer` of a tokenizer.json.
    pub fn pre_tokenizer(&self) -> Json {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": self.words.is_empty()});
        let words = self.words.iter().map(|words| {
            json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false})
        });
        let digits = self.splits_digits.then(|| json!({"type": "Digits", "individual_digits": true}));
        let steps: Vec<Json> = digits.into_iter().chain(words).chain([bytes]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
