"""Summarise a text of any length: a job for each part, then a last job that waits for all of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jobd import Client

#: Characters of a part: a quarter of that many tokens, about, which leaves room in a context of 4096.
PART_CHARS = 8_000
#: Longest answer in tokens.
SUMMARY_TOKENS = 400


def parts_of(text: str, most_chars: int = PART_CHARS) -> list[str]:
    """The text cut between paragraphs where that is possible."""
    parts = [""]
    for paragraph in text.split("\n\n"):
        for start in range(0, len(paragraph), most_chars) or [0]:
            piece = paragraph[start : start + most_chars]
            if parts[-1] and len(parts[-1]) + len(piece) > most_chars:
                parts.append("")
            parts[-1] = f"{parts[-1]}\n\n{piece}".strip()
    return parts


def submit(client: Client, text: str, most_chars: int = PART_CHARS) -> str:
    """Submit all jobs in one call; returns the id of the last, whose result is the summary of the whole."""
    parts = parts_of(text, most_chars)
    summaries = "\n\n".join(f"{{{{inputs.{number}.text}}}}" for number in range(1, len(parts) + 1))
    jobs = client.fan_in(
        [
            {"task": "chat", "payload": {"prompt": f"Summarise this part:\n\n{part}", "max_tokens": SUMMARY_TOKENS}}
            for part in parts
        ],
        {
            "task": "chat",
            "payload": {"prompt": f"Make one summary of these:\n\n{summaries}", "max_tokens": SUMMARY_TOKENS},
        },
    )
    return str(jobs[-1].job_id)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--part-chars", type=int, default=PART_CHARS)
    options = parser.parse_args()
    with Client() as client:
        job_id = submit(client, options.file.read_text(), options.part_chars)
        for event in client.events(job_id):
            if event.type == "token":
                print(event.data["text"], end="", flush=True)
        print()
        return 0 if client.get(job_id).status == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
