"""Mathematics as MathML, made when the site is built: browsers draw it, without scripts or the network."""

import html
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.S)

NAMESPACE = "http://www.w3.org/1998/Math/MathML"
BENEATH = {"min", "max", "sup", "argmin"}  # whose subscript stands beneath them in a display
ElementTree.register_namespace("", NAMESPACE)


def with_limits(element: str) -> str:
    """The formula with the subscripts of min, max, sup and argmin beneath these words."""
    tree = ElementTree.fromstring(element)
    for node in tree.iter(f"{{{NAMESPACE}}}msub"):
        if node[0].text in BENEATH:
            node.tag = f"{{{NAMESPACE}}}munder"
    return ElementTree.tostring(tree, encoding="unicode")


def mathml(tex: str, display: bool) -> str:
    """The formula as an element ``math``.

    Raises:
      PluginError: it holds what cannot be converted.
    """
    tex = re.sub(r"\\[bB]igg?[lrm]?(?=[^a-z])", "", tex.strip())  # brackets grow by themselves
    if ("&" in tex or r"\\" in tex) and r"\begin" not in tex:
        tex = rf"\begin{{split}}{tex}\end{{split}}"
    try:
        element = convert(tex, display="block" if display else "inline")
    except Exception as error:
        raise PluginError(f"not a formula: {tex}") from error
    if re.search(r">[\\&]<|>\\", element):  # a command it does not know is left as it is
        raise PluginError(f"not in MathML, some command of {tex}")
    return with_limits(element) if display else element


def on_page_content(content, page, config, files):
    """Replace every formula of a page."""

    def replaced(match):
        tag, bracket, tex = match.groups()
        display = bracket == "["
        element = mathml(html.unescape(tex), display)
        return f'<{tag} class="formula">{element}</{tag}>'

    return FORMULA.sub(replaced, content)
