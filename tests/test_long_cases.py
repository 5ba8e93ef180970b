"""The file of long cases names tests that are there."""

from pathlib import Path

from tests.conftest import LONG_CASES


def test_every_long_case_names_a_test() -> None:
    for case in LONG_CASES:
        file, name = case.split("::")
        assert f"def {name.split('[')[0]}(" in (Path(__file__).parent.parent / file).read_text(
            "utf-8"
        ), case
