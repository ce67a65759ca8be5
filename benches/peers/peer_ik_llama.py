"""ik_llama.cpp as a peer, the fork of llama.cpp that is tuned for CPUs.

Usage: peer_ik_llama.py FILE.gguf THREADS MAX_SEQUENCES MAX_CONTEXT, with PEER_IK_LIBRARY=libpeer_ik.so
"""

import ctypes
import os
import sys

from llama_steps import MOST_TOKENS_A_CALL, Generator
from peer import answer_questions


def load():
    path, threads, sequences, context_len = sys.argv[1], *map(int, sys.argv[2:5])
    library = ctypes.CDLL(os.environ["PEER_IK_LIBRARY"])
    repack = os.environ.get("PEER_IK_REPACK") == "1"
    vocab_size = library.peer_load(path.encode(), threads, sequences, context_len, MOST_TOKENS_A_CALL, ctypes.c_bool(repack))
    assert vocab_size, f"{path} did not load"
    settings = f"{os.path.basename(path)}, KV f16, n_batch {MOST_TOKENS_A_CALL}" + (", -rtr" if repack else "")
    description = {"name": "ik_llama.cpp", "settings": settings}
    return description, vocab_size, IkLlama(library, vocab_size)


class IkLlama(Generator):
    def __init__(self, library, vocab_size: int):
        super().__init__(vocab_size)
        self.library = library

    def clear(self) -> None:
        self.library.peer_clear()

    def decode(self, entries) -> None:
        rows = len(entries)
        *numbers, wanted = zip(*entries)
        arrays = [(ctypes.c_int * rows)(*column) for column in numbers]
        status = self.library.peer_decode(rows, *arrays, (ctypes.c_bool * rows)(*wanted))
        assert status == 0, f"llama_decode gave {status}"

    def greedy(self) -> int:
        return self.library.peer_greedy()


if __name__ == "__main__":
    answer_questions(load)
