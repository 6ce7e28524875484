"""Shrink a PPM image to a width: a command for jobd, which gets its payload on standard input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def read_ppm(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and pixels of three bytes each."""
    head = re.match(rb"P6\s+(\d+)\s+(\d+)\s+255\s", data)
    if head is None:
        raise ValueError("not a PPM image with 8 bits a colour")
    width, height, pixels = int(head[1]), int(head[2]), data[head.end() :]
    if len(pixels) < width * height * 3:
        raise ValueError("the image is cut short")
    return width, height, pixels


def shrunk(width: int, height: int, pixels: bytes, new_width: int) -> tuple[int, int, bytes]:
    """Every pixel of the smaller image is the nearest of the larger."""
    new_width = min(new_width, width)
    new_height = max(1, height * new_width // width)
    rows = []
    for y in range(new_height):
        start = (y * height // new_height) * width * 3
        row = pixels[start : start + width * 3]
        places = [x * width // new_width * 3 for x in range(new_width)]
        rows.append(b"".join(row[place : place + 3] for place in places))
        if y == new_height // 2:
            print(json.dumps({"progress": 0.5}), flush=True)
    return new_width, new_height, b"".join(rows)


def main() -> None:
    payload = json.load(sys.stdin)
    source, target = Path(payload["source"]), Path(payload["target"])
    width, height, pixels = shrunk(*read_ppm(source.read_bytes()), payload["width"])
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_bytes(b"P6 %d %d 255\n" % (width, height) + pixels)
    unfinished.rename(target)  # a second attempt does no harm
    print(json.dumps({"target": str(target), "width": width, "height": height}))


if __name__ == "__main__":
    main()
