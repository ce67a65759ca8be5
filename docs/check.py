#!/usr/bin/env python3
"""Checks the documents against the tree: links, headings, the manual's table of contents, the example, and
that the constants, flags, files and tests exist that the page of limits names.

    python3 docs/check.py

Looks at every Markdown file that git knows. Links to other hosts are not followed. Standard library only.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs/src"
REPOSITORY = "https://github.com/skein-serve/skein/"
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def prose(path):
    """Text of a file without code."""
    return re.sub(r"`[^`\n]*`", lambda code: code.group().replace("[", " "), FENCE.sub("", path.read_text("utf-8")))


def anchors(path):
    """Anchors of a file's headings."""
    text = FENCE.sub("", path.read_text("utf-8"))
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower() for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def problem(path, target):
    """Fault of a link, or None."""
    if target.startswith(REPOSITORY):
        kind, _, inside = target.removeprefix(REPOSITORY).partition("/main/")
        if kind not in ("blob", "tree"):
            return "is no file or folder of the main branch"
        base, target = ROOT, inside
    elif re.match(r"[a-z]+:", target):
        return None
    else:
        base = path.parent
    name, _, anchor = target.partition("#")
    file = (base / name).resolve() if name else path
    if not file.exists():
        return "does not exist"
    if BOOK in path.parents and base != ROOT and BOOK not in [file, *file.parents]:
        return f"leads out of the book; write {REPOSITORY}blob/main/..."
    if anchor and anchor not in anchors(file):
        return "names no heading of that file"
    return None


def links(files):
    for path in files:
        for target in LINK.findall(prose(path)):
            wrong = problem(path, target)
            if wrong:
                yield f"{path.relative_to(ROOT)}: {target} {wrong}"


def contents():
    """Pages missing from the table of contents, which mdBook would leave out."""
    listed = set(LINK.findall((BOOK / "SUMMARY.md").read_text("utf-8"))) | {"SUMMARY.md"}
    pages = {str(page.relative_to(BOOK)) for page in BOOK.rglob("*.md")}
    yield from (f"docs/src/SUMMARY.md does not list {page}" for page in sorted(pages - listed))


def example():
    """The program in the documents must equal the tested one."""
    program = (ROOT / "docs/examples/ask.py").read_text("utf-8")
    for name in ("README.md", "docs/src/quick-start.md"):
        if f"```python\n{program}```" not in (ROOT / name).read_text("utf-8"):
            yield f"{name}: its Python program is not docs/examples/ask.py"


def limits():
    """What the tables of limits.md name and the sources do not have."""
    sources = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    code = "\n".join((ROOT / name).read_text("utf-8") for name in sources.splitlines() if (ROOT / name).exists())
    flags = (BOOK / "flags.md").read_text("utf-8")
    for line in (BOOK / "limits.md").read_text("utf-8").splitlines():
        for before, name in re.findall(r"(targets? (?:`\w+`, )*)?`([^`]+)`", line) if line.startswith("|") else ():
            if before or re.fullmatch(r"[a-z]+_[a-z0-9_]+", name):
                exists = f"fn {name}(" in code or f"pub {name}: " in code or f'name: "{name}"' in code
            elif name.startswith("--"):
                exists = f"`{name}" in flags
            elif re.fullmatch(r"[A-Z_]+", name):
                exists = f"const {name}: " in code
            elif "/" in name or name.endswith(".lock"):
                exists = (ROOT / name).exists()
            else:
                continue
            if not exists:
                yield f"docs/src/limits.md: `{name}` is nowhere in the sources"


def main():
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(tracked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [ROOT / name for name in names if (ROOT / name).exists()]
    problems = [*links(files), *contents(), *example(), *limits()]
    print("\n".join(problems) or f"{len(files)} documents: every link leads somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
