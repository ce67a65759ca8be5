#!/usr/bin/env python3
"""Checks deploy/ without a cluster and without rendering: flags, systemd units, compose file, Dockerfile.

    deploy/check.py

Every `--flag`, `SKEIN_` variable and key of a TOML file in deploy/ and in docs/src/kubernetes.md must be in
docs/src/flags.md, under its command if that is known. Standard library only; deploy/validate adds the checks
that need other programs.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
COMMANDS = ["serve", "router", "gateway", "worker"]
ROW = re.compile(r"^\| `--(\[no-\])?([a-z0-9-]+)[^`]*` \|[^|]*\| ([a-z, -]+) \|", re.MULTILINE)
# Command lines: `skein worker --flag` on one line, or a YAML list that starts with the command.
ON_A_LINE = re.compile(r"\bskein (serve|router|gateway|worker)\b([^#\n|]*)")
IN_A_LIST = re.compile(r"^ +- (serve|router|gateway|worker)\n((?: +- (?:[-/$].*)\n)+)", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
VARIABLE = re.compile(r"\bSKEIN_([A-Z0-9_]+)\b")
# Variables outside the table of settings: read by the kernel cache and by the command line.
OTHER_VARIABLES = {"KERNEL_CACHE", "CONFIG"}
# Variables that Kubernetes sets, mentioned in a comment.
SERVICE_VARIABLES = {"WORKER_PORT", "ROUTER_PORT"}
# Scripts with flags of their own.
PROGRAMS = {"prometheus-rule", "sbom", "validate", "generate", "on-empty-root", "rolling-restart"}
# Flags of docker, apk, kubectl, helm, kind, systemctl, cargo, deploy/sbom and benches/autoscaling in deploy/.
FOREIGN = {
    "build", "build-arg", "chown", "create-namespace", "delete-emptydir-data", "for", "from", "from-file", "from-literal", "help",
    "ignore-daemonsets", "locked", "mount", "namespace", "no-cache", "no-default-features", "no-install-recommends", "notices", "now", "only", "release", "replicas", "router", "set",
    "target", "timeout", "trace", "values",
}  # fmt: skip


def flags():
    """Flags by command, from the manual's page, which a test compares with the code."""
    page = (ROOT / "docs/src/flags.md").read_text("utf-8")
    takes = {command: set() for command in COMMANDS}
    for negated, name, commands in ROW.findall(page):
        for command in COMMANDS if commands.strip() == "all" else map(str.strip, commands.split(",")):
            if command in takes:
                takes[command] |= {name, f"no-{name}"} if negated else {name}
    assert all(len(takes[command]) > 10 for command in COMMANDS), "docs/src/flags.md has another form by now"
    return takes


def texts():
    """Every file to check and its text. The chart's templates need no check: they are generated."""
    files = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
    for path in [*files, ROOT / "docs/src/kubernetes.md"]:
        if path.exists() and path.suffix not in (".py", ".mjs", ".json", ".tgz") and path.name not in PROGRAMS:
            yield path, path.read_text("utf-8")


def wrong_flags(text, takes):
    known = set().union(*takes.values())
    calls = ON_A_LINE.findall(text) + IN_A_LIST.findall(text)
    for command, rest in calls:
        for flag in FLAG.findall(rest):
            if flag not in takes[command] | {"help"}:
                yield f"`skein {command}` has no flag --{flag}"
    for flag in FLAG.findall(text):
        if flag not in known | FOREIGN:
            yield f"no command has a flag --{flag}"
    for name in VARIABLE.findall(text):
        if name.lower().replace("_", "-") not in known and name not in OTHER_VARIABLES | SERVICE_VARIABLES:
            yield f"no setting belongs to the variable SKEIN_{name}"


def wrong_keys(path, takes):
    known = set().union(*takes.values())
    for key, value in tomllib.loads(path.read_text("utf-8")).items():
        inner = takes.get(key, set()) if isinstance(value, dict) else known
        for name in value if isinstance(value, dict) else [key]:
            if name not in inner:
                yield f"no setting is called `{name}`"


def seconds(text, pattern):
    """Seconds that `pattern` captures in `text`; None if it does not match."""
    found = re.search(pattern, text, re.MULTILINE)
    return int(found.group(1)) if found else None


def wrong_unit(path, text):
    """A unit's stop timeout must exceed the drain time, which its file or Skein's default sets."""
    default = seconds((ROOT / "docs/src/flags.md").read_text("utf-8"), r"--shutdown-timeout TIME` \| `(\d+)s`")
    drain = seconds(text, r"^ExecStart=.*--shutdown-timeout[ =](\d+)s") or default
    grace = seconds(text, r"^TimeoutStopSec=(\d+)s")
    if not grace or grace <= drain:
        yield f"TimeoutStopSec is {grace} s, but --shutdown-timeout is {drain} s"
    for line in ["NoNewPrivileges=yes", "DynamicUser=yes", "ProtectSystem=strict", "CapabilityBoundingSet="]:
        if line not in text.splitlines():
            yield f"{line} is missing"


def wrong_dockerfile(text):
    """Every file that an image copies must exist, and no image may run as root."""
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"\S+ AS (\S+)", stage).group(1)
        for names in re.findall(r"^COPY (?!--from)(.+) \S+$", stage, re.MULTILINE):
            for name_in_tree in names.split():
                if name_in_tree != "." and not list(ROOT.glob(name_in_tree)):
                    yield f"{name} copies {name_in_tree}, which is not in the tree"
        if "ENTRYPOINT" in stage and not re.search(r"^USER [1-9]\d*:[1-9]\d*$", stage, re.MULTILINE):
            yield f"{name} runs as root"
    rust = re.search(r'^rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text("utf-8"), re.MULTILINE)
    if f"rust:{rust.group(1)}-" not in text:
        yield f"builds with another Rust than {rust.group(1)}, the one in Cargo.toml"


def wrong_compose(text):
    """Every path that compose mounts must exist."""
    if not (DEPLOY / "observability").exists():
        print("deploy/compose.yaml: NOT CHECKED: the files of Prometheus and Grafana are not in the tree")
        return
    for mounted in re.findall(r"^ +- \./(\S+?):/", text, re.MULTILINE):
        if not (DEPLOY / mounted).exists():
            yield f"mounts deploy/{mounted}, which is not in the tree"


def problems():
    takes = flags()
    for path, text in texts():
        found = list(wrong_flags(text, takes))
        if path.suffix == ".toml":
            found += wrong_keys(path, takes)
        if path.suffix == ".service":
            found += wrong_unit(path, text)
        if path.name == "Dockerfile":
            found += wrong_dockerfile(text)
        if path.name == "compose.yaml":
            found += wrong_compose(text)
        for problem in found:
            yield f"{path.relative_to(ROOT)}: {problem}"


def main():
    found = sorted(set(problems()))
    print("\n".join(found) or f"{sum(1 for _ in texts())} files of deploy/: flags, variables and units are right")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
