from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.http import Api


def test_unknown_path_is_a_problem_with_a_code(api: Api) -> None:
    answer = api("GET", "/nowhere")

    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.json["type"] == "/problems#not_found"


def test_wrong_method_names_the_right_ones(api: Api) -> None:
    answer = api("POST", "/livez")

    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_wrong_method_names_every_one_of_a_path_with_several(api: Api) -> None:
    answer = api("DELETE", "/v1/jobs")

    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, POST")
