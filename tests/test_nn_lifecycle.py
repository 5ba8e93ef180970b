"""The example of the documentation from a dense model to a service, run as it stands."""

import re
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_of_the_page_runs(tmp_path: Path, capsys: Any):
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "api" / "nn.md").read_text("utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {"folder": tmp_path}
    exec(compile(code, "nn.md", "exec"), names)
    np.testing.assert_allclose(names["model"](names["x"]), names["before"], rtol=1e-4, atol=1e-5)
    dense = names["exported"](names["x"])
    np.testing.assert_allclose(dense, names["before"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(names["answers"], dense[:7], rtol=1e-3, atol=1e-4)
    assert "TTLinear" in capsys.readouterr().out
