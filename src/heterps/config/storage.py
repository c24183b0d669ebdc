"""Where data files are kept, as far as their addresses do not say it."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from heterps.config.base import Frozen
from heterps.validation import SECRET

_CREDENTIAL = re.compile("key|secret|token|password|credential", re.IGNORECASE)
_ADVICE = (
    "a job file is copied into every run, so credentials do not belong in it: set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or put them into ~/.aws/credentials"
)


def without_password(address: str) -> str:
    """Return an address; raises ValueError if there is a password in it."""
    try:
        parts = urlsplit(address)
        has_password = parts.password is not None
    except ValueError:  # no URL, such as a glob with brackets
        return address
    if has_password:
        raise PydanticCustomError(SECRET, f"it holds a password, and {_ADVICE}")
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
