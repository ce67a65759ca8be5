"""Hardware limits, from the rates that `skein bench` measures in the same run: each weight is read once per
step and multiplied once per token. Attention is not counted, so the real limit is slightly lower.
"""

import json
import os

HEAD_BITS = {16: 16.0, 8: 8.5, 4: 8.5}
LAYER_BITS = {16: 16.0, 8: 8.5, 4: 4.5}
Q6_K_BITS, Q6_K_GROUP = 6.5625, 256


class Shape:
    """Sizes of a model directory: vocabulary, weights in the layers, weights in the (tied) head."""

    def __init__(self, model_dir: str):
        with open(os.path.join(model_dir, "config.json")) as file:
            config = json.load(file)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_size = config["num_key_value_heads"] * config.get("head_dim", hidden // heads)
        attention = 2 * hidden * config.get("head_dim", hidden // heads) * heads + 2 * hidden * kv_size
        self.vocab_size, self.hidden = config["vocab_size"], hidden
        self.layers = config["num_hidden_layers"] * (attention + 3 * hidden * config["intermediate_size"])
        self.head = self.vocab_size * hidden

    def weight_bytes(self, width: int) -> float:
        """Bytes of weights read per step. At 4 bits the head has its size under GGUF's Q4_0, the smallest."""
        head_bits = Q6_K_BITS if width == 4 and self.hidden % Q6_K_GROUP == 0 else HEAD_BITS[width]
        return (self.layers * LAYER_BITS[width] + self.head * head_bits) / 8

    def ceiling(self, question: dict, width: int, read_rate: float, multiply_rate: float) -> float:
        """Tokens per second. A prompt needs the head once, a decode step needs it for every sequence."""
        if question["measure"] == "prefill":
            per_token = 2 * (self.layers + self.head / question["input"])
            return multiply_rate / per_token
        by_reading = question["batch"] * read_rate / self.weight_bytes(width)
        return min(by_reading, multiply_rate / (2 * (self.layers + self.head)))
