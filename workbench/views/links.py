"""One-time links as people get them: on the page that makes them, and by mail if it is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from workbench.accounts import OneTimeLink
from workbench.kernel.pages import render_page, utc
from workbench.kernel.public import public_url
from workbench.mail import Letter, mail_is_on, send
from workbench.models import LinkPurpose

URL_NAMES = {LinkPurpose.INVITATION: "invite", LinkPurpose.PASSWORD_RESET: "reset"}
_LETTERS = {
    LinkPurpose.INVITATION: (
        "Your invitation to the Skill Audit Workbench",
        "You are invited to the Skill Audit Workbench as {name}.\n\n"
        "Open this link to choose a password and come in. It works once, until {until}:\n\n"
        "{url}\n\nIf you don't know what this is about, delete this mail.\n",
    ),
    LinkPurpose.PASSWORD_RESET: (
        "A new password for the Skill Audit Workbench",
        "This link lets you, {name}, choose a new password for the Skill Audit Workbench. "
        "It works once, until {until}:\n\n"
        "{url}\n\nIf you did not ask for it, tell whoever runs the workbench.\n",
    ),
}


@dataclass(frozen=True)
class LinkRow:
    """One link, shown this once."""

    name: str
    url: str
    until: str
    mailed: str


@dataclass(frozen=True)
class LinksPage:
    """The links just made; nobody sees them again."""

    title: str
    explanation: str
    rows: tuple[LinkRow, ...]
    all_of_them: str
    mail_problems: int
    back_url: str
    back: str


def link_url(link: OneTimeLink, purpose: LinkPurpose) -> str:
    """Return the address that the link's person opens."""
    return public_url(reverse(URL_NAMES[purpose], kwargs={"token": link.token}))


def show_links(
    request: HttpRequest,
    links: Sequence[OneTimeLink],
    purpose: LinkPurpose,
    *,
    by_mail: bool,
    back_url: str,
    back: str,
) -> HttpResponse:
    """Show the links, once, and mail them if that was asked for and can be done."""
    urls = [link_url(link, purpose) for link in links]
    mailed = _mail(links, urls, purpose) if by_mail and mail_is_on() else {}
    problems = sum(bool(said) for said in mailed.values())
    rows = tuple(
        LinkRow(
            name=link.user.get_username(),
            url=url,
            until=utc(link.expires_at),
            mailed=_said(link, mailed) if by_mail else "",
        )
        for link, url in zip(links, urls, strict=True)
    )
    invitation = purpose == LinkPurpose.INVITATION
    what = ("invitation" if invitation else "reset link") + ("" if len(rows) == 1 else "s")
    page = LinksPage(
        title=f"{len(rows)} {what} to hand on",
        explanation=(
            (
                "The link lets them in, once: they choose a password and are signed in."
                if len(rows) == 1
                else "Each link lets one person in, once: they choose a password and are signed in."
            )
            if invitation
            else "The link lets them choose a new password, once. Until then the old one works."
        ),
        rows=rows,
        all_of_them="\n".join(f"{row.name}\t{row.url}" for row in rows) if len(rows) > 1 else "",
        mail_problems=problems,
        back_url=back_url,
        back=back,
    )
    return render_page(request, "people/links.html", page)


def _mail(
    links: Sequence[OneTimeLink], urls: Sequence[str], purpose: LinkPurpose
) -> dict[str, str]:
    """Return by name why a link wasn't mailed, empty where it was."""
    subject, text = _LETTERS[purpose]
    letters, names = [], []
    for link, url in zip(links, urls, strict=True):
        if link.user.email:
            name = link.user.get_username()
            body = text.format(name=name, until=utc(link.expires_at), url=url)
            letters.append(Letter(to=link.user.email, subject=subject, text=body))
            names.append(name)
    return dict(zip(names, send(letters), strict=True))


def _said(link: OneTimeLink, mailed: dict[str, str]) -> str:
    problem = mailed.get(link.user.get_username())
    if problem is None:
        return "no mail address"
    return f"Not mailed: {problem}" if problem else f"Mailed to {link.user.email}"
