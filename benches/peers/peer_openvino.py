"""OpenVINO GenAI as a peer: uses its continuous batching pipeline, which reads the GGUF file itself.

Usage: peer_openvino.py FILE.gguf THREADS MAX_SEQUENCES MAX_CONTEXT
PEER_OV_PROPERTIES: JSON of device properties beside the number of threads. Default: the pipeline chooses
inference precision and cache type by the processor.
"""

import json
import os
import sys

import numpy as np
import openvino
import openvino_genai
from peer import answer_questions

CACHE_BLOCK = 32  # tokens; what the CPU plugin uses


def load():
    path, threads, sequences, context_len = sys.argv[1], *map(int, sys.argv[2:5])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = sequences
    # Allows each prompt in one step. The default splits prompts at 256 tokens, which is slower.
    scheduler.max_num_batched_tokens = sequences * context_len
    scheduler.num_kv_blocks = sequences * (context_len // CACHE_BLOCK + 2)
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": threads, **json.loads(os.environ.get("PEER_OV_PROPERTIES", "{}"))}
    pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
    description = {"name": "OpenVINO GenAI", "version": openvino_genai.__version__,
                   "settings": f"{os.path.basename(path)}, {properties}"}
    vocab_size = int(os.environ["PEER_VOCAB_SIZE"])  # the pipeline does not say
    return description, vocab_size, Generator(pipeline)


class Generator:
    def __init__(self, pipeline):
        self.pipeline, self.requests = pipeline, 0

    def __call__(self, prompts: list[list[int]], output: int):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output, True, False
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(self.pipeline.add_request(self.requests, ids, config))
            self.requests += 1
        steps = 0
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            steps += 1
            assert all(handle.can_read() for handle in handles), f"step {steps} gave a sequence no token"
            yield [list(handle.read().values())[0].generated_ids[-1] for handle in handles][0]


if __name__ == "__main__":
    answer_questions(load)
