"""Wheels: what they hold and how they are tagged, by compilers that only pretend to compile."""

import random
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hatch_build

ROOT = Path(__file__).resolve().parents[1]

# Writes a library that asks for what it is told, unless the command line holds what it refuses.
PRETENDS = """
import pathlib, sys
machine, asks, refuses, *given = sys.argv[1:]
if given == ["-dumpmachine"]:
    print(machine)
elif given[0].startswith("-print-file-name"):
    print("libstdc++.a")
elif refuses and refuses in " ".join(given):
    sys.exit("error: refused " + refuses)
else:
    library = pathlib.Path(given[given.index("-o") + 1])
    library.write_bytes(b"\\0".join([b"", *asks.encode().split(), b""]))
"""


class Hook(hatch_build.NativeBuildHook):
    """The hook as hatchling calls it, with what it says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.data: dict[str, Any] = {"force_include": {}, "artifacts": [], "pure_python": True}

    root: Any = str(ROOT)

    @property
    def app(self) -> Any:
        return SimpleNamespace(display_warning=self.said.append)

    def held(self, version: str = "standard") -> list[str]:
        """Runs it, checks that it cleans up, and returns the names of the compiled files."""
        self.initialize(version, self.data)
        sources = [Path(source) for source in self.data["force_include"]]
        assert all(source.exists() for source in sources)
        self.finalize(version, self.data, "")
        assert not any(source.exists() for source in sources)
        return sorted(Path(place).name for place in self.data["force_include"].values())


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    script = tmp_path / "pretends.py"
    script.write_text(PRETENDS)

    def use(machine: str, *, asks: str = "GLIBC_2.4", refuses: str = "") -> None:
        command = [sys.executable, str(script), machine, asks, refuses]
        for name in ("CC", "CXX"):
            monkeypatch.setenv(name, shlex.join(command))

    return use


SMALL = ["_copies_c.abi3.so", "libio_uring.so"]
SWEEPS = [f"sweeps-x86-64-v{n}.so" for n in (2, 3, 4)]


def test_a_wheel_holds_every_level_of_its_machine(compilers: Any) -> None:
    compilers("x86_64-linux-gnu")
    hook = Hook()
    assert hook.held() == [*SMALL, *SWEEPS]
    assert hook.data["tag"] == "py3-none-manylinux_2_17_x86_64"
    assert not hook.data["pure_python"]
    assert not hook.said
    places = {Path(place).parent for place in hook.data["force_include"].values()}
    assert places == {source.parent for source in (
        hatch_build.URING, hatch_build.COPIES, hatch_build.SWEEPS)}  # fmt: skip


def test_what_is_built_here_asks_for_no_newer_c_library() -> None:
    """That of docs/install.md; a wheel with a newer tag is refused by older systems."""
    built = [f for build in (hatch_build.URING, hatch_build.COPIES, hatch_build.SWEEPS)
             for f in build.parent.glob("*.so")]  # fmt: skip
    if not built:
        pytest.skip("nothing is compiled here")
    assert hatch_build.wheel_tag(built, "x86_64") == "py3-none-manylinux_2_17_x86_64"


def test_compilers_for_another_machine_make_its_wheel(compilers: Any) -> None:
    compilers("aarch64-unknown-linux-gnu")
    hook = Hook()
    assert hook.held() == [*SMALL, "sweeps-aarch64.so"]
    assert hook.data["tag"] == "py3-none-manylinux_2_17_aarch64"


@pytest.mark.parametrize(
    ("refuses", "left"),
    [
        ("io_uring.c", [SMALL[0], *SWEEPS]),
        ("_copies_c.c", [SMALL[1], *SWEEPS]),
        ("-march=x86-64-v4", [*SMALL, *SWEEPS[:2]]),
        ("call.cc", SMALL),
    ],
)
def test_what_cannot_be_compiled_is_left_out_and_said(
    compilers: Any, refuses: str, left: list[str]
) -> None:
    compilers("x86_64-linux-gnu", refuses=refuses)
    hook = Hook()
    assert hook.held() == left
    assert all(f"refused {refuses}" in message for message in hook.said)
    assert len(hook.said) == 5 - len(left)
    assert hook.data["tag"] == "py3-none-manylinux_2_17_x86_64"


@pytest.mark.parametrize(
    ("machine", "refuses", "why"),
    [
        ("x86_64-alpine-linux-musl", "", "musl"),
        ("arm64-apple-darwin24.1.0", "", "darwin"),
        ("", "", "no C compiler"),
        ("x86_64-linux-gnu", "-shared", "nothing could be compiled"),
    ],
)
def test_elsewhere_a_wheel_is_pure_and_says_so(
    compilers: Any, machine: str, refuses: str, why: str
) -> None:
    compilers(machine, refuses=refuses)
    hook = Hook()
    assert hook.held() == []
    assert hook.data["pure_python"]
    assert "tag" not in hook.data
    assert why in hook.said[-1]
    assert "pure wheel" in hook.said[-1]


def test_without_a_compiler_a_wheel_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, "/no/compiler")
    hook = Hook()
    assert hook.held() == []
    assert hook.data["pure_python"]
    assert "no C compiler" in hook.said[-1]


@pytest.mark.parametrize("seed", range(20))
def test_the_tag_is_the_oldest_system_that_has_all_that_is_asked(seed: int, tmp_path: Path) -> None:
    """However versions are written and in whichever library the newest one is."""
    draw, libraries, newest = random.Random(seed), [], (2, 17)
    for i in range(draw.randint(1, 5)):
        versions = [(2, draw.choice([2, 3, 14, 17, 27, 28, 34, 35, 99])) for _ in range(4)]
        newest = max(newest, *versions)
        names = [f"GLIBC_{a}.{b}" + draw.choice(["", ".5"]) for a, b in versions]
        names += ["GLIBC_PRIVATE", "GCC_4.2.0", "XGLIBC_3.1"]
        libraries.append(tmp_path / f"{i}.so")
        libraries[-1].write_bytes(b"\0".join([b"\x7fELF", *map(str.encode, names), b""]))
    machine = draw.choice(["x86_64", "aarch64", "ppc64le"])
    tag = f"py3-none-manylinux_{newest[0]}_{newest[1]}_{machine}"
    assert hatch_build.wheel_tag(libraries, machine) == tag
    libraries[-1].write_bytes(libraries[-1].read_bytes() + b"GLIBCXX_3.4.30\0")
    assert hatch_build.wheel_tag(libraries, machine) == f"py3-none-linux_{machine}"


def test_compiled_parts_ask_for_no_version_of_python_and_for_an_old_system(
    tmp_path: Path,
) -> None:
    """The small ones, compiled in earnest: those of the sweeps are looked at by .ci/wheel."""
    built = [build(ROOT, tmp_path)[0] for build in (hatch_build.build_uring,
                                                    hatch_build.build_copies)]  # fmt: skip
    libraries = [library for library in built if library is not None]
    if not libraries or not sys.platform.startswith("linux"):
        pytest.skip("nothing can be compiled here")
    assert not any(sysconfig.get_config_var("SOABI") in path.name for path in libraries)
    assert "manylinux_2_17" in hatch_build.wheel_tag(libraries, "x86_64")


def test_every_source_makes_make_install_again() -> None:
    """And is left out of wheels, which hold what was made of it."""
    makefile = (ROOT / "Makefile").read_text()
    sources = [
        p for p in (ROOT / "tensorjax").rglob("*") if p.suffix in (".c", ".cc", ".h", ".map")
    ]
    assert len(sources) > 10
    patterns = re.findall(r"tensorjax/[\w./*]+", makefile)
    for source in sources:
        name = str(source.relative_to(ROOT))
        assert any(Path(name).match(pattern) for pattern in patterns), name
        assert f'"*{source.suffix}"' in (ROOT / "pyproject.toml").read_text()


def test_headers_are_those_of_the_oldest_jaxlib_that_serves() -> None:
    """Kernels that are compiled with later ones would be refused by it."""
    text = (ROOT / "pyproject.toml").read_text()
    oldest = re.search(r'"jax>=([\d.]+)', text)
    assert oldest is not None
    assert f'"jaxlib=={oldest[1]};' in text


HEADER = Path("/usr/include/linux/io_uring.h")


@pytest.mark.skipif(
    not HEADER.exists() or "IORING_SQ_TASKRUN" not in HEADER.read_text(),
    reason="no header of Linux 5.19 or later to compare with",
)
def test_the_ring_speaks_as_the_kernel_does(tmp_path: Path) -> None:
    """Its numbers and layouts are those of the kernel's header."""
    pairs = {
        "SETUP_IOPOLL": "IORING_SETUP_IOPOLL", "SETUP_SQPOLL": "IORING_SETUP_SQPOLL",
        "FEATURE_SINGLE_MAP": "IORING_FEAT_SINGLE_MMAP",
        "ENTER_GET_EVENTS": "IORING_ENTER_GETEVENTS",
        "ENTER_WAKE_POLLER": "IORING_ENTER_SQ_WAKEUP", "POLLER_SLEEPS": "IORING_SQ_NEED_WAKEUP",
        "COMPLETIONS_OVERFLOW": "IORING_SQ_CQ_OVERFLOW", "TASKS_WAIT": "IORING_SQ_TASKRUN",
        "REGISTER_BUFFERS": "IORING_REGISTER_BUFFERS",
        "UNREGISTER_BUFFERS": "IORING_UNREGISTER_BUFFERS",
        "READ_FIXED": "IORING_OP_READ_FIXED", "WRITE_FIXED": "IORING_OP_WRITE_FIXED",
        "READ": "IORING_OP_READ", "WRITE": "IORING_OP_WRITE",
        "MAP_SUBMISSIONS": "IORING_OFF_SQ_RING", "MAP_COMPLETIONS": "IORING_OFF_CQ_RING",
        "MAP_REQUESTS": "IORING_OFF_SQES", "CALL_SETUP": "__NR_io_uring_setup",
        "CALL_ENTER": "__NR_io_uring_enter", "CALL_REGISTER": "__NR_io_uring_register",
    }  # fmt: skip
    fields = {
        ("parameters", "io_uring_params"): "submissions sq_entries completions cq_entries "
        "flags flags poller_idle_ms sq_thread_idle features features submission sq_off "
        "completion cq_off",
        ("submission_offsets", "io_sqring_offsets"): "head head tail tail mask ring_mask "
        "entries ring_entries flags flags array array",
        ("completion_offsets", "io_cqring_offsets"): "head head tail tail mask ring_mask "
        "entries ring_entries completions cqes",
        ("request", "io_uring_sqe"): "operation opcode file fd offset off address addr size len "
        "token user_data buffer buf_index",
        ("completion", "io_uring_cqe"): "token user_data result res",
    }
    checks = [f'_Static_assert({ours} == {theirs}, "{ours}");' for ours, theirs in pairs.items()]
    for (ours, theirs), names in fields.items():
        for mine, its in _pairs(names.split()):
            checks.append(
                f"_Static_assert(offsetof(struct {ours}, {mine}) == offsetof(struct {theirs}, "
                f"{its}) && sizeof(((struct {ours} *)0)->{mine}) == "
                f'sizeof(((struct {theirs} *)0)->{its}), "{mine}");'
            )
    source = tmp_path / "check.c"
    includes = ("linux/io_uring.h", "stddef.h", "sys/syscall.h")
    source.write_text("\n".join([
        f'#include "{ROOT / hatch_build.URING}"', *(f"#include <{name}>" for name in includes),
        *checks,
    ]))  # fmt: skip
    command = [*hatch_build._compiler("CC", "cc"), "-fsyntax-only", str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    return list(zip(names[::2], names[1::2], strict=True))
