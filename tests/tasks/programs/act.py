"""A command that does what its first argument says: every way in which programs misbehave, and some in which they work.

Run with `python -I -S`, which starts fast; the functions are called by name with the other arguments.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time


def say(text: str) -> None:
    os.write(1, text.encode())


def log(text: str) -> None:
    os.write(2, text.encode())


def echo() -> None:
    """The payload, byte for byte, beside the arguments."""
    sent = sys.stdin.buffer.read().decode()
    say(json.dumps({"stdin": sent, "argv": sys.argv[2:]}))


def stdout(text: str, code: str = "0") -> None:
    say(text)
    sys.exit(int(code))


def result_file(text: str, on_stdout: str = "") -> None:
    with open(os.environ["JOBD_RESULT_FILE"], "w") as file:
        file.write(text)
    say(on_stdout)


def result_link(target: str) -> None:
    os.symlink(target, os.environ["JOBD_RESULT_FILE"])


def result_fifo() -> None:
    os.mkfifo(os.environ["JOBD_RESULT_FILE"])


def stderr(text: str, code: str = "0") -> None:
    log(text)
    say("{}")
    sys.exit(int(code))


def raw_stderr(hexadecimal: str) -> None:
    os.write(2, bytes.fromhex(hexadecimal))
    say("{}")


def kill_self(name: str) -> None:
    log("about to die\n")
    os.kill(os.getpid(), signal.Signals[name])
    time.sleep(60)


def flood(descriptor: str, mb: str, line: str) -> None:
    """Much output; without a newline if the line is empty. Then the result."""
    block = (line.encode() + b"\n") * (65536 // (len(line) + 1)) if line else b"x" * 65536
    for _ in range(int(mb) * 16):
        os.write(int(descriptor), block)
    say('\n{"flooded": true}')


def large_result(mb: str, indent: str) -> None:
    say(json.dumps({"large": ["x" * 1024] * 1024 * int(mb)}, indent=int(indent) or None))


def close_stdin() -> None:
    os.close(0)
    say('{"closed": true}')


def never_read_stdin() -> None:
    say('{"read": 0}')


def answer_before_reading() -> None:
    say(" " * 200_000)
    size = len(sys.stdin.buffer.read())
    say(json.dumps({"read": size}))


def environment() -> None:
    say(json.dumps(dict(os.environ)))


def descriptors() -> None:
    say(json.dumps(sorted(int(name) for name in os.listdir("/proc/self/fd") if _is_open(int(name)))))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:  # the one that listed them
        return False
    return True


def limits() -> None:
    time.sleep(0.2)  # the parent sets them after the start
    kinds = ("CORE", "AS", "NPROC", "FSIZE", "NOFILE")
    say(json.dumps({kind: resource.getrlimit(getattr(resource, f"RLIMIT_{kind}"))[0] for kind in kinds}))


def surroundings() -> None:
    own_session = os.getsid(0) == os.getpgrp() == os.getpid()
    private = os.stat(os.environ["TMPDIR"]).st_mode & 0o777
    say(json.dumps({"cwd": os.getcwd(), "own_session": own_session, "tmpdir": os.environ["TMPDIR"], "mode": private}))


def locked_folder() -> None:
    """What is hard to remove."""
    os.makedirs("deep/inside")
    with open("deep/inside/file", "w"):
        os.chmod("deep/inside", 0o500)
    say("{}")


def use_memory(mb: str) -> None:
    time.sleep(0.2)
    say(json.dumps({"used": len(bytearray(int(mb) << 20))}))


def open_files(count: str) -> None:
    time.sleep(0.2)
    for _ in range(int(count)):
        os.open("/dev/null", os.O_RDONLY)
    say("{}")


def write_file(mb: str) -> None:
    time.sleep(0.2)
    with open("big", "wb") as file:
        file.truncate(int(mb) << 20)
    say("{}")


def fork_bomb() -> None:
    """Forks until it is refused, as a user of its own, since root never is; with an end, should the limit not hold."""
    time.sleep(0.2)
    if os.getuid() == 0:
        os.setgid(54_322)
        os.setuid(54_322)
    for _ in range(3000):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    say("{}")


def stop_self() -> None:
    log("stopping\n")
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log("deaf\n")
    time.sleep(60)


def leave_cleanly() -> None:
    """Ends on SIGTERM, after a last word that is longer than a pipe."""

    def leave(*_: object) -> None:
        log("x" * 300_000)
        with open(os.path.join(os.path.dirname(os.environ["TMPDIR"]), "clean"), "w"):
            os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    log("ready\n")
    time.sleep(60)


def hold_pipe() -> None:
    """A grandchild keeps the output open."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    say('{"parent": "done"}')


def background() -> None:
    """A grandchild that has let go of the output and stays."""
    if os.fork() == 0:
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(60)
        os._exit(0)
    say('{"parent": "done"}')


def step_by_step(folder: str) -> None:
    """Each next line only when the test says so."""
    for n in range(3):
        say(json.dumps({"progress": n / 2, "note": f"step {n}"}) + "\n")
        log(f"line {n}\n")
        while not os.path.exists(f"{folder}/go{n}"):
            time.sleep(0.01)
    say('{"steps": 3}')


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:] if sys.argv[1] != "echo" else ())
