"""Disk space over all stages and file systems, before the first byte."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import EnvironmentFailure
from strata_pack.weights.preflight import RESERVE_MOST, Stage, check_disk, disk_needs, size_text

OTHER = Path("/dev/shm")


def test_stages_on_one_file_system_are_added_up(tmp_path: Path) -> None:
    (need,) = disk_needs([Stage("download", tmp_path / "not/there", 5), Stage("quantized file", tmp_path, 7)])
    assert need.needed == 12


@pytest.mark.skipif(not OTHER.is_dir(), reason="no second file system at /dev/shm")
def test_file_systems_are_distinguished(tmp_path: Path) -> None:
    if os.stat(OTHER).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("/dev/shm is no file system of its own")
    needs = disk_needs([Stage("a", tmp_path, 5), Stage("b", OTHER, 7), Stage("c", tmp_path, 1)])
    assert [(need.needed, [stage.label for stage in need.stages]) for need in needs] == [(6, ["a", "c"]), (7, ["b"])]


def test_what_fits_passes(tmp_path: Path) -> None:
    assert check_disk([Stage("download", tmp_path, 1000)])[0].short == 0


def test_nothing_to_write_needs_no_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.weights.preflight.free_bytes", lambda _: 0)
    check_disk([Stage("download", tmp_path, 0)])


def test_short_disk_is_one_sentence_with_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.weights.preflight.free_bytes", lambda _: 2_000_000_000)
    with pytest.raises(EnvironmentFailure) as caught:
        check_disk([Stage("download", tmp_path, 1_500_000_000), Stage("quantized file", tmp_path, 1_000_000_000)])
    assert str(caught.value) == (
        f"not enough disk space: {tmp_path} needs 2.6 GB (download 1.5 GB + quantized file 1.0 GB + reserve 0.1 GB) "
        "and has 2.0 GB free, 0.6 GB short; free some space or choose another folder"
    )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=4), st.integers(0, 1 << 40))
def test_the_figures_of_the_sentence_add_up(sizes: list[int], free: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strata_pack.weights.preflight.free_bytes", lambda _: free)
        stages = [Stage(f"part {n}", Path("/"), size) for n, size in enumerate(sizes)]
        (need,) = disk_needs(stages)
        if not need.short:
            return
        with pytest.raises(EnvironmentFailure) as caught:
            check_disk(stages)
    found = [round(10 * float(number)) for number in re.findall(r"(\d+\.\d) [kMGT]B", str(caught.value))]
    total, *parts, there, short = found
    assert (total, short) == (sum(parts), total - there)


def test_a_small_output_asks_for_little(tmp_path: Path) -> None:
    (need,) = disk_needs([Stage("quantized file", tmp_path, 3_000_000)])
    assert need.reserve < 2_000_000


def test_a_large_output_leaves_no_more_than_the_most_free(tmp_path: Path) -> None:
    (need,) = disk_needs([Stage("quantized file", tmp_path, 1 << 40)])
    assert need.reserve == RESERVE_MOST


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (70_500_000_000, "70.5 GB"), (2_000_000_000_000, "2.0 TB")],
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
