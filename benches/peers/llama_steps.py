"""Steps of llama.cpp: batches of several sequences, like llama-batched-bench."""

MOST_TOKENS_A_CALL = 2048  # llama.cpp's own default for n_batch; n_ubatch keeps its default of 512


class Generator:
    """Its subclass gives `clear()`, `decode(entries)` of (token, position, sequence, logits wanted), and
    `greedy()`, the most likely token of the last row."""

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def __call__(self, prompts: list[list[int]], output: int):
        self.clear()
        entries = [(token, position, sequence, position + 1 == len(prompt))
                   for sequence, prompt in enumerate(prompts) for position, token in enumerate(prompt)]
        for begin in range(0, len(entries), MOST_TOKENS_A_CALL):
            self.decode(entries[begin : begin + MOST_TOKENS_A_CALL])
        length = len(prompts[0])
        for step in range(output):
            token = self.greedy() if len(prompts) == 1 else (step * 7919) % self.vocab_size
            yield token
            if step + 1 < output:  # as in llama-batched-bench, other sequences go on with any token
                self.decode([(token, length + step, sequence, True) for sequence in range(len(prompts))])
