"""Clients for Node; `run` installs them."""

import os
import pathlib
import subprocess

import pytest

FOLDER = pathlib.Path(os.environ.get("TEST_NODE", "/nonexistent"))


@pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="no npm: openai for Node and the Vercel AI SDK not run")
def test_openai_and_the_vercel_ai_sdk(cluster):
    ran = subprocess.run(["node", "client.mjs", cluster.address], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == ["openai for Node: passed", "Vercel AI SDK: passed"]
