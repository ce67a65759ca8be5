"""llama.cpp as a peer, through its C interface.

Usage: peer_llama_cpp.py FILE.gguf THREADS MAX_SEQUENCES MAX_CONTEXT
"""

import ctypes
import os
import sys

import llama_cpp
from llama_steps import MOST_TOKENS_A_CALL, Generator
from peer import answer_questions


def load():
    path, threads, sequences, context_len = sys.argv[1], *map(int, sys.argv[2:5])
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    load.keep = quiet
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    assert model, f"{path} did not load"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_batch = sequences * context_len, sequences, MOST_TOKENS_A_CALL
    params.n_threads = params.n_threads_batch = threads
    params.kv_unified = os.environ.get("PEER_KV_UNIFIED") == "1"
    context = llama_cpp.llama_init_from_model(model, params)
    assert context, "no context"
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    description = {"name": "llama.cpp", "version": f"llama-cpp-python {llama_cpp.__version__}",
                   "settings": f"{os.path.basename(path)}, KV f16, n_batch {MOST_TOKENS_A_CALL}"}
    return description, vocab_size, LlamaCpp(context, vocab_size)


class LlamaCpp(Generator):
    def __init__(self, context, vocab_size: int):
        super().__init__(vocab_size)
        self.context = context
        self.batch = llama_cpp.llama_batch_init(MOST_TOKENS_A_CALL, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, entries) -> None:
        batch = self.batch
        batch.n_tokens = len(entries)
        for row, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, wanted
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        status = llama_cpp.llama_decode(self.context, batch)
        assert status == 0, f"llama_decode gave {status}"
        llama_cpp.llama_synchronize(self.context)

    def greedy(self) -> int:
        import numpy as np

        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        values = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.vocab_size,))
        return int(values.argmax())


if __name__ == "__main__":
    answer_questions(load)
