"""Errors as RFC 9457 problem documents: the document, every stable `code`, and the exception answered as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: Where the code is explained: `/problems#code`.
    type: str
    #: For people: the HTTP status in words.
    title: str
    status: int
    #: For programs: never changes for the same cause.
    code: str
    #: For people: the thing, the value, the remedy.
    detail: str
    #: Which item of a batch it is about, counted from 0.
    index: int | None = None
    #: Of an answer that another node has: which one.
    node: str | None = None
    #: To find it in the log; also the header X-Request-Id.
    request_id: str = ""


class Kind(NamedTuple):
    status: int
    #: What it means and what to do, for the page that lists them.
    meaning: str


#: Every code that an answer can carry. A code stays what it is for ever; a new cause gets a new code.
CATALOGUE: dict[str, Kind] = {
    "already_final": Kind(409, "The job has ended; a final job never changes."),
    "backfill_too_large": Kind(422, "The times name more than 100 occurrences, or too many wait; do it in parts."),
    "bad_gate": Kind(422, "A gate of the ticket can never be evaluated; the detail says which and why."),
    "bad_idempotency_key": Kind(400, "Send one Idempotency-Key of 1 to 255 visible ASCII characters."),
    "bad_cursor": Kind(400, "The cursor of an event stream is not the id of an event."),
    "bad_payload": Kind(400, "The JSON cannot be taken; the detail says why."),
    "bad_request": Kind(400, "The request is not well formed; the detail says where."),
    "bad_schema": Kind(422, "The JSON schema of a gate does not compile; the detail says why."),
    "blocker_cycle": Kind(422, "`blocked_on` would make tickets wait for each other for ever."),
    "body_timeout": Kind(408, "The body came too slowly or stopped coming; send it again."),
    "body_too_large": Kind(413, "The body is larger than this call takes."),
    "bom": Kind(400, "The JSON begins with a byte order mark; send it without."),
    "cursor_ahead": Kind(
        409, "The cursor is ahead of everything that has happened; it belongs to another job or ticket."
    ),
    "dependency_cycle": Kind(422, "The jobs would wait for each other for ever; the detail names them."),
    "disk_low": Kind(503, "Too little disk space is left for new jobs; running ones can still finish."),
    "duplicate_key": Kind(400, "An object has the same key twice, which parsers read differently."),
    "forbidden": Kind(403, "The token is good but lacks the scope or the queue that this call needs."),
    "foreign_origin": Kind(403, "A web page of another site sent this; jobd takes writes from its own pages only."),
    "four_eyes": Kind(403, "Whoever wrote or edited the ticket may not decide this (tickets.four_eyes); ask another."),
    "gone_dependency": Kind(422, "A job in `depends_on` has finished and retention has deleted it, with its result."),
    "gone_job": Kind(410, "The job has finished and retention has deleted it."),
    "gone_ticket": Kind(410, "The ticket was DONE and retention has deleted it."),
    "group_sealed": Kind(409, "The group is sealed and takes no more jobs; make another one."),
    "headers_too_large": Kind(431, "The headers have more than 16 KB or there are more than 100; send fewer."),
    "http_version": Kind(505, "Only HTTP/1.1 and 1.0 are spoken here."),
    "idempotency_mismatch": Kind(422, "The Idempotency-Key was sent before with another body."),
    "illegal_transition": Kind(409, "The ticket does not stand where this decision applies; the detail says where."),
    "internal": Kind(500, "A fault of jobd; its log says what. Report it."),
    "invalid": Kind(422, "A field is missing, unknown, of the wrong type or out of range; the detail names it."),
    "invalid_payload": Kind(422, "The payload does not fit its task; `/v1/tasks` has the schema."),
    "key_busy": Kind(
        503, "Another request with this Idempotency-Key is under way; send it again after Retry-After seconds."
    ),
    "key_too_long": Kind(422, "A key of an object has more than 4 096 characters."),
    "method_not_allowed": Kind(405, "The path is there, but not with this method; see the Allow header."),
    "nan": Kind(400, "NaN and Infinity are not JSON."),
    "needs_too_much_memory": Kind(
        422, "The task needs more memory (`needs_memory_mb`) than this board has for jobs; no slot could ever start it."
    ),
    "no_origin": Kind(
        403, "A write with the cookie of a session must come from a page of this server; send a token instead."
    ),
    "no_result": Kind(404, "The job has no result, or not yet; the detail says where it stands."),
    "no_sign_off": Kind(409, "The ticket waits for no sign-off."),
    "no_such_group": Kind(404, "There is no group with this id."),
    "no_such_queue": Kind(404, "There is no queue of this name in the configuration."),
    "no_such_task": Kind(404, "There is no task of this name in the configuration."),
    "not_canonical": Kind(422, "`dedupe` cannot compare integers beyond 2^53; send them as strings."),
    "not_dead": Kind(409, "Only a job in error can be run again."),
    "not_found": Kind(404, "There is nothing at this path."),
    "not_json": Kind(400, "The body is not one JSON document."),
    "not_new": Kind(409, "Only a NEW ticket can be edited."),
    "not_object": Kind(422, "A JSON object is needed here."),
    "not_utf8": Kind(400, "The body is not UTF-8."),
    "nul": Kind(422, "A string contains \\u0000, which cannot be stored."),
    "number_range": Kind(
        422, "A number is out of the range of a double or has hundreds of digits; send it as a string."
    ),
    "queue_full": Kind(429, "Too many jobs wait in the queue; come again after Retry-After seconds."),
    "result_elsewhere": Kind(503, "The result is in a file of another node, which `node` names; ask that one."),
    "result_lost": Kind(410, "The job is done, but the file with its result is not on this node; see the detail."),
    "result_not_kept": Kind(
        503, "The disk does not take the result; the job is still held: send it again after Retry-After, or fail."
    ),
    "result_too_deep": Kind(422, "The result is nested deeper than 31; the job is still held: send another, or fail."),
    "schedule_blocked": Kind(409, "The schedule can make no job on this node; the detail says what is not configured."),
    "schedule_configured": Kind(409, "The schedule is in the configuration, which alone changes it."),
    "schedule_exists": Kind(409, "There is a schedule of this name; edit that one, or take another name."),
    "surrogate": Kind(422, "A string contains half a surrogate pair, which cannot be stored."),
    "token_in_url": Kind(
        400, "A token in a URL ends up in logs; send it as `Authorization: Bearer ...`, and replace this one."
    ),
    "too_deep": Kind(400, "The JSON is nested deeper than 32."),
    "too_large": Kind(413, "The payload or result is larger than the limit."),
    "too_many_attempts": Kind(429, "Too many bad tokens from this address; wait for Retry-After seconds."),
    "too_many_connections": Kind(
        503, "All connections are taken; try again after Retry-After seconds, or raise limits.max_connections."
    ),
    "too_many_items": Kind(413, "A batch has more than 10 000 jobs; send several."),
    "too_many_dependencies": Kind(422, "The jobs of a batch have more than 50 000 dependencies; use groups."),
    "too_many_heartbeats": Kind(429, "One lease is renewed far too often; keep to the interval that the claim named."),
    "too_many_keys": Kind(422, "The JSON has more than 10 000 keys."),
    "too_many_requests": Kind(
        429, "This token has too many requests under way; let some end, or raise limits.requests_per_token."
    ),
    "transfer_encoding": Kind(501, "Of all transfer encodings only chunked is understood."),
    "unauthorized": Kind(401, "No token, or none that is known; send `Authorization: Bearer ...`."),
    "unavailable": Kind(
        503, "The database is away, its answer was lost, or jobd stops; try again after Retry-After seconds."
    ),
    "unknown_blocker": Kind(422, "`blocked_on` names a ticket that does not exist."),
    "unknown_gate": Kind(422, "A gate names a command that is not configured (tickets.gates)."),
    "unknown_dependency": Kind(422, "`depends_on` names a job, or an item of the batch, that is not there."),
    "unknown_group": Kind(422, "The job is to enter or to wait for a group that is not there."),
    "unknown_job": Kind(404, "There is no job with this id."),
    "unknown_queue": Kind(422, "The job names a queue that is not configured."),
    "unknown_schedule": Kind(404, "There is no schedule of this name."),
    "unknown_schema": Kind(404, "No schema of this name is published; `/v1/schemas` lists them."),
    "unknown_stream": Kind(422, "A claim names a stream that belongs to no configured queue."),
    "unknown_task": Kind(422, "The job or ticket names a task that is not configured."),
    "unknown_ticket": Kind(404, "There is no ticket with this id."),
    "unsupported_media_type": Kind(415, "Send application/json in UTF-8, without a Content-Encoding."),
    "uri_too_long": Kind(414, "Path and query have more than 8 KB."),
    "version_moved": Kind(409, "The ticket has changed since the version that was decided about; look at it again."),
    "wrong_host": Kind(
        421, "The Host header names a server that this one is not; add the name to server.allowed_hosts."
    ),
    "wrong_queue": Kind(
        422, "The task is external, and the queue has slots, which would take its jobs and cannot run them."
    ),
}


class ApiError(Exception):
    """Answered as a problem document; the status follows from the code."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        index: int | None = None,
        node: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.headers = headers
        self.index = index
        self.node = node
