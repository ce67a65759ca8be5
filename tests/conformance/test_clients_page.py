"""The programs of docs/src/clients.md, as they stand there. The large ones run by hand: tests/clients/run."""

import os
import pathlib
import sys

import pytest

from running import Cluster

sys.path.append(str(pathlib.Path(__file__).parents[1] / "clients"))
import page

NODE = pathlib.Path(os.environ.get("TEST_NODE", "/nonexistent"))
ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
HERE = [client for client in page.CLIENTS if client.environment in ("conformance", "node")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = Cluster(*page.SERVE, log=tmp_path_factory.mktemp("server") / "log")
    yield running
    running.end()


def test_every_block_of_the_page_is_a_row_and_every_row_is_on_the_page():
    headings = {heading for heading, _, _ in page.blocks()}
    assert headings == {client.heading for client in page.CLIENTS} | {page.TOOLS}


@pytest.mark.parametrize("client", HERE, ids=lambda client: client.heading)
def test_a_program_of_the_page_runs(client, server, tmp_path):
    if client.environment == "node" and not (NODE / "node_modules").is_dir():
        pytest.skip("no npm")
    page.run(client, server, tmp_path, page.commands(sys.executable, NODE), ENVIRONMENT)


def test_a_wrong_key_in_a_program_fails(server, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "KEY", "another")
    with pytest.raises(page.Failed, match="401"):
        page.run(page.CLIENTS[[client.heading for client in page.CLIENTS].index("openai for Python")], server, tmp_path,
                 page.commands(sys.executable), ENVIRONMENT)


def test_tools_can_be_tried_with_the_shipped_model(tmp_path):
    said = page.run_tools(page.tools_serve("--no-structured-outputs-whitespace"), tmp_path, page.commands(sys.executable), ENVIRONMENT)
    assert said.startswith("weather {"), said
