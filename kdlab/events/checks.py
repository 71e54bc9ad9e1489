"""Events of checks: findings that limit what a result means."""

from kdlab.events.event import Event


class CheckMade(Event):
    """The finding of one check; `kdlab show CODE` is its page.

    A check that does not apply, or whose facts were not collected, writes none.
    """

    code: str  # such as KD-D01
    result: str  # issue, tip or passed
    title: str  # the statement that holds where it passed
    found: str = ""  # the finding with its numbers  # a key of JSON
    advice: str = ""  # what to do

    def to_json(self) -> dict[str, str]:
        """Convert to the form in results."""
        return {
            key: getattr(self, key)
            for key in ("code", "result", "title", "found", "advice")
        }

    def text(self) -> str:
        if self.result == "passed":
            return ""
        return f"{self.result} {self.code}: {self.found}. {self.advice}".rstrip()
