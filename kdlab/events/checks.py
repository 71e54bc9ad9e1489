"""Events of checks: what may let a result mean less than it seems."""

from kdlab.events.event import Event


class CheckMade(Event):
    """The finding of one check; `kdlab show CODE` is its page.

    A check that does not apply, or whose facts nobody has looked for, writes none.
    """

    code: str  # such as KD-D01
    result: str  # issue, tip or passed
    title: str  # what holds where it passed
    found: str = ""  # with its numbers
    advice: str = ""  # what to do

    def to_json(self) -> dict[str, str]:
        """For results."""
        return {
            key: getattr(self, key)
            for key in ("code", "result", "title", "found", "advice")
        }

    def text(self) -> str:
        if self.result == "passed":
            return ""
        return f"{self.result} {self.code}: {self.found}. {self.advice}".rstrip()
