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
    assert "GET" in answer.headers["allow"]
