"""Result files: whole or not there, for nobody else to read, and opened only where they belong."""

from __future__ import annotations

import os
import resource
import stat
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
import pytest
from msgspec.structs import replace

from jobd.config.model import Config, Limits
from jobd.engine.results import ResultLost, ResultNotKept, Results
from jobd.lifecycle.report import Held
from jobd.store.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = b'["' + b"x" * 100_000 + b'"]'


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path, Config)


def holder(job_id: UUID | None = None) -> Held:
    return Held(job_id=job_id or new_id(), attempt_id=new_id(), lease_token=new_id())


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


async def content(results: Results, ref: str) -> bytes:
    opened = await results.open(ref)
    with opened.file as file:
        text = file.read()
    assert len(text) == opened.size
    return text


async def kept(results: Results, text: bytes = TEXT) -> str:
    ref = await results.keep(holder(), text)
    assert ref is not None
    return ref


def grow_old(data_dir: Path, ref: str) -> None:
    os.utime(data_dir / ref, (0, 0))


# Keeping


@pytest.mark.parametrize(("size", "is_file"), [(2, False), (65_536, False), (65_537, True)])
async def test_only_what_is_large_goes_to_a_file(results: Results, tmp_path: Path, size: int, is_file: bool) -> None:
    ref = await results.keep(holder(), b"1" * size)

    assert (ref is not None) == is_file
    assert len(files_in(tmp_path)) == is_file


async def test_limit_of_a_reload_counts_at_once(tmp_path: Path) -> None:
    config = Config()
    results = Results(tmp_path, lambda: config)
    assert await results.keep(holder(), b"12345") is None

    config = replace(config, limits=Limits(inline_result_bytes=4))

    assert await results.keep(holder(), b"12345") is not None


async def test_file_is_where_the_ref_says_and_for_its_owner_alone(results: Results, tmp_path: Path) -> None:
    job_id = new_id()

    ref = await results.keep(holder(job_id), TEXT)

    assert ref is not None
    assert ref.startswith("results/")
    assert str(job_id) in ref
    assert files_in(tmp_path) == [tmp_path / ref]
    assert (tmp_path / ref).read_bytes() == await content(results, ref) == TEXT
    modes = [stat.S_IMODE(path.stat().st_mode) for path in ((tmp_path / ref), *(tmp_path / ref).parents)]
    assert modes[:3] == [0o600, 0o700, 0o700]


async def test_same_report_writes_the_same_file_and_another_one_its_own(results: Results, tmp_path: Path) -> None:
    job = holder()

    first = await results.keep(job, TEXT)
    again = await results.keep(job, TEXT)
    others = {await results.keep(holder(job.job_id), TEXT), await results.keep(job, TEXT + b" ")}

    assert first == again
    assert first not in others
    assert len(files_in(tmp_path)) == 3


async def test_many_at_once_are_all_whole(results: Results) -> None:
    refs: dict[str, bytes] = {}

    async def one(n: int) -> None:
        text = b"%d" % n * 40_000
        refs[await kept(results, text)] = text

    async with anyio.create_task_group() as tasks:
        for n in range(10, 60):
            tasks.start_soon(one, n)

    assert len(refs) == 50
    assert [await content(results, ref) for ref in refs] == list(refs.values())


@pytest.fixture
def files_stay_small() -> Iterator[None]:
    """Writing more than so much to a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("files_stay_small")
async def test_disk_that_takes_no_more_is_told_and_nothing_half_is_left(results: Results, tmp_path: Path) -> None:
    job_id = new_id()

    with pytest.raises(
        ResultNotKept, match=f"job {job_id}, 100004 bytes so far, could not be written to .*: File too large;"
    ):
        await results.keep(holder(job_id), TEXT)

    assert files_in(tmp_path) == []
    assert await kept(results, TEXT[:80_000])


async def test_file_is_on_the_disk_before_it_has_its_name(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("fsync", "rename"):
        monkeypatch.setattr(os, name, _noting(steps, name))
    await kept(results)
    steps.clear()
    os.makedirs(tmp_path / "results/00", exist_ok=True)

    await kept(results)

    assert steps[-3:] == ["fsync", "rename", "fsync"]


def _noting(steps: list[str], name: str) -> object:
    real = getattr(os, name)

    def noted(*arguments: object, **named: object) -> object:
        steps.append(name)
        return real(*arguments, **named)

    return noted


async def test_results_folder_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "results").symlink_to(elsewhere)

    with pytest.raises(ResultNotKept):
        await Results(tmp_path / "data", Config).keep(holder(), TEXT)

    assert files_in(elsewhere) == []


# Opening

NAME = f"{UUID(int=7)}-{'0' * 32}.json"


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "secrets/valkey",
        "/etc/passwd",
        "results/../secrets/valkey",
        f"results/../{NAME}",
        f"results/ab/../../{NAME}",
        f"results/ab/../ab/{NAME}",
        f"/results/ab/{NAME}",
        f"results/AB/{NAME}",
        f"results//{NAME}",
        f"results/ab/{NAME}\n",
        f"results/ab/{NAME}\x00",
        f"results/ab/{NAME}/",
        f"results/ab/x{NAME}",
        "results/installation",
        "results/ab/..",
    ],
)
async def test_ref_that_jobd_does_not_make_opens_and_removes_nothing(
    results: Results, tmp_path: Path, ref: str
) -> None:
    await kept(results)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "valkey").write_text("secret")
    (tmp_path / "results" / "ab").mkdir(exist_ok=True)
    for folder in (tmp_path, tmp_path / "results", tmp_path / "results" / "ab"):
        (folder / NAME).write_text("other")
    before = files_in(tmp_path)

    with pytest.raises(ResultLost, match="no name that jobd gives"):
        await results.open(ref)

    assert await results.remove([ref]) == 0
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "nothing", "link above"])
async def test_what_is_not_a_file_of_ours_is_not_opened(results: Results, tmp_path: Path, what: str) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "results" / "ab"
    folder.parent.mkdir()
    if what == "link above":
        (tmp_path / NAME).write_text("secret")
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
    if what == "link":
        (folder / NAME).symlink_to(tmp_path / "secret")
    elif what == "folder":
        (folder / NAME).mkdir()
    elif what == "pipe":
        os.mkfifo(folder / NAME)

    with pytest.raises(ResultLost), anyio.fail_after(20):
        await results.open(f"results/ab/{NAME}")


# Walking and removing


async def test_walk_finds_every_file_of_ours_and_nothing_else(results: Results, tmp_path: Path) -> None:
    refs = [await kept(results) for _ in range(5)]
    (tmp_path / refs[0]).with_name("notes.txt").write_text("mine")
    (tmp_path / "results" / "stray.json").write_text("mine")
    half = (tmp_path / refs[0]).with_name(f".{NAME}.0123abcd")
    half.write_text("[")
    grow_old(tmp_path, refs[1])

    found = {entry.ref: entry for entry in results.walk()}

    assert found.keys() == {*refs, str(half.relative_to(tmp_path))}
    assert [str(found[ref].job_id) in ref for ref in refs] == [True] * 5
    assert found[str(half.relative_to(tmp_path))].job_id is None
    assert found[refs[1]].age_s > 1e9
    assert 0 <= found[refs[2]].age_s < 60


async def test_removed_is_what_is_there(results: Results, tmp_path: Path) -> None:
    gone, stays = await kept(results), await kept(results)

    assert await results.remove([gone, gone, f"results/ab/{NAME}"]) == 1

    assert files_in(tmp_path) == [tmp_path / stays]


async def test_file_whose_report_may_be_under_way_is_no_orphan_whatever_its_age(tmp_path: Path) -> None:
    ref = await kept(before := Results(tmp_path, Config))
    grow_old(tmp_path, ref)  # as it looks when the clock of a board without a battery is set after the boot

    assert await before.remove_orphans(before.walk()) == 0
    assert await Results(tmp_path, Config).remove_orphans(before.walk()) == 1


async def test_files_belong_to_the_first_installation_that_asks(results: Results, tmp_path: Path) -> None:
    assert results.belong_to("a")  # there is nothing yet that could belong to anyone
    assert results.belong_to("b")
    await kept(results)

    assert results.belong_to("a")
    assert not results.belong_to("b")
    assert results.belong_to("a")
    assert (tmp_path / "results/installation").read_text() == "a\n"
