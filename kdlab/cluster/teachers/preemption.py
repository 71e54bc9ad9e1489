"""Preemption notices: a teacher leaves before its machine is taken away.

Spot machines announce it: Amazon two minutes ahead, Google and Azure thirty seconds. A teacher
that gets a notice leaves the pool and answers its open requests, so nothing is sent again.
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

POLL_S = 1.0  # between polls
_ANSWER_S = 2.0  # the service is on the machine itself
_LARGEST = 65_536  # bytes of an answer


@dataclass(frozen=True, slots=True)
class MetadataService:
    """A cloud's metadata service on its machines, and when its answer is a notice.

    Attributes:
        url: polled with GET.
        is_notice: whether the text of an answer 200 is a notice to the machine of this name.
            Any other answer is none.
        headers: of the request.
        token_url: of a token that is fetched first, with PUT; empty where none is needed.
        name_url: of the machine's name; empty where it is not needed.
    """

    url: str
    is_notice: Callable[[str, str], bool]
    headers: Mapping[str, str] = field(default_factory=dict)
    token_url: str = ""
    name_url: str = ""


def _is_azure_notice(text: str, name: str) -> bool:
    """True for an event of this machine; a scale set gets the events of all its machines."""
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
            _is_azure_notice,
            {"Metadata": "true"},
            name_url=f"{_HERE}/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        ),
    }
)


def checked_notice(notice: str) -> str:
    """Check a source of notices: aws, gcp, azure, an http:// address, or the path of a file.

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


async def wait_for_notice(notice: str, report: Callable[[str], None]) -> str:
    """Wait for a notice that this machine will be taken away, and return its text.

    Args:
        notice: a checked source of notices.
        report: called once when the service stops to answer, and when it answers again.
    """
    away = False
    while True:
        try:
            text = await asyncio.to_thread(_poll, notice)
        except Exception as error:  # an answer may be anything; the next one may be valid
            if not away:
                report(f"{notice} cannot be polled for notices ({error}); retrying")
            text, away = "", True
        else:
            if away:
                report(f"{notice} answers again")
            away = False
        if text:
            return text
        await asyncio.sleep(POLL_S)


def _poll(notice: str) -> str:
    """Text of a notice; empty where there is none now."""
    if notice not in CLOUDS and urlsplit(notice).scheme != "http":
        return f"{notice} is there" if Path(notice).exists() else ""
    service = CLOUDS.get(notice) or MetadataService(notice, lambda text, name: True)
    headers = dict(service.headers)
    if service.token_url:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        headers["X-aws-ec2-metadata-token"] = _get(service.token_url, ttl, "PUT") or ""
    text = _get(service.url, headers)
    if not text:
        return ""
    name = (_get(service.name_url, headers) or "").strip() if service.name_url else ""
    return f"{notice} says {text.strip()[:200]}" if service.is_notice(text, name) else ""


def _get(url: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
    """Fetch the text of an answer; None where there is nothing (404, 503).

    Raises:
        OSError: no answer, or another error.
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    # Never by a proxy: the service is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return str(answer.read(_LARGEST).decode("utf-8", "replace")) or " "
    except urllib.error.HTTPError as error:
        if error.code in (404, 503):
            return None
        raise
