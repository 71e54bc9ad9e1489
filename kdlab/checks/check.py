"""Base class of checks, and the function that runs them."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from kdlab.config.folders import nearest
from kdlab.errors import NotFoundError
from kdlab.events.checks import CheckMade

Facts = TypeVar("Facts")

_PAGES = Path(__file__).with_name("pages")


class CodedCheck(ABC, Generic[Facts]):
    """A check of facts, with a code; its page is `pages/CODE.md`.

    code: `KD-` and a letter for its subject: Data, Teacher, Run, Sweep, Machine.
    title: the condition that holds where the check passes.
    level: an issue makes numbers wrong or worthless, a tip could make them better.
    do: the remedy.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    level: ClassVar[Literal["issue", "tip"]] = "issue"
    do: ClassVar[str]
    facts: ClassVar[type]  # the class of its facts
    ALL: ClassVar[dict[str, "type[CodedCheck[Any]]"]] = {}

    def __init_subclass__(cls) -> None:
        (cls.facts,) = get_args(cls.__dict__["__orig_bases__"][0])
        cls.ALL[cls.code] = cls

    @abstractmethod
    def find(self, facts: Facts) -> str | None:
        """The fault with its numbers; empty: passed; None: the check does not apply."""

    def advice(self, facts: Facts) -> str:
        """The remedy, with the numbers of these facts where there are any."""
        return self.do

    def evaluate(self, facts: Facts) -> CheckMade | None:
        """Run the check; None where it does not apply."""
        fault = self.find(facts)
        if fault is None:
            return None
        if not fault:
            return CheckMade(code=self.code, result="passed", title=self.title)
        advice = self.advice(facts)
        if advice.split(" ")[0].isalpha():  # not a key of a config
            advice = advice[:1].upper() + advice[1:]
        return CheckMade(
            code=self.code, result=self.level, title=self.title, found=fault, advice=advice
        )

    @classmethod
    def page(cls) -> str:
        """The page of the check, in Markdown."""
        text = (_PAGES / f"{cls.code}.md").read_text(encoding="utf-8")
        return f"# {cls.code}: {cls.title}\n\n*{cls.level}*\n\n{text}\nDo: {cls.do}.\n"


def checked(*all_facts: object) -> list[CheckMade]:
    """Run all checks of these facts and return their findings."""
    return [
        finding
        for facts in all_facts
        for check in CodedCheck.ALL.values()
        if check.facts is type(facts) and (finding := check().evaluate(facts)) is not None
    ]


def check_of(code: str) -> type[CodedCheck[Any]]:
    """The check with a code, such as KD-D01, in any case.

    Raises:
        NotFoundError: there is no such check; names the nearest codes.
    """
    check = CodedCheck.ALL.get(code.upper())
    if check is None:
        raise NotFoundError(
            f"There is no check {code}.{nearest(code.upper(), CodedCheck.ALL)}"
        )
    return check
