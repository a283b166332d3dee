"""The site shows pages that live outside docs/ too, and links are right in both.

A page of docs/ is at the top of the site; the benchmarks' results, the list of changes and the rules for
contributors keep their place in the repository, and a script of examples/ is its page of the gallery. A
link is written as the repository has it (so that it works wherever the files are read) and is rewritten
here; mkdocs then checks it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = ("benchmarks/README.md", "benchmarks/*/*.md", "CHANGELOG.md", "CONTRIBUTING.md")
PICTURES = ("benchmarks/figures/*.png",)
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?\)")
EXAMPLE = re.compile(r"^examples/(\w+)\.py$")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.S | re.M)


def on_files(files, config):
    """Add the pages and pictures from outside docs/."""
    for pattern in PAGES + PICTURES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links of the repository become links of the site."""
    site = page.file.src_uri
    here = site if (ROOT / site).is_file() else f"docs/{site}"

    def rewritten(match):
        start, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if re.match(r"[a-z]+:", target):
            return match.group()
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        on_site = EXAMPLE.sub(r"gallery/\1.md", in_repository.removeprefix("docs/"))
        if files.get_file_from_path(on_site) is None:
            return match.group()  # mkdocs says so
        return f"{start}{posixpath.relpath(on_site, posixpath.dirname(site))}{anchor})"

    pieces, last = [], 0
    for code in CODE.finditer(markdown):  # nothing in code is a link
        pieces += [LINK.sub(rewritten, markdown[last : code.start()]), code.group()]
        last = code.end()
    return "".join([*pieces, LINK.sub(rewritten, markdown[last:])])


def on_pre_build(config):
    """The README, which is no page of the site, has no broken link either."""
    text = CODE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    broken = [
        target for _, target, _ in LINK.findall(text) if ":" not in target and not (ROOT / target).exists()
    ]
    if broken:
        raise PluginError(f"README.md: no such file: {', '.join(broken)}")
