"""What demo and serve share: who may come in, where, and staying up until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from django.urls import reverse
from django.utils import timezone

from workbench.accounts import create_sign_in_link, ensure_user
from workbench.kernel.roles import Role


def invite(*, name: str, web_url: str | None, say: Callable[[str], object]) -> None:
    """Say where the pages are, and a link that signs the admin ``name`` in once."""
    user = ensure_user(name=name, role=Role.ADMIN)
    token = create_sign_in_link(user=user, now=timezone.now())
    link = reverse("sign-in-link", kwargs={"token": token})
    say(f"Pages:   {web_url}")
    say(f"Sign in: {(web_url or '').rstrip('/')}{link} (works once)")


def stay_up() -> NoReturn:
    """Leave the work to the services until a signal ends the command."""
    while True:
        time.sleep(3600)
