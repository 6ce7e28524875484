"""`/v1/files`: what clients send to be used by other calls, and what batches have made for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from msgspec import Meta, Raw

from jobd.files.storage import FileLost, FileNotKept
from jobd.files.table import NewStoredFile, create_file, delete_file, list_files, read_file, read_file_refs
from jobd.http.endpoint import Call, Parameter, delete, get, json_answer, post
from jobd.http.openai.upload import read_upload
from jobd.http.query import read_query
from jobd.http.result import ELSEWHERE_S, FileAnswer
from jobd.http.submit import sender_of
from jobd.openai.errors import InvalidCall, refused
from jobd.openai.file_objects import FileDeleted, FileList, FileObject, file_id_in, file_id_text
from jobd.store.ids import new_id

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.responses import Response

    from jobd.files.table import Purpose, StoredFile
    from jobd.openai.errors import OpenAIError

#: Purposes that a client may give to a file.
PURPOSES = ("batch", "user_data")
#: Least and most seconds of `expires_after`, as OpenAI has them: an hour and 30 days.
EXPIRES_S = (3600, 2_592_000)
#: Most files in an answer, as OpenAI has it; a page without a limit has this number too.
MAX_FILES = 10_000
#: Retry-After in seconds for a file that the disk does not take.
NO_ROOM_S = 30
ANCHOR = "expires_after[anchor]"
SECONDS = "expires_after[seconds]"
FIELDS = ("file", "purpose", ANCHOR, SECONDS)
#: Media type of a file whose content nobody knows.
BINARY = "application/octet-stream"

FILE_ID = Parameter("id", str, "The id of a file: `file-...`.", "path")
LIST = (
    Parameter("after", str, "Only files behind this one: `last_id` of the page before."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_FILES)], f"Largest number of files; {MAX_FILES} without it."),
    Parameter("order", Literal["asc", "desc"], "By time of creation; `desc` without it."),
    Parameter("purpose", Literal["batch", "user_data", "batch_output"], "Only files of this purpose."),
)


def file_object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file_id_text(file.id),
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,  # type: ignore[arg-type]  # the table has no other words
        expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
    )


async def find_file(call: Call, text: str) -> StoredFile:
    """The file of this id, if the caller may see it; raises ApiError `no_such_file`."""
    file_id = file_id_in(text)
    file = None if file_id is None else await read_file(call.services.database, file_id)
    if file is None or call.principal.sees not in (None, file.owner):
        raise refused("no_such_file", f"there is no file {text[:64]!r}, or it has expired")
    return file


# -- send --------------------------------------------------------------------------------------------------------------


async def upload(call: Call) -> Response:
    services, limits = call.services, call.services.config().openai
    services.disk.check()
    file_id = new_id()
    try:
        async with services.files.new_file(file_id) as writer:
            form = await read_upload(call.request, writer, limits.max_file_bytes, services.disk.check)
            _check_names(form.fields)
            purpose = _purpose(form.fields)
            keep_s = _keep_s(form.fields, limits.batch_keep_s if purpose == "batch" else None)
            assert form.filename is not None  # else it was refused
            new = NewStoredFile(
                id=file_id,
                owner=sender_of(call).owner,
                filename=form.filename,
                purpose=purpose,
                bytes=form.size,
                ref=await writer.keep(),
                keep_s=keep_s,
            )
            file = await create_file(services.database, new)
    except FileNotKept as error:
        raise refused("file_not_kept", str(error), retry_after_s=NO_ROOM_S) from None
    return json_answer(file_object(file))


def _check_names(fields: dict[str, str]) -> None:
    for name in fields:
        if name not in FIELDS:
            raise InvalidCall(name[:64], f"unknown field {name[:64]!r}; the form takes {', '.join(FIELDS)}")


def _purpose(fields: dict[str, str]) -> Purpose:
    purpose = fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise InvalidCall("purpose", f"purpose must be one of {', '.join(PURPOSES)} (got {purpose[:64]!r})")
    return cast("Purpose", purpose)


def _keep_s(fields: dict[str, str], default_s: int | None) -> float | None:
    if ANCHOR not in fields and SECONDS not in fields:
        return default_s
    if fields.get(ANCHOR) != "created_at":
        raise InvalidCall("expires_after.anchor", "expires_after needs the anchor created_at")
    text = fields.get(SECONDS, "")
    low, high = EXPIRES_S
    if not (text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high):
        raise InvalidCall(
            "expires_after.seconds",
            f"expires_after.seconds must be a whole number from {low} to {high} (got {text[:64]!r})",
        )
    return float(text)


# -- read and delete ---------------------------------------------------------------------------------------------------


async def get_files(call: Call) -> Response:
    query = read_query(call.request, LIST)
    after: UUID | None = None
    if "after" in query:
        after = (await find_file(call, query["after"])).id
    most = query.get("limit", MAX_FILES)
    found = await list_files(
        call.services.database,
        most=most + 1,
        after=after,
        newest_first=query.get("order", "desc") == "desc",
        owner=call.principal.sees,
        purpose=query.get("purpose"),
    )
    shown = [file_object(file) for file in found[:most]]
    return json_answer(
        FileList(
            data=shown,
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
            has_more=len(found) > most,
        )
    )


async def get_file(call: Call) -> Response:
    return json_answer(file_object(await find_file(call, call.request.path_params["id"])))


async def get_content(call: Call) -> Any:
    file = await find_file(call, call.request.path_params["id"])
    try:
        opened = await call.services.files.open(file.ref)
    except FileLost as error:
        raise lost(file, error) from None
    return FileAnswer(opened, BINARY)


def lost(file: StoredFile, error: FileLost) -> OpenAIError:
    name = file_id_text(file.id)
    if error.node is None:
        return refused("file_lost", f"{name} is not to be had any more: {error}")
    return refused(
        "file_elsewhere",
        f"{name} is on node {error.node}, not on this one; ask that node, or again behind a load balancer, or keep"
        " data_dir/files on a disk that all nodes share",
        retry_after_s=ELSEWHERE_S,
    )


async def remove_file(call: Call) -> Response:
    file = await find_file(call, call.request.path_params["id"])
    ref = await delete_file(call.services.database, file.id)
    if ref is not None:
        await call.services.files.remove([ref])
    elif await read_file_refs(call.services.database, [file.id]):
        raise refused("file_in_use", f"a batch that has not ended reads {file_id_text(file.id)}; cancel it first")
    return json_answer(FileDeleted(id=file_id_text(file.id)))


_MISSING = ("no_such_file",)
ENDPOINTS = (
    post(
        "/v1/files",
        "client",
        upload,
        "Send a file, as a multipart form",
        answers={200: FileObject},
        problems=(
            *("bad_form", "body_timeout", "disk_low", "file_not_kept", "file_too_large", "invalid"),
            "unsupported_media_type",
        ),
        own_jobs=True,
    ),
    get(
        "/v1/files",
        "client",
        get_files,
        "List files",
        answers={200: FileList},
        problems=("invalid", *_MISSING),
        parameters=LIST,
        own_jobs=True,
    ),
    get(
        "/v1/files/{id}",
        "client",
        get_file,
        "Read what is known of a file",
        answers={200: FileObject},
        problems=_MISSING,
        parameters=(FILE_ID,),
        own_jobs=True,
    ),
    get(
        "/v1/files/{id}/content",
        "client",
        get_content,
        "Read a file",
        answers={200: Raw},
        problems=(*_MISSING, "file_elsewhere", "file_lost"),
        parameters=(FILE_ID,),
        media_type=BINARY,
        own_jobs=True,
    ),
    delete(
        "/v1/files/{id}",
        "client",
        remove_file,
        "Delete a file",
        answers={200: FileDeleted},
        problems=(*_MISSING, "file_in_use"),
        parameters=(FILE_ID,),
        own_jobs=True,
    ),
)
