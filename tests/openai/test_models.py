"""Which task answers a model, and what is refused in `[models.NAME]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobd.config.load import load
from jobd.config.model import Config, ModelConfig, Queue, Task, broken_rules
from jobd.errors import ConfigError
from jobd.openai.errors import InvalidCall
from jobd.openai.models import ModelNotFound, find_model, models_of, task_name, with_model_tasks

if TYPE_CHECKING:
    from pathlib import Path

SERVER = "http://127.0.0.1:8080/v1"


def config_with(tasks: dict[str, Task] | None = None, **models: ModelConfig) -> Config:
    return Config(tasks={"chat": Task(run="mock"), **(tasks or {})}, models=models)


def test_a_table_leads_to_its_task_with_name_queue_and_defaults() -> None:
    config = config_with(
        small=ModelConfig(task="chat", model="q4", queue="gpu", priority=5, defaults={"temperature": 0.2})
    )

    model = find_model(config, "small")

    assert (model.id, model.task, model.server_model, model.queue, model.priority) == ("small", "chat", "q4", "gpu", 5)
    assert model.defaults == {"temperature": 0.2}


def test_an_alias_leads_to_the_same_model() -> None:
    config = config_with(small=ModelConfig(task="chat", aliases=("gpt-4o-mini",)))

    assert find_model(config, "gpt-4o-mini") == find_model(config, "small")


def test_a_model_server_gets_a_task_of_its_own() -> None:
    config = with_model_tasks(
        Config(models={"hf.co/X/y:Q4": ModelConfig(base_url=SERVER, api_key_env="KEY", queue="default")})
    )

    model = find_model(config, "hf.co/X/y:Q4")

    assert model.task == "model.hf.co-x-y-q4" == task_name("hf.co/X/y:Q4")
    assert config.tasks[model.task] == Task(run="openai", base_url=SERVER, model="hf.co/X/y:Q4", api_key_env="KEY")
    assert config.tasks.keys() > Config().tasks.keys()
    assert list(models_of(config)) == ["hf.co/X/y:Q4"]


def test_two_models_whose_tasks_would_have_one_name_are_refused() -> None:
    config = Config(models={"a/b": ModelConfig(base_url=SERVER), "a:b": ModelConfig(base_url=SERVER)})

    with pytest.raises(ConfigError, match=r"models\.a:b: its task model\.a-b is there already"):
        with_model_tasks(config)


def test_a_task_that_names_a_model_is_one_unless_a_table_has_that_name() -> None:
    tasks = {
        "chat": Task(run="openai", base_url=SERVER, model="qwen"),
        "code": Task(run="openai", base_url=SERVER, model="coder"),
        "embed": Task(run="openai", base_url=SERVER),
    }
    config = config_with(tasks, coder=ModelConfig(task="chat", model="other"))

    models = models_of(config)

    assert {name: (model.task, model.server_model) for name, model in models.items()} == {
        "coder": ("chat", "other"),
        "qwen": ("chat", "qwen"),
    }


def test_an_unknown_model_is_named_with_those_that_there_are() -> None:
    config = config_with(small=ModelConfig(task="chat"), large=ModelConfig(task="chat"))

    with pytest.raises(ModelNotFound) as caught:
        find_model(config, "huge")

    assert caught.value.status == 404
    assert caught.value.error_code == "model_not_found"
    assert caught.value.message == "there is no model huge; this jobd has small, large"


def test_a_call_without_a_model_goes_to_the_only_one() -> None:
    one = config_with(small=ModelConfig(task="chat"))
    two = config_with(small=ModelConfig(task="chat"), large=ModelConfig(task="chat"))

    assert find_model(one, None).id == "small"
    with pytest.raises(InvalidCall, match="model is missing; name one of small, large"):
        find_model(two, None)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "models.m.task or base_url must say who answers"),
        ({"task": "chat", "base_url": SERVER}, "(got both)"),
        ({"task": "nothing"}, "models.m.task must be one of"),
        ({"base_url": "http://"}, "models.m.base_url must be an http:// or https:// URL"),
        ({"base_url": "http://host:99999/v1"}, "models.m.base_url must have a host"),
        ({"task": "chat", "api_key_env": "KEY"}, "models.m.api_key_env is only for base_url"),
        ({"base_url": "http://u:p@host/v1", "api_key_env": "KEY"}, "does not go with a password"),
        ({"task": "chat", "queue": "none"}, "models.m.queue must be one of default"),
        ({"task": "chat", "priority": 1001}, "models.m.priority must be a whole number from -1000 to 1000"),
        ({"task": "chat", "aliases": ["m"]}, "m is a name of models.m already"),
        ({"task": "chat", "aliases": ["a b"]}, "models.m.aliases[0] must be a model's name"),
        ({"task": "chat", "defaults": {"model": "x"}}, "models.m.defaults must not set model"),
        ({"task": "chat", "defaults": {"stream": True}}, "models.m.defaults must not set stream"),
        ({"task": "chat", "tempreature": 1}, "unknown key models.m.tempreature"),
        ({"task": "chat", "argv": ["x"]}, "models.m.argv needs base_url"),
        ({"base_url": SERVER, "argv": ["bin/x"]}, "models.m.argv must begin with an absolute path"),
        ({"base_url": SERVER, "argv": [""]}, "models.m.argv must begin with an absolute path"),
        ({"base_url": SERVER, "argv": ["x"], "env": ["JOBD_TOKEN"]}, "models.m.env must not pass on JOBD_TOKEN"),
        ({"base_url": SERVER, "argv": ["x"], "env": ["a b"]}, "models.m.env[0] must be the name of an environment"),
        ({"base_url": SERVER, "argv": ["x"], "start": "now"}, "models.m.start must be"),
        ({"base_url": SERVER, "argv": ["x"], "health_path": "health"}, "models.m.health_path must be empty or a path"),
        ({"base_url": SERVER, "argv": ["x"], "start_timeout_s": 0}, "models.m.start_timeout_s must be"),
        ({"base_url": SERVER, "argv": ["x"], "start": "always", "idle_stop_s": 5}, "models.m.idle_stop_s must be 0"),
        ({"base_url": SERVER, "swap_group": "gpu"}, "models.m.swap_group is only for argv"),
        ({"base_url": SERVER, "start": "always"}, "models.m.start is only for argv"),
    ],
)
def test_a_bad_table_is_refused_by_name(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    file = tmp_path / "jobd.toml"
    file.write_text("[models.m]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in table.items()))
    file.chmod(0o600)

    with pytest.raises(ConfigError) as caught:
        load(file, {"HOME": "/home/u"}, {})

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"base_url": SERVER}, "models.b.argv must not start a second server for the base_url of models.a"),
        ({"base_url": "http://127.0.0.1:2/v1"}, 'models.b.start must be "demand": models.a of the same swap_group'),
    ],
)
def test_servers_that_cannot_both_be_started_are_refused(second: dict[str, Any], message: str) -> None:
    both: dict[str, Any] = {"argv": ("x",), "start": "always", "swap_group": "gpu"}
    models = {"a": ModelConfig(base_url=SERVER, **both), "b": ModelConfig(**second, **both)}

    assert any(message in rule.message for rule in broken_rules(Config(models=models)))


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def test_names_with_slashes_and_colons_are_read(tmp_path: Path) -> None:
    file = tmp_path / "jobd.toml"
    file.write_text('[models."hf.co/x/y:Q4"]\ntask = "chat"\naliases = ["gpt-4o"]\n')

    config = load(file, {"HOME": "/home/u"}, {}).config

    assert find_model(config, "gpt-4o").id == "hf.co/x/y:Q4"
    file.write_text('[models."two words"]\ntask = "chat"\n')
    with pytest.raises(ConfigError, match="a model's name is 1 to 200 letters"):
        load(file, {"HOME": "/home/u"}, {})


def test_an_external_task_needs_a_queue_without_slots(tmp_path: Path) -> None:
    queues = {"default": Queue(), "outside": Queue(slots=0)}
    tasks = {"chat": Task(run="external", queue="outside")}

    good = Config(queues=queues, tasks=tasks, models={"m": ModelConfig(task="chat")})
    bad = Config(queues=queues, tasks=tasks, models={"m": ModelConfig(task="chat", queue="default")})

    assert list(broken_rules(good)) == []
    assert [rule.message for rule in broken_rules(bad)] == [
        "models.m.queue must have slots = 0, since task chat is external (got 'default')"
    ]
