"""Makes tiny random models in the formats of quantised checkpoints, and the outputs of transformers with
their weights as dequantised by each format's own library.

compressed-tensors, bitsandbytes and ModelOpt pack and dequantise. For GPTQ and AWQ, modules of AutoGPTQ and
AutoAWQ do so, loaded from their files because those packages can no longer be imported. If a library can only
pack or only dequantise, this script does the other.

    pip install --no-deps compressed-tensors==0.20.0 bitsandbytes==0.50.2 accelerate==1.15.0
    pip install --no-deps psutil loguru auto-gptq==0.7.1
    pip install nvidia-modelopt==0.47.0 requests     # which it imports, but does not ask for
    pip download --no-deps autoawq==0.2.9 && tar xzf autoawq-0.2.9.tar.gz
    AUTOAWQ=autoawq-0.2.9 python quantised.py [name ...]
"""

import importlib.util
import json
import os
import pathlib
import shutil
import sys

import numpy as np
import torch
import xxhash
from transformers import AutoConfig, AutoModelForCausalLM

import weights
from rounding import in_8_bits
from models import BASE, COHERE, HERE, MOE, PHI3, QWEN2, QWEN3, V3, ABSENT, draw, one_line_per_key, quiet, save, source_of

PROMPT_TOKENS, POSITIONS = 40, [0, 1, 2, 15, 16, 31, 39]
AMPLIFIED = 0.25  # largest change of a logit by rounded activations, in standard deviations of the logits
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 128, "rope_theta": 10000.0}
WIDE = {"hidden_size": 128, "head_dim": 32}
LLAMA = SIZES | {"torch_dtype": "float16"}


def module_of(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_package(name: str, *parts: str):
    return module_of(pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0]).joinpath(*parts))


# From `weight` [N, K], each function makes the module's tensors by suffix, the weight as the library
# dequantises it in the checkpoint's type, whose bits are compared, and the same in float32, which the CPU
# multiplies with.


def groups_of(weight, group):
    """Scales and zero points [N, G] of unsigned codes up to `most`, by rounding to nearest."""
    def choose(bits, symmetric):
        blocks = weight.float().reshape(weight.shape[0], -1, group)
        most = 2**bits - 1
        if symmetric:
            scale = blocks.abs().amax(-1) / (most // 2)
            return scale.half(), torch.full(scale.shape, (most + 1) // 2, dtype=torch.int32)
        low, high = blocks.amin(-1).clamp_max(0), blocks.amax(-1).clamp_min(0)
        scale = ((high - low) / most).half()
        return scale, (-low / scale.float()).round().clamp(1, most).to(torch.int32)
    return choose


def order_of(name, inputs):
    """Generator for the order of inputs. Modules with the same input share an order, as from GPTQ's
    Hessian."""
    part = name.split(".")[-1].split("_")[0]
    product = {"q": 1, "k": 1, "v": 1, "o": 2, "gate": 3, "up": 3, "down": 4}.get(part, 5)
    return torch.Generator().manual_seed(10 * inputs + product)


def gptq(bits=4, group=32, symmetric=True, act_order=False, v2=False):
    def make(weight, name):
        n, k = weight.shape
        size = k if group == -1 else group
        generator = order_of(name, k)
        g_idx = torch.arange(k) // size
        if act_order:
            g_idx = g_idx[torch.randperm(k, generator=generator)]
        by_group = weight[:, torch.argsort(g_idx, stable=True)]
        scales, zeros = groups_of(by_group, size)(bits, symmetric)
        linear = torch.nn.Linear(k, n, bias=False)
        linear.weight.data = weight.half()
        layer = of_package("auto_gptq", "nn_modules", "qlinear", "qlinear_cuda.py").QuantLinear(bits, size, k, n, False)
        # Codes out of range would overflow into their neighbours.
        limits = (scales.float() * (0 - zeros))[:, g_idx], (scales.float() * (2**bits - 1 - zeros))[:, g_idx]
        linear.weight.data = torch.maximum(torch.minimum(linear.weight.data.float(), limits[1]), limits[0]).half()
        layer.pack(linear, scales.clone(), zeros.clone().half(), g_idx.to(torch.int32))
        whole = layer(torch.eye(k, dtype=torch.float16)).t().contiguous()
        qzeros = layer.qzeros
        if v2:
            rows = zeros.t().numpy().astype(np.uint32).reshape(zeros.shape[1], -1, 32 // bits)
            shifts = (np.arange(32 // bits) * bits).astype(np.uint32)
            qzeros = torch.from_numpy((rows << shifts).sum(-1, dtype=np.uint32).view(np.int32))
        tensors = {"qweight": layer.qweight, "qzeros": qzeros, "scales": layer.scales, "g_idx": layer.g_idx.to(torch.int32)}
        layer.scales = layer.scales.float()
        return tensors, whole, layer(torch.eye(k)).t().contiguous()
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
              "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    return {"make": make, "config": config, "is_integer": True, "act_order": act_order}


def awq(group=64):
    library = module_of(pathlib.Path(os.environ.get("AUTOAWQ", "autoawq-0.2.9"), "awq", "utils", "packing_utils.py"))

    def words(codes):  # [rows, N] to [rows, N / 8]
        codes = codes.reshape(codes.shape[0], -1, 8)[:, :, library.AWQ_ORDER].numpy().astype(np.uint32)
        packed = (codes << (4 * np.arange(8)).astype(np.uint32)).sum(-1, dtype=np.uint32)
        return torch.from_numpy(packed.view(np.int32))

    def make(weight, name):
        scales, zeros = groups_of(weight, group)(4, False)
        spread = lambda values: values.float().repeat_interleave(group, 1)
        codes = (weight.float() / spread(scales) + spread(zeros)).round().clamp(0, 15).to(torch.int32)
        tensors = {"qweight": words(codes.t().contiguous()), "qzeros": words(zeros.t().contiguous()), "scales": scales.t().contiguous()}
        whole = library.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"], 4, group)
        exact = library.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, group)
        return tensors, whole.t().contiguous(), exact.t().contiguous()
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return {"make": make, "config": config, "is_integer": True}


def compressed(form, weights, activations=None, act_order=False, ignore=("lm_head",)):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    args = QuantizationArgs(**weights)
    inputs = QuantizationArgs(**activations) if activations else None
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs)
    compressor = BaseCompressor.get_value_from_registry(form)

    def make(weight, name):
        n, k = weight.shape
        weight = weight.bfloat16()
        is_float, bits, strategy = args.type == "float", args.num_bits, args.strategy
        is_integer_or_fp8 = not (is_float and bits == 4)
        size = {"group": args.group_size, "tensor_group": args.group_size}.get(strategy, k)
        order = torch.arange(k)
        if act_order:
            generator = order_of(name, k)
            g_idx = (torch.arange(k) // size)[torch.randperm(k, generator=generator)]
            order = torch.argsort(g_idx, stable=True)
        blocks = weight[:, order].float().reshape(n, -1, size)
        if strategy == "tensor":
            blocks = blocks.reshape(1, 1, -1)
        if strategy == "block":
            down, along = args.block_structure
            blocks = weight.float().reshape(n // down, down, k // along, along).transpose(1, 2).reshape(n // down, k // along, -1)
        zero = None
        if args.symmetric:
            most = {4: 6.0, 8: 448.0}[bits] if is_float else 2 ** (bits - 1) - 1
            scale = (blocks.abs().amax(-1) / most).bfloat16()
            if form == "nvfp4-pack-quantized":
                scale = None
            elif is_float and bits == 4:
                scale = 2.0 ** scale.float().log2().ceil()
        else:
            low, high = blocks.amin(-1).clamp_max(0), blocks.amax(-1).clamp_min(0)
            scale = ((high - low) / (2**bits - 1)).bfloat16()
            zero = (-(2 ** (bits - 1)) - low / scale.float()).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
        state = {"weight": weight[:, order].contiguous(), "weight_scale": scale if strategy != "tensor" else scale.reshape(1)}
        if form == "nvfp4-pack-quantized":  # scales in FP8, relative to the largest of the matrix
            state["weight_global_scale"] = (448.0 * 6.0 / weight.abs().max().float()).reshape(1)
            state["weight_scale"] = (blocks.abs().amax(-1) / 6.0 * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        if zero is not None:
            state["weight_zero_point"] = zero
        packed = compressor.compress(state, scheme)
        whole = compressor.decompress(packed, scheme)["weight"]
        wide = packed | ({"weight_scale": packed["weight_scale"].float()} if is_integer_or_fp8 else {})
        exact = compressor.decompress(wide, scheme)["weight"].float()
        if form == "nvfp4-pack-quantized":
            from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
            from compressed_tensors.quantization.lifecycle.forward import dequantize
            codes = unpack_fp4_from_uint8(packed["weight_packed"], n, k).float()
            exact = dequantize(codes, packed["weight_scale"].float(), None, args, torch.float32, packed["weight_global_scale"])
        if act_order:  # the library no longer knows the order: codes move to where their inputs are
            from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
            back = torch.argsort(order)
            codes = unpack_from_int32(packed["weight_packed"], bits, weight.shape)
            packed["weight_packed"] = pack_to_int32(codes[:, back].contiguous(), bits)
            packed["weight_g_idx"] = g_idx.to(torch.int32)
            whole, exact = whole[:, back].contiguous(), exact[:, back].contiguous()
        return packed, whole.bfloat16(), exact
    group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json()),
             "input_activations": json.loads(inputs.model_dump_json()) if inputs else None, "output_activations": None}
    if act_order:
        group["weights"]["actorder"] = "group"  # as older versions of the library wrote it
    config = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
              "ignore": list(ignore), "kv_cache_scheme": None, "config_groups": {"group_0": group}}
    is_integer = args.type == "int"
    return {"make": make, "config": config, "is_integer": is_integer, "ignore": ignore, "act_order": act_order}


def model_opt(own_file=False):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    def make(weight, name):
        packed, scale, whole_scale = NVFP4QTensor.quantize(weight.clone(), 16)
        # The library reads the code of -0 as 0, without the sign: only such bits would differ.
        codes = [half.masked_fill(half == 8, 0) for half in (packed._quantized_data & 15, packed._quantized_data >> 4)]
        packed._quantized_data = codes[0] | codes[1] << 4
        values = {"scale": scale, "double_scale": whole_scale, "block_sizes": {-1: 16}}
        tensors = {"weight": packed._quantized_data, "weight_scale": scale, "weight_scale_2": whole_scale.reshape(()),
                   "input_scale": torch.tensor(0.01)}
        return tensors, packed.dequantize(weight.dtype, **values), packed.dequantize(torch.float32, **values)
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
              "producer": {"name": "modelopt", "version": "0.47.0"}, "config_groups": {"group_0": {"targets": ["Linear"],
                  "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                  "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}}}}
    file = {"producer": config["producer"], "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None,
            "group_size": 16, "exclude_modules": ["lm_head"]}}
    return {"make": make, "config": config, "is_integer": False, "own_file": file if own_file else None}


def fp8_block():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    def make(weight, name):
        (n, k), size = weight.shape, 64
        # The library wants whole blocks, and DeepSeek's rows of latents and rotated keys end within one.
        down = -(-n // size)
        blocks = torch.zeros(down * size, k)
        blocks[:n] = weight
        blocks = blocks.reshape(down, size, k // size, size).transpose(1, 2)
        scale = blocks.abs().amax((-1, -2)) / 448.0
        codes = (blocks / scale[:, :, None, None]).transpose(1, 2).reshape(-1, k).to(torch.float8_e4m3fn)
        whole = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.float32)[:n].contiguous()
        return {"weight": codes[:n], "weight_scale_inv": scale}, whole, whole
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]}
    return {"make": make, "config": config, "is_integer": False}


def bitsandbytes(kind="nf4", nested=True, dtype=torch.bfloat16):
    from bitsandbytes import functional

    def make(weight, name):
        codes, state = functional.quantize_4bit(weight.to(dtype), blocksize=64, compress_statistics=nested, quant_type=kind)
        whole = functional.dequantize_4bit(codes, state)
        tensors = {"weight": codes} | {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        state.dtype = torch.float32
        return tensors, whole, functional.dequantize_4bit(codes, state)
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": kind,
              "bnb_4bit_use_double_quant": nested, "bnb_4bit_quant_storage": "uint8"}
    return {"make": make, "config": config, "is_integer": False}


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float"}
DYNAMIC = {"num_bits": 8, "strategy": "token", "dynamic": True}
BF16 = {"torch_dtype": "bfloat16"}
# Keys and values of four heads are products of latents. Ranks can share it.
LATENT = V3 | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "q_lora_rank": 64, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 64, "n_routed_experts": 4, "n_shared_experts": 1,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 300, "rope_theta": 10000.0}
PHI = PHI3 | SIZES | WIDE | BF16 | {"partial_rotary_factor": 1.0, "sliding_window": None}

ONE, TIED = {"num_hidden_layers": 1}, {"tie_word_embeddings": True}
MIXTRAL = MOE | LLAMA | ONE | TIED | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 3,
    "sliding_window": None, "intermediate_size": 64}

# name: (config over BASE, quantisation, whether the head is quantised). Two layers where tests divide them
# among stages, else one; wide where a group or block needs it. Codes are stored, so every size counts.
CASES = {
    "gptq-4": (LLAMA, lambda: gptq(), False),
    "gptq-4-act-order": (QWEN2 | LLAMA | TIED, lambda: gptq(symmetric=False, act_order=True), False),
    "gptq-4-v2-head": (LLAMA | WIDE | ONE, lambda: gptq(group=64, symmetric=False, v2=True), True),
    "gptq-8": (LLAMA | TIED | ONE, lambda: gptq(bits=8, group=-1), False),
    "gptq-3": (LLAMA | TIED | ONE, lambda: gptq(bits=3, group=32, symmetric=False), False),
    "gptq-2": (LLAMA | TIED | ONE, lambda: gptq(bits=2, group=32, symmetric=False), False),
    "gptq-4-experts": (MIXTRAL, lambda: gptq(), False),
    "awq": (QWEN2 | LLAMA, lambda: awq(32), False),
    "w4a16": (PHI, lambda: compressed("pack-quantized", W4 | {"group_size": 128}), False),
    "w4a16-asymmetric": (COHERE | SIZES | BF16 | ONE | TIED | {"architectures": ["CohereForCausalLM"], "model_type": "cohere",
        "use_qk_norm": False}, lambda: compressed("pack-quantized", W4 | {"symmetric": False}), False),
    "w4a16-act-order": (LLAMA | BF16 | ONE, lambda: compressed("pack-quantized", W4, act_order=True), False),
    "w8a16": (LLAMA | BF16 | ONE, lambda: compressed("pack-quantized", W8), False),
    "w8a8": (LLAMA | BF16, lambda: compressed("int-quantized", W8, DYNAMIC, ignore=("lm_head", "re:.*layers.0.mlp.*")), False),
    "fp8-channel": (LLAMA | BF16, lambda: compressed("float-quantized", FP8 | {"strategy": "channel"}, DYNAMIC | {"type": "float"}), False),
    "fp8-tensor": (LLAMA | BF16 | ONE | TIED,
        lambda: compressed("float-quantized", FP8 | {"strategy": "tensor"}, DYNAMIC | {"type": "float"}), False),
    "fp8-compressed-block": (LLAMA | BF16 | ONE | TIED, lambda: compressed("float-quantized",
        FP8 | {"strategy": "block", "block_structure": [32, 32]}, DYNAMIC | {"type": "float"}), False),
    "mxfp4": (LLAMA | BF16 | ONE | TIED, lambda: compressed("mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}), False),
    "nvfp4": (LLAMA | BF16 | ONE | TIED, lambda: compressed("nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}), False),
    "nvfp4-modelopt": (LLAMA | BF16 | ONE | TIED, lambda: model_opt(), False),
    "nvfp4-modelopt-experts": (MIXTRAL | BF16, lambda: model_opt(own_file=True), False),
    "fp8-block": (QWEN3 | SIZES | WIDE | BF16 | ONE, lambda: fp8_block(), False),
    "fp8-block-latent": (LATENT | BF16, lambda: fp8_block(), False),
    "nf4-nested": (LLAMA | BF16 | ONE, lambda: bitsandbytes(), False),
    "nf4": (LLAMA | TIED, lambda: bitsandbytes(nested=False, dtype=torch.float16), False),
    "fp4": (LLAMA | TIED | ONE, lambda: bitsandbytes(kind="fp4", nested=False, dtype=torch.float16), False),
}


class Encoded(torch.nn.Linear):
    """A linear layer that rounds its inputs as the CPU does for integer weights."""

    @classmethod
    def of(cls, linear, order):
        linear.__class__, linear.order = cls, order

    def forward(self, x):
        # Inputs in activation order are sorted by the groups of their weights.
        rounded = torch.empty_like(x)
        rounded[..., self.order] = in_8_bits(x[..., self.order])
        return super().forward(rounded)


# As `models.APART`, by the type of the model.
APART = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2"), "deepseek_v3": ("mlp", "gate_proj", "up_proj", "down_proj")}


def split_experts(name, shape, family):
    """Names in a family's checkpoints, and shapes: a matrix per expert."""
    block, gate, up, down = APART[family]
    prefix, _, kind = name.partition(".mlp.experts.")
    if not kind:
        return {name.replace(".mlp.gate.", f".{block}.gate."): shape}
    names = (gate, up) if kind == "gate_up_proj" else (down,)
    return {f"{prefix}.{block}.experts.{expert}.{part}.weight": (shape[1] // len(names), shape[2])
            for expert in range(shape[0]) for part in names}


def is_quantised(name, tensor, how, with_head):
    if tensor.dim() != 2 or "embed" in name or name.endswith(("moe.gate.weight", "mlp.gate.weight")) or not name.endswith(".weight"):
        return False
    if name == "lm_head.weight":
        return with_head
    import re
    return not any(re.match(rule[3:], name) for rule in how.get("ignore", ()) if rule.startswith("re:"))


def make_one(name):
    """Makes the model of the first seed with which rounding its activations to 8 bits changes logits
    little: some random networks amplify it."""
    first = sum(name.encode())
    if not any(is_made(name, seed) for seed in range(first, first + 50)):
        sys.exit(f"{name}: no seed will do")


@torch.no_grad()
def is_made(name, seed):
    over, how, with_head = CASES[name][0], CASES[name][1](), CASES[name][2]
    config = {key: value for key, value in (BASE | over).items() if value is not ABSENT}
    path = HERE / "quantised" / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), attn_implementation="eager").float().eval()
    if how.get("own_file"):
        (path / "hf_quant_config.json").write_text(json.dumps(how["own_file"], indent=2) + "\n")
    else:
        (path / "config.json").write_text(json.dumps(config | {"quantization_config": how["config"]}, indent=2) + "\n")
    state, stored, drawn, hashes, modules, orders = model.state_dict(), {}, {}, {}, {}, {}
    for key in sorted(state):
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        shape, source = tuple(state[key].shape), source_of(key, state[key].shape, False)
        parts = split_experts(key, shape, config["model_type"]) if config["model_type"] in APART else {key: shape}
        values = []
        for part, shape in parts.items():
            tensor = draw(seed, part, config["torch_dtype"], shape, source)
            if is_quantised(part, tensor, how, with_head):
                base = part.removesuffix(".weight")
                tensors, whole, exact = how["make"](tensor, base)
                stored |= {f"{base}.{suffix}": value.contiguous() for suffix, value in tensors.items()}
                hashes[base] = [str(whole.dtype).removeprefix("torch."),
                                xxhash.xxh3_64(whole.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()]
                modules[base] = whole
                groups = tensors.get("g_idx", tensors.get("weight_g_idx", torch.zeros(shape[1])))
                orders[base] = torch.argsort(groups, stable=True)
                assert exact.dtype == torch.float32 and (exact.to(whole.dtype) == whole).all(), base
                values.append(exact)
            else:
                stored[part], drawn[part] = tensor, source
                values.append(tensor)
        if len(values) > 1:  # of experts
            per = 2 if key.endswith("gate_up_proj") else 1
            values = [torch.stack([torch.cat(values[at:at + per]) for at in range(0, len(values), per)])]
        state[key].copy_(values[0])
    save(stored, path / "model.safetensors")
    prompt = torch.randint(2, config["vocab_size"], (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(seed))
    logits = {"exact_logits": model(prompt).logits[0][POSITIONS]}
    has_experts = config["model_type"] in APART  # transformers computes them without linear layers
    if how["is_integer"] and not has_experts:
        for base, module in model.named_modules():
            if base in modules:
                Encoded.of(module, orders[base])
        logits["encoded_logits"] = model(prompt).logits[0][POSITIONS]
    exact = logits["exact_logits"]
    error = (logits["encoded_logits"] - exact).abs().max().item() if "encoded_logits" in logits else 0.0
    if error > AMPLIFIED * exact.std():
        return False
    file, literals = weights.of_safetensors(path / "model.safetensors", drawn)
    weights.write(path, seed, [file], literals)
    save(logits, path / "goldens.safetensors")
    goldens = {"prompt": prompt[0].tolist(), "positions": POSITIONS, "is_integer": how["is_integer"], "dequantised": hashes}
    (path / "goldens.json").write_text(one_line_per_key(goldens))
    kib = sum(file.stat().st_size for file in path.iterdir()) / 1024
    print(f"{name}: logits std {exact.std():.2f}, off by {error:.3f} for 8-bit activations, {len(hashes)} matrices, seed {seed}, {kib:.0f} KiB")
    return True


if __name__ == "__main__":
    quiet()
    for name in sys.argv[1:] or CASES:
        make_one(name)
