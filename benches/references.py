#!/usr/bin/env python3
"""`skein quantize` beside the packages that it follows: the same model, calibration tokens, groups and bits.
Each package writes its own checkpoint, and one binary scores them all.

    python references.py calibrate WORK [WINDOWS]   # tokens.json and text.txt, for all
    python references.py outliers WORK              # WORK/model, to be quantised instead of the shipped one
    python references.py real WORK FILE.gguf        # the same, of tests/real/run; before calibrate
    python references.py write METHOD WORK          # WORK/METHOD, in an environment with its package
    python references.py skein SKEIN WORK           # WORK/skein-*
    python references.py score SKEIN WORK [TOKENS [WINDOW]]     # the table, in Markdown

Without TOKENS (models/skein-7m/held_out.bin, say), WORK/held_out.bin is scored; TOKENS of the real model are
tests/real/tokens.u16, in windows of 512. Packages, all on the CPU (on a busy one with OMP_NUM_THREADS=1) and
each in an environment of its own if they do not agree on transformers:

    llm-compressor-*   pip install llmcompressor==0.14.0.1
    auto-gptq*         pip install --no-deps auto-gptq==0.7.1, beside torch and transformers: its class GPTQ
    autoawq            pip download --no-deps autoawq==0.2.9 && tar xzf autoawq-0.2.9.tar.gz
                       pip install transformers==4.51.3 datasets==3.6.0 zstandard; AUTOAWQ=autoawq-0.2.9
"""

import importlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "models" / "skein-7m"
subprocess.run([sys.executable, SHIPPED / "packed.py", "unpack"], check=True)
# Inputs of each product that `outliers` makes larger, as shares, and by what.
OUTLIERS, FACTORS = 1 / 64, (16, 32, 64)
BITS, GROUP, DAMPING, SAMPLES, LENGTH = 4, 64, 0.01, 128, 512
HELD_OUT_WINDOWS = 128
SKEIN = {
    "skein-rtn": ["--method", "rtn"],
    "skein-rtn-asymmetric": ["--method", "rtn", "--asymmetric"],
    "skein-gptq": ["--method", "gptq"],
    "skein-gptq-off": ["--method", "gptq", "--act-order", "off"],
    "skein-gptq-group": ["--method", "gptq", "--act-order", "group"],
    "skein-gptq-asymmetric": ["--method", "gptq", "--asymmetric"],
    "skein-awq": ["--method", "awq"],
    "skein-int8": ["--method", "int8"],
    "skein-fp8": ["--method", "fp8"],
}
# With a scale for each output, and neither groups nor calibration
WHOLE_OUTPUTS = ("skein-int8", "skein-fp8")


def windows_of(text, most, source):
    """Windows of calibration tokens as `skein quantize` takes them (cli/src/token_windows.rs)."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    with_special = tokenizer.encode("a").ids
    prefix = with_special[:with_special.index(tokenizer.encode("a", add_special_tokens=False).ids[0])]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    stretch = LENGTH - len(prefix)
    count = min(len(ids) // stretch, most)
    starts = [i * (len(ids) - stretch) // (max(count, 2) - 1) for i in range(count)]
    return [prefix + ids[start:start + stretch] for start in starts]


def calibrate(work, most=SAMPLES):
    import numpy as np
    from tokenizers import Tokenizer
    from quality import calibration_text
    work.mkdir(parents=True, exist_ok=True)
    text = calibration_text(work / "text.txt").read_text()
    (work / "tokens.json").write_text(json.dumps(windows_of(text, most, model_of(work))))
    # Many more held-out windows than held_out.bin has, for less noise.
    import corpus
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    files = [text for name, text in corpus.library_files() if corpus.held_out(name)]
    ids = [token for text in files for token in [*tokenizer.encode(text, add_special_tokens=False).ids, 1]]
    step = (len(ids) - LENGTH) // HELD_OUT_WINDOWS
    held_out = [[0, *ids[i * step:i * step + LENGTH]] for i in range(HELD_OUT_WINDOWS)]
    np.array(held_out, dtype="<u2").tofile(work / "held_out.bin")


def model_of(work):
    return work / "model" if (work / "model").exists() else SHIPPED


def outliers(work):
    """The shipped model with outliers in its activations, and the same function to the bit: outputs of norms
    and of `up` are multiplied in a few channels, the same ones in all layers, by powers of two, and the
    weights that read them are divided."""
    from safetensors.torch import load_file, save_file
    out = work / "model"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(SHIPPED, out, ignore=lambda _, names: [name for name in names if name.endswith((".py", ".bin", ".md", ".packed"))])
    state, config = load_file(SHIPPED / "model.safetensors"), json.loads((SHIPPED / "config.json").read_text())
    draw = random.Random(1)
    pick = lambda width: {channel: draw.choice(FACTORS) for channel in draw.sample(range(width), round(width * OUTLIERS))}
    hidden, inner = pick(config["hidden_size"]), pick(config["intermediate_size"])
    for layer in (f"model.layers.{i}." for i in range(config["num_hidden_layers"])):
        for channels, before, readers in (
                (hidden, "input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                (hidden, "post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
                (inner, "mlp.up_proj", ("mlp.down_proj",))):
            for channel, factor in channels.items():
                state[f"{layer}{before}.weight"][channel] *= factor
                for reader in readers:
                    state[f"{layer}{reader}.weight"][:, channel] /= factor
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})


def real(work, file):
    """The real model in 16 bits, as transformers decodes it."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    out = work / "model"
    shutil.rmtree(out, ignore_errors=True)
    given = {"pretrained_model_name_or_path": file.resolve().parent, "gguf_file": file.name}
    AutoTokenizer.from_pretrained(**given).save_pretrained(out)
    # save_pretrained refuses models that were read from a GGUF file.
    model = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.bfloat16)
    config = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    (out / "config.json").write_text(json.dumps(config, indent=2))
    state = {name: value.contiguous() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})


def load(source):
    import torch
    from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    random.seed(0)
    return AutoModelForCausalLM.from_pretrained(source, torch_dtype=torch.float32).eval()


def llm_compressor(source, tokens, out, recipe, dtype=None):
    import torch
    from llmcompressor import oneshot
    from torch.utils.data import DataLoader
    rows = [{"input_ids": torch.tensor(row), "attention_mask": torch.ones(len(row), dtype=torch.long)} for row in tokens]
    model = load(source).to(dtype or torch.float32)
    oneshot(model=model, dataset=DataLoader(rows, batch_size=1), recipe=recipe, num_calibration_samples=len(rows),
            max_seq_length=LENGTH, pipeline="sequential")
    model.save_pretrained(out, save_compressed=True)


def scheme(symmetric):
    weights = {"num_bits": BITS, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": GROUP}
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


def llm_compressor_gptq(order):
    def write(source, tokens, out):
        from llmcompressor.modifiers.gptq import GPTQModifier
        llm_compressor(source, tokens, out, GPTQModifier(config_groups=scheme(True), ignore=["lm_head"], dampening_frac=DAMPING, actorder=order))
    return write


def llm_compressor_scheme(name):
    """Weights rounded to the nearest by one of the package's named schemes."""
    def write(source, tokens, out):
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier
        model = load(source)
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme=name, ignore=["lm_head"]))
        model.save_pretrained(out, save_compressed=True)
    return write


def llm_compressor_awq(source, tokens, out):
    import torch
    torch.Tensor.pin_memory = lambda self, *_: self  # there is no GPU
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    llm_compressor(source, tokens, out, [AWQModifier(), QuantizationModifier(config_groups=scheme(False), ignore=["lm_head"])])


def auto_gptq(order, symmetric=True):
    """The loop of auto_gptq's `quantize` around its class GPTQ: products in turn, each with the inputs that
    the quantised ones before it give, then its `QuantLinear.pack`."""
    def write(source, tokens, out):
        import torch
        from safetensors.torch import save_file
        torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
        package = types.ModuleType("auto_gptq")  # its own __init__ does not import any more
        package.__path__ = list(importlib.util.find_spec("auto_gptq").submodule_search_locations)
        sys.modules["auto_gptq"] = package
        for part in ("quantization", "nn_modules", "nn_modules.qlinear"):
            module = types.ModuleType(f"auto_gptq.{part}")
            module.__path__ = [str(pathlib.Path(package.__path__[0], *part.split(".")))]
            sys.modules[f"auto_gptq.{part}"] = module
        gptq = importlib.import_module("auto_gptq.quantization.gptq")
        linear = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda")
        model, stored = load(source), {}
        rows = [torch.tensor([row]) for row in tokens]
        inputs, extra = [], {}

        def catch(_, args, kwargs):
            inputs.append(args[0] if args else kwargs.pop("hidden_states"))
            extra.update(kwargs)
            raise StopIteration
        hook = model.model.layers[0].register_forward_pre_hook(catch, with_kwargs=True)
        with torch.no_grad():
            for row in rows:
                try:
                    model(row, use_cache=False)
                except StopIteration:
                    pass
            hook.remove()
            extra.pop("past_key_values", None)
            run = lambda layer, x: (lambda y: y[0] if isinstance(y, tuple) else y)(layer(x, **extra))
            for index, layer in enumerate(model.model.layers):
                for names in (["k_proj", "v_proj", "q_proj"], ["o_proj"], ["up_proj", "gate_proj"], ["down_proj"]):
                    found = {name: module for name, module in layer.named_modules() if name.split(".")[-1] in names}
                    work = {name: gptq.GPTQ(module) for name, module in found.items()}
                    for name, it in work.items():
                        it.quantizer.configure(BITS, perchannel=True, sym=symmetric, mse=False)
                    add = lambda name: lambda _, x, y: work[name].add_batch(x[0].data, y.data)
                    hooks = [found[name].register_forward_hook(add(name)) for name in found]
                    for x in inputs:
                        run(layer, x)
                    for hook in hooks:
                        hook.remove()
                    for name, it in work.items():
                        scale, zero, g_idx = it.fasterquant(percdamp=DAMPING, group_size=GROUP, actorder=order != "off",
                                                            static_groups=order == "static")
                        packed = linear.QuantLinear(BITS, GROUP, *reversed(found[name].weight.shape), False)
                        packed.pack(found[name], scale.clone(), zero.clone(), g_idx.to(torch.int32))
                        for part in ("qweight", "qzeros", "scales", "g_idx"):
                            stored[f"model.layers.{index}.{name}.{part}"] = getattr(packed, part).contiguous()
                inputs = [run(layer, x) for x in inputs]
        replaced = {name.rsplit(".", 1)[0] for name in stored}
        for name, value in model.state_dict().items():
            if name.rsplit(".", 1)[0] not in replaced and name != "lm_head.weight":
                stored[name] = value.to(torch.bfloat16).contiguous()
        out.mkdir()
        save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((source / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": BITS, "group_size": GROUP, "sym": symmetric,
                                         "desc_act": order == "group", "checkpoint_format": "gptq"}
        (out / "config.json").write_text(json.dumps(config, indent=2))
    return write


def autoawq(source, tokens, out):
    sys.path.insert(0, os.environ.get("AUTOAWQ", "autoawq-0.2.9"))
    import torch
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer
    # Without a GPU this would not copy, and the first step of a search would change the weights for good.
    torch.Tensor.cpu = lambda self, *_, **__: self.clone()
    model = AutoAWQForCausalLM.from_pretrained(str(source), torch_dtype=torch.float32, safetensors=True, device_map="cpu")
    model.quantize(AutoTokenizer.from_pretrained(source), {"zero_point": True, "q_group_size": GROUP, "w_bit": BITS, "version": "GEMM"},
                   calib_data=tokens, max_calib_samples=len(tokens), max_calib_seq_len=LENGTH)
    model.save_quantized(str(out))


METHODS = {
    "llm-compressor-gptq-static": llm_compressor_gptq("static"),
    "llm-compressor-gptq-off": llm_compressor_gptq(None),
    "llm-compressor-awq": llm_compressor_awq,
    "llm-compressor-int8": llm_compressor_scheme("INT8"),
    "llm-compressor-fp8": llm_compressor_scheme("FP8_DYNAMIC"),
    "auto-gptq-off": auto_gptq("off"),
    "auto-gptq-group": auto_gptq("group"),
    "auto-gptq-static-asymmetric": auto_gptq("static", symmetric=False),
    "autoawq": autoawq,
}


def write(name, work):
    out = work / name
    shutil.rmtree(out, ignore_errors=True)
    source = model_of(work)
    METHODS[name](source, json.loads((work / "tokens.json").read_text()), out)
    for file in source.glob("*.json"):
        if not (out / file.name).exists():
            shutil.copy(file, out)


def skein(binary, work):
    windows = json.loads((work / "tokens.json").read_text())
    for name, flags in SKEIN.items():
        shutil.rmtree(work / name, ignore_errors=True)
        command = [binary, "quantize", model_of(work), work / name, *flags, "--json"]
        if name not in WHOLE_OUTPUTS:
            command += ["--group-size", str(GROUP), "--damping", str(DAMPING), "--calibration", work / "text.txt",
                        "--calibration-samples", str(len(windows)), "--calibration-length", str(LENGTH)]
        done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        tokens = json.loads(done.stdout)["calibration_tokens"]
        assert tokens in (0, sum(map(len, windows))), tokens


def widened(directory, out, source):
    """The model in `directory` with the weights that its codes stand for, as the formats' own packages read
    them, in 32 bits: what the codes cost without the rounding of activations."""
    sys.path.insert(0, str(ROOT / "tests" / "golden"))
    import quantize as golden
    from safetensors.torch import load_file, save_file
    tensors = {name: value for file in directory.glob("*.safetensors") for name, value in load_file(file).items()}
    config = json.loads((directory / "config.json").read_text())
    how = config.pop("quantization_config")
    read = {"gptq": golden.gptq, "awq": golden.awq, "compressed-tensors": golden.compressed}[how["quant_method"]]
    ends = (".qweight", ".weight_packed", ".weight_scale")
    bases = sorted({name.removesuffix(end) for name in tensors for end in ends if name.endswith(end)})
    parts = tuple(f"{base}." for base in bases)
    state = {f"{base}.weight": read(tensors, base, how).float().contiguous() for base in bases}
    state |= {name: value.float() for name, value in tensors.items() if not name.startswith(parts)}
    state.pop("lm_head.weight", None)  # tied
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / file, out)


def score(binary, work, tokens=None, window=LENGTH + 1):
    print("| | as served: perplexity | increase | KL divergence, nats | weights alone: increase | KL divergence, nats |\n|---|---|---|---|---|---|")
    source, wide = model_of(work), work / "widened"
    for name in [*SKEIN, *METHODS]:
        if not (work / name / "config.json").exists():
            continue
        widened(work / name, wide, source)
        cells = []
        for directory, flags in ((work / name, []), (wide, ["--dtype", "float32", "--kv-cache-dtype", "float32"])):
            command = [binary, "bench", "perplexity", directory, "--tokens", tokens or work / "held_out.bin", "--window", window, "--reference", source,
                       *flags, "--json"]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            found = json.loads(done.stdout)
            cells += [f"{found['perplexity']:.4f}"] if not cells else []
            cells += [f"{found['increase_percent']:+.3f}%", f"{found['mean_kl_divergence']:.5f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    match sys.argv[1:]:
        case ["calibrate", work, *most]:
            calibrate(pathlib.Path(work), *map(int, most))
        case ["outliers", work]:
            outliers(pathlib.Path(work))
        case ["write", name, work]:
            write(name, pathlib.Path(work))
        case ["skein", binary, work]:
            skein(pathlib.Path(binary).resolve(), pathlib.Path(work))
        case ["real", work, file]:
            real(pathlib.Path(work), pathlib.Path(file))
        case ["score", binary, work]:
            score(pathlib.Path(binary).resolve(), pathlib.Path(work))
        case ["score", binary, work, tokens, *window]:
            score(pathlib.Path(binary).resolve(), pathlib.Path(work), pathlib.Path(tokens), *map(int, window))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
