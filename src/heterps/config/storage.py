"""Where data files are kept, as far as their addresses do not say it."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from heterps.config.base import Frozen
from heterps.validation import SECRET

_CREDENTIAL = re.compile("key|secret|token|password|credential|sig", re.IGNORECASE)
_ADVICE = (
    "a job file is copied into every run, so credentials do not belong in it: set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or put them into ~/.aws/credentials"
)


def without_password(address: str) -> str:
    """Return an address; raises ValueError if there is a password in it, or a token or signature in what it asks."""
    try:
        parts = urlsplit(address)
        asked = parse_qsl(parts.query) if parts.scheme in ("http", "https") else ()
        has_password = parts.password is not None or any(_CREDENTIAL.search(name) for name, _ in asked)
    except ValueError:  # no URL, such as a glob with brackets
        return address
    if has_password:
        raise PydanticCustomError(SECRET, f"it holds a password or a token, and {_ADVICE}")
    return address


class Storage(Frozen):
    """How files on S3, or on a server that speaks its protocol, are reached."""

    endpoint: Annotated[str, Field(pattern="^https?://.+"), AfterValidator(without_password)] | None = Field(
        None, description="Address of the server, as in http://minio:9000; null: that of AWS."
    )
    region: str | None = Field(None, description="Region of the bucket; null: that of AWS's environment and settings.")
    anonymous: bool = Field(False, description="Read public files without credentials.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_credentials(cls, data: Any) -> Any:
        names = [name for name in data if _CREDENTIAL.search(str(name))] if isinstance(data, dict) else []
        if names:
            raise PydanticCustomError(SECRET, f"{', '.join(names)}: {_ADVICE}")
        return data
