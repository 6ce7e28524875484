"""The file of a backup: whatever is not exactly what was written is refused, in words that help."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import msgspec
import pytest

from jobd.backup.archive import HEAD, MANIFEST, SEAL, Contents, Head, Writer, opened
from jobd.backup.output import new_file
from jobd.backup.restore import check_versions
from jobd.errors import BackupRefused, WrongVersion

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMBERS = {
    "database/000000": b"PGDMP" * 1000,
    "database/000001": b"the rest",
    "results/ab/01a1e3de-a05c-7000-a683-9e401723bb2b-0123456789abcdef0123456789abcdef.json": b'{"n": 1}' * 500,
}
RESULT = list(MEMBERS)[-1]
MADE_AT = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
CONTENTS = Contents(
    tables={"jobs": 1}, jobs={"done": 1}, database_bytes=8192, result_files=1, result_bytes=4000, results_missing=[]
)


def head(**changes: object) -> Head:
    return msgspec.structs.replace(
        Head(jobd="1.0", schema=1, postgres=18, made_at=MADE_AT, holds="everything"), **changes
    )


def write(path: Path, **changes: object) -> Path:
    with new_file(path) as sink:
        writer = Writer(sink, head(**changes))
        for name, data in MEMBERS.items():
            writer.add(name, data)
        writer.finish(CONTENTS)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write(tmp_path / "b.tar")


def refusal(path: Path) -> str:
    with pytest.raises(BackupRefused) as raised, opened(path):
        pass
    assert str(raised.value).startswith(str(path)), "it must name the file"
    assert re.search(r"; (name|use) ", str(raised.value)), "it must say what to do"
    return str(raised.value)


def rewritten(path: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], object]) -> Path:
    """The same archive with its members changed, as someone with tar could do it."""
    with tarfile.open(path) as tar:
        members = [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    change(members)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in members:
            if info.isreg():
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def at(members: list[tuple[tarfile.TarInfo, bytes]], name: str) -> int:
    return next(n for n, (info, _) in enumerate(members) if info.name == name)


def test_archive_reads_back_what_was_written(whole: Path) -> None:
    with opened(whole) as archive:
        assert archive.head == head()
        assert archive.contents == CONTENTS
        assert b"".join(archive.database()) == b"PGDMP" * 1000 + b"the rest"
        assert [b"".join(archive.read(member)) for member in archive.results()] == [MEMBERS[RESULT]]
        assert [member.name for member in archive.manifest.members] == [HEAD, *MEMBERS]


def test_archive_is_a_plain_tar_for_its_owner_alone(whole: Path) -> None:
    assert whole.stat().st_mode & 0o777 == 0o600
    with tarfile.open(whole) as tar:
        assert tar.getnames() == [HEAD, *MEMBERS, MANIFEST, SEAL]
        assert {info.mode for info in tar} == {0o600}


def test_archive_cut_anywhere_is_refused(whole: Path) -> None:
    data = whole.read_bytes()

    for size in [*range(0, len(data), 487), len(data) - 1]:
        whole.write_bytes(data[:size])
        refusal(whole)


def test_archive_with_any_byte_changed_is_refused_or_reads_the_same(whole: Path) -> None:
    """Only fields of a tar header that nobody reads may differ, and none of those can with its sum intact."""
    data = whole.read_bytes()
    end = data.rindex(b"\0" * 512 * 2)  # what only fills up the file says nothing
    for n in range(0, end, 61):
        whole.write_bytes(data[:n] + bytes([data[n] ^ 0x41]) + data[n + 1 :])
        try:
            with opened(whole) as archive:
                assert b"".join(archive.database()) == b"PGDMP" * 1000 + b"the rest"
                assert [b"".join(archive.read(member)) for member in archive.results()] == [MEMBERS[RESULT]]
        except (BackupRefused, WrongVersion):
            continue
        assert data[n : n + 1] == b"\0", f"byte {n} was not missed"


FOREIGN = {
    "empty": b"",
    "text": b"hello\n" * 1000,
    "zeros": bytes(20480),
    "gzip": gzip.compress(b"x" * 1000),
    "pg_dump": b"PGDMP\x01\x10\x00" + bytes(5000),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_file_is_no_backup(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(FOREIGN[kind])

    assert "no backup of jobd" in refusal(path)


def test_tar_of_something_else_is_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("etc/passwd"), io.BytesIO())

    assert "no backup of jobd" in refusal(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    assert "not there" in refusal(tmp_path / "b.tar")
    assert "no file" in refusal(tmp_path)


def _evil(members: list[tuple[tarfile.TarInfo, bytes]], name: str, kind: bytes = tarfile.REGTYPE) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    members.insert(1, (info, b"evil"))


CHANGES: dict[str, tuple[Callable[[list[tuple[tarfile.TarInfo, bytes]]], object], str]] = {
    "piece changed": (lambda all_: all_.__setitem__(1, (all_[1][0], b"x" * 5000)), "database/000000"),
    "result changed": (lambda all_: all_.__setitem__(at(all_, RESULT), (all_[3][0], b"{}")), "results/ab"),
    "piece missing": (lambda all_: all_.pop(2), "manifest says"),
    "result missing": (lambda all_: all_.pop(at(all_, RESULT)), "manifest says"),
    "pieces swapped": (lambda all_: all_.insert(1, all_.pop(2)), "manifest says"),
    "piece twice": (lambda all_: all_.insert(1, all_[1]), "does not belong there"),
    "path out of it": (lambda all_: _evil(all_, "../../etc/cron.d/x"), "does not belong there"),
    "path from the top": (lambda all_: _evil(all_, "/etc/cron.d/x"), "does not belong there"),
    "odd result": (lambda all_: _evil(all_, "results/ab/x.json"), "does not belong there"),
    "link": (lambda all_: _evil(all_, "database/000009", tarfile.SYMTYPE), "does not belong there"),
    "device": (lambda all_: _evil(all_, "database/000009", tarfile.CHRTYPE), "does not belong there"),
    "folder": (lambda all_: _evil(all_, "results", tarfile.DIRTYPE), "does not belong there"),
    "manifest changed": (lambda all_: all_.__setitem__(-2, (all_[-2][0], b"{}")), "SHA-256"),
    "no seal": (lambda all_: all_.pop(), "cut short"),
    "no manifest": (lambda all_: all_.pop(-2), "cut short"),
    "something behind": (lambda all_: all_.append(all_[0]), "does not belong there"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_archive_is_refused(whole: Path, change: str) -> None:
    how, word = CHANGES[change]
    rewritten(whole, how)

    said = refusal(whole)

    assert "damaged" in said
    assert word in said


def test_bytes_behind_the_end_are_refused(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes() + b"\0")

    assert "something was added" in refusal(whole)


def test_archive_that_changes_after_it_was_checked_is_refused(whole: Path) -> None:
    with opened(whole) as archive:
        data = whole.read_bytes()
        whole.write_bytes(data.replace(b"the rest", b"the best"))
        with pytest.raises(BackupRefused, match="database/000001"):
            list(archive.database())


@pytest.mark.parametrize("newer", [{"format": 2}, {"schema": 9999}, {"postgres": 99}])
def test_archive_of_a_newer_jobd_is_refused_with_the_version_to_use(tmp_path: Path, newer: dict[str, int]) -> None:
    path = write(tmp_path / "b.tar", **newer)

    with pytest.raises(WrongVersion, match="restore it with"), opened(path) as archive:
        check_versions(path, archive.head)
