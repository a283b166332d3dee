"""The gallery: every script of examples/ is run when the site is built, and shown with what it leaves.

That is kept in build/gallery as long as the script has not changed: remove the folder after a change of the
package (continuous integration starts from a fresh clone).
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "gallery"
SECONDS = 300  # of one script at most
# The scripts compile much and compute little: as the tests, without what makes long programs fast.
QUICK = (
    "--xla_disable_hlo_passes=tree_reduction_rewriter,while-loop-invariant-code-motion,"
    "while-loop-constant-sinking,reshape-mover,constant_folding --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def ran(script: Path) -> Path:
    """The folder with ``output.txt`` and the pictures of a script."""
    stamp = hashlib.sha256(script.read_bytes()).hexdigest()[:16]
    folder = KEPT / f"{script.stem}-{stamp}"
    if (folder / "output.txt").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"XLA_FLAGS": QUICK, **os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise PluginError(f"{script.name} failed:\n{done.stderr[-3000:]}")
    (folder / "output.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def page_of(script: Path, folder: Path, pictures: list[str]) -> str:
    """The page of one script, as Markdown."""
    code = script.read_text(encoding="utf-8")
    title, _, text = ast.get_docstring(ast.parse(code)).partition("\n\n")
    output = (folder / "output.txt").read_text(encoding="utf-8").rstrip()
    title = " ".join(title.split()).removesuffix(".")
    shown = "\n\n".join(f"![{Path(name).stem}]({name})" for name in pictures)
    body = code.split('"""', 2)[2].strip()
    return (
        f"# {title}\n\n{text}\n\n{shown}\n\n## What it prints\n\n```text\n{output}\n```\n\n"
        f"## `examples/{script.name}`\n\n```python\n{body}\n```\n"
    )


def on_files(files, config):
    """Run the scripts, two at a time, and add their pages."""
    scripts = sorted((ROOT / "examples").glob("*.py"))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(ran, scripts))
    lines = ["# Gallery", "", "Every script runs in seconds; these are its words and pictures.", ""]
    for script, folder in zip(scripts, folders, strict=True):
        pictures = sorted(path.name for path in folder.glob("*.png"))
        page = page_of(script, folder, pictures)
        files.append(File.generated(config, f"gallery/{script.stem}.md", content=page))
        for name in pictures:
            files.append(File.generated(config, f"gallery/{name}", abs_src_path=str(folder / name)))
        title = page.splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({script.stem}.md)")
    files.append(File.generated(config, "gallery/index.md", content="\n".join(lines) + "\n"))
    return files
