from __future__ import annotations

import re
import sys

import pytest

from jobd import errors
from jobd.errors import AddressRefused, JobdError, StartRefused, root_cause

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, JobdError)]


def test_every_kind_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in KINDS]

    assert sorted(set(codes)) == sorted(codes)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (JobdError, StartRefused)])
def test_exit_code_is_the_one_in_the_drawing(kind: type[JobdError]) -> None:
    drawn = re.search(rf"── {kind.__name__} +(\d+)", errors.__doc__ or "")

    assert drawn is not None
    assert int(drawn[1]) == kind.exit_code


def test_cause_of_a_lone_error_is_the_error() -> None:
    error = ValueError("alone")

    assert root_cause(error) is error


def test_cause_of_a_group_is_its_first_leaf() -> None:
    first = ValueError("first")

    assert root_cause(ExceptionGroup("outer", [ExceptionGroup("inner", [first]), OSError("second")])) is first


def test_cause_of_a_group_is_the_refusal_in_it_however_deep() -> None:
    refusal = AddressRefused("taken")
    group = ExceptionGroup("outer", [OSError("first"), ExceptionGroup("inner", [ValueError("second"), refusal])])

    assert root_cause(group) is refusal
