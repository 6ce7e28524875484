"""Secrets stay out of what people read: URLs without their passwords."""

from __future__ import annotations

import re

HIDDEN = "***"
#: A URL from `://` on, without punctuation at its end, since a port with a full stop would pass for a password. The
#: scheme is left out: `\S+` before the slashes would take quadratic time in a long word.
_URL = re.compile(r"""://\S*[^\s.,:;!?)\]}'"]""")


def masked_url(url: str) -> str:
    """Hide the password of one URL. Guesses on the safe side: what might be one is hidden too.

    >>> masked_url("postgresql://jobd:pa@ss/word@db:5432/jobd?sslpassword=x")
    'postgresql://jobd:***@db:5432/jobd?sslpassword=***'
    """
    url = re.sub(r"(://[^:]*):.*@", rf"\1:{HIDDEN}@", url, flags=re.DOTALL)
    if "@" not in url:  # `scheme://user:password/db`, its host forgotten: what follows the colon is not a port
        url = re.sub(r"(://[^:\[]*):(?!\d+([,/?#]|\Z)).*", rf"\1:{HIDDEN}", url, flags=re.DOTALL)
    return re.sub(r"(password=)[^&\s]*", rf"\1{HIDDEN}", url, flags=re.IGNORECASE)


def masked_text(text: str) -> str:
    """Hide the passwords of all URLs in a text."""
    return _URL.sub(lambda match: masked_url(match[0]), text)
