#!/usr/bin/env python3
"""What number types cost in quality: perplexity and KL divergence of a model in each, as a table in Markdown.

    python3 benches/quality.py target/release/skein [MODEL --text HELD_OUT --calibration FILE]

Without MODEL, the shipped model on `models/skein-7m/held_out.bin`, calibrated once with files of Python's
standard library that are not held out (of the Python that runs this script) and once with the text in the
binary. Every row is `skein bench perplexity` with `--reference MODEL`, which is computed without rounding.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "models" / "skein-7m"
EXACT = ["--dtype", "float32", "--kv-cache-dtype", "float32"]

# label: flags of `bench perplexity` on the model itself
FLAGS = {
    "bfloat16 activations and KV (the default)": [],
    "KV bfloat16": ["--dtype", "float32", "--kv-cache-dtype", "bfloat16"],
    "KV float16": ["--dtype", "float32", "--kv-cache-dtype", "float16"],
    "KV int8": ["--dtype", "float32", "--kv-cache-dtype", "int8"],
    "`--quantization int8`": ["--quantization", "int8", "--kv-cache-dtype", "float32"],
    "`--quantization int4`": ["--quantization", "int4", "--kv-cache-dtype", "float32"],
}
# label: flags of `quantize`, and whether it is calibrated
METHODS = {
    "fp8": (["--method", "fp8"], False),
    "int8": (["--method", "int8"], False),
    "rtn, 8 bits": (["--method", "rtn", "--bits", "8"], False),
    "rtn, 4 bits": (["--method", "rtn"], False),
    "rtn, 4 bits, asymmetric": (["--method", "rtn", "--asymmetric"], False),
    "gptq, 4 bits": (["--method", "gptq"], True),
    "gptq, 4 bits, act-order off": (["--method", "gptq", "--act-order", "off"], True),
    "gptq, 4 bits, act-order group": (["--method", "gptq", "--act-order", "group"], True),
    "gptq, 4 bits, asymmetric": (["--method", "gptq", "--asymmetric"], True),
    "awq, 4 bits": (["--method", "awq"], True),
    "rtn, 3 bits": (["--method", "rtn", "--bits", "3"], False),
    "gptq, 3 bits": (["--method", "gptq", "--bits", "3"], True),
}


def calibration_text(path):
    """About 1 MB of files that the shipped model was trained on."""
    sys.path.insert(0, str(SHIPPED))
    import corpus
    texts, size = [], 0
    for name, text in corpus.library_files():
        if not corpus.held_out(name) and not corpus.is_test(name) and size < 1_000_000:
            texts.append(text)
            size += len(text)
    path.write_text("".join(texts))
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("skein", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path, nargs="?", default=SHIPPED)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--calibration", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--window", type=int, default=513)
    options = parser.parse_args()
    skein, model = options.skein.resolve(), options.model
    if model == SHIPPED:
        subprocess.run([sys.executable, SHIPPED / "packed.py", "unpack"], check=True)
    source = ["--text", options.text] if options.text else ["--tokens", SHIPPED / "held_out.bin"]

    def row(label, directory, flags):
        command = [skein, "bench", "perplexity", directory, *source, "--window", str(options.window), "--reference", model, "--json"]
        done = subprocess.run([*map(str, command), *flags], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        print(f"| {label} | {found['perplexity']:.4f} | {found['increase_percent']:+.3f}% | {found['mean_kl_divergence']:.5f} | "
              f"{100 * found['same_top_token']:.2f}% |", flush=True)
        return found

    print("| | perplexity | increase | KL divergence, nats | same most likely token |\n|---|---|---|---|---|")
    row("exact", model, EXACT)
    for label, flags in FLAGS.items():
        row(label, model, flags)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        texts = {"": options.calibration}
        if model == SHIPPED and not options.calibration:
            texts = {"": [calibration_text(work / "text.txt")], ", calibrated with the manual": []}
        for label, (flags, is_calibrated) in METHODS.items():
            for suffix, files in texts.items() if is_calibrated else [("", [])]:
                out = work / f"{label}{suffix}".replace(" ", "-").replace(",", "")
                words = [word for file in files for word in ("--calibration", str(file))]
                subprocess.run([skein, "quantize", str(model), str(out), *flags, *words], check=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
                row(label + suffix, out, ["--kv-cache-dtype", "float32"])


if __name__ == "__main__":
    main()
