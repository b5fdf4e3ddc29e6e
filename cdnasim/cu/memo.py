"""Profiles kept on disk, by the content of everything they depend on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from cdnasim.cu.profile import CuProfile, Tolerance, cu_profile
from cdnasim.trace.model import KernelTrace

SOURCES = ("cdnasim.cu", "cdnasim.isa", "cdnasim.trace")


def kept_profile(trace: KernelTrace, residents: int) -> CuProfile:
    """`cu_profile(trace, residents)`, from disk if it was computed before.

    Files lie in CDNASIM_CACHE, else in cdnasim/ of XDG_CACHE_HOME or ~/.cache. Their names are
    hashes of trace, data and program, so nothing outdated is found. A damaged file is computed
    anew; where nothing can be written, nothing is kept.
    """
    content = json.dumps([dataclasses.asdict(trace), residents], separators=(",", ":"))
    key = hashlib.sha256(_program() + content.encode("utf-8")).hexdigest()
    path = _folder() / f"{key}.json"
    profile = _read(path)
    if profile is None:
        profile = cu_profile(trace, residents)
        _write(path, profile)
    return profile


def _folder() -> Path:
    own = os.environ.get("CDNASIM_CACHE")
    if own:
        return Path(own)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "cdnasim"


@cache
def _program() -> bytes:
    """Hash of the modules and data that a profile depends on."""
    digest = hashlib.sha256()
    for package in SOURCES:
        for file in sorted(resources.files(package).iterdir(), key=lambda f: f.name):
            if file.name.endswith((".py", ".toml", ".csv")):
                digest.update(file.read_bytes())
    return digest.digest()


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode("utf-8")).hexdigest()


def _read(path: Path) -> CuProfile | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        record = data["profile"]
        if data["checksum"] != _checksum(record):
            return None
        tolerance = tuple(Tolerance(**t) for t in record["tolerance"])
        loop = tuple(record["loop_clk"])
        return CuProfile(**{**record, "loop_clk": loop, "tolerance": tolerance})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, profile: CuProfile) -> None:
    record = dataclasses.asdict(profile)
    text = json.dumps({"profile": record, "checksum": _checksum(record)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)  # whole or not at all, whoever else writes it
    except OSError:
        Path(name).unlink(missing_ok=True)
