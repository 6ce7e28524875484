"""Shrink every image of a folder: a group of jobs, which is waited for as a whole."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jobd import Client

if TYPE_CHECKING:
    from jobd.client import GroupObject


def shrink_all(client: Client, source: Path, target: Path, width: int) -> GroupObject:
    """Submit a job for each image and wait until all have ended."""
    target.mkdir(parents=True, exist_ok=True)
    group = client.fan_out(
        (
            {
                "task": "shrink",
                "payload": {"source": str(image), "target": str(target.resolve() / image.name), "width": width},
            }
            for image in sorted(source.resolve().glob("*.ppm"))
        ),
        name=f"shrink {source.name}",
    )
    return client.wait_group(group.group_id)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, default=320)
    options = parser.parse_args()
    with Client() as client:
        group = shrink_all(client, options.source, options.target, options.width)
        print(f"{group.done} of {group.members} images are done")
        for failed in client.list(status="error", group=group.group_id).jobs:
            job = client.get(failed.job_id)
            print(f"{job.payload['source']}: {job.error}", file=sys.stderr)
        return 0 if group.done == group.members else 1


if __name__ == "__main__":
    sys.exit(main())
