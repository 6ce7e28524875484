"""Rules of `[models.NAME]` that a type cannot say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jobd.config.model import BrokenRule, ModelConfig, is_base_url, is_own_variable
from jobd.config.schedule_rules import is_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.config.model import Config

#: Fields of a call that say what is asked, or how it is answered: a default would change the meaning of every call.
_NO_DEFAULTS = frozenset({"model", "messages", "input", "prompt", "stream", "stream_options", "n", "jobd"})
#: Settings of a server that jobd starts.
_ONLY_WITH_ARGV = ("env", "start", "health_path", "start_timeout_s", "idle_stop_s", "kill_after_s", "swap_group")
_PLAIN_MODEL = ModelConfig()


def broken_model_rules(config: Config) -> Iterator[BrokenRule]:
    used: dict[str, str] = {}
    for name, model in config.models.items():
        for setting, message in _broken(model, config):
            yield BrokenRule((("models", name, setting),), f"models.{name}.{setting} {message}")
        for each in (name, *model.aliases):
            if (first := used.setdefault(each, name)) != name or (each == name and each in model.aliases):
                message = f"models.{name}.aliases must be free: {each} is a name of models.{first} already"
                yield BrokenRule((("models", name, "aliases"),), message)
    yield from _broken_between(config)


def _broken_between(config: Config) -> Iterator[BrokenRule]:
    """Rules between servers that jobd starts: each has an address of its own, and one of a group can always run."""
    urls: dict[str, str] = {}
    always: dict[str, str] = {}
    for name, model in config.models.items():
        if not model.argv:
            continue
        if (first := urls.setdefault(model.base_url, name)) != name:
            message = f"models.{name}.argv must not start a second server for the base_url of models.{first}"
            yield BrokenRule((("models", name, "argv"), ("models", name, "base_url")), message)
        if (
            model.swap_group
            and model.start == "always"
            and (first := always.setdefault(model.swap_group, name)) != name
        ):
            message = f'models.{name}.start must be "demand": models.{first} of the same swap_group is started always'
            yield BrokenRule((("models", name, "start"), ("models", name, "swap_group")), message)


def _broken(model: ModelConfig, config: Config) -> Iterator[tuple[str, str]]:
    if bool(model.task) == bool(model.base_url):
        got = "both" if model.task else "neither"
        yield "task", f"or base_url must say who answers: a task of this jobd, or a server (got {got})"
    # The tasks of `tasks_from` are known after their modules were imported; then it is empty here.
    if model.task and model.task not in config.tasks and not config.tasks_from:
        yield "task", f"must be one of {', '.join(config.tasks)} (got {model.task!r})"
    if model.base_url and not is_base_url(model.base_url):
        yield "base_url", "must have a host, a port of at most 65535 if any, and neither ? nor #"
    elif model.api_key_env and not model.base_url:
        yield "api_key_env", "is only for base_url; a task has its own"
    elif model.api_key_env and "@" in urlsplit(model.base_url).netloc:
        yield "api_key_env", "does not go with a password in base_url: a request has one of them"
    task = config.tasks.get(model.task)
    if model.queue and model.queue not in config.queues:
        yield "queue", f"must be one of {', '.join(config.queues)} (got {model.queue!r})"
    elif model.queue and task is not None and task.run == "external" and config.queues[model.queue].slots:
        yield "queue", f"must have slots = 0, since task {model.task} is external (got {model.queue!r})"
    if not is_json(model.defaults):
        yield "defaults", "must be what JSON can hold: no dates, no nan or inf, no integers beyond 64 bits"
    for field in sorted(_NO_DEFAULTS & set(model.defaults)):
        yield "defaults", f"must not set {field}, which every call says itself"
    yield from _broken_server(model)


def _broken_server(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """What is wrong with the server that jobd starts for it."""
    if not model.argv:
        for setting in _ONLY_WITH_ARGV:
            if getattr(model, setting) != getattr(_PLAIN_MODEL, setting):
                yield setting, "is only for argv: jobd starts no server without it"
        return
    program = model.argv[0]
    if not model.base_url:
        yield "argv", "needs base_url: the address on which the server that it starts answers"
    if not program or ("/" in program and not program.startswith("/")):
        yield "argv", f"must begin with an absolute path, or a name to find in PATH (got {json.dumps(program)})"
    for variable in model.env:
        if is_own_variable(variable):
            yield "env", f"must not pass on {variable}, which is jobd's own; give the program another of its own"
    if model.start == "always" and model.idle_stop_s:
        yield "idle_stop_s", f'must be 0 when start = "always" (got {model.idle_stop_s:.9g})'
