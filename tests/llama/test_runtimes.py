from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.llama import devices, memory, runtimes
from strata_pack.llama.describe import describe_runtime
from strata_pack.llama.devices import Device, compute_in_log
from strata_pack.llama.memory import (
    NGRAM_TABLE,
    OVERHEAD,
    Fit,
    MemoryNeed,
    Room,
    kv_cache_bytes,
    main_memory,
    memory_need,
)
from strata_pack.llama.runtimes import (
    Runtime,
    ServerSettings,
    find_binary,
    list_runtimes,
    pick_runtime,
    use_runtime,
    used_runtime,
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for asked in (devices.nvidia_devices, devices.binary_devices):
        asked.cache_clear()
    yield
    for asked in (devices.nvidia_devices, devices.binary_devices):
        asked.cache_clear()


def _program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _build(tmp_path: Path, name: str, backend: str) -> Path:
    folder = tmp_path / "cache/runtimes" / name
    binary = _program(folder / "bin/llama-server")
    (folder / "runtime.json").write_text(json.dumps({"backend": backend, "binary": "bin/llama-server"}))
    return binary


def _nvidia(tmp_path: Path) -> None:
    _program(tmp_path / "bin/nvidia-smi", "print('0, NVIDIA H200, 143771, 143000')")


def test_the_embedded_runtime_is_always_there():
    assert [runtime.name for runtime in list_runtimes()] == ["embedded"]
    assert pick_runtime().name == "embedded"


def test_a_binary_on_the_path_is_listed_but_not_taken_unasked(tmp_path):
    _program(tmp_path / "bin/llama-server")
    assert [runtime.name for runtime in list_runtimes()] == ["embedded", "llama-server"]
    assert pick_runtime().name == "embedded"
    assert pick_runtime("llama-server").path == tmp_path / "bin/llama-server"


def test_the_environment_names_a_binary_and_the_option_wins_over_it(tmp_path, monkeypatch):
    one, two = _program(tmp_path / "one/llama-server"), _program(tmp_path / "two/llama-server")
    monkeypatch.setenv("STRATA_LLAMA_SERVER", str(one))
    assert pick_runtime().path == one
    assert pick_runtime(llama_server=two).path == two


def test_a_missing_binary_is_named(tmp_path):
    with pytest.raises(BadInput, match="not an executable"):
        find_binary(tmp_path / "nowhere")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(WrongUse, match="choose from auto, embedded"):
        pick_runtime("vulkan-7")


def test_a_finished_build_is_listed_and_one_without_a_record_is_not(tmp_path):
    _build(tmp_path, "cpu-abc", "cpu")
    _program(tmp_path / "cache/runtimes/cuda-half/bin/llama-server")
    assert [runtime.name for runtime in list_runtimes()] == ["embedded", "cpu-abc"]


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"backend": "cpu", "binary": 5}', "\x00"])
def test_a_damaged_record_does_not_count(tmp_path, record):
    _build(tmp_path, "cpu-abc", "cpu")
    (tmp_path / "cache/runtimes/cpu-abc/runtime.json").write_text(record)
    assert [runtime.name for runtime in list_runtimes()] == ["embedded"]


def test_auto_takes_the_cuda_build_where_there_is_a_device(tmp_path):
    _build(tmp_path, "cuda-abc", "cuda")
    assert pick_runtime("auto").name == "embedded"
    devices.nvidia_devices.cache_clear()
    _nvidia(tmp_path)
    assert pick_runtime("auto").name == "cuda-abc"


def test_auto_without_a_cuda_build_takes_the_embedded_one_even_with_a_device(tmp_path):
    _nvidia(tmp_path)
    assert pick_runtime("auto").name == "embedded"


VULKAN_DEVICE = "print('Available devices:\\n  Vulkan0: AMD Radeon 780M (16384 MiB, 16000 MiB free)')"


def test_auto_chooses_vulkan_where_its_server_sees_a_device_and_reports_it(tmp_path):
    binary = _build(tmp_path, "vulkan-b1", "vulkan")
    assert pick_runtime().name == "embedded"
    assert pick_runtime().why == "no NVIDIA device, no Vulkan device: the CPU"
    devices.binary_devices.cache_clear()
    _program(binary, VULKAN_DEVICE)
    taken = pick_runtime()
    assert (taken.name, taken.why) == ("vulkan-b1", "no NVIDIA device; Vulkan on AMD Radeon 780M")


def test_auto_takes_cuda_before_vulkan(tmp_path):
    _program(_build(tmp_path, "a-vulkan", "vulkan"), VULKAN_DEVICE)
    _build(tmp_path, "cuda-abc", "cuda")
    _nvidia(tmp_path)
    assert (pick_runtime().name, pick_runtime().why) == ("cuda-abc", "CUDA on NVIDIA H200")


def test_auto_with_a_device_and_no_cuda_runtime_says_how_to_get_one(tmp_path):
    _nvidia(tmp_path)
    assert "no CUDA runtime for NVIDIA H200 (`strata-pack runtime install --backend cuda`)" in pick_runtime().why


def test_a_runtime_in_an_environment_of_its_own_is_started_by_that_interpreter(tmp_path):
    python = _program(tmp_path / "cache/runtimes/cuda-b7/environment/bin/python")
    record = {"backend": "cuda", "python": "environment/bin/python", "version": "2026.1.7+cu130", "origin": "x"}
    (tmp_path / "cache/runtimes/cuda-b7/runtime.json").write_text(json.dumps(record))
    runtime = pick_runtime("cuda-b7")
    assert (runtime.kind, runtime.package_version) == ("embedded", "2026.1.7+cu130")
    command = runtime.command(ServerSettings(Path("/m.gguf"), "127.0.0.1", 0, 256, 1), tmp_path / "ready")
    assert command[:3] == [str(python), "-I", str(Path(devices.__file__).with_name("child.py"))]


def test_what_is_used_is_remembered(tmp_path):
    _build(tmp_path, "cpu-abc", "cpu")
    use_runtime("cpu-abc")
    assert (used_runtime(), pick_runtime().name) == ("cpu-abc", "cpu-abc")
    use_runtime("auto")
    assert pick_runtime().name == "embedded"


def test_using_what_is_not_there_is_refused_and_changes_nothing():
    with pytest.raises(WrongUse):
        use_runtime("cuda-nope")
    assert used_runtime() == "auto"


def test_nvidia_s_devices_are_read_off_its_tool(tmp_path):
    _nvidia(tmp_path)
    assert devices.nvidia_devices() == (Device("GPU 0", "NVIDIA H200", 143771 << 20, 143000 << 20),)


@pytest.mark.parametrize("text", ["raise SystemExit(9)", "print('No devices were found')", "print('0, x, [N/A], 5')"])
def test_a_tool_that_fails_or_shows_nothing_means_no_device(tmp_path, text):
    _program(tmp_path / "bin/nvidia-smi", text)
    assert devices.nvidia_devices() == ()


def test_a_binary_s_command_says_everything_that_was_asked_for(tmp_path):
    settings = ServerSettings(
        model=Path("/m.gguf"),
        host="127.0.0.1",
        port=81,
        context=1000,
        parallel=3,
        template_file=Path("/t.jinja"),
        gpu_layers=0,
        threads=2,
        prefill_assistant=False,
        warmup=False,
        projector=Path("/eyes.gguf"),
        drafts=True,
        extra=("--mlock",),
    )
    command = Runtime("x", "binary", path=Path("/b")).command(settings, tmp_path / "ready")
    text = " ".join(command)
    for piece in (
        "/b --model /m.gguf",
        "--host 127.0.0.1 --port 81",
        "--ctx-size 3000 --parallel 3",
        "--chat-template-file /t.jinja",
        "--n-gpu-layers 0",
        "--threads 2",
        "--no-prefill-assistant",
        "--no-warmup",
        "--mmproj /eyes.gguf",
        "--spec-type draft-mtp",
    ):
        assert piece in text
    assert command[-1] == "--mlock"
    assert "--kv-unified" not in command


def test_the_embedded_server_takes_no_options_of_a_binary(tmp_path):
    settings = ServerSettings(Path("/m.gguf"), "127.0.0.1", 0, 256, 1, extra=("--mlock",))
    with pytest.raises(WrongUse, match="embedded"):
        Runtime("embedded", "embedded").command(settings, tmp_path / "ready")


def test_a_binary_says_its_version_build_and_devices(tmp_path):
    text = """
import sys
if "--version" in sys.argv:
    print("version: 11434 (abcdef)", file=sys.stderr)
    print("built with GNU 12.2.0 for Linux x86_64", file=sys.stderr)
else:
    print("Available devices:")
    print("  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)")
"""
    what = describe_runtime(Runtime("x", "binary", path=_program(tmp_path / "b/llama-server", text)))
    assert (what.version, what.build) == ("11434 (abcdef)", "GNU 12.2.0 for Linux x86_64")
    assert what.devices == (Device("CUDA0", "NVIDIA H200", 143771 << 20, 143000 << 20),)


def test_a_binary_that_is_no_server_is_named(tmp_path):
    other = Runtime("x", "binary", path=_program(tmp_path / "b/llama-server", "print('hello')"))
    with pytest.raises(EnvironmentFailure, match=r"not a working llama-server \(hello\)"):
        describe_runtime(other)


def test_the_embedded_runtime_says_its_version():
    what = describe_runtime(runtimes.embedded())
    assert what.version[0].isdigit()
    assert what.devices == ()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "CPU"),
        ("I load_tensors: offloaded 0/31 layers to GPU", "CPU"),
        (
            "llama_prepare_model_devices: using device CUDA0 (NVIDIA H200) (0000:18:00.0) - 143000 MiB free\n"
            "load_tensors: offloaded 31/31 layers to GPU\n",
            "CUDA0 (NVIDIA H200), 31 of 31 layers",
        ),
    ],
)
def test_what_computes_is_read_off_the_log(log, words):
    assert compute_in_log(log) == words


SMOLLM2 = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
}


@pytest.mark.parametrize(("running", "free"), [(1, None), (3, 2), (90, 1)])
def test_cores_that_others_use_are_not_free(running, free, monkeypatch):
    monkeypatch.setattr(devices, "SAMPLE_SECONDS", 0)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: {9000, 9001, 9002, 9003})
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"cpu 1 2\nprocs_running {running}\nprocs_blocked 0\n")
    assert devices.free_cores() == free


def test_the_kv_cache_is_as_large_as_llama_cpp_says():
    # "failed to allocate CPU buffer of size 4612423680", for 200,192 tokens of SmolLM2.
    assert kv_cache_bytes(SMOLLM2, 200_192) == 4_612_423_680


def test_kv_heads_may_differ_from_layer_to_layer():
    per_layer = {**SMOLLM2, "llama.attention.head_count_kv": [3] * 15 + [0] * 15}
    assert kv_cache_bytes(per_layer, 1000) * 2 == kv_cache_bytes(SMOLLM2, 1000)


def test_key_and_value_lengths_of_their_own_count():
    wide = {**SMOLLM2, "llama.attention.key_length": 128, "llama.attention.value_length": 64}
    assert kv_cache_bytes(wide, 10) == 10 * 2 * (128 + 64) * 3 * 30


@pytest.mark.parametrize("value", [[30], -1, 1 << 40])
def test_an_impossible_number_of_layers_is_bad_input(value):
    with pytest.raises(BadInput, match=r"llama\.block_count"):
        kv_cache_bytes({**SMOLLM2, "llama.block_count": value}, 10)


@pytest.mark.parametrize("key", ["llama.block_count", "llama.embedding_length", "llama.attention.head_count"])
def test_a_model_that_does_not_say_its_shape_is_bad_input(key):
    with pytest.raises(BadInput, match=key):
        kv_cache_bytes({name: value for name, value in SMOLLM2.items() if name != key}, 10)


def test_a_model_fits_only_with_room_for_its_buffers():
    need = MemoryNeed(100, 0, 100)
    assert Fit(need, Room(1 << 40, "memory")).fits
    assert not Fit(need, Room(200, "memory")).fits


def test_layers_that_do_not_fit_on_the_gpu_go_to_main_memory():
    fit = Fit(MemoryNeed(8 << 30, 0, 0), Room(4 << 30, "GPU", main_memory=6 << 30))
    assert (fit.fits, fit.runs) == (False, True)
    assert not Fit(fit.need, Room(4 << 30, "GPU", main_memory=1 << 30)).runs


@pytest.mark.parametrize(("size", "lazy"), [(4 << 30, 0), ((4 << 30) + 1, (4 << 30) + 1)])
def test_a_table_of_n_grams_above_4_gib_stays_on_the_disk(size, lazy):
    need = memory_need(SMOLLM2, [("output.weight", 1000), (NGRAM_TABLE, size)], 100)
    assert (need.held + need.lazy, need.lazy) == (1000 + size, lazy)


def test_a_model_that_does_not_say_its_shape_needs_its_weights_at_least():
    need = memory_need({}, [("output.weight", 1000)], 100)
    assert (need.held, need.kv_cache) == (1000, None)
    assert need.total == 1000 + OVERHEAD


WINDOW = {**SMOLLM2, "llama.attention.sliding_window": 128}


@pytest.mark.parametrize(
    ("extra", "wide"),
    [
        ({}, 30),
        ({"llama.attention.sliding_window_pattern": 6}, 5),
        ({"llama.attention.sliding_window_pattern": [True] * 20 + [False] * 10}, 10),
    ],
)
def test_a_sliding_window_s_layers_keep_the_window_and_a_batch_of_each_slot(extra, wide):
    narrow = 2 * (128 + 512)
    layer = kv_cache_bytes(SMOLLM2, 1) // 30
    assert kv_cache_bytes({**WINDOW, **extra}, 8192, slots=2) == layer * (wide * 8192 + (30 - wide) * narrow)


@pytest.mark.parametrize(
    "extra", [{"llama.full_attention_interval": 4}, {"llama.attention.recurrent_layers": [1, 1, 1, 0] * 7 + [1, 1]}]
)
def test_layers_with_linear_attention_keep_no_keys_and_values(extra):
    assert kv_cache_bytes({**SMOLLM2, **extra}, 1000) == kv_cache_bytes(SMOLLM2, 1000) * 7 // 30


GROUPS = {
    2: {"memory.max": "1000000", "memory.current": "900000", "memory.stat": "anon 5\nfile 300000\n"},
    1: {
        "memory/memory.limit_in_bytes": "1000000",
        "memory/memory.usage_in_bytes": "900000",
        "memory/memory.stat": "cache 1\ntotal_cache 300000\n",
    },
}


@pytest.mark.parametrize("version", GROUPS)
def test_cached_files_of_a_control_group_count_as_free(version, tmp_path, monkeypatch):
    for name, text in GROUPS[version].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    moved = [(folder.replace("/sys/fs/cgroup", str(tmp_path)), *rest) for folder, *rest in memory._GROUPS]
    monkeypatch.setattr(memory, "_GROUPS", moved)
    assert main_memory().free == 400_000
