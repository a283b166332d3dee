"""The installed package is the whole one: every module imports from site-packages, and says its version.

Run it as ``python -P .ci/check_wheel.py CLONE`` from a folder that is not the clone.
"""

import importlib
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import sparsejax

installed = Path(sysconfig.get_paths()["purelib"]).resolve() / "sparsejax"
source = Path(sys.argv[1]).resolve() / "sparsejax"
assert Path(sparsejax.__file__).resolve().parent == installed, sparsejax.__file__
wanted, there = (
    {p.relative_to(folder) for p in folder.rglob("*") if p.suffix == ".py" or p.name == "py.typed"}
    for folder in (source, installed)
)
assert wanted == there, sorted(map(str, wanted ^ there))
for path in sorted(wanted):
    if path.suffix == ".py":
        name = ".".join(("sparsejax", *path.with_suffix("").parts)).removesuffix(".__init__")
        importlib.import_module(name)
assert metadata.version("sparsejax") == sparsejax.__version__
print(f"sparsejax {sparsejax.__version__}: {len(wanted)} files in {installed}")
