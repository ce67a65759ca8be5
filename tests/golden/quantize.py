"""Checks what `skein quantize` writes with the formats' own packages: they dequantise every matrix,
transformers computes with the result, and its perplexity must be Skein's for the same directory.

    pip install --no-deps compressed-tensors==0.20.0 loguru auto-gptq==0.7.1 accelerate==1.15.0 psutil
    pip download --no-deps autoawq==0.2.9 && tar xzf autoawq-0.2.9.tar.gz
    AUTOAWQ=autoawq-0.2.9 python quantize.py ../../target/release/skein [TEXT]

Formats whose activations Skein does not round (FP8) must agree closely; where it rounds them to 8 bits, the
difference is that rounding's. Run by hand; CI installs no torch.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from quantised import module_of, of_package

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "skein-7m"
WINDOW, EXACT, ROUNDED = 513, 2e-4, 5e-3
METHODS = {
    "rtn": ["--method", "rtn"],
    "rtn-asymmetric": ["--method", "rtn", "--asymmetric"],
    "rtn-8": ["--method", "rtn", "--bits", "8"],
    "rtn-3": ["--method", "rtn", "--bits", "3"],
    "gptq": ["--method", "gptq"],
    "gptq-group": ["--method", "gptq", "--act-order", "group"],
    "gptq-ct": ["--method", "gptq", "--layout", "compressed-tensors"],
    "awq": ["--method", "awq"],
    "int8": ["--method", "int8"],
    "fp8": ["--method", "fp8"],
}


def gptq(tensors, base, config):
    words = tensors[f"{base}.qweight"]
    inputs, outputs = words.shape[0] * 32 // config["bits"], words.shape[1]
    library = of_package("auto_gptq", "nn_modules", "qlinear", "qlinear_cuda.py")
    group = inputs if config["group_size"] == -1 else config["group_size"]
    layer = library.QuantLinear(config["bits"], group, inputs, outputs, False)
    for name in ("qweight", "qzeros", "scales", "g_idx"):
        value = tensors[f"{base}.{name}"]
        assert getattr(layer, name).shape == value.shape, (base, name, value.shape)
        setattr(layer, name, value.float() if name == "scales" else value)
    return layer(torch.eye(inputs)).t()


def awq(tensors, base, config):
    path = pathlib.Path(os.environ.get("AUTOAWQ", "autoawq-0.2.9"), "awq", "utils", "packing_utils.py")
    words = (tensors[f"{base}.{name}"] for name in ("qweight", "qzeros"))
    scales = tensors[f"{base}.scales"].float()
    return module_of(path).dequantize_gemm(*words, scales, config["bits"], config["group_size"]).t()


def compressed(tensors, base, config):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    whole = QuantizationConfig.model_validate(config)
    scheme = whole.config_groups["group_0"]
    part = {key.removeprefix(f"{base}."): value for key, value in tensors.items() if key.startswith(f"{base}.")}
    part["weight_scale"] = part["weight_scale"].float()
    return BaseCompressor.get_value_from_registry(whole.format).decompress(part, scheme)["weight"].float()


def dequantised(directory):
    """All tensors of the directory as float32, with the package's values of quantised matrices."""
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {}
    for file in sorted(set(index.values())):
        part = load_file(directory / file)
        assert all(index[name] == file for name in part), file
        tensors |= part
    assert set(tensors) == set(index)
    read = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed}[config["quant_method"]]
    suffixes = (".qweight", ".weight_packed", ".weight_scale")
    bases = sorted({name.removesuffix(end) for name in tensors for end in suffixes if name.endswith(end)})
    state = {f"{base}.weight": read(tensors, base, config) for base in bases}
    parts = tuple(f"{base}." for base in bases)
    return state | {name: value.float() for name, value in tensors.items() if not name.startswith(parts)}, len(bases)


@torch.no_grad()
def perplexity(state, windows):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL), attn_implementation="eager").float().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    nats = [torch.nn.functional.cross_entropy(model(window[None]).logits[0, :-1], window[1:]).item() for window in windows]
    return float(np.exp(np.mean(nats)))


def main():
    skein, text = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    windows = torch.from_numpy(np.fromfile(MODEL / "held_out.bin", dtype="<u2").astype(np.int64)).reshape(-1, WINDOW)
    subprocess.run([sys.executable, MODEL / "packed.py", "unpack"], check=True)
    plain = perplexity({k: v.float() for k, v in load_file(MODEL / "model.safetensors").items()}, windows)
    print(f"unquantised: {plain:.4f}")
    failed = []
    with tempfile.TemporaryDirectory() as work:
        for name, flags in METHODS.items():
            out = pathlib.Path(work, name)
            calibration = [word for file in text for word in ("--calibration", file)]
            subprocess.run([skein, "quantize", MODEL, out, *flags, *calibration], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            state, count = dequantised(out)
            theirs = perplexity(state, windows)
            command = [skein, "bench", "perplexity", out, "--tokens", MODEL / "held_out.bin", "--window", str(WINDOW),
                       "--dtype", "float32", "--kv-cache-dtype", "float32", "--json"]
            ours = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["perplexity"]
            off = abs(ours / theirs - 1)
            limit = EXACT if name == "fp8" else ROUNDED
            verdict = "ok" if off <= limit else "TOO FAR"
            print(f"{name:<16}{count} matrices  transformers {theirs:.4f} ({100 * (theirs / plain - 1):+.3f}%)  "
                  f"skein {ours:.4f}  off by {100 * off:.3f}%  {verdict}")
            failed += [name] if off > limit else []
            shutil.rmtree(out)
    sys.exit(f"too far: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
