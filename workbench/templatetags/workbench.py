"""What every template may use: the frame around a page, terms, and item text made safe to read."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from django.conf import settings
from django.template import Context, Library
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from pygments import highlight as pygments_highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from workbench.glossary import MEANINGS
from workbench.heartbeats import system_state
from workbench.kernel.forms import Fault
from workbench.kernel.roles import is_unblinded, role_of
from workbench.notices import COUNTED_AT_MOST, unread_count

register = Library()

THEME_COOKIE = "workbench_theme"
THEMES = ("auto", "light", "dark")

# Colouring multiplies a text's bytes by about ten; longer texts stay plain.
HIGHLIGHT_AT_MOST = 6_000

_LEXER = PythonLexer(stripnl=False, ensurenl=False)
_FORMATTER = HtmlFormatter(nowrap=True)
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
# Steering characters of a terminal, of text direction and of no width.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True)
class NavItem:
    """One link of the main navigation; ``current`` where the page stands below it."""

    label: str
    url: str
    current: bool


@dataclass(frozen=True)
class Chrome:
    """The frame around a page; all empty where nothing is known of the request.

    ``notices_url`` and ``unread`` are for leads and admins; raters see nothing of notices.
    """

    user_name: str = ""
    role: str = ""
    theme: str = "auto"
    here: str = "/"
    nav: tuple[NavItem, ...] = ()
    troubles: tuple[str, ...] = ()
    notices_url: str = ""
    at_notices: bool = False
    unread: str = ""


@register.simple_tag(takes_context=True)
def chrome(context: Context) -> Chrome:
    """Return the frame of the page that is rendered."""
    request = context.get("request")
    if request is None:
        return Chrome()
    theme = request.COOKIES.get(THEME_COOKIE, "")
    frame = {"theme": theme if theme in THEMES else "auto", "here": request.get_full_path()}
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return Chrome(**frame)
    role = role_of(user)
    news: dict[str, Any] = {}
    if is_unblinded(user):
        url = reverse("notices")
        unread = unread_count(user)
        many = unread > COUNTED_AT_MOST
        news = {
            "notices_url": url,
            "at_notices": request.path.startswith(url),
            "unread": f"{COUNTED_AT_MOST}+" if many else str(unread or ""),
        }
    return Chrome(
        **frame,
        **news,
        user_name=user.get_username(),
        role=role or "no role",
        nav=_nav(request, user),
        troubles=_troubles(user),
    )


def _troubles(user: Any) -> tuple[str, ...]:
    """Return what is wrong with the system, for those who may know; nothing is without a broker."""
    if not (settings.BROKER_URL and is_unblinded(user)):
        return ()
    return system_state(now=timezone.now()).troubles


def _nav(request: Any, user: Any) -> tuple[NavItem, ...]:
    sections = [("Home", "home")]
    if is_unblinded(user):
        sections += [("Experiments", "experiments"), ("Skills", "skills"), ("Suites", "suites")]
        sections.append(("People", "people"))
    sections.append(("Glossary", "glossary"))
    items = []
    for label, name in sections:
        url = reverse(name)
        # Libraries are sets of skills and stand in that section.
        places = (url, reverse("libraries")) if name == "skills" else (url,)
        below = url != "/" and request.path.startswith(places)
        items.append(NavItem(label, url, below or request.path == url))
    return tuple(items)


@register.simple_tag(takes_context=True)
def term(context: Context, key: str, shown: str = "") -> SafeString:
    """Return a word that opens its meaning where it stands, by the browser's own popover.

    It works without JavaScript and by keyboard; Escape closes it. It may stand in headings,
    paragraphs, lists and table cells, but not in a link, a button or a label, which are
    controls themselves.
    """
    entry = MEANINGS[key]
    begins = entry.meaning.lower().startswith(entry.word.lower())
    return format_html(
        '<button type="button" class="term" popovertarget="{id}">{shown}</button>'
        '<span class="gloss" id="{id}" popover>{word}{meaning} '
        '<a href="{url}#{key}">In the glossary</a></span>',
        id=_term_id(context, key),
        shown=shown or entry.word,
        # Some meanings begin with the word itself.
        word="" if begins else format_html("<strong>{}.</strong> ", entry.word),
        meaning=entry.meaning,
        url=reverse("glossary"),
        key=entry.key,
    )


def _term_id(context: Context, key: str) -> str:
    """Return an id that no other term of the page has, nor one of a fragment put into it."""
    request = context.get("request")
    if request is None:
        return f"term-{key}-{secrets.token_hex(4)}"
    number = getattr(request, "_terms", 0) + 1
    request._terms = number
    part = f"-{crc32(request.path.encode()):x}" if request.headers.get("HX-Request") else ""
    return f"term{part}-{number}-{key}"


@register.simple_tag
def meaning(key: str) -> str:
    """Return what a word means, in one sentence."""
    return MEANINGS[key].meaning


@register.filter
def visible(text: object) -> str:
    """Return item text with every character that would steer the reader's eye made visible."""
    return _UNSEEN.sub(_shown, str(text))


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    if character == "\r":
        return ""  # of a line end; alone it shows nothing
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    return f"⟨U+{ord(character):04X}⟩"


@register.filter
def on(faults: Sequence[Fault], field: str) -> tuple[str, ...]:
    """Return what is wrong with one field of a form."""
    return tuple(fault.text for fault in faults or () if fault.field == field)


@register.filter
def minus(text: object) -> str:
    """Return text whose negative numbers carry a true minus sign."""
    return _MINUS.sub("−", str(text))


@register.filter
def highlight(text: str, language: str) -> SafeString | str:
    """Return program text as escaped HTML with classes for its tokens; other text as it is."""
    seen = visible(text)
    if language != "python" or len(seen) > HIGHLIGHT_AT_MOST:
        return seen
    # Pygments escapes every token; its output holds nothing but spans with classes.
    html: str = pygments_highlight(seen, _LEXER, _FORMATTER)
    return mark_safe(html)
