"""What the README shows is what happens."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_first_example_prints_what_it_says():
    text = README.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    expected = re.search(r"```text\n(.*?)```", text, re.S).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == expected
    assert len(code.splitlines()) <= 14


def test_commands_are_the_ones_ci_runs():
    commands = re.findall(r"```bash\n(.*?)\n```", README.read_text(), re.S)
    ci = (README.parent / ".ci" / "run").read_text().replace("--quiet ", "")
    for command in commands:
        assert command in ci
