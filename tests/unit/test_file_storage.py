"""Files of clients: whole or not there, for nobody else to read, and opened only where they belong."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.files.storage import FileLost, FileNotKept, FileStorage
from jobd.host.data_dir import node_name
from jobd.store.ids import new_id

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> FileStorage:
    return FileStorage(tmp_path)


async def kept(files: FileStorage, content: bytes = b"content") -> str:
    async with files.new_file(new_id()) as writer:
        await writer.write(content)
        return await writer.keep()


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_file_is_there_when_it_is_kept_and_not_before(files: FileStorage, tmp_path: Path) -> None:
    async with files.new_file(new_id()) as writer:
        await writer.write(b"con")
        await writer.write(b"tent")
        with pytest.raises(FileLost):
            await files.open(writer.ref)
        ref = await writer.keep()
    opened = await files.open(ref)

    with opened.file:
        assert (opened.file.read(), opened.size) == (b"content", 7)
    assert files_in(tmp_path) == [tmp_path / ref]


async def test_a_file_that_is_not_kept_leaves_nothing(files: FileStorage, tmp_path: Path) -> None:
    async with files.new_file(new_id()) as writer:
        await writer.write(b"x")
    with pytest.raises(ValueError, match="no"):
        async with files.new_file(new_id()) as writer:
            await writer.write(b"x")
            raise ValueError("no")
    with anyio.CancelScope() as scope:
        async with files.new_file(new_id()) as writer:
            await writer.write(b"x")
            scope.cancel()
            await anyio.sleep_forever()

    assert files_in(tmp_path) == []


async def test_a_file_of_the_same_id_takes_the_place_of_the_one_before(files: FileStorage, tmp_path: Path) -> None:
    file_id = new_id()
    for content in (b"first", b"second"):
        async with files.new_file(file_id) as writer:
            await writer.write(content)
            ref = await writer.keep()

    assert [path.read_bytes() for path in files_in(tmp_path)] == [b"second"]
    assert files_in(tmp_path) == [tmp_path / ref]


async def test_a_full_disk_is_said_and_leaves_nothing(files: FileStorage, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(FileNotKept, match="make room"):
            async with files.new_file(new_id()) as writer:
                await writer.write(b"x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert files_in(tmp_path) == []


@pytest.mark.parametrize("ref", ["", "/etc/passwd", "files/ab/../../x", "files/ab/x.data", "results/ab/x.json"])
async def test_only_names_of_ours_are_opened_or_removed(files: FileStorage, ref: str) -> None:
    with pytest.raises(FileLost, match="no name"):
        await files.open(ref)
    assert await files.remove([ref]) == 0


async def test_no_link_is_followed(files: FileStorage, tmp_path: Path) -> None:
    ref = await kept(files)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / ref).unlink()
    (tmp_path / ref).symlink_to(secret)

    with pytest.raises(FileLost):
        await files.open(ref)

    (tmp_path / ref).unlink()
    folder = (tmp_path / ref).parent
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(FileLost):
        await files.open(ref)


async def test_a_pipe_in_the_place_of_a_file_is_no_file(files: FileStorage, tmp_path: Path) -> None:
    ref = await kept(files)
    (tmp_path / ref).unlink()
    os.mkfifo(tmp_path / ref)

    with pytest.raises(FileLost, match="not a file"):
        await files.open(ref)


async def test_a_file_of_another_node_says_which(files: FileStorage, tmp_path: Path) -> None:
    ref = (await kept(files)).replace(node_name(tmp_path), "other-0a1b2c3d")

    with pytest.raises(FileLost) as lost:
        await files.open(ref)

    assert lost.value.node == "other-0a1b2c3d"


async def test_walking_finds_every_file_and_halves_and_nothing_else(files: FileStorage, tmp_path: Path) -> None:
    ref = await kept(files)
    (tmp_path / ref).with_name("notes.txt").write_text("x")
    async with files.new_file(new_id()) as writer:
        found = {file.ref: file for file in files.walk()}
        half = next(name for name in found if name != ref)

        assert len(found) == 2
        assert found[ref].file_id is not None
        assert found[half].file_id is None
        assert await files.remove_orphans(file for file in found.values() if file.ref != half) == 1
        await writer.keep()
        assert await files.remove_orphans(files.walk()) == 0  # its row may be under way
    assert await files.remove_orphans(files.walk()) == 1


def test_files_of_another_database_are_known(files: FileStorage, tmp_path: Path) -> None:
    assert files.belong_to("one")  # there are none
    (tmp_path / "files").mkdir()

    assert files.belong_to("one")
    assert files.belong_to("one")
    assert not files.belong_to("another")
