#!/usr/bin/env python3
"""Embeds and reranks through clients that we did not write, and compares their vectors with goldens.json.

    pip install openai cohere langchain-openai langchain-ollama langchain-cohere haystack-ai litellm ollama \\
        llama-index-embeddings-openai-like llama-index-embeddings-ollama \\
        llama-index-postprocessor-cohere-rerank
    skein serve FOLDER/all-MiniLM-L6-v2          # FOLDER of tests/embeddings/run
    python clients.py http://127.0.0.1:8000 [NAME ...]

By hand: CI does not install these.
"""

import array
import asyncio
import base64
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
# The last text is longer than the model takes.
GOLDENS = json.loads((HERE / "goldens.json").read_text())[:-1]
TEXTS = [golden["text"] for golden in GOLDENS]
VECTORS = [array.array("f", base64.b64decode(golden["vector"])) for golden in GOLDENS]
MODEL, KEY, MOST_DIFFERENCE = "all-MiniLM-L6-v2", "unused", 1e-4


def same(vectors):
    assert len(vectors) == len(VECTORS), len(vectors)
    worst = max(abs(a - b) for one, other in zip(vectors, VECTORS) for a, b in zip(one, other, strict=True))
    assert worst <= MOST_DIFFERENCE, worst


def ranked(indices):
    assert list(indices)[0] == 1, list(indices)


def openai(url):
    from openai import OpenAI

    answer = OpenAI(base_url=f"{url}/v1", api_key=KEY).embeddings.create(model=MODEL, input=TEXTS)
    same([entry.embedding for entry in answer.data])


def cohere(url):
    import cohere

    for client in (cohere.Client(KEY, base_url=url), cohere.ClientV2(KEY, base_url=url)):
        found = client.rerank(model=MODEL, query=TEXTS[0], documents=[TEXTS[2], TEXTS[1], TEXTS[3]], top_n=2).results
        assert len(found) == 2
        ranked(result.index for result in found)


def langchain(url):
    from langchain_openai import OpenAIEmbeddings

    embedder = OpenAIEmbeddings(model=MODEL, base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False)
    same(embedder.embed_documents(TEXTS))
    same(asyncio.run(embedder.aembed_documents(TEXTS)))


def langchain_ollama(url):
    from langchain_ollama import OllamaEmbeddings

    same(OllamaEmbeddings(model=MODEL, base_url=url).embed_documents(TEXTS))


def langchain_cohere(url):
    from langchain_cohere import CohereRerank

    found = CohereRerank(model=MODEL, cohere_api_key=KEY, base_url=url, top_n=2).rerank([TEXTS[2], TEXTS[1], TEXTS[3]], TEXTS[0])
    ranked(result["index"] for result in found)


def llama_index(url):
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    same(OpenAILikeEmbedding(model_name=MODEL, api_base=f"{url}/v1", api_key=KEY).get_text_embedding_batch(TEXTS))


def llama_index_ollama(url):
    from llama_index.embeddings.ollama import OllamaEmbedding

    same(OllamaEmbedding(model_name=MODEL, base_url=url).get_text_embedding_batch(TEXTS))


def llama_index_rerank(url):
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in (TEXTS[2], TEXTS[1], TEXTS[3])]
    found = CohereRerank(model=MODEL, api_key=KEY, base_url=url, top_n=2).postprocess_nodes(nodes, QueryBundle(TEXTS[0]))
    assert found[0].node.text == TEXTS[1], found


def haystack(url):
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder
    from haystack.utils import Secret

    embedder = OpenAIDocumentEmbedder(model=MODEL, api_base_url=f"{url}/v1", api_key=Secret.from_token(KEY))
    documents = embedder.run(documents=[Document(content=text) for text in TEXTS])["documents"]
    same([document.embedding for document in documents])


def litellm(url):
    import litellm

    answer = litellm.embedding(model=f"openai/{MODEL}", input=TEXTS, api_base=f"{url}/v1", api_key=KEY)
    same([entry["embedding"] for entry in answer.data])
    documents = [TEXTS[2], TEXTS[1], TEXTS[3]]
    for provider in ("cohere", "hosted_vllm", "jina_ai"):
        base = f"{url}/v1/rerank" if provider != "cohere" else url
        found = litellm.rerank(model=f"{provider}/{MODEL}", query=TEXTS[0], documents=documents, top_n=2, api_base=base, api_key=KEY)
        ranked(result["index"] for result in found.results)


def ollama(url):
    from ollama import Client

    same(Client(url).embed(MODEL, TEXTS).embeddings)
    same([Client(url).embeddings(MODEL, text).embedding for text in TEXTS])


CLIENTS = [openai, cohere, langchain, langchain_ollama, langchain_cohere, llama_index, llama_index_ollama, llama_index_rerank, haystack, litellm,
           ollama]


def main():
    url, *wanted = sys.argv[1:] or sys.exit(__doc__)
    failed = []
    for client in CLIENTS:
        if wanted and client.__name__ not in wanted:
            continue
        try:
            client(url.rstrip("/"))
            print(f"passed  {client.__name__}", flush=True)
        except Exception as error:  # whatever a client does is its result
            failed.append(client.__name__)
            print(f"FAILED  {client.__name__}: {type(error).__name__}: {error}", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
