"""Levels of CPUs: the best one that serves is loaded, else a lower one, else the reason is said."""

import ctypes
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from tensorjax import _native, _shared_libraries
from tensorjax._native import level, loading
from tensorjax.offload._store.backends import io_uring_binding
from tensorjax.offload._store.disk import checksums

ALL = frozenset().union(*level._NEEDED.values())


@pytest.mark.parametrize("seed", range(30))
def test_a_cpu_that_hides_one_instruction_has_no_level_that_needs_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    hidden = set(draw.sample(sorted(ALL), draw.randint(0, 2)))
    monkeypatch.setattr(level, "_flags", lambda: {"fpu", "amx_tile", *(ALL - hidden)})
    monkeypatch.setattr(level.platform, "machine", lambda: draw.choice(["x86_64", "AMD64"]))
    needed: set[str] = set()
    best = "x86-64"
    for name in reversed(level.X86):
        needed |= level._NEEDED[name]
        assert set(level.lacks(name)) == needed & hidden
        best = best if needed & hidden else name
    assert level.level() == best


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "ppc64le"])
def test_other_machines_have_one_level(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level.platform, "machine", lambda: machine)
    assert level.known() == (level.level(),) == (machine,)


class Installed:
    """A folder of libraries, of which some break, on a CPU of one level."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch):
        draw = random.Random(seed)
        self.names = [*level.X86, "x86-64"]
        self.built = {name for name in self.names if draw.random() < 0.6}
        self.broken = {name for name in self.built if draw.random() < 0.3}
        self.cpu = draw.randrange(4)
        self.asked = draw.choice(["", "1", *self.names])
        self.tried: list[str] = []
        monkeypatch.setattr(level.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(level, "lacks", self.lacks)
        monkeypatch.setattr(loading, "_path", lambda name: folder / name)
        monkeypatch.setattr(loading, "_tried", self.load)
        for name in self.built:
            (folder / name).touch()

    def lacks(self, name: str) -> tuple[str, ...]:
        return () if self.names.index(name) >= self.cpu else ("vectors",)

    def load(self, path: Path) -> tuple[object, str]:
        self.tried.append(path.name)
        return (None, "it is cut") if path.name in self.broken else (path, "")

    def expected(self) -> str:
        first = self.names.index(self.asked) if self.asked in self.names else 0
        usable = self.built - self.broken
        return next((n for n in self.names[max(first, self.cpu) :] if n in usable), "")


@pytest.mark.parametrize("seed", range(60))
def test_the_best_level_that_serves_is_loaded_and_of_others_it_is_said_why(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Installed(seed, tmp_path, monkeypatch)
    library, found = loading._load(there.asked)
    assert found.level == there.expected()
    assert (library is not None) == bool(found.level) == (not found.reason)
    assert set(found.why_not) == {*there.names} - {found.level}
    assert all(found.why_not.values())
    for name in there.names:
        why = found.why_not.get(name, "")
        if name not in there.built and "asks for less" not in why:
            assert "not part of this installation" in why
        if name in there.tried and name != found.level:
            assert "cut" in why
            assert bool(found.level) or "cut" in found.reason
    assert all(not there.lacks(name) for name in there.tried)  # it would end the process


def test_nothing_is_tried_where_it_is_turned_off_or_misspelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Installed(1, tmp_path, monkeypatch)
    assert loading._load("0")[1].reason == "turned off by TENSORJAX_NATIVE=0"
    for asked in ("off", "avx2", "x86-64-v5", "2"):
        reason = loading._load(asked)[1].reason
        assert repr(asked) in reason
        assert "x86-64-v3" in reason
    assert not there.tried


@pytest.mark.parametrize(("asked", "times"), [("1", 1), ("avx", 1), ("0", 0)])
def test_kernels_that_do_not_serve_are_spoken_of_once(
    asked: str,
    times: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """But not where somebody turned them off."""
    monkeypatch.setenv("TENSORJAX_NATIVE", asked)
    monkeypatch.setattr(loading, "_found", ())
    monkeypatch.setattr(loading, "_path", lambda name: tmp_path / name)
    with caplog.at_level(logging.WARNING, "tensorjax"):
        reasons = {_native.status() for _ in range(3)}
    assert len(reasons) == 1
    assert [reasons.copy().pop() in message for message in caplog.messages] == [True] * times
    assert _native.kernels().level == ""


@pytest.mark.skipif(bool(_native.status()), reason=_native.status())
@pytest.mark.parametrize("kind", ["empty", "cut", "text", "machine", "another"])
def test_what_is_no_library_of_kernels_is_a_reason(kind: str, tmp_path: Path) -> None:
    whole = loading._path(_native.kernels().level).read_bytes()
    another = Path(io_uring_binding.__file__).with_name("libio_uring.so")
    content = {
        "empty": b"",
        "cut": whole[:100],
        "text": b"version https://example.org/large-files",
        "machine": whole[:18] + b"\xf3\x00" + whole[20:],  # RISC-V
        "another": another.read_bytes() if another.exists() else b"",
    }
    path = tmp_path / f"{kind}.so"
    path.write_bytes(content[kind])
    library, why = loading._tried(path)
    assert library is None
    assert path.name in why


def built_here() -> list[tuple[Path, str]]:
    """The libraries of this installation, each with the digest that it holds."""
    found = [Path(io_uring_binding.__file__).with_name("libio_uring.so")]
    found += [loading._path(_native.kernels().level)] if not _native.status() else []
    held = [(p, _shared_libraries.held_digest(ctypes.CDLL(str(p)))) for p in found if p.exists()]
    copies = checksums._copies_c
    return held + ([(Path(copies.__file__), copies.sources)] if copies is not None else [])


@pytest.mark.parametrize("change", ["none", "edited", "removed", "added"])
def test_a_library_of_other_sources_than_those_beside_it_is_a_reason(
    change: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """What was compiled before a change of its sources serves no more; without sources it does."""
    for library, digest in built_here():
        folder = tmp_path / library.name
        folder.mkdir()
        shutil.copy(library, folder)
        copy = folder / library.name
        assert digest
        assert _shared_libraries.stale(copy, digest) == ""  # as in a wheel
        sources = [p for p in library.parent.iterdir() if p.suffix in (".c", ".cc", ".h", ".map")]
        for source in sources:
            shutil.copy(source, folder)
        one = folder / sources[rng.integers(len(sources))].name
        if change == "edited":
            one.write_bytes(one.read_bytes() + b"\n")
        elif change == "removed" and len(sources) > 1:
            one.unlink()
        elif change != "none":
            (folder / "another.h").touch()
        why = _shared_libraries.stale(copy, digest)
        assert bool(why) == (change != "none")
        if why:
            assert library.name in why
            assert "pip install" in why
            if copy.suffixes == [".so"] and "uring" in copy.name:
                assert _shared_libraries.load(copy) == (None, why)
            elif copy.name.startswith("sweeps"):
                assert loading._tried(copy) == (None, why)
