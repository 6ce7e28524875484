#!/usr/bin/env python3
"""Start jobd from this checkout: makes its environment at the first start, and starts at once from then on.

    python3 run.py                  the same as `jobd serve`
    python3 run.py COMMAND ...      any other command of jobd: `python3 run.py doctor`, `python3 run.py submit chat`

Needs Python 3.10 or newer with its venv module. Everything else comes from the hash-pinned requirements.lock into
.venv-run beside this file; a changed lock makes a new one. Old Pythons must be able to read this, to be told so.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.abspath(__file__))
LOCK = os.path.join(TOP, "requirements.lock")
FOLDER = os.path.join(TOP, ".venv-run")
PYTHON = os.path.join(FOLDER, "bin", "python")
#: File in the environment that is written last: what the environment was made from.
STAMP = os.path.join(FOLDER, "made-from")
OLDEST, NEWEST = (3, 10), (3, 14)
#: Exit codes: as jobd has them for a missing program and for an unfit Python.
EXIT_INCOMPLETE, EXIT_UNFIT = 72, 78


def main() -> None:
    arguments = sys.argv[1:] or ["serve"]
    interpreter = fit_interpreter()
    if not is_current():
        make_alone(interpreter)
    os.execv(PYTHON, [PYTHON, "-m", "jobd", *arguments])


def fit_interpreter() -> str:
    """This Python, or a newer one on the PATH if this one is too old."""
    if sys.platform != "linux":
        elsewhere = "`pip install jobd-client` is what calls a jobd elsewhere"
        raise refusal(EXIT_UNFIT, "jobd serve runs on Linux and this is %s; %s" % (sys.platform, elsewhere))
    if sys.version_info >= OLDEST:
        return sys.executable
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        found = shutil.which("python3.%d" % minor)
        if found and subprocess.call([found, "-c", "import venv"], stderr=subprocess.DEVNULL) == 0:
            return found
    here = "%s (%s)" % (sys.version.split()[0], sys.executable)
    raise refusal(EXIT_UNFIT, "jobd needs Python 3.10 or newer and this is %s" % here)


def is_current() -> bool:
    try:
        with open(STAMP) as stamp:
            return stamp.read() == wanted() and os.path.exists(PYTHON)
    except OSError:
        return False


def wanted() -> str:
    """What an environment must be made from to be used: this lock, in this place."""
    with open(LOCK, "rb") as lock:
        return "%s %s\n" % (hashlib.sha256(lock.read()).hexdigest(), TOP)


def make_alone(interpreter: str) -> None:
    """Make the environment, unless another start is at it: then wait for that one. A killed one leaves no stamp."""
    with open(FOLDER + ".lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not is_current():
            make(interpreter)


def make(interpreter: str) -> None:
    say("making its environment in %s, once; this downloads about 35 MB" % FOLDER)
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = subprocess.run([interpreter, "-m", "venv", FOLDER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode != 0:
        version = subprocess.check_output([interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        raise refusal(
            EXIT_INCOMPLETE,
            "%s cannot make a virtual environment; on Debian or Ubuntu: sudo apt install python%s-venv"
            % (interpreter, version.decode().strip()),
        )
    install()
    (site,) = [
        os.path.join(FOLDER, "lib", name, "site-packages")
        for name in os.listdir(os.path.join(FOLDER, "lib"))
        if name.startswith("python3")
    ]
    with open(os.path.join(site, "jobd-checkout.pth"), "w") as path:
        path.write(TOP + "\n")
    with open(STAMP, "w") as stamp:
        stamp.write(wanted())


def install() -> None:
    command = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        "--require-hashes",
    ]
    command += ["--only-binary", ":all:", "--requirement", LOCK]
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    lines, count = [], 0
    for line in pip.stdout or ():
        lines.append(line)
        if line.startswith(("Collecting ", "Processing ")):
            count += 1
            show("package %d: %s" % (count, os.path.basename(line.split()[1])))
        elif line.startswith("Installing "):
            show("installing %d packages" % count)
    show("")
    if pip.wait() != 0:
        sys.stderr.write("".join(line for line in lines if line.startswith(("ERROR", "WARNING: Retrying")))[-2000:])
        raise refusal(EXIT_INCOMPLETE, "pip could not install what requirements.lock names; start again with a network")
    say("%d packages installed" % count)


def show(text: str) -> None:
    """On a terminal, in one line that is written over; an empty text takes it away."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K" + text)
        sys.stderr.flush()


def say(text: str) -> None:
    sys.stderr.write("jobd: %s\n" % text)
    sys.stderr.flush()


def refusal(code: int, message: str) -> SystemExit:
    say(message)
    return SystemExit(code)


if __name__ == "__main__":
    main()
