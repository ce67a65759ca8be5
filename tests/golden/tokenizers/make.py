"""Trains tiny vocabularies in the forms that models have without a tokenizer.json; writes them here, and
cases.json with the ids that the reference libraries give.

Usage: make.py          trains and writes everything
       make.py --ids    writes only cases.json

Needs transformers 5.24, sentencepiece 0.2.3, protobuf, tiktoken 0.14, and mistral-common 1.13 in another
environment, whose python MISTRAL_COMMON names: where mistral-common can be imported, transformers leaves
tekken.json to it.
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

HERE = pathlib.Path(__file__).resolve().parent

SENTENCES = """
A router gives a request to the worker that reaches its first token soonest.
The worker keeps the keys and values of a prefix, so that the next request with the same prefix starts later.
Each block holds sixteen positions, and a sequence has a table of blocks.
When a worker is lost, another worker gets the prompt and the tokens that were delivered.
The tokenizer splits a text into words and each word into tokens, in 2024 as in 1999.
Weights are read once; the largest files have 4,500,000,000 bytes or more.
We don't know whether it's the tokenizer's fault, but they've told us that we'll see it again.
def handle(self, now, event): return [self.plan(now), event.answer()]
Le modèle répond à la requête dès que le premier jeton est prêt, même après une panne.
Der Verteiler schickt die Anfrage an den Rechner, der über den größten Zwischenspeicher verfügt.
分词器把文本分成词，再把词分成记号。模型在服务器上运行。
トークナイザーは文章を単語に分けます。
""".strip().splitlines()

TEXTS = [
    "", " ", "  ", "   a", "a", " a", "a ", "a  ", "a  b", "a   b c", "\n", "\n\n", "a\nb", "a \n b", "\ta\t\tb", "a\r\nb",
    "The worker reads the tokens.", " The worker reads the tokens. ", "The  worker\n\n  reads", "don't they've IT'S we'll",
    "in 2024, 1999 and 4,500,000 bytes", "12345678901", "def f(x):\n    return x  # two\n", "modèle répond à l'été", "e\u0301te\u0301",
    "größten Über", "分词器把文本", "トークナイザー。", "mixed 分词 text", "emoji 👩‍💻 and 🙂", "ﬁne ① Ｆｕｌｌ ﷺ ½", "\u00a0nbsp\u2003em\u3000wide",
    "<s>", "</s>", "<s> the <s>", "a<s>b</s>c", "<unk> the", "<0x41> <0x0A>", "<|im_end|>", "the<|im_end|>the", "the <|im_end|> the",
    "<|im_start|>user\nThe worker<|im_end|>\n", "<ctl>", "a <ctl> b", "[USR]", "a[USR]b [USR] c", "▁", "▁the ▁", "the▁worker", " ▁a",
    "\u200bzero\u200dwidth", "\x00\x01", "Ġthe Ċ", "Привет, мир", "שלום", "the" * 12, "x" * 40, " " * 20 + "a", "[INST] the worker [/INST]",
    "<|endoftext|>", "a <|endoftext|> b", "<pad> <mask>", "<extra_id_0> the", "<|begin_of_text|>the<|eot_id|>",
]


# Every such text is decoded, too.
DECODED = 6


def train_sentence_piece(name: str, **options) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        (folder / "text").write_text("\n".join(SENTENCES))
        # A few of NFKC's rules; all of them would take 240 KB.
        rules = {"ﬁ": "fi", "①": "1", "½": "1⁄2", "\u3000": " ", "\u00a0": " ", "\u200b": "", "ﷺ": "صلى", "\t": " ", "\n": " "}
        rules |= {chr(0xFF01 + n): chr(0x21 + n) for n in range(94)}
        tsv = "\n".join(f"{' '.join(f'{ord(c):X}' for c in k)}\t{' '.join(f'{ord(c):X}' for c in v)}" for k, v in rules.items())
        (folder / "rules").write_text(tsv)
        if options.pop("rules", False):
            options["normalization_rule_tsv"] = str(folder / "rules")
        else:
            options["normalization_rule_name"] = "identity"
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / "m"), num_threads=1, minloglevel=2,
            hard_vocab_limit=False, **options)
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString((folder / "m.model").read_bytes())
    for field in ("input", "model_prefix", "normalization_rule_tsv"):
        proto.trainer_spec.ClearField(field) if hasattr(proto.trainer_spec, field) else proto.normalizer_spec.ClearField(field)
    (HERE / name).write_bytes(proto.SerializeToString())


def train_byte_level() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    (HERE / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False, separators=(",", ":")))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (HERE / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")


def byte_of() -> dict:
    """Bytes of the characters of GPT-2's alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


def write_ranks() -> None:
    """tiktoken.model and tekken.json have the byte-level vocabulary's tokens by rank: bytes first."""
    alphabet = byte_of()
    vocabulary = json.loads((HERE / "vocab.json").read_text())
    tokens = [bytes(alphabet[c] for c in token) for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])[4:]]
    ranked = [bytes([byte]) for byte in range(256)] + [token for token in tokens if len(token) > 1]
    encoded = [base64.b64encode(token).decode() for token in ranked]
    (HERE / "tiktoken.model").write_text("".join(f"{token} {rank}\n" for rank, token in enumerate(encoded)))
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
    pattern = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tekken = {
        "config": {"pattern": pattern, "num_vocab_tokens": len(ranked), "default_vocab_size": len(ranked) + 10 - 20,
                   "default_num_special_tokens": 10, "version": "v3"},
        # Twenty of them lie over `default_vocab_size` and are never used.
        "vocab": [{"rank": rank, "token_bytes": token, "token_str": None} for rank, token in enumerate(encoded)],
        "special_tokens": [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(special)],
    }
    (HERE / "tekken.json").write_text(json.dumps(tekken, separators=(",", ":")))


def added(content: str, **options) -> dict:
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **plain, **options}


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LISTED = {str(id): added(text) for id, text in enumerate(["<unk>", "<s>", "</s>"])}
CHAT = {"<|im_start|>": 600, "<|im_end|>": 601}


def config(**fields) -> dict:
    return {"tokenizer_config.json": fields}


def llama(model_type: str = "llama", **fields) -> dict:
    return {"config.json": {"model_type": model_type}, "tokenizer.model": "@bpe.model",
            **config(tokenizer_class="LlamaTokenizer", **SPECIAL, **fields)}


def byte_level(model_type: str, **fields) -> dict:
    return {"config.json": {"model_type": model_type}, "vocab.json": "@vocab.json", "merges.txt": "@merges.txt", **config(**fields)}


# Files of each directory: their content, or after `@` the name of the file here that is their content.
CASES = {
    "Llama 2, legacy": llama(legacy=True, add_bos_token=True, added_tokens_decoder=LISTED),
    "Llama 2, not legacy": llama(legacy=False, add_bos_token=True, add_eos_token=True, added_tokens_decoder=LISTED),
    "Llama 2, which does not say": llama(),
    "Llama 2, without prefix": llama(add_prefix_space=False, add_bos_token=True),
    "Llama 2, legacy null, added_tokens.json": {
        **llama(legacy=None, add_bos_token=True), "added_tokens.json": CHAT,
        "special_tokens_map.json": {**SPECIAL, "eos_token": "<|im_end|>", "pad_token": added("<|im_start|>")}},
    "Llama 2, tokens by id": llama(add_bos_token=True, added_tokens_decoder={
        **LISTED, "430": added("<|im_start|>"), "431": added("<|im_end|>", rstrip=True)}),
    "Llama 2, more special tokens": llama(additional_special_tokens=["<|im_end|>", "the"]),
    "Code Llama": {**llama("code_llama"), **config(tokenizer_class="CodeLlamaTokenizer", **SPECIAL)},
    "Mistral": llama("mistral", add_bos_token=True, added_tokens_decoder=LISTED),
    "Mistral, not legacy": llama("mistral", legacy=False, add_bos_token=True, added_tokens_decoder=LISTED),
    "Mixtral, normalized tokens": llama("mixtral", add_bos_token=True, legacy=True, added_tokens_decoder={
        **LISTED, "430": added("<|im_end|>", normalized=True)}),
    "Phi 3, renamed pieces": llama("phi3", legacy=False, add_bos_token=True, added_tokens_decoder={
        **LISTED, "3": added("<|im_start|>"), "600": added("<|im_end|>", rstrip=True)}),
    "no tokenizer_config.json": {"config.json": {"model_type": "llama"}, "tokenizer.model": "@bpe.model"},
    "Gemma": {"config.json": {"model_type": "gemma2"}, "tokenizer.model": "@bpe.model",
              **config(tokenizer_class="GemmaTokenizer", add_bos_token=True, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                       additional_special_tokens=["<|im_start|>", "<|im_end|>"])},
    "unigram": {"config.json": {"model_type": "llama"}, "tokenizer.model": "@unigram.model"},
    "unigram with bytes": {"config.json": {"model_type": "internlm2"}, "tokenizer.model": "@unigram_bytes.model",
                           **config(tokenizer_class="InternLM2Tokenizer", add_bos_token=True, **SPECIAL)},
    "T5": {"config.json": {"model_type": "t5"}, "spiece.model": "@unigram.model",
           **config(tokenizer_class="T5Tokenizer", extra_ids=3, eos_token="</s>", unk_token="<unk>", pad_token="<s>")},
    "GPT-2": byte_level("gpt2", tokenizer_class="GPT2Tokenizer"),
    "GPT-2, with prefix and BOS": byte_level("gpt2", tokenizer_class="GPT2Tokenizer", add_prefix_space=True, add_bos_token=True, bos_token="<s>"),
    "GPT-2 of a Llama": byte_level("llama", tokenizer_class="GPT2TokenizerFast", bos_token="<s>", eos_token="<|im_end|>", unk_token="<unk>"),
    "Qwen 2": byte_level("qwen2", tokenizer_class="Qwen2Tokenizer", bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                         additional_special_tokens=["<|im_start|>", "<|im_end|>"], added_tokens_decoder={
                             "420": added("<|endoftext|>"), "421": added("<|im_start|>"), "422": added("<|im_end|>")}),
    "Qwen 2, which does not say": {**byte_level("qwen2"), "tokenizer_config.json": {}},
    "Qwen 3": byte_level("qwen3", tokenizer_class="Qwen2Tokenizer", eos_token="<|im_end|>"),
    "Qwen 3.5": byte_level("qwen3_5", tokenizer_class="Qwen2Tokenizer"),
    "RoBERTa": byte_level("roberta", tokenizer_class="RobertaTokenizer"),
    "GPT-NeoX": byte_level("gpt_neox", tokenizer_class="GPTNeoXTokenizer", add_bos_token=True),
    "Cohere": byte_level("cohere", tokenizer_class="CohereTokenizer", add_bos_token=True, bos_token="<s>"),
    "Llama 3's ranks": {"config.json": {"model_type": "llama"}, "tokenizer.model": "@tiktoken.model",
                        **config(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|begin_of_text|>", eos_token="<|eot_id|>",
                                 added_tokens_decoder={"416": added("<|begin_of_text|>"), "419": added("<|eot_id|>")})},
    "unigram of a Llama, tokens by id": {
        "config.json": {"model_type": "mistral"}, "tokenizer.model": "@unigram.model",
        **config(tokenizer_class="LlamaTokenizer", legacy=False, add_bos_token=True, **SPECIAL, added_tokens_decoder={
            **LISTED, "400": added("<|im_end|>", normalized=True)})},
    "BPE of a Granite": byte_level("llama", tokenizer_class="GPT2Tokenizer", add_eos_token=True, eos_token=None),
    "ranks without declared tokens": {"config.json": {"model_type": "llama"}, "tokenizer.model": "@tiktoken.model"},
    "tekken": {"config.json": {"model_type": "mistral"}, "tekken.json": "@tekken.json"},
    "tekken, with tokenizer_config.json": {
        "config.json": {"model_type": "mistral"}, "tekken.json": "@tekken.json",
        **config(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=True, **SPECIAL)},
}


def directory_of(files: dict, folder: pathlib.Path) -> pathlib.Path:
    for name, content in files.items():
        if isinstance(content, str):
            (folder / name).write_bytes((HERE / content[1:]).read_bytes())
        else:
            (folder / name).write_text(json.dumps(content))
    return folder


def result(files: dict) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        folder = directory_of(files, pathlib.Path(directory))
        if files["config.json"]["model_type"] == "qwen3_5":
            # Its class does not say the names of its files, so AutoTokenizer gives it an empty vocabulary.
            tokenizer = Qwen3_5Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
        else:
            tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    assert plain[TEXTS.index("a")], "a text of letters has no tokens"
    return {
        "ids": plain,
        "around": tokenizer.encode("a", add_special_tokens=True),
        "decoded": [tokenizer.decode(ids) for ids in plain[::DECODED]],
    }


def of_sentence_piece(file: str) -> list:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / file))
    return [processor.encode(text) for text in TEXTS]


KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def of_kimi() -> list:
    """Kimi K2's own tokenizer is tiktoken with this pattern."""
    ranks = {}
    for line in (HERE / "tiktoken.model").read_text().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    special = {"[BOS]": len(ranks), "<|im_end|>": len(ranks) + 2}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    return [encoding.encode(text, allowed_special="all") for text in TEXTS]


OF_MISTRAL_COMMON = """
import json, sys
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
tokenizer = Tekkenizer.from_file(sys.argv[1])
print(json.dumps([tokenizer.encode(text, bos=True, eos=False) for text in json.load(sys.stdin)]))
"""


def of_mistral_common(file: pathlib.Path, texts: list) -> list:
    """Its ids begin with <s>; special tokens in a text are text."""
    python = os.environ["MISTRAL_COMMON"]
    run = subprocess.run([python, "-c", OF_MISTRAL_COMMON, str(file)], input=json.dumps(texts),
                         capture_output=True, check=True, text=True)
    return json.loads(run.stdout)


def main() -> None:
    if "--ids" not in sys.argv:
        common = {"vocab_size": 430, "control_symbols": ["<ctl>"], "user_defined_symbols": ["[USR]"], "character_coverage": 0.98}
        train_sentence_piece("bpe.model", model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, split_digits=True,
                             allow_whitespace_only_pieces=True, **common)
        train_sentence_piece("unigram.model", model_type="unigram", rules=True, **{**common, "vocab_size": 300})
        train_sentence_piece("unigram_bytes.model", model_type="unigram", rules=True, byte_fallback=True, add_dummy_prefix=False,
                             **{**common, "vocab_size": 500})
        train_byte_level()
        write_ranks()
    cases = [{"name": name, "files": files, **result(files)} for name, files in CASES.items()]
    others = {
        "sentencepiece": {file: of_sentence_piece(file) for file in ("bpe.model", "unigram.model", "unigram_bytes.model")},
        "kimi": of_kimi(),
        "mistral-common": of_mistral_common(HERE / "tekken.json", TEXTS),
    }
    # Most cases have the same ids of most texts: these are written once, and cases have their places.
    encodings = [[] for _ in TEXTS]

    def places(ids: list) -> list:
        for known, of_text in zip(encodings, ids):
            if of_text not in known:
                known.append(of_text)
        return [known.index(of_text) for known, of_text in zip(encodings, ids)]

    for case in cases:
        case["ids"] = places(case["ids"])
    lines = ",\n".join(json.dumps(case, separators=(",", ":"), ensure_ascii=False) for case in cases)
    head = {"texts": TEXTS, "encodings": encodings, "others": others, "decoded_every": DECODED}
    head = ",\n".join(f'"{name}":{json.dumps(value, separators=(",", ":"))}' for name, value in head.items())
    (HERE / "cases.json").write_text(f'{{{head},\n"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
