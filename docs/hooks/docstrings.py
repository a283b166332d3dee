"""Docstrings of the package, as mkdocstrings reads them: Sphinx's mathematics becomes that of the pages."""

import re
import textwrap

from griffe import Extension

ROLE = re.compile(r":math:`(.+?)`", re.S)
BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<first>[^\n]*)\n(?P<rest>(?:(?P=indent) +[^\n]*\n|[ ]*\n)*)", re.M
)
EXAMPLE = re.compile(r"^(?P<indent> *)>>> [^\n]*\n(?:(?P=indent)[^\n]+\n)*", re.M)


# An entry of a list of arguments or attributes that describes several names: "a, b: what they are".
SECTION = re.compile(r"^(?P<indent> *)(?:Args|Attributes):\n(?:(?:(?P=indent) +[^\n]*)?\n)*", re.M)
SEVERAL = re.compile(
    r"^(?P<indent>  )(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)+):(?P<text>[^\n]*\n(?:(?P=indent) +[^\n]*\n)*)",
    re.M,
)


def _each(match: re.Match[str]) -> str:
    """An entry for each name, as griffe reads one name an entry and takes the others for a type."""
    first, *others = match["names"].split(", ")
    entries = [f"{match['indent']}{first}:{match['text']}"]
    return "".join(entries + [f"{match['indent']}{name}: see `{first}`.\n" for name in others])


def _block(match: re.Match[str]) -> str:
    indent = match["indent"]
    tex = " ".join(
        line for line in [match["first"].strip(), *textwrap.dedent(match["rest"]).split("\n")] if line
    )
    return f"\n{indent}$$\n{indent}{tex.strip()}\n{indent}$$\n\n"


def as_markdown(text: str) -> str:
    """The docstring with ``$`` and ``$$`` for roles and directives, and fences around its examples."""
    text = SECTION.sub(lambda section: SEVERAL.sub(_each, section.group()), text + "\n")
    text = BLOCK.sub(_block, text)
    text = EXAMPLE.sub(r"\g<indent>```pycon\n\g<0>\g<indent>```\n", text)
    text = ROLE.sub(lambda match: f"${' '.join(match.group(1).split())}$", text)
    text = re.sub(r"^( *[\w, *]+: )>", r"\1\\>", text, flags=re.M)  # an argument "x: >= 0" is no quotation
    return re.sub(r"(?<!`)``([^`]+?)``(?!`)", r"`\1`", text)


class Docstrings(Extension):
    """Converts every docstring as it is read."""

    def on_instance(self, *, obj, **_):
        """Called once an object."""
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value).rstrip()
