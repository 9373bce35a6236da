"""A page is reported if its commands fail, or if their output differs from the output shown on the page."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from platform_assets_tests.support.walk import Done, Step, steps, walk

PAGE = """\
# A page

```python title="a folder/say.py"
print("hello", 7 * 6)
```

```bash
cd "a folder"
export WHO=world
```

Text between.

```bash
python3 say.py
echo "hello
$WHO"
```

It prints:

```text
hello …
hello
world
```

```yaml
not: run
```

```text
nor this
```
"""


def run(page: str, folder: Path) -> list[Done]:
    return list(walk(list(steps("page", page)), folder, os.environ, timeout=60))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "walked").mkdir()
    return tmp_path / "walked"


def test_a_true_page_has_no_fault(folder: Path) -> None:
    done = run(PAGE, folder)
    assert [d.fault for d in done] == [None] * 3
    assert done[-1].output == "hello 42\nhello\nworld\n"


def test_another_output_is_a_fault(folder: Path) -> None:
    fault = run(PAGE.replace("hello …", "good … day"), folder)[2].fault
    assert fault is not None
    assert fault.startswith("page, line 14: no line like 'good … day'")
    assert "hello 42" in fault


def test_lines_have_to_come_in_their_order(folder: Path) -> None:
    assert run("```bash\nprintf 'a\\nb\\n'\n```\n```text\nb\na\n```\n", folder)[0].fault is not None


def test_a_failing_command_ends_the_walk(folder: Path) -> None:
    done = run("```bash\ntrue\nls nothing-there\necho not reached\n```\n```bash\necho nor this\n```\n", folder)
    assert [d.code for d in done] == [2]
    assert (done[0].fault or "").startswith("page, line 1: exit code 2\ntrue\nls nothing-there")
    assert "\nnot reached" not in done[0].output


def test_a_command_that_never_ends_is_a_fault(folder: Path) -> None:
    (done,) = walk([Step("page", "sleep 600")], folder, os.environ, timeout=0.5)
    assert done.code is None
    assert done.fault is not None
