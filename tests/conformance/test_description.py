"""The API's description: valid OpenAPI 3.1, and what a running server does, by schemathesis.

schemathesis makes requests of the description, some of which break it, and compares what comes back: no
fault of the server, described statuses, media types and shapes, and 405 for methods that are not described.
Other requests each day; the seed is printed.
"""

import datetime
import json
import pathlib
import subprocess
import sys
import urllib.request

import openapi_spec_validator
import pytest

from running import Cluster

# Of an operation, beside its examples and edges. A bound by time would depend on the machine.
MOST_CASES = 15
LIMIT_S = 600
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
]
# A deadline that cannot be met is the client's.
CONFIG = """[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    running = Cluster("--batch-dir", str(tmp_path_factory.mktemp("batches")))
    with urllib.request.urlopen(f"http://{running.address}/openapi.json") as answer:
        yield running, json.load(answer)
    running.end()


def test_it_is_valid(described):
    _, document = described
    openapi_spec_validator.validate(document)


def test_a_validator_would_find_a_fault(described):
    """The control: else the test above would pass whatever the document is."""
    _, document = described
    paths = document["paths"] | {"/broken": {"get": {"responses": {"200": {}}}}}
    assert list(openapi_spec_validator.OpenAPIV31SpecValidator(document | {"paths": paths}).iter_errors())


def schemathesis(folder: pathlib.Path, document: dict, address: str, seed: int):
    config, file = folder / "schemathesis.toml", folder / "openapi.json"
    config.write_text(CONFIG)
    file.write_text(json.dumps(document))
    command = [pathlib.Path(sys.executable).parent / "schemathesis", "--config-file", config, "run", file]
    command += ["--url", f"http://{address}", "--seed", str(seed)]
    command += ["--max-examples", str(MOST_CASES), "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS)]
    # Its stream has no end.
    command += ["--exclude-path", "/v1/cluster/events", "--request-timeout", "20", "--no-shrink", "--no-color"]
    command += ["--continue-on-failure", "--generation-database", "none"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_server_does_what_it_says(described, tmp_path, capsys):
    running, document = described
    seed = datetime.date.today().toordinal()
    with capsys.disabled():
        print(f"\nschemathesis: seed {seed}")
    run = schemathesis(tmp_path, document, running.address, seed)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
    cases = int(run.stdout.split("Test cases:")[1].split()[0])
    with capsys.disabled():
        print(f"schemathesis: {cases} cases")
    assert cases > 100, run.stdout


def test_schemathesis_would_find_a_fault(described, tmp_path):
    """The control: a description of answers that the server does not give."""
    running, document = described
    health = {"get": {"operationId": "health", "responses": {"200": {"description": "", "content": {"text/plain": {"schema": {"type": "string"}}}}}}}
    run = schemathesis(tmp_path, document | {"paths": {"/health": health}}, running.address, 1)
    assert run.returncode == 1 and "Undocumented Content-Type" in run.stdout, run.stdout
