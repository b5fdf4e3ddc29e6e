"""What an installation offers: version, data files, and an import that stays light.

The data checks compare the installed package with the clone, so they hold for an editable install
and for an installed wheel alike.
"""

import subprocess
import sys
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest
from packaging.version import Version

import cdnasim

CLONE = Path(__file__).parents[1]


def installed_data(folder: str) -> Traversable:
    """`folder` as the wheel carries it, or that of the clone in an editable install."""
    packaged = resources.files("cdnasim") / "_data" / folder
    return packaged if packaged.is_dir() else CLONE / folder


def contents(folder: Traversable, suffix: str) -> dict[str, bytes]:
    """File name → content of the files in `folder` that end in `suffix`."""
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name.endswith(suffix)}


def test_version_is_pep_440() -> None:
    assert str(Version(cdnasim.__version__)) == cdnasim.__version__


@pytest.mark.parametrize("package", ["machine", "gpu"])
def test_descriptions_are_installed(package: str) -> None:
    installed = contents(resources.files(f"cdnasim.{package}"), ".toml")
    assert installed
    assert installed == contents(CLONE / "cdnasim" / package, ".toml")


@pytest.mark.parametrize(
    ("folder", "suffix"),
    [("scenarios", ".toml"), ("validation", ".toml"), ("validation/measured", ".csv")],
)
def test_data_is_installed(folder: str, suffix: str) -> None:
    installed = contents(installed_data(folder), suffix)
    assert installed
    assert installed == contents(CLONE / folder, suffix)


@pytest.mark.parametrize("module", ["cdnasim", "cdnasim.cli"])
def test_import_leaves_heavy_libraries_alone(module: str) -> None:
    code = f"import sys, {module}; print(*{{'plotly', 'pandas', 'numba'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
