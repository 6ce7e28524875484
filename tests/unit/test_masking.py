from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.host.masking import masked_text, masked_url

CANARY = "s3cr3t-canary"
#: What may stand unescaped in the password of a URL, and a good deal that people put there nevertheless.
PASSWORDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://jobd:{CANARY}@db.example:5432/jobd", "postgresql://jobd:***@db.example:5432/jobd"),
        (f"redis://:{CANARY}@localhost:6379/0", "redis://:***@localhost:6379/0"),
        (f"rediss://default:{CANARY}@[::1]:6379", "rediss://default:***@[::1]:6379"),
        (f"postgres://jobd:{CANARY}@/jobd?host=/run/jobd", "postgres://jobd:***@/jobd?host=/run/jobd"),
        (
            f"postgres://h/db?user=x&password={CANARY}&sslmode=require",
            "postgres://h/db?user=x&password=***&sslmode=require",
        ),
        (f"postgres://h/db?PASSWORD={CANARY}", "postgres://h/db?PASSWORD=***"),
        (f"postgres://h/db?sslpassword={CANARY}&a=b", "postgres://h/db?sslpassword=***&a=b"),
        (f"unix:///run/valkey.sock?password={CANARY}", "unix:///run/valkey.sock?password=***"),
        (f"postgres://a:{CANARY}@one:1,two:2/db", "postgres://a:***@one:1,two:2/db"),
    ],
)
def test_password_is_masked_and_the_rest_stays(url: str, shown: str) -> None:
    assert masked_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/livez",
        "http://[::1]:8080",
        "postgresql://jobd@db.example:5432/jobd",
        "postgres://one:5432,two:5433/jobd",
        "postgres:///jobd?host=/run/jobd&user=jobd",
        "unix:///run/valkey.sock?db=0",
        "",
    ],
)
def test_url_without_a_password_is_left_alone(url: str) -> None:
    assert masked_url(url) == url
    assert masked_text(url) == url


@pytest.mark.parametrize("password", ["p@ss", "a:b", "with/slash", "/@:/", "quo'te", "%40%2F", "#?&", "a=b", " ", "\n"])
def test_password_with_characters_that_part_a_url_is_masked_whole(password: str) -> None:
    assert masked_url(f"postgres://jobd:{password}@db.example/jobd") == "postgres://jobd:***@db.example/jobd"


@given(password=PASSWORDS)
def test_no_password_gets_through(password: str) -> None:
    url = f"redis://user:<{password}>@host/0"

    assert masked_url(url) == "redis://user:***@host/0"
    assert masked_text(f"lost {url}: no answer") == "lost redis://user:***@host/0: no answer"


@pytest.mark.parametrize("url", [f"postgres://jobd:{CANARY}", f"postgres://jobd:{CANARY}/db", f"redis://:{CANARY}"])
def test_password_of_a_url_whose_host_was_forgotten_is_masked(url: str) -> None:
    assert CANARY not in masked_url(url)
    assert CANARY not in masked_text(f"({url}).")


def test_every_url_of_a_line_is_masked_and_the_words_between_stay() -> None:
    line = f"lost postgres://a:{CANARY}@one/db?password={CANARY} and redis://:{CANARY}@two/0: no answer, ask x@y"

    assert masked_text(line) == "lost postgres://a:***@one/db?password=*** and redis://:***@two/0: no answer, ask x@y"


@pytest.mark.parametrize("after", [" is up", ": in use", ".", ", then", "; retry", ")", "'", '"', "?", ""])
def test_port_stays_whatever_follows_the_url_in_a_line(after: str) -> None:
    line = f"see http://127.0.0.1:8080{after}"

    assert masked_text(line) == line


@pytest.mark.parametrize("url", ["", f"redis://:{CANARY}@host"])
def test_long_line_without_spaces_takes_no_time_squared(url: str) -> None:
    line = "x" * 500_000 + url + "y" * 500_000

    assert masked_text(line) == line.replace(CANARY, "***")
