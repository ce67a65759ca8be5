"""Measures peers on the same device, in the same run, with the same sizes, for comparison with Skein.

    python3 peers.py MODEL_DIR [--only ceilings,floor,transformers,vllm] [--input N] [--output N] [--batch N]

MODEL_DIR needs only config.json; weights are random. Each printed line is one JSON object. A peer that is not
installed is skipped with a message; a peer that fails says why. Needs torch.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
import traceback

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16


def say(**values):
    print(json.dumps(values), flush=True)


def seconds(work, rounds=20, warm_up=3):
    """Median duration of `work` in seconds, by device events."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def replayed(work):
    """Captures `work` in a CUDA graph, so that the host causes no gaps between launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Shape:
    def __init__(self, path):
        config = json.loads((pathlib.Path(path) / "config.json").read_text())
        self.hidden, self.inner = config["hidden_size"], config["intermediate_size"]
        self.layers, self.vocab = config["num_hidden_layers"], config["vocab_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or self.hidden // self.heads

    def linears(self):
        """(outputs, inputs) of the products of one layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [(q + 2 * kv, self.hidden), (self.hidden, q), (2 * self.inner, self.hidden), (self.hidden, self.inner)]

    def weights(self):
        return self.layers * sum(n * k for n, k in self.linears()) + self.vocab * self.hidden


def ceilings(_):
    """Measures a copy (bytes read and written) and a large bf16 product on random data."""
    source = torch.randn(1 << 30, device="cuda", dtype=BF16)
    target = torch.empty_like(source)
    copy = 2 * source.numel() * 2 / seconds(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=BF16) for _ in range(2))
    product = 2 * 8192**3 / seconds(lambda: a @ b)
    say(peer="torch", what="ceilings", copy_gb_per_s=copy / 1e9, bf16_tflops=product / 1e12, torch=torch.__version__,
        device=torch.cuda.get_device_name())


@torch.no_grad()
def floor(args):
    """All products of a step and its attention in one CUDA graph: a lower bound for plain torch."""
    shape = Shape(args.model)
    layers = [[torch.randn(n, k, device="cuda", dtype=BF16) * 0.02 for n, k in shape.linears()] for _ in range(shape.layers)]
    head = torch.randn(shape.vocab, shape.hidden, device="cuda", dtype=BF16) * 0.02
    context = args.input + args.output // 2

    def decode(batch):
        xs = {k: torch.randn(batch, k, device="cuda", dtype=BF16) for _, k in shape.linears()}
        q = torch.randn(batch, shape.heads, 1, shape.head_dim, device="cuda", dtype=BF16)
        kv = torch.randn(2, batch, shape.kv_heads, context, shape.head_dim, device="cuda", dtype=BF16)

        def work():
            for weights in layers:
                for weight in weights:
                    F.linear(xs[weight.shape[1]], weight)
                F.scaled_dot_product_attention(q, kv[0], kv[1], enable_gqa=True)
            F.linear(xs[shape.hidden], head)

        took = seconds(replayed(work))
        moved = 2 * shape.weights() + kv.numel() * 2 * shape.layers
        say(peer="torch floor", what="decode step", batch=batch, context=context, ms=took * 1e3,
            tokens_per_s=batch / took, gb_per_s=moved / took / 1e9)

    for batch in args.batch:
        decode(batch)

    tokens = args.prefill
    xs = {k: torch.randn(tokens, k, device="cuda", dtype=BF16) for _, k in shape.linears()}
    q = torch.randn(1, shape.heads, tokens, shape.head_dim, device="cuda", dtype=BF16)
    kv = torch.randn(2, 1, shape.kv_heads, tokens, shape.head_dim, device="cuda", dtype=BF16)

    def prefill():
        for weights in layers:
            for weight in weights:
                F.linear(xs[weight.shape[1]], weight)
            F.scaled_dot_product_attention(q, kv[0], kv[1], is_causal=True, enable_gqa=True)

    took = seconds(prefill, rounds=5, warm_up=2)
    say(peer="torch floor", what="prefill", tokens=tokens, ms=took * 1e3, tokens_per_s=tokens / took,
        tflops=2 * shape.weights() * tokens / took / 1e12)


@torch.no_grad()
def transformers(args):
    """generate_batch: continuous batching over a paged cache."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(args.model)
    torch.set_default_dtype(BF16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="paged|sdpa").eval()
    torch.set_default_dtype(torch.float32)
    generation = GenerationConfig(max_new_tokens=args.output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    for batch in args.batch:
        prompts = torch.randint(0, config.vocab_size, (batch, args.input)).tolist()
        model.generate_batch(prompts[:1], generation_config=GenerationConfig(max_new_tokens=2, do_sample=False, eos_token_id=-1, pad_token_id=0))
        start = time.perf_counter()
        outputs = model.generate_batch(prompts, generation_config=generation)
        took = time.perf_counter() - start
        tokens = sum(len(output.generated_tokens) for output in outputs.values())
        say(peer="transformers", what="throughput", batch=batch, input=args.input, output=args.output,
            seconds=took, tokens_per_s=tokens / took, tokens=tokens)


def vllm(args):
    """Random weights, the same lengths; CUDA graphs unless --eager."""
    from vllm import LLM, SamplingParams
    import vllm as module

    llm = LLM(model=args.model, load_format="dummy", skip_tokenizer_init=True, max_model_len=args.input + args.output + 16,
              gpu_memory_utilization=0.85, enforce_eager=args.eager, enable_prefix_caching=False, disable_log_stats=True)
    vocab = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]

    def run(batch, output):
        prompts = [{"prompt_token_ids": torch.randint(0, vocab, (args.input,)).tolist()} for _ in range(batch)]
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - start
        tokens = sum(len(request.outputs[0].token_ids) for request in outputs)
        assert tokens == batch * output, f"{tokens} tokens of {batch * output}"
        return took

    for batch in args.batch:
        run(batch, 4)
        whole = statistics.median(run(batch, args.output) for _ in range(3))
        first = statistics.median(run(batch, 1) for _ in range(3))
        say(peer=f"vllm {module.__version__}", what="latency", batch=batch, input=args.input, output=args.output, eager=args.eager,
            seconds=whole, prefill_seconds=first, decode_tokens_per_s=batch * (args.output - 1) / max(whole - first, 1e-9),
            tokens_per_s=batch * args.output / whole)


PEERS = {"ceilings": ceilings, "floor": floor, "transformers": transformers, "vllm": vllm}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--prefill", type=int, default=8192)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--eager", action="store_true", help="vLLM without CUDA graphs and compilation")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device for torch")
    failed = 0
    for name in args.only.split(","):
        try:
            PEERS[name](args)
        except ImportError as error:
            say(peer=name, skipped=str(error))
        except Exception as error:  # one peer's trouble must not cost the others' figures
            failed += 1
            say(peer=name, failed=f"{type(error).__name__}: {error}", where=traceback.format_exc(limit=-2))
        torch.cuda.empty_cache()
    sys.exit(failed)


if __name__ == "__main__":
    main()
