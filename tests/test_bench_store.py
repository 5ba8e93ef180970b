"""The benchmark of the store: every way gives back what it wrote, and losses are called losses."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main
from experiments.bench import _disks
from experiments.bench import store as bench

pytestmark = pytest.mark.filterwarnings("ignore")  # of peers


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_tensors_are_distinct_views_of_random_bytes(size: int) -> None:
    arrays = _disks.tensors(size, 5)
    assert [array.nbytes for array in arrays] == [size] * 5
    assert len({array.tobytes() for array in arrays}) == 5


@pytest.mark.parametrize(
    "way", _disks.available(), ids=lambda way: f"{way.library} {way.variant}".strip()
)
def test_every_way_puts_the_bytes_on_the_disk(tmp_path: Path, way: _disks.Way) -> None:
    if way.library == "orbax":
        pytest.skip("it warns of its own threads; the quick runs of all experiments cover it")
    arrays = _disks.tensors(1 << 16, 8)
    with way.open(tmp_path, arrays) as (write, read):
        write()
        _disks.drop(tmp_path)
        read()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(stored) >= 8 << 16
    bare = way.library == "O_DIRECT" and not way.variant.endswith("whole")  # memory of its own
    if not bare and way.library != "tensorstore":  # it compresses
        assert all(array.tobytes() in stored for array in arrays)


def row(library: str, variant: str, write: float | None, read: float | None) -> dict[str, Any]:
    return {"library": library, "variant": variant, "write MiB/s": write, "read MiB/s": read}


def test_verdicts_take_the_best_of_each() -> None:
    rows = [
        row("tensorjax", "slow", 100, 10),
        row("tensorjax", "fast", 200, 90),
        row("O_DIRECT", "one at a time", 100, 100),
        row("O_DIRECT", "one at a time, whole", 80, 60),
        row("O_DIRECT", "pool of 8 threads", 400, 400),
        row("numpy", "save, a file each", 50, 60),
        row("orbax", "", 20, 70),
        row("fio", "libaio, depth 8", 150, None),
        row("fio", "io_uring, depth 32", 250, 80),
    ]
    found = {(v["what"], v["beside"]): v for v in bench.verdicts(4096, rows)}
    write = found["write", "fio's best"]
    assert (write["ratio"], write["reached"]) == (0.8, "no")
    assert (write["ours"], write["its"]) == ("fast", "fio, io_uring, depth 32")
    assert found["read", "fio's best"]["reached"] == "yes"
    assert found["write", "O_DIRECT, one at a time"]["reached"] == "yes"
    assert found["read", "O_DIRECT, one at a time"]["reached"] == "no"
    assert found["read", bench.WHOLE]["reached"] == "yes"  # it does what ours does
    assert found["write", "O_DIRECT, pool of 8 threads"]["reached"] == ""  # what is there at most
    assert found["write", "files and libraries"]["ratio"] == 4.0
    assert found["read", "files and libraries"]["its"] == "orbax"
    large = {(v["what"], v["beside"]): v for v in bench.verdicts(16 << 20, rows)}
    assert large["read", "O_DIRECT, one at a time"]["reached"] == ""  # no goal above 1 MiB


def test_compute_is_timed_alone_and_beside(tmp_path: Path) -> None:
    config = bench.Config(repeats=1, seconds=0.1, total=4 << 20, sizes=(4096,))
    rows = bench.compute(tmp_path, config)
    assert {row["compute"] for row in rows} == {"one core", "one core, Python", "all cores"}
    assert {"threads", "buffered", bench.BARE} <= {row["backend"] for row in rows}
    assert all(0 < row["kept"] < 10 and row["I/O MiB/s"] > 0 for row in rows)
    assert [v["reached"] for v in bench.kept([{**rows[0], "kept": 0.5}])] == ["no"]


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_fio_is_read(tmp_path: Path) -> None:
    rate = _disks.fio(tmp_path, 4096, 1 << 20, "psync", 1, write=True)
    assert rate is not None
    assert rate > 0
    assert _disks.fio(tmp_path, 4096, 1 << 20, "no-such-engine", 1, write=True) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats: expected at least 1"),
        ({"sizes": (1000,)}, "sizes: expected multiples of 4096"),
        ({"total": 4096}, "total: expected at least"),
        ({"libraries": ("zip",)}, "libraries: expected some of"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench.Config(**options)


def test_the_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "blocks", "--sizes", "4096", "--libraries", "safetensors"]
    assert main(["run", "bench/store", "--quick", *arguments, "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "cache policy: writes end with fsync" in out
    (run,) = (tmp_path / "bench" / "store").glob("*/")
    with (run / "blocks.csv").open(newline="") as file:
        blocks = list(csv.DictReader(file))
    assert {block["library"] for block in blocks} == {"tensorjax", "safetensors"}
    assert all(float(block["write MiB/s"]) > 0 < float(block["read MiB/s"]) for block in blocks)
    assert not list(run.rglob("data-*"))  # what was measured is removed
