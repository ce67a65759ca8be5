// ik_llama.cpp behind a few plain functions, for peer_ik_llama.py: its structures change too often to be
// written down in Python. Compiled against an installed library, see README.md. One model a process.

#include "llama.h"

#include <algorithm>

static llama_context * context;
static llama_batch batch;
static int vocab_size;

extern "C" {

// Returns the size of the vocabulary, or 0 if the file does not load. `repack` rearranges weights at load.
int peer_load(const char * path, int threads, int sequences, int context_len, int tokens_a_call, bool repack) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    model_params.repack_tensors = repack;
    model_params.use_mmap = !repack;
    llama_model * model = llama_model_load_from_file(path, model_params);
    if (!model) return 0;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = sequences * context_len;
    params.n_seq_max = sequences;
    params.n_batch = tokens_a_call;
    params.n_threads = params.n_threads_batch = threads;
    context = llama_init_from_model(model, params);
    if (!context) return 0;
    batch = llama_batch_init(tokens_a_call, 0, 1);
    vocab_size = llama_n_vocab(model);
    return vocab_size;
}

void peer_clear() { llama_kv_cache_clear(context); }

int peer_decode(int rows, const int * tokens, const int * positions, const int * sequences, const bool * wanted) {
    batch.n_tokens = rows;
    for (int row = 0; row < rows; row++) {
        batch.token[row] = tokens[row];
        batch.pos[row] = positions[row];
        batch.n_seq_id[row] = 1;
        batch.seq_id[row][0] = sequences[row];
        batch.logits[row] = wanted[row];
    }
    int status = llama_decode(context, batch);
    llama_synchronize(context);
    return status;
}

int peer_greedy() {
    const float * logits = llama_get_logits_ith(context, batch.n_tokens - 1);
    return std::max_element(logits, logits + vocab_size) - logits;
}

}
