"""A check, and how all checks of some facts are made."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from kdlab.config.folders import nearest
from kdlab.errors import NotFoundError
from kdlab.events.checks import CheckMade

Facts = TypeVar("Facts")

_PAGES = Path(__file__).with_name("pages")


class CodedCheck(ABC, Generic[Facts]):
    """A question about facts whose answer has a code; its page is `pages/CODE.md`.

    code: `KD-` and a letter for what is looked at: Data, Teacher, Run, Sweep, Machine.
    title: what holds where it passes.
    level: an issue makes numbers wrong or worthless, a tip could make them better.
    do: what helps.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    level: ClassVar[Literal["issue", "tip"]] = "issue"
    do: ClassVar[str]
    facts: ClassVar[type]  # that it looks at
    ALL: ClassVar[dict[str, "type[CodedCheck[Any]]"]] = {}

    def __init_subclass__(cls) -> None:
        (cls.facts,) = get_args(cls.__dict__["__orig_bases__"][0])
        cls.ALL[cls.code] = cls

    @abstractmethod
    def find(self, facts: Facts) -> str | None:
        """The fault in words, with its numbers; empty: passed; None: it does not apply."""

    def advice(self, facts: Facts) -> str:
        """`do`, or the same with the numbers of these facts."""
        return self.do

    def look(self, facts: Facts) -> CheckMade | None:
        """Its finding; None where it does not apply."""
        found = self.find(facts)
        if found is None:
            return None
        if not found:
            return CheckMade(code=self.code, result="passed", title=self.title)
        advice = self.advice(facts)
        if advice.split(" ")[0].isalpha():  # no key of a config
            advice = advice[:1].upper() + advice[1:]
        return CheckMade(
            code=self.code, result=self.level, title=self.title, found=found, advice=advice
        )

    @classmethod
    def page(cls) -> str:
        """Its page, in Markdown."""
        text = (_PAGES / f"{cls.code}.md").read_text(encoding="utf-8")
        return f"# {cls.code}: {cls.title}\n\n*{cls.level}*\n\n{text}\nDo: {cls.do}.\n"


def checked(*facts: object) -> list[CheckMade]:
    """Findings of all checks that look at such facts."""
    return [
        found
        for own in facts
        for check in CodedCheck.ALL.values()
        if check.facts is type(own) and (found := check().look(own)) is not None
    ]


def check_of(code: str) -> type[CodedCheck[Any]]:
    """The check with a code, such as KD-D01, in small letters too.

    Raises:
        NotFoundError: there is no such check; with the nearest codes.
    """
    found = CodedCheck.ALL.get(code.upper())
    if found is None:
        raise NotFoundError(
            f"There is no check {code}.{nearest(code.upper(), CodedCheck.ALL)}"
        )
    return found
