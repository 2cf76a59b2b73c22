"""Planning a build, proving its source, and (slow) a whole CPU build that serves a model."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.llama import build, cuda_wheels, devices, source_code, toolchain
from strata_pack.llama.build import build_runtime, plan_runtime_build
from strata_pack.llama.server import LlamaServer
from strata_pack.llama.source_code import ARCHIVE, SourceArchive, fetch_source, unpack_source
from strata_pack.llama.trial import try_runtime

BACKENDS = ("compiler", "cpu", "cuda", "vulkan", "hip", "metal")


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without any tool."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "CUDA_ROOTS", ())
    monkeypatch.setattr(toolchain, "SYSTEM_ROOTS", (str(tmp_path), str(tmp_path)))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("bare")
def test_everything_that_is_missing_is_named_in_a_sentence_of_its_own(backend):
    found = toolchain.find_toolchain(backend)
    assert len(found.missing) + len(found.found) == len(toolchain.PIECES[backend])
    assert {"cmake", "C++ compiler", "build tool"}.isdisjoint(found.found)
    assert found.missing
    for sentence in found.missing:
        assert ": " in sentence
        assert "\n" not in sentence


@pytest.mark.usefixtures("bare")
def test_a_build_without_its_tools_is_refused_before_anything_is_fetched():
    with pytest.raises(EnvironmentFailure, match="cmake is missing: install"):
        plan_runtime_build("cpu")


def test_cublas_and_the_driver_stub_are_searched_next_to_the_toolkit(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "SYSTEM_ROOTS", ())
    monkeypatch.setattr(toolchain, "_wheel_roots", list)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    for name in ("include/cuda_runtime.h", "bin/nvcc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    missing = " ".join(toolchain.find_toolchain("cuda").missing)
    assert "cublas_v2.h" in missing
    assert "driver stub" in missing
    for name in ("include/cublas_v2.h", "lib64/libcublas.so.13", "lib64/libcublasLt.so.13", "lib64/stubs/libcuda.so"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = toolchain.find_toolchain("cuda")
    assert "cublas" not in " ".join(found.missing)
    assert found.found["CUDA driver stub"] == tmp_path / "lib64/stubs/libcuda.so"


def test_cublas_out_of_a_wheel_is_given_to_cmake(tmp_path):
    wheel, toolkit = tmp_path / "nvidia/cu13", tmp_path / "cuda"
    chain = toolchain.Toolchain(
        "cuda",
        {
            "nvcc": toolkit / "bin/nvcc",
            "CUDA toolkit": toolkit,
            "cuBLAS header": wheel / "include/cublas_v2.h",
            "cuBLAS": wheel / "lib/libcublas.so.13",
            "cuBLASLt": wheel / "lib/libcublasLt.so.13",
            "CUDA driver stub": toolkit / "lib64/stubs/libcuda.so",
        },
        (),
    )
    flags = toolchain.cuda_flags(chain)
    assert f"-DCUDA_cublas_LIBRARY={wheel}/lib/libcublas.so.13" in flags
    assert f"-DCMAKE_CUDA_FLAGS=-I{wheel}/include" in flags


def _needs_compiler() -> None:
    missing = toolchain.find_toolchain("cpu").missing
    if missing:
        pytest.skip(missing[0])


def test_another_compiler_or_another_source_is_another_build(monkeypatch):
    _needs_compiler()
    first = plan_runtime_build("cpu")
    assert plan_runtime_build("cpu") == first
    monkeypatch.setattr(build, "_compilers", lambda _: "some other compiler")
    other = plan_runtime_build("cpu")
    assert other.key != first.key
    monkeypatch.setattr(build, "VERSION", "2.0")
    assert plan_runtime_build("cpu").key not in (first.key, other.key)


def test_the_estimate_is_shorter_with_more_cores(monkeypatch):
    _needs_compiler()
    monkeypatch.setattr(build.os, "cpu_count", lambda: 8)
    assert plan_runtime_build("cpu", jobs=8).minutes < plan_runtime_build("cpu", jobs=2).minutes


def test_more_jobs_than_cores_do_not_shorten_the_estimate(monkeypatch):
    _needs_compiler()
    monkeypatch.setattr(build.os, "cpu_count", lambda: 2)
    assert plan_runtime_build("cpu", jobs=8).minutes == plan_runtime_build("cpu", jobs=2).minutes


@pytest.mark.parametrize(("backend", "arch"), [("cpu", "90"), ("vulkan", "x")])
def test_an_architecture_is_refused_where_there_is_none(backend, arch):
    with pytest.raises(WrongUse, match="no architectures"):
        plan_runtime_build(backend, arch)


@pytest.mark.parametrize("arch", ["90 -DX=1", "$(id)", "9\n0"])
def test_an_architecture_that_is_no_architecture_is_refused(arch):
    with pytest.raises(WrongUse, match="is not an architecture"):
        plan_runtime_build("cuda", arch)


def test_a_toolkit_of_wheels_needs_a_compiler_alone_and_no_driver_library(monkeypatch, tmp_path):
    _needs_compiler()
    compiler = toolchain.find_toolchain("compiler").found["C++ compiler"]
    (tmp_path / compiler.name).symlink_to(compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = plan_runtime_build("cuda", "90", toolkit="pip")
    assert "-DGGML_CUDA_NO_VMM=ON" in plan.flags
    assert not [flag for flag in plan.flags if "libcuda" in flag or "/" in flag.replace("$ORIGIN/../lib", "")]


def test_other_pinned_wheels_are_another_build(monkeypatch):
    _needs_compiler()
    first = plan_runtime_build("cuda", "90", toolkit="pip")
    monkeypatch.setattr(cuda_wheels, "TOOLKIT_WHEELS", cuda_wheels.TOOLKIT_WHEELS[1:])
    assert plan_runtime_build("cuda", "90", toolkit="pip").key != first.key


@pytest.mark.parametrize(
    ("backend", "arch", "words"), [("cpu", None, "no wheels of a toolkit for cpu"), ("cuda", None, "--arch 90")]
)
@pytest.mark.usefixtures("bare")
def test_a_toolkit_of_wheels_is_for_cuda_and_for_a_known_architecture(backend, arch, words):
    devices.nvidia_devices.cache_clear()
    with pytest.raises(WrongUse, match=words):
        plan_runtime_build(backend, arch, toolkit="pip")


def _unpacked_wheels(folder: Path) -> Path:
    for name in ("cmake/data/bin/cmake", "bin/ninja", "nvidia/cu13/bin/nvcc", "nvidia/cu13/lib/libcudart.so.13"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("libcublas.so.13", "libcublasLt.so.13"):
        (folder / "nvidia/cu13/lib" / name).touch()
    return folder


def test_libraries_of_wheels_get_the_names_that_a_linker_looks_for(tmp_path):
    found = cuda_wheels.use_toolkit(_unpacked_wheels(tmp_path))
    for name in ("libcudart.so", "libcublas.so", "libcublasLt.so"):
        assert (found.root / "lib64" / name).resolve().name == f"{name}.13"
    assert [path.name for path in found.libraries()] == ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"]
    assert cuda_wheels.use_toolkit(tmp_path) == found


def test_wheels_that_lack_a_tool_are_named(tmp_path):
    (_unpacked_wheels(tmp_path) / "bin/ninja").unlink()
    with pytest.raises(EnvironmentFailure, match="ninja"):
        cuda_wheels.use_toolkit(tmp_path)


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("[ 42%] Building CXX object x.o\n", 42),
        ("[100%] Built target llama-server\n", 100),
        ("[21/84] Building x\n", 25),
        ("-- Configuring done\n", None),
        ("[0/0] x", 0),
    ],
)
def test_progress_is_read_off_make_and_ninja(line, percent):
    assert build._percent(line) == percent


def test_a_source_with_another_checksum_is_refused_and_removed(tmp_path):
    path = tmp_path / ARCHIVE
    path.write_bytes(b"not the archive")
    with pytest.raises(EnvironmentFailure, match="not the pinned"):
        fetch_source(tmp_path)
    assert not path.exists()


def _archive(path: Path, *members: tarfile.TarInfo) -> SourceArchive:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size) if member.isfile() else None)
    return SourceArchive(path)


def _member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.size = size if kind == tarfile.REGTYPE else 0
    member.linkname = "/etc/passwd"
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("p/llama.cpp/../../../evil"),
        _member("p/llama.cpp/link", tarfile.SYMTYPE),
        _member("p/llama.cpp/hard", tarfile.LNKTYPE),
        _member("p/llama.cpp/fifo", tarfile.FIFOTYPE),
    ],
)
def test_a_member_that_could_leave_the_folder_is_refused(tmp_path, member):
    with pytest.raises(BadInput, match="must not be unpacked"):
        unpack_source(_archive(tmp_path / "a.tar.gz", member), tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_a_source_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source_code, "UNPACKED_LIMIT", 100)
    with pytest.raises(BadInput, match="more than 100 bytes"):
        unpack_source(_archive(tmp_path / "a.tar.gz", _member("p/llama.cpp/big", size=101)), tmp_path / "out")


def test_only_llama_cpp_itself_is_unpacked(tmp_path):
    archive = _archive(tmp_path / "a.tar.gz", _member("p/setup.py"), _member("p/llama.cpp/CMakeLists.txt"))
    tree = unpack_source(archive, tmp_path / "out")
    assert [path.name for path in tree.iterdir()] == ["CMakeLists.txt"]
    assert not (tmp_path / "out/setup.py").exists()


def test_a_build_that_fails_names_the_error_and_keeps_the_log(tmp_path, monkeypatch):
    _needs_compiler()
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    listfile = tmp_path / "CMakeLists.txt"
    listfile.write_text('cmake_minimum_required(VERSION 3.14)\nmessage(FATAL_ERROR "no such luck")\n')
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(listfile, "p/llama.cpp/CMakeLists.txt")
    monkeypatch.setattr(build, "fetch_source", lambda _: SourceArchive(archive))
    plan = plan_runtime_build("cpu")
    with pytest.raises(EnvironmentFailure, match="configuring failed: CMake Error") as caught:
        build_runtime(plan)
    assert "no such luck" in Path(caught.value.where).read_text()
    assert not list((tmp_path / "cache/runtimes").glob(".build-*"))


def test_an_interrupted_build_goes_on_with_what_it_had_unpacked(tmp_path, monkeypatch):
    _needs_compiler()
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    archive = _archive(tmp_path / "a.tar.gz", _member("p/llama.cpp/CMakeLists.txt"))
    monkeypatch.setattr(build, "fetch_source", lambda _: archive)
    steps = []

    def stop(command, *_):
        steps.append((Path(command[2]) / "CMakeLists.txt").stat().st_mtime_ns)
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_run", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_runtime(plan_runtime_build("cpu"))
    assert steps[0] == steps[1]


@pytest.mark.slow
@pytest.mark.registry
@pytest.mark.timeout(20_000)
def test_a_cuda_build_with_a_toolkit_of_wheels_answers_on_a_machine_without_a_gpu(tmp_path, monkeypatch):
    _needs_compiler()
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    runtime = build_runtime(plan_runtime_build("cuda", "90", toolkit="pip"))
    assert {path.name for path in (runtime.path.parent.parent / "lib").iterdir()} >= {"libcublas.so.13"}
    try_runtime(runtime)


@pytest.mark.slow
@pytest.mark.registry
@pytest.mark.timeout(7200)
def test_a_cpu_build_from_the_pinned_source_serves_a_model(tmp_path, tiny, monkeypatch):
    _needs_compiler()
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    plan = plan_runtime_build("cpu")
    runtime = build_runtime(plan)
    assert build_runtime(plan) == runtime
    with LlamaServer.start(tiny, runtime=runtime, context=512, warmup=False, timeout_seconds=60) as server:
        assert server.client.props().build.startswith("b11434")
        answer = server.client.completion("x", grammar='root ::= "hello"', n_predict=16, temperature=0.0)
    assert answer.text == "hello"
