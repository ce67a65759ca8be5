"""Makes tiny random models that give vectors of prompts, and their vectors by sentence-transformers and
transformers in float32: `pooling/<name>/`, complete but for the weights, which have a recipe.

    python pooling.py [name ...]

A case is the ids of a prompt and its vector, or the logits of its labels; ids from `second_from` on are of a
second text. Vectors are divided by their length exactly if the modules say so.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer, models as tokenizer_models, pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

import weights
from models import draw, quiet

ROOM = pathlib.Path(__file__).resolve().parent / "pooling"
LENGTHS, SEED = (45, 1, 9), 0  # tokens of the prompts
BERT = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 200, "max_position_embeddings": 64, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "pad_token_id": 0}
ROBERTA = BERT | {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1,
    "max_position_embeddings": 66, "layer_norm_eps": 1e-5}
MODERN = {
    "architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_activation": "gelu", "hidden_size": 64,
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 200, "max_position_embeddings": 128,
    "global_attn_every_n_layers": 3, "local_attention": 12, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    "norm_eps": 1e-5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
GTE = {key: value for key, value in BERT.items()} | {"architectures": ["GteModel"], "model_type": "gte", "type_vocab_size": 1,
    "pad_token_id": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
DECODER = {
    "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2}
QWEN3 = DECODER | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "rope_theta": 10000.0,
    "tie_word_embeddings": True}
MISTRAL = DECODER | {"architectures": ["MistralModel"], "model_type": "mistral", "sliding_window": 20, "rope_theta": 10000.0}
LLAMA = DECODER | {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama", "rope_theta": 10000.0}
GEMMA = DECODER | {"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 12, "num_hidden_layers": 3, "sliding_window_pattern": 3,
    "use_bidirectional_attention": True, "rope_theta": 100000.0, "rope_local_base_freq": 1000.0}
GEMMA.pop("hidden_act")
labels = lambda *names: {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {name: i for i, name in enumerate(names)}}

OLD = "sentence_transformers.models."
pooled = lambda mode, hidden=64: ("Pooling", {"word_embedding_dimension": hidden, f"pooling_mode_{mode}": True})
NORMALIZE = ("Normalize", None)
dense = lambda inputs, outputs, bias, activation: ("Dense", {
    "in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": f"torch.nn.modules.{activation}"})

# name: (stored as, config.json, modules after the transformer, most tokens). Without modules, the
# architecture says what it does.
MODELS = {
    "bert": ("float32", BERT, [pooled("mean_tokens"), NORMALIZE], 60),
    "bert-pairs": ("float32", BERT | {"architectures": ["BertForSequenceClassification"]} | labels("LABEL_0") | {
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, None, None),
    "xlm-roberta": ("float32", ROBERTA, [pooled("cls_token"), NORMALIZE], None),
    "xlm-roberta-pairs": ("float32", ROBERTA | {"architectures": ["XLMRobertaForSequenceClassification"]} | labels("LABEL_0"), None, None),
    "modernbert": ("float32", MODERN, [pooled("mean_tokens")], None),
    "modernbert-labels": ("float16", MODERN | {
        "architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean", "norm_bias": True,
        "attention_bias": True, "mlp_bias": True, "classifier_bias": True} | labels("no", "maybe", "yes"), None, None),
    "gte": ("float32", GTE, [pooled("cls_token"), NORMALIZE], None),
    "gte-published": ("float16", GTE, [pooled("cls_token"), dense(64, 32, True, "activation.Tanh")], None),
    "embedding-gemma": ("bfloat16", GEMMA, [
        pooled("mean_tokens"), dense(64, 96, False, "linear.Identity"), dense(96, 64, False, "linear.Identity"), NORMALIZE], 120),
    "qwen3-embedding": ("bfloat16", QWEN3, [pooled("lasttoken"), NORMALIZE], None),
    "qwen3-labels": ("bfloat16", QWEN3 | {"architectures": ["Qwen3ForSequenceClassification"]} | labels("LABEL_0"), None, None),
    "qwen3-logits": ("bfloat16", QWEN3, [("LogitScore", {"true_token_id": 17, "false_token_id": 5})], None),
    "mistral": ("float16", MISTRAL, [pooled("lasttoken"), NORMALIZE], None),
    "llama-labels": ("bfloat16", LLAMA | labels("a", "b", "c"), None, None),
}
# What published checkpoints of GTE call the tensors that transformers saves.
PUBLISHED = {"layers.": "encoder.layer.", "self_attn.o_proj": "attention.o_proj", "post_attention_layernorm": "attn_ln",
             "post_mlp_layernorm": "mlp_ln"}


def source_of(name: str, shape, is_gemma: bool) -> dict:
    """How to draw a weight: norms and biases at random, attention far from uniform."""
    normal = lambda deviation: {"normal": round(deviation, 5)}
    if "norm" in name.lower() or "_ln." in name:
        return normal(0.2) if name.endswith("bias") else {"uniform": [-0.5, 0.5] if is_gemma else [0.5, 1.5]}
    if name.endswith("bias"):
        return normal(0.3)
    if "embed" in name:
        return normal(0.7)
    is_of_scores = any(part in name for part in ("query", "key", "q_proj", "k_proj", "qkv"))
    return normal((2.0 if is_of_scores else 1.3) / shape[-1] ** 0.5)


def class_of(config: dict):
    architecture = config["architectures"][0]
    if architecture.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification
    return AutoModelForCausalLM if architecture.endswith("ForCausalLM") else AutoModel


def fused(sources: dict) -> dict:
    """The tensors of a GTE model as published: projections of one input in one tensor."""
    merged = {}
    for name, (shape, source) in sources.items():
        for part, to in PUBLISHED.items():
            name = name.replace(part, to)
        if "k_proj" in name or "v_proj" in name or "gate_proj" in name:
            continue
        factor = 3 if "q_proj" in name else 2 if "mlp.up_proj" in name else 1
        name = name.replace("self_attn.q_proj", "attention.qkv_proj").replace("mlp.up_proj", "mlp.up_gate_proj")
        merged[name] = (shape[0] * factor, *shape[1:]), source
    return merged


def write_config(path: pathlib.Path, config: dict):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config, indent=1) + "\n")


def write_model(path: pathlib.Path, dtype: str, config: dict, modules: list, most) -> list:
    """Writes the directory with its weights; returns each file's name and how its tensors are drawn."""
    shutil.rmtree(path, ignore_errors=True)
    is_published, is_gemma = path.name == "gte-published", "gemma" in config["model_type"]
    write_config(path / "config.json", config)
    empty = class_of(config).from_config(AutoConfig.from_pretrained(path))
    state = {name: like for name, like in sorted(empty.state_dict().items()) if like.is_floating_point()}
    if getattr(empty.config, "tie_word_embeddings", False):
        state.pop("lm_head.weight", None)
    is_bare = class_of(config) is AutoModel
    sources = {name: (tuple(like.shape), source_of(name, like.shape, is_gemma)) for name, like in state.items()
               if not (is_bare and "pooler" in name)}
    if is_published:
        sources = fused(sources)
        write_config(path / "config.json", {key: value for key, value in config.items() if key != "rope_parameters"} | {
            "architectures": ["NewModel"], "model_type": "new", "position_embedding_type": "rope", "pack_qkv": True,
            "rope_theta": config["rope_parameters"]["rope_theta"], "rope_scaling": None})
    recipes = [save(path, "model.safetensors", {name: (dtype, *of) for name, of in sources.items()})]
    if modules is not None:
        listed = [{"idx": 0, "name": "0", "path": "", "type": f"{OLD}Transformer"}]
        for number, (kind, own) in enumerate(modules, 1):
            folder = f"{number}_{kind}"
            module = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore" if kind == "LogitScore" else f"{OLD}{kind}"
            listed.append({"idx": number, "name": str(number), "path": folder, "type": module})
            if own is not None:
                write_config(path / folder / "config.json", own)
            if kind == "Dense":
                shape = (own["out_features"], own["in_features"])
                parts = {"linear.weight": shape} | ({"linear.bias": shape[:1]} if own["bias"] else {})
                drawn = {name: ("float32", shape, source_of(name, shape, False)) for name, shape in parts.items()}
                recipes.append(save(path, f"{folder}/model.safetensors", drawn))
        write_config(path / "modules.json", listed)
        if any(kind == "LogitScore" for kind, _ in modules):
            # Otherwise sentence-transformers makes a module of its own, for the tokens `yes` and `no`.
            write_config(path / "config_sentence_transformers.json", {
                "model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"})
            write_config(path / "sentence_bert_config.json", {
                "transformer_task": "text-generation", "module_output_name": "causal_logits",
                "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}})
        if most is not None:
            write_config(path / "sentence_bert_config.json", {"max_seq_length": most, "do_lower_case": False})
    return recipes


def save(path: pathlib.Path, name: str, tensors: dict):
    """Draws and writes one file; returns its name and how its tensors are drawn."""
    drawn = {key: draw(SEED, key, dtype, shape, source) for key, (dtype, shape, source) in tensors.items()}
    save_file(drawn, str(path / name), metadata={"format": "pt"})
    (path / name).chmod(0o644)
    return name, {key: source for key, (_, _, source) in tensors.items()}


def tokenizer(path: pathlib.Path, vocab: int):
    """A tokenizer that sentence-transformers insists on; its ids are not used."""
    words = {"[UNK]": 0, "yes": 1, "no": 2} | {f"w{i}": i for i in range(3, vocab)}
    made = Tokenizer(tokenizer_models.WordLevel(words, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[UNK]", unk_token="[UNK]").save_pretrained(path)


@torch.no_grad()
def compute(path: pathlib.Path, config: dict, modules, prompts: list) -> tuple[list, dict]:
    """Vectors of the prompts, and what kind they are of."""
    with tempfile.TemporaryDirectory() as copy:
        copy = pathlib.Path(copy) / path.name
        shutil.copytree(path, copy)
        if path.name == "gte-published":
            as_saved_by_transformers(copy, config)
        tokenizer(copy, config["vocab_size"])
        features = [{"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
                    | ({"token_type_ids": torch.tensor([[int(second is not None and i >= second) for i in range(len(ids))]])}
                       if config.get("type_vocab_size", 0) > 1 else {}) for ids, second in prompts]
        kwargs = {"device": "cpu", "model_kwargs": {"dtype": torch.float32, "attn_implementation": "eager"}, "local_files_only": True}
        if class_of(config) is AutoModelForSequenceClassification or any(kind == "LogitScore" for kind, _ in modules or ()):
            model = CrossEncoder(str(copy), **kwargs).eval()
            vectors = [model(of)["scores"][0] for of in features]
            return vectors, {"activation": type(model.activation_fn).__name__, "labels": model.num_labels}
        model = SentenceTransformer(str(copy), **kwargs).eval()
        vectors = [model(of)["sentence_embedding"][0] for of in features]
        return vectors, {"is_normalised": any(kind == "Normalize" for kind, _ in modules or ())}


def as_saved_by_transformers(copy: pathlib.Path, config: dict):
    """The published names under transformers' own, and its configuration."""
    write_config(copy / "config.json", config)
    saved = {}
    for name, tensor in load_file(str(copy / "model.safetensors")).items():
        for to, part in PUBLISHED.items():
            name = name.replace(part, to)
        parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] if "qkv_proj" in name else (
            ["mlp.up_proj", "mlp.gate_proj"] if "up_gate_proj" in name else [])
        for part, piece in zip(parts, tensor.chunk(max(len(parts), 1))):
            saved[name.replace("attention.qkv_proj", part).replace("mlp.up_gate_proj", part)] = piece.contiguous()
        if not parts:
            saved[name] = tensor
    save_file(saved, str(copy / "model.safetensors"), metadata={"format": "pt"})


def prompts_of(config: dict) -> list:
    """Ids of the prompts, and where a second text begins. Special ids of small numbers do not occur."""
    generator = torch.Generator().manual_seed(7)
    ids = lambda count: torch.randint(3, config["vocab_size"], (count,), generator=generator).tolist()
    is_of_pairs = "ForSequenceClassification" in config["architectures"][0] and config.get("type_vocab_size", 0) > 1
    return [(ids(count), count // 3 if is_of_pairs and count > 2 else None) for count in LENGTHS]


def make_one(name: str, dtype: str, config: dict, modules, most):
    path = ROOM / name
    drawn = write_model(path, dtype, config, modules, most)
    prompts = prompts_of(config)
    vectors, kind = compute(path, config, modules, prompts)
    recipes = [weights.of_safetensors(path / file, sources)[0] | {"name": file} for file, sources in drawn]
    weights.write(path, SEED, recipes, b"")
    case = lambda ids, second, vector: {"ids": ids, "second_from": second, "vector": [round(value, 5) for value in vector.tolist()]}
    cases = [case(ids, second, vector) for (ids, second), vector in zip(prompts, vectors)]
    dump = lambda value: json.dumps(value, separators=(",", ":"))
    text = ",\n".join(map(dump, cases))
    (path / "goldens.json").write_text(f'{{"kind":{dump(kind)},"cases":[\n{text}\n]}}\n')
    print(f"{name}: {kind}, spread {vectors[0].std() if len(vectors[0]) > 1 else vectors[0]}")


if __name__ == "__main__":
    quiet()
    for name, of in MODELS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make_one(name, *of)
