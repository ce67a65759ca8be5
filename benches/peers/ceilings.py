"""Hardware limits, from the rates that `skein bench` measures in the same run: each weight is read once per
step and multiplied once per token. Attention is not counted, so the real limit is slightly lower. Of experts,
a step reads those that its tokens choose: all equally likely, as under random weights.
"""

import json
import os

HEAD_BITS = {16: 16.0, 8: 8.5, 4: 8.5}
LAYER_BITS = {16: 16.0, 8: 8.5, 4: 4.5}
Q6_K_BITS, Q6_K_GROUP = 6.5625, 256


def delta_columns(config: dict) -> int:
    """Outputs of the products of a gated delta rule, and inputs of its last one."""
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads = config["linear_num_value_heads"]
    return 2 * keys + 3 * heads * config["linear_value_head_dim"] + 2 * heads


class Shape:
    """Sizes of a model directory: vocabulary, and weights in the layers apart from experts, in all experts,
    and in the head, tied or not."""

    def __init__(self, model_dir: str):
        with open(os.path.join(model_dir, "config.json")) as file:
            config = json.load(file)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_size = config["num_key_value_heads"] * config.get("head_dim", hidden // heads)
        attention = 2 * hidden * config.get("head_dim", hidden // heads) * heads + 2 * hidden * kv_size
        attending, of_states = config["num_hidden_layers"], 0
        if "linear_num_key_heads" in config:
            attention += hidden * config["head_dim"] * heads  # the gate of the output
            of_states = hidden * delta_columns(config)
            attending = config["layer_types"].count("full_attention")
        self.vocab_size, self.hidden = config["vocab_size"], hidden
        layers, feed_forward = config["num_hidden_layers"], 3 * hidden * config["intermediate_size"]
        experts = config.get("num_experts", 0)
        self.chosen = config["num_experts_per_tok"] / experts if experts else 0.0
        self.experts = layers * experts * feed_forward
        shared = 3 * hidden * config.get("shared_expert_intermediate_size", 0)
        self.layers = layers * (experts * hidden + shared if experts else feed_forward)
        self.layers += attending * attention + (layers - attending) * of_states
        self.head = self.vocab_size * hidden

    def read_share(self, tokens: int) -> float:
        """Share of the experts that a step of `tokens` tokens reads, on average."""
        return 1 - (1 - self.chosen) ** tokens

    def weight_bytes(self, width: int, tokens: int) -> float:
        """Bytes of weights read per step. At 4 bits the head has its size under GGUF's Q4_0, the smallest."""
        head_bits = Q6_K_BITS if width == 4 and self.hidden % Q6_K_GROUP == 0 else HEAD_BITS[width]
        layers = self.layers + self.experts * self.read_share(tokens)
        return (layers * LAYER_BITS[width] + self.head * head_bits) / 8

    def file_bytes(self, size: int, tokens: int) -> float:
        """Bytes of a GGUF file of `size` bytes that a step reads. All experts are stored alike."""
        unread = self.experts * (1 - self.read_share(tokens)) / (self.layers + self.experts + self.head)
        return size * (1 - unread)

    def ceiling(self, question: dict, step_bytes: float, read_rate: float, multiply_rate: float) -> float:
        """Tokens per second. A prompt needs the head once, a decode step needs it for every sequence."""
        layers = self.layers + self.experts * self.chosen
        if question["measure"] == "prefill":
            return multiply_rate / (2 * (layers + self.head / question["input"]))
        by_reading = question["batch"] * read_rate / step_bytes
        return min(by_reading, multiply_rate / (2 * (layers + self.head)))
