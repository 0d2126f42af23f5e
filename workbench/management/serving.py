"""What demo and serve share: who may come in, where, and staying up until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from django.urls import reverse
from django.utils import timezone

from workbench.accounts import create_sign_in_link, ensure_user, people
from workbench.heartbeats import SystemState, look_at_system
from workbench.kernel.public import public_url
from workbench.kernel.roles import Role

Say = Callable[[str], object]

FIRST_ADMIN = "admin"
LINK_COMMAND = "python3 manage.py sign_in_link"
READY_POLL_S = 0.2


def invite(*, name: str, say: Say) -> None:
    """Say where the pages are, and a link that signs the admin ``name`` in once."""
    _say_link(ensure_user(name=name, role=Role.ADMIN), say)


def invite_first_admin(*, say: Say) -> None:
    """Say where the pages are; with a link as long as no admin has ever come in.

    Whoever can read the console of a served workbench could otherwise become its admin again
    and again.
    """
    admins = people().filter(role=Role.ADMIN, is_active=True).order_by("pk")
    known = admins.filter(last_login__isnull=False).first()
    if known:
        say(f"Pages:   {public_url('/')}")
        say(f"Sign in: {public_url(reverse('sign-in'))}")
        say(f"         or by a link that works once: {LINK_COMMAND} {known.get_username()}")
        return
    first = admins.first()
    if first is None:
        first = ensure_user(name=FIRST_ADMIN, role=Role.ADMIN)
    if not first.is_active:
        say(f"Pages:   {public_url('/')}")
        say(
            f"There is no active admin ('{FIRST_ADMIN}' is deactivated). Name another: "
            f"{LINK_COMMAND} NAME --role admin"
        )
        return
    _say_link(first, say)


def _say_link(user: Any, say: Say) -> None:
    token = create_sign_in_link(user=user, now=timezone.now())
    link = public_url(reverse("sign-in-link", kwargs={"token": token}))
    say(f"Pages:   {public_url('/')}")
    say(f"Sign in: {link} (as {user.get_username()}; works once)")


def wait_until_ready(*, patience_s: float) -> SystemState:
    """Return how the parts are once all are green, or when the patience is over."""
    deadline = time.monotonic() + patience_s
    while True:
        state = look_at_system(now=timezone.now())
        if state.ready or time.monotonic() > deadline:
            return state
        time.sleep(READY_POLL_S)


def stay_up() -> NoReturn:
    """Leave the work to the services until a signal ends the command."""
    while True:
        time.sleep(3600)
