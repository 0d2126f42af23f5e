"""What every page must keep to, read from its HTML."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "source",
    "wbr",
}
_BLOCKS = {
    "article",
    "aside",
    "details",
    "div",
    "dl",
    "fieldset",
    "form",
    "h1",
    "h2",
    "h3",
    "h4",
    "ol",
    "p",
    "pre",
    "section",
    "table",
    "ul",
}
_SELF_NAMED = {"hidden", "submit", "button", "image", "reset"}


class Page(HTMLParser):
    """A page taken apart: its elements in order, with where they stand."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.faults: list[str] = []
        self.label_for: set[str] = set()
        self.names: dict[int, str] = {}
        self._open: list[tuple[str, int]] = []
        self.feed(html)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if len(attributes) < len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        self.elements.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "label":
            self.label_for.add(attributes.get("for", ""))
        if tag in _BLOCKS and any(open_tag == "p" for open_tag, _ in self._open):
            self.faults.append(f"<{tag}> stands in a <p>, which browsers close before it")
        if tag not in _VOID:
            self._open.append((tag, len(self.elements) - 1))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.faults.append(f"</{tag}> closes nothing")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        for _, index in self._open:
            self.names[index] = self.names.get(index, "") + data

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of every element of this tag."""
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def text(self) -> str:
        """All text of the page."""
        return "".join(self.texts)


def faults_of(html: str) -> list[str]:
    """Return what breaks the rules of every page; empty means it keeps to them."""
    page = Page(html)
    faults = list(page.faults)
    faults += [f"id {key} is there {n} times" for key, n in Counter(page.ids).items() if n > 1]
    faults += _frame_faults(page)
    faults += _control_faults(page)
    faults += _policy_faults(page)
    ids = set(page.ids)
    for tag, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            for key in attributes.get(name, "").split():
                if key not in ids:
                    faults.append(f"<{tag}> {name} names {key}, which is not there")
        if tag == "table" and "caption" not in _following(page, tag, attributes):
            faults.append("a table has no caption")
        if tag == "th" and "scope" not in attributes:
            faults.append("a th has no scope")
        if tag == "img" and "alt" not in attributes:
            faults.append("an img has no alt")
    return faults


def _following(page: Page, tag: str, attributes: dict[str, str]) -> str:
    place = next(i for i, e in enumerate(page.elements) if e[0] == tag and e[1] is attributes)
    return page.elements[place + 1][0] if place + 1 < len(page.elements) else ""


def _frame_faults(page: Page) -> list[str]:
    wanted = {"h1": 1, "main": 1, "header": 1, "footer": 1, "title": 1}
    faults = [
        f"{len(page.all(tag))} <{tag}> instead of {n}"
        for tag, n in wanted.items()
        if len(page.all(tag)) != n
    ]
    if not page.all("html")[0].get("lang"):
        faults.append("the page names no language")
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4", "h5")]
    faults += [
        f"a heading jumps from {before} to {after}"
        for before, after in pairwise(levels)
        if after > before + 1
    ]
    skip = next((a for tag, a in page.elements if tag == "a"), {})
    if skip.get("href") != "#main":
        faults.append("the first link is no skip link")
    return faults


def _control_faults(page: Page) -> list[str]:
    faults = []
    for index, (tag, attributes) in enumerate(page.elements):
        named = attributes.get("aria-label") or attributes.get("aria-labelledby")
        field = tag in ("select", "textarea", "input")
        labelled = named or attributes.get("id") in page.label_for
        if field and attributes.get("type") not in _SELF_NAMED and not labelled:
            faults.append(f"the control {attributes.get('name')} has no label")
        elif tag in ("button", "a", "summary") and not (named or page.names.get(index, "").strip()):
            faults.append(f"a <{tag}> has no name")
    return faults


def _policy_faults(page: Page) -> list[str]:
    faults = []
    for tag, attributes in page.elements:
        if tag in ("style", "iframe", "object", "embed", "base"):
            faults.append(f"<{tag}> is on the page")
        if tag == "script" and not attributes.get("src", "").startswith("/static/"):
            faults.append("a script isn't a file of ours")
        for name, value in attributes.items():
            if name == "style" or name.startswith("on") or name.startswith("hx-on"):
                faults.append(f"<{tag}> has the attribute {name}")
            if name in ("src", "href", "action", "formaction", "poster", "data", "srcset"):
                if not value.startswith(("/", "#", "?")) and value:
                    faults.append(f"<{tag}> {name} leads to {value[:60]}")
                if value.startswith("//"):
                    faults.append(f"<{tag}> {name} leads to {value[:60]}")
    return faults
