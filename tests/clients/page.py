"""The blocks of docs/src/clients.md as programs: which runs where, and how to run one.

Every block of the page belongs to a row of `CLIENTS`, by the heading above it. A row names the environment
that its program needs: `conformance` and `node` are those of tests/conformance/run, so CI runs these rows;
the others are large, so tests/clients/run makes them, by hand.
"""

import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/conformance"))
import running
PAGE = ROOT / "docs/src/clients.md"
KEY = "a-key-of-the-test"
SERVE = ("--api-key", KEY, "--no-structured-outputs-additional-properties")  # See Instructor on the page.
TOOLS = "Trying tools"  # Its commands start servers of their own.
BLOCK = re.compile(r"^(#{2,3}) (.+?)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 600


@dataclasses.dataclass(frozen=True)
class Client:
    heading: str
    environment: str  # Empty: the page says that it is not run.
    packages: tuple[str, ...] = ()  # Of PyPI, or of npm if the environment is `agents`.
    file: str = ""  # Where the block before the command goes, below the home directory.
    copied: tuple[str, ...] = ()  # Files of this folder that it reads.
    agent: bool = False  # Sends tools and long prompts: needs a template with tools and a large context.


CLIENTS = [
    Client("skein launch", "agents", agent=True),
    Client("Codex CLI", "agents", ("@openai/codex@0.171.0",), ".codex/config.toml", agent=True),
    Client("Claude Code", "agents", ("@anthropic-ai/claude-code@2.1.332",), agent=True),
    Client("Qwen Code", "agents", ("@qwen-code/qwen-code@0.15.10",), agent=True),
    Client("opencode", "agents", ("opencode-ai@1.18.33",), ".config/opencode/opencode.json", agent=True),
    Client("Continue", "agents", ("@continuedev/cli@1.5.47",), ".continue/config.yaml", agent=True),
    Client("Aider", "aider", ("aider-chat==0.86.2",), agent=True),
    Client("llm", "wrappers", ("llm==0.36",), ".config/io.datasette.llm/extra-openai-models.yaml"),
    Client("Open WebUI", ""),
    Client("openai for Python", "conformance"),
    Client("openai for Node", "node"),
    Client("anthropic for Python", "conformance"),
    Client("anthropic for Node", "node"),
    Client("ollama for Python", "conformance"),
    Client("ollama for Node", "node"),
    Client("LangChain", "wrappers", ("langchain-openai==1.7.4", "langchain-ollama==1.1.0", "langchain-anthropic==1.7.10")),
    Client("LiteLLM", "conformance"),
    Client("LlamaIndex", "llamaindex", ("llama-index-llms-openai-like==0.8.1",)),
    Client("Pydantic AI", "wrappers", ("pydantic-ai-slim[openai]==2.38.0",)),
    Client("OpenAI Agents", "wrappers", ("openai-agents==0.24.0",)),
    Client("Instructor", "wrappers", ("instructor==1.17.0",)),
    Client("smolagents", "frameworks", ("smolagents[openai]==1.26.0",)),
    Client("DSPy", "frameworks", ("dspy==3.4.1",)),
    Client("Haystack", "frameworks", ("haystack-ai==3.4.1",)),
    Client("Agno", "frameworks", ("agno==3.1.10",)),
    Client("Strands", "frameworks", ("strands-agents[openai]==1.62.0",)),
    Client("Vercel AI SDK", "node"),
    Client("GuideLLM", "guidellm", ("guidellm==0.8.1",)),
    Client("AIPerf", "aiperf", ("aiperf==0.13.0",)),
    Client("lm-eval", "lm-eval", ("lm-eval[api]==0.4.13", "transformers==5.24.0"), copied=("sums.yaml", "sums.jsonl")),
    Client("tritonclient", "conformance"),
]


def blocks():
    """(heading, language, text) of each block of the page."""
    heading = None
    for match in BLOCK.finditer(PAGE.read_text("utf-8")):
        if match[2]:
            heading = match[2]
        else:
            yield heading, match[3], match[4]


def of(heading):
    return [(language, text) for found, language, text in blocks() if found == heading]


def substituted(text, address, model_dir):
    """A block for the test's server, key, model's directory and task of lm-eval."""
    text = text.replace("--tasks arc_easy", "--tasks sums.yaml")
    return text.replace("127.0.0.1:8000", address).replace("unused", KEY).replace("MODEL_DIR", str(model_dir))


class Failed(AssertionError):
    pass


def run(client, server, home, known, environment, model_dir="models/skein-7m"):
    """Runs the blocks of one client against `server`, which has an address and a log.

    `known` maps a language to the program that runs a file of it. A block of another language is the file
    that the next block's program reads.
    """
    found = of(client.heading)
    assert found, f"the page has no block under {client.heading}"
    home.mkdir(parents=True, exist_ok=True)
    for file in client.copied:
        shutil.copy(ROOT / "tests/clients" / file, home)
    ran = 0
    for language, text in found:
        text = substituted(text, server.address, model_dir)
        if language in known:
            run_block(f"{client.heading}, block {ran + 1}", text, known[language], server, home, environment)
            ran += 1
        else:
            path = home / client.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    assert ran, f"no block under {client.heading} is a program"


def run_block(name, text, command, server, home, environment):
    """What a program prints; fails unless it ends well and the server answered each of its requests."""
    folder = command.folder or home
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"block{command.suffix}"
    program.write_text(text, "utf-8")
    since = len(server.log.read_text("utf-8"))
    try:
        result = subprocess.run(
            [*command.program, program], cwd=folder, env=environment | {"HOME": str(home)}, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{name}: not done within {LIMIT_S} s\n{late.stdout}\n{late.stderr}") from None
    said = f"{name}: status {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    lines = [line for line in server.log.read_text("utf-8")[since:].splitlines() if " request request=" in line]
    wrong = [line for line in lines if " status=200 " not in line or 'outcome="completed"' not in line]
    if result.returncode != 0 or not result.stdout.strip() or not lines or wrong:
        raise Failed("\n".join([said, f"{len(lines)} requests reached the server; not answered:", *wrong]))
    return result.stdout


def tools_serve(template):
    """The arguments of `skein serve` in the section on tools, of the command that has this template."""
    (line,) = [text for language, text in of(TOOLS) if language == "sh" and template in text]
    return shlex.split(line)[2:]


def run_tools(arguments, home, known, environment):
    """What the program of the section on tools prints with a server that has these arguments."""
    (text,) = [text for language, text in of(TOOLS) if language == "python"]
    server = running.Cluster(*arguments, "--api-key", KEY, log=home / "server.log")
    try:
        return run_block(TOOLS, substituted(text, server.address, ""), known["python"], server, home, environment)
    finally:
        server.end()


@dataclasses.dataclass(frozen=True)
class Command:
    program: tuple[str, ...]
    suffix: str
    folder: pathlib.Path | None = None  # Where the program must lie, else the home directory.


def commands(python, node_folder=None):
    known = {"python": Command((str(python),), ".py"), "sh": Command(("bash", "-e"), ".sh")}
    if node_folder:
        known["js"] = Command((shutil.which("node") or "node",), ".mjs", node_folder)
    return known
