"""The gallery: each script of examples/ runs when the site is built; its page shows its output and pictures.

The first page of the gallery lists the scripts under the questions of `QUESTIONS`. Each script has a preview
there: its first picture or, if it draws none, the first lines of its output.

The site reuses outputs in build/gallery until their script changes. Remove this folder after a change of the
package. Continuous integration starts from a fresh clone, without the folder.
"""

import ast
import hashlib
import html
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
# The scripts in the order of need. A script that is named in no list is an error.
QUESTIONS = {
    "Which features?": [
        "select_features", "wine_classes", "penalties", "uncorrelated_features", "parts_of_a_whole", "pieces",
    ],
    "How strong, and is it true?": [
        "path_by_vmap", "stable_features", "false_discoveries", "reweighted", "tune_by_gradient",
    ],
    "How long until an event?": ["survival", "survival_genes"],
    "Other labels and outputs": ["features_for_f1", "bags", "two_label_views", "outputs_as_features"],
    "In your own program": ["prune_inputs", "your_own", "many_processes"],
}  # fmt: skip
PRINTED = 7  # lines of output in place of a picture
# The scripts compile much and compute little. So XLA's optimiser is off, as in tests/conftest.py, and so are
# passes that only make long programs faster.
QUICK = (
    "--xla_disable_hlo_passes=tree_reduction_rewriter,while-loop-invariant-code-motion,"
    "while-loop-constant-sinking,reshape-mover,constant_folding --xla_backend_optimization_level=0 "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters --xla_cpu_parallel_codegen_split_count=1"
)
# Compiler options of eager calls override XLA_FLAGS: RUN lowers the level in the library's options, too.
RUN = """
import runpy, sys
from sparsejax.driver import OPTIONS
OPTIONS["xla_backend_optimization_level"] = 0
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def ran(script: Path) -> Path:
    """The folder with ``output.txt`` and the pictures of a script."""
    stamp = hashlib.sha256(script.read_bytes()).hexdigest()[:16]
    folder = KEPT / f"{script.stem}-{stamp}"
    if (folder / "output.txt").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"XLA_FLAGS": QUICK, **os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(script)]
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


def card_of(script: Path, folder: Path, title: str, pictures: list[str]) -> str:
    """The entry of one script on the first page: its picture and its question, one link."""
    if pictures:
        shown = f'<img src="{pictures[0]}" alt="" loading="lazy">'
    else:
        lines = (folder / "output.txt").read_text(encoding="utf-8").strip().splitlines()
        shown = f"<pre>{html.escape(chr(10).join(lines[:PRINTED]))}</pre>"
    return f'<a class="card" href="{script.stem}/">{shown}<span>{html.escape(title)}</span></a>'


def on_files(files, config):
    """Run the scripts, two at a time, and add their pages."""
    scripts = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
    asked = [name for names in QUESTIONS.values() for name in names]
    if sorted(asked) != sorted(scripts):
        raise PluginError(f"QUESTIONS and examples/ differ: {', '.join(set(asked) ^ set(scripts))}")
    with ThreadPoolExecutor(2) as pool:
        folders = dict(zip(asked, pool.map(ran, [scripts[name] for name in asked]), strict=True))
    lines = ["# Gallery", "", "Scripts by question. The page of each one shows all that it prints and draws."]
    for heading, names in QUESTIONS.items():
        cards = []
        for name in names:
            script, folder = scripts[name], folders[name]
            pictures = sorted(path.name for path in folder.glob("*.png"))
            page = page_of(script, folder, pictures)
            files.append(File.generated(config, f"gallery/{name}.md", content=page))
            for picture in pictures:
                files.append(File.generated(config, f"gallery/{picture}", abs_src_path=str(folder / picture)))
            cards.append(card_of(script, folder, page.splitlines()[0].removeprefix("# "), pictures))
        lines += ["", f"## {heading}", "", '<div class="cards">', *cards, "</div>"]
    files.append(File.generated(config, "gallery/index.md", content="\n".join(lines) + "\n"))
    return files
