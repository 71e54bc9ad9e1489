"""Notices that a machine will be taken away, so that its teacher leaves before it is.

Spot machines say so some time ahead: Amazon two minutes, Google and Azure thirty seconds. A teacher
that hears it says goodbye, answers what it holds, and nothing has to be sent again.
"""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from kdlab.codec import from_json
from kdlab.errors import BadInput

LOOK_S = 1.0  # between looks
_ANSWER_S = 2.0  # the service is on the machine itself
_LARGEST = 65_536  # bytes of an answer


@dataclass(frozen=True, slots=True)
class MetadataService:
    """A cloud's service on its machines, and when its answer is a notice.

    Attributes:
        url: asked with GET.
        says: whether this text, of an answer 200, is a notice to the machine of this name. Any
            other answer is none.
        headers: sent along.
        token_url: where a token is fetched first, with PUT; empty where none is needed.
        name_url: where the machine's name is fetched; empty where it is not needed.
    """

    url: str
    says: Callable[[str, str], bool]
    headers: Mapping[str, str] = field(default_factory=dict)
    token_url: str = ""
    name_url: str = ""


def _azure_says(text: str, name: str) -> bool:
    """All machines of a scale set hear of each other's events."""
    return any(
        event["EventType"] in ("Preempt", "Terminate") and name in event["Resources"]
        for event in from_json(dict[str, Any], text.encode())["Events"]
    )


_HERE = "http://169.254.169.254"
CLOUDS: Mapping[str, MetadataService] = MappingProxyType(
    {
        "aws": MetadataService(
            f"{_HERE}/latest/meta-data/spot/instance-action",
            lambda text, name: "action" in from_json(dict[str, object], text.encode()),
            token_url=f"{_HERE}/latest/api/token",
        ),
        "gcp": MetadataService(
            "http://metadata.google.internal/computeMetadata/v1/instance/preempted",
            lambda text, name: text.strip() == "TRUE",
            {"Metadata-Flavor": "Google"},
        ),
        "azure": MetadataService(
            f"{_HERE}/metadata/scheduledevents?api-version=2020-07-01",
            _azure_says,
            {"Metadata": "true"},
            name_url=f"{_HERE}/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        ),
    }
)


def checked_notice(notice: str) -> str:
    """aws, gcp, azure, an http:// address, or the path of a file that appears.

    Raises:
        BadInput: it is none of these.
    """
    parts = urlsplit(notice)
    if notice in CLOUDS or (parts.scheme == "http" and parts.hostname):
        return notice
    if "://" in notice or not Path(notice).is_absolute():
        raise BadInput(
            f"--notice {notice} is none of {', '.join(CLOUDS)}, an http:// address (of this "
            "machine's metadata service: an answer 200 is the notice) or an absolute path (of a "
            "file whose appearance is the notice)."
        )
    return notice


async def noticed(notice: str, say: Callable[[str], None]) -> str:
    """Wait until the machine is to be taken away; how that was heard.

    Args:
        notice: one that was checked.
        say: told once when the service does not answer, and when it does again.
    """
    away = False
    while True:
        try:
            found = await asyncio.to_thread(_look, notice)
        except Exception as error:  # an answer may be anything; the next one counts again
            if not away:
                say(f"{notice} cannot be asked for notices ({error}); it is tried again")
            found, away = "", True
        else:
            if away:
                say(f"{notice} answers again")
            away = False
        if found:
            return found
        await asyncio.sleep(LOOK_S)


def _look(notice: str) -> str:
    """What is said now; empty where nothing is."""
    if notice not in CLOUDS and urlsplit(notice).scheme != "http":
        return f"{notice} is there" if Path(notice).exists() else ""
    service = CLOUDS.get(notice) or MetadataService(notice, lambda text, name: True)
    headers = dict(service.headers)
    if service.token_url:
        asked = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        headers["X-aws-ec2-metadata-token"] = _get(service.token_url, asked, "PUT") or ""
    text = _get(service.url, headers)
    if not text:
        return ""
    name = (_get(service.name_url, headers) or "").strip() if service.name_url else ""
    return f"{notice} says {text.strip()[:200]}" if service.says(text, name) else ""


def _get(url: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
    """The answer's text; None where there is nothing (404).

    Raises:
        OSError: no answer, or another error.
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    # Never by a proxy: the service is this machine's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return str(answer.read(_LARGEST).decode("utf-8", "replace")) or " "
    except urllib.error.HTTPError as error:
        if error.code in (404, 503):
            return None
        raise
