"""``sign_in_link``: print a link that signs a user in once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.urls import reverse
from django.utils import timezone

from workbench.accounts import (
    LINK_LIFETIME,
    LastAdmin,
    create_sign_in_link,
    create_user,
    set_role,
)
from workbench.kernel.public import public_url
from workbench.kernel.roles import Role
from workbench.supervise import served_at


class Command(BaseCommand):
    help = "Print a link that signs USER in once. With --role a new user is created."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", metavar="USER", help="the user's name")
        parser.add_argument(
            "--role",
            choices=[role.value for role in Role],
            help="create the user with this role, or give it to an existing one",
        )
        parser.add_argument(
            "--hours",
            type=float,
            default=LINK_LIFETIME / timedelta(hours=1),
            help="how long the link may be used (default: %(default)g)",
        )
        parser.add_argument(
            "--base-url",
            help="where the pages are served (default: where they are served now)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["hours"] > 0:
            raise CommandError("--hours must be more than 0")
        now = timezone.now()
        user = self._user(options["user"], options["role"])
        token = create_sign_in_link(user=user, now=now, lifetime=timedelta(hours=options["hours"]))
        path = reverse("sign-in-link", kwargs={"token": token})
        base = options["base_url"]
        served = served_at(settings.DATA_DIR)
        self.stdout.write(base.rstrip("/") + path if base else public_url(path, served=served))

    def _user(self, name: str, role: str | None) -> Any:
        user = get_user_model().objects.filter(username=name).first()
        if user is None:
            if role is None:
                raise CommandError(
                    f"there is no user '{name}'. Create one with: "
                    f"python3 manage.py sign_in_link {name} --role lead"
                )
            try:
                return create_user(name=name, role=Role(role), at=timezone.now())
            except ValidationError as error:
                raise CommandError(" ".join(error.messages)) from error
        if not user.is_active:
            raise CommandError(f"the user '{name}' is deactivated")
        if role is not None:
            try:
                set_role(user=user, role=Role(role), at=timezone.now())
            except LastAdmin as error:
                raise CommandError(str(error)) from error
        return user
