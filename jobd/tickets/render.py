"""The input of a run: the prompt as text, and the payload with its places filled in. PURE: no clock, no I/O.

A place is `{{title}}`, `{{acceptance_criteria}}`, `{{prompt}}`, `{{ticket_id}}`, `{{branch_name}}`, `{{repo_ref}}` or
`{{base_branch}}`, anywhere in a string of the payload. Other words in braces are left as they are. Substitution is not
recursive: the text of a ticket cannot inject a place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

_PLACE = re.compile(r"\{\{\s*([a-z_]+)\s*\}\}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def branch_name(ticket_id: UUID, todo_no: int) -> str:
    return f"ticket/{ticket_id}/{todo_no}"


def criteria_text(criteria: str | Sequence[str]) -> str:
    return criteria if isinstance(criteria, str) else "\n".join(f"- {criterion}" for criterion in criteria)


def prompt_text(title: str, criteria: str | Sequence[str], repo_ref: str | None, base_branch: str | None) -> str:
    """The full prompt: what is wanted, and how it will be judged."""
    parts = [title]
    if text := criteria_text(criteria):
        parts.append(f"Acceptance criteria:\n{text}")
    if repo_ref is not None:
        parts.append(f"Repository: {repo_ref}")
    if base_branch is not None:
        parts.append(f"Base branch: {base_branch}")
    return "\n\n".join(parts)


def commit_sha(repo_ref: str | None) -> str | None:
    return repo_ref if repo_ref is not None and _COMMIT.fullmatch(repo_ref) else None


def places(
    *,
    ticket_id: UUID,
    todo_no: int,
    title: str,
    criteria: str | Sequence[str],
    repo_ref: str | None,
    base_branch: str | None,
) -> dict[str, str]:
    """The text for each place, by its name."""
    return {
        "ticket_id": str(ticket_id),
        "title": title,
        "acceptance_criteria": criteria_text(criteria),
        "prompt": prompt_text(title, criteria, repo_ref, base_branch),
        "branch_name": branch_name(ticket_id, todo_no),
        "repo_ref": repo_ref or "",
        "base_branch": base_branch or "",
    }


def filled_bytes(payload: str, words: Mapping[str, str]) -> int:
    """About how many bytes the filled payload will have, estimated without building it: places can multiply it."""
    sizes = {name: len(word.encode()) for name, word in words.items()}
    return len(payload.encode()) + sum(sizes.get(place[1], 0) for place in _PLACE.finditer(payload))


def filled(template: Any, words: Mapping[str, str]) -> Any:
    """The template with the places in its strings filled in; keys of objects are left alone."""
    if isinstance(template, str):
        return _PLACE.sub(lambda place: words.get(place[1], place[0]), template)
    if isinstance(template, dict):
        return {key: filled(value, words) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, words) for value in template]
    return template
