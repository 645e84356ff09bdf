"""What docs/guide/cluster.md shows is what happens."""

import re
from dataclasses import fields
from typing import Any

import pytest
from paths import ROOT

from weft.frontend.session.session import Session
from weft.frontend.tools.main import make_parser
from weft.runtime.cluster import definition, master
from weft.runtime.cluster.spec import CONNECT_TIMEOUT, Cluster

PAGE = ROOT / "docs" / "guide" / "cluster.md"


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "cluster"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert "/job:ps/task:1/cpu:0" in capsys.readouterr().out


def test_the_command_and_the_options_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (command,) = re.findall(r"^weft (worker .*?) +#", text, re.MULTILINE)
    args = make_parser().parse_args(command.split())
    assert (args.cluster, args.job, args.task) == ("cluster.json", "ps", 0)
    options = {f.name for f in fields(Cluster)} - {"target"}
    assert not options & set(Session.__init__.__kwdefaults__)
    rows = re.findall(r"^\| `(\w+)=.*?`(?:, `(\w+)=)?", text, re.MULTILINE)
    named = {name for row in rows for name in row if name}
    assert named == options
    assert f"connect_timeout={CONNECT_TIMEOUT:g}" in text
    assert f"looks for it for {master.RECONNECT_SECONDS:g} s" in text
    assert f"waits up to {definition.GRACE_SECONDS:g} s" in text
    assert f"after {definition.STALL_SECONDS:g} s" in text
