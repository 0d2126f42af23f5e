"""Notices: told once, read by leads and admins, mailed, sent to webhooks, never to raters."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from runs.models import Arm, Experiment, ExperimentStatus
from runs.services import lifecycle
from tests.factories import (
    cells_of,
    finished_experiment,
    make_experiment,
    make_user,
    record,
    record_failure,
    set_status,
)
from tests.htmlchecks import faults_of
from workbench.accounts import set_role
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.models import AuditEvent, Delivery, Notice, NoticeReader, Webhook
from workbench.notices import (
    COUNTED_AT_MOST,
    NoticeKind,
    digest,
    mark_read,
    notify,
    subscribe,
    unread_count,
    webhooks,
)
from workbench.notices.digest import mail_digest, sweep_digests
from workbench.notices.webhooks import (
    MAX_TRIES,
    MOST_WEBHOOKS,
    WAITS,
    BadWebhook,
    NotSent,
    add_webhook,
    checked_url,
    deliver,
    public_address,
    remove_webhook,
    secret_of,
    signature,
    sweep_deliveries,
    try_webhook,
)

pytestmark = pytest.mark.django_db

CANARY = "canary-slug"


def now() -> datetime:
    return timezone.now()


def tell(
    event: str = "one",
    *,
    kind: NoticeKind = NoticeKind.EXPERIMENT_PAUSED,
    subject: str = "panel",
    text: str = "Paused: the key is wrong. See to it.",
    actor: Any = None,
) -> Notice:
    notify(
        kind=kind,
        event=event,
        subject=subject,
        text=text,
        path="/experiments/panel/",
        at=now(),
        actor=actor,
    )
    return Notice.objects.get(event=event)


@pytest.fixture
def lee() -> Any:
    return make_user("lee", Role.LEAD)


@pytest.fixture
def ada() -> Any:
    return make_user("ada", Role.ADMIN)


@pytest.fixture
def lead(client: Client, lee: Any) -> Client:
    client.force_login(lee)
    return client


@pytest.fixture
def admin(ada: Any) -> Client:
    client = Client()
    client.force_login(ada)
    return client


# --- what is told ------------------------------------------------------------------


def running(slug: str = "panel", **plan: Any) -> Experiment:
    return set_status(make_experiment(slug, tasks=2, **plan), ExperimentStatus.RUNNING)


def test_a_pause_tells_one_notice_with_its_reason_and_what_to_do() -> None:
    experiment = running()
    reason = "the endpoint can't serve small-model: the key is wrong"
    lifecycle.pause(experiment=experiment, reason=reason, actor=None, at=now())
    [notice] = Notice.objects.all()
    assert (notice.kind, notice.subject) == ("experiment_paused", "panel")
    assert notice.text == f"Paused: {reason}. See to the reason, then resume it on its page."
    assert notice.path == "/experiments/panel/"
    # Pausing what is paused changes nothing, so it tells nothing.
    lifecycle.pause(experiment=experiment, reason="again", actor=None, at=now())
    assert Notice.objects.count() == 1


def test_a_pause_after_a_resumption_is_told_again_even_in_the_same_moment() -> None:
    experiment, at = running(), now()
    for _ in range(2):
        lifecycle.pause(experiment=experiment, reason="no disk", actor=None, at=at)
        lifecycle.resume(experiment=experiment, actor=None, at=at)
    assert Notice.objects.filter(kind="experiment_paused").count() == 2


def test_of_two_workers_that_pause_at_once_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = running()
    late = Experiment.objects.get(pk=experiment.pk)
    lifecycle.pause(experiment=experiment, reason="no disk", actor=None, at=now())
    # The second one looked while it was running still.
    monkeypatch.setattr(late, "refresh_from_db", lambda: None)
    with pytest.raises(lifecycle.WrongStatus):
        lifecycle.pause(experiment=late, reason="no disk", actor=None, at=now())
    assert Notice.objects.count() == 1


@pytest.mark.both_databases
def test_a_transition_that_is_undone_tells_nothing() -> None:
    experiment = running()
    with transaction.atomic():
        lifecycle.pause(experiment=experiment, reason="no disk", actor=None, at=now())
        transaction.set_rollback(True)
    assert not Notice.objects.exists()
    experiment.refresh_from_db()
    assert experiment.status == ExperimentStatus.RUNNING


def test_a_refused_transition_tells_nothing() -> None:
    experiment = finished_experiment("panel", retrieved="a")
    with pytest.raises(lifecycle.WrongStatus):
        lifecycle.pause(experiment=experiment, reason="too late", actor=None, at=now())
    assert not Notice.objects.exists()


def test_a_reached_budget_says_that_resuming_is_not_enough() -> None:
    experiment = running()
    lifecycle.pause(
        experiment=experiment,
        reason="the budget of 10 calls is reached (11 used)",
        actor=None,
        at=now(),
        kind=NoticeKind.BUDGET_REACHED,
    )
    [notice] = Notice.objects.all()
    assert notice.kind == "budget_reached"
    assert "10 calls is reached (11 used). What is recorded can be read." in notice.text
    assert "larger budget" in notice.text


@pytest.mark.both_databases
def test_the_end_is_told_once_and_counts_the_pairs_without_a_result() -> None:
    whole, broken = running("whole"), running("broken")
    for pair in cells_of(whole)[0].pairs.all():
        record(pair, "a")
    first, second = cells_of(broken)[0].pairs.order_by("task__key")
    # Reused executions may serve both experiments; these two have runs of their own.
    record(first, "a")
    record_failure(second, Arm.SE)
    record_failure(second, Arm.SD)
    for experiment in (whole, broken):
        lifecycle.finish_if_done(experiment=experiment, at=now())
        assert not lifecycle.finish_if_done(experiment=experiment, at=now())
    told = {notice.subject: notice for notice in Notice.objects.all()}
    assert told["whole"].kind == "experiment_finished"
    assert told["whole"].text.startswith("Finished: 2 pairs ended.")
    # Both arms of one pair died: that is one pair of two, not two.
    assert told["broken"].kind == "experiment_failed"
    assert told["broken"].text.startswith("Finished, but 1 of 2 pairs has no result")
    assert "retry the failed runs" in told["broken"].text


def test_what_a_person_did_is_news_to_the_others_only(lee: Any, ada: Any) -> None:
    experiment = running()
    lifecycle.pause(experiment=experiment, reason="paused by lee", actor=lee, at=now())
    assert Notice.objects.get().text.startswith("Paused by lee. Resume it")
    assert (unread_count(lee), unread_count(ada)) == (0, 1)


def test_the_same_event_is_stored_and_sent_once(ada: Any, settings: Any) -> None:
    hook(settings, ada)
    tell("one")
    notify(kind=NoticeKind.BUDGET_REACHED, event="one", subject="x", text="y", path="/", at=now())
    assert Notice.objects.get().kind == "experiment_paused"
    assert Delivery.objects.count() == 1


# --- reading -----------------------------------------------------------------------


@pytest.mark.both_databases
def test_only_what_the_page_knew_of_is_marked_as_read(lead: Client, lee: Any) -> None:
    tell("one")
    html = lead.get(reverse("notices")).content.decode()
    assert '<span class="badge">1<span class="vh"> unread</span></span>' in html
    newest = re.search(r'name="newest" value="([^"]+)"', html)
    assert newest
    tell("two")
    assert lead.post(reverse("notices-read"), {"newest": newest[1]}).status_code == 302
    assert unread_count(lee) == 1
    mark_read(user=lee, newest=Notice.objects.get(event="two").uid)
    # An older page, sent late, marks nothing unread again.
    lead.post(reverse("notices-read"), {"newest": newest[1]})
    assert unread_count(lee) == 0
    assert "badge" not in lead.get(reverse("glossary")).content.decode().replace("badge-link", "")


@pytest.mark.parametrize("newest", ["", "x", "0b7e5a50-6c1b-4a52-9d4e-1f0f3a0d9c11"])
def test_a_mark_that_names_no_notice_changes_nothing(lead: Client, lee: Any, newest: str) -> None:
    tell()
    response = lead.post(reverse("notices-read"), {"newest": newest}, follow=True)
    assert "Nothing was marked" in response.content.decode()
    assert unread_count(lee) == 1


def test_what_happened_before_a_person_came_is_no_news_to_them(lee: Any) -> None:
    tell()
    late = make_user("late", Role.LEAD)
    User.objects.filter(pk=late.pk).update(date_joined=now() + timedelta(seconds=1))
    assert (unread_count(User.objects.get(pk=late.pk)), unread_count(lee)) == (0, 1)


def test_the_badge_costs_one_query_and_counts_no_further_than_it_shows(
    lead: Client, lee: Any
) -> None:
    Notice.objects.bulk_create(
        Notice(kind="experiment_paused", event=str(n), subject="s", text="t", path="/", at=now())
        for n in range(COUNTED_AT_MOST + 20)
    )
    with CaptureQueriesContext(connection) as captured:
        assert unread_count(lee) == COUNTED_AT_MOST + 1
    assert len(captured) == 1
    assert ">99+<span" in lead.get(reverse("glossary")).content.decode()


@pytest.mark.both_databases
def test_the_list_is_filtered_paged_and_tells_kinds_apart(lead: Client) -> None:
    for n in range(55):
        tell(f"{n}", subject=f"study-{n:02}", kind=list(NoticeKind)[n % 4])
    html = lead.get(reverse("notices")).content.decode()
    assert html.count('<li class="') == 50
    assert html.index("study-54") < html.index("study-53")
    older = re.search(r'href="(\?[^"]+)">Older', html)
    assert older
    rest = lead.get(reverse("notices") + older[1].replace("&amp;", "&")).content.decode()
    assert rest.count('<li class="') == 5
    budget = lead.get(reverse("notices"), {"kind": "budget_reached"}).content.decode()
    # 55 notices over four kinds in turn: the fourth has n = 3, 7, ..., 51, which is 13.
    assert budget.count('<li class="budget_reached') == 13
    assert 'aria-current="true">Budget reached' in budget
    assert lead.get(reverse("notices"), {"kind": "nonsense"}).status_code == 404
    for page in (html, rest, budget):
        assert faults_of(page) == []


def test_the_text_of_a_notice_cannot_steer_the_page(lead: Client) -> None:
    tell(subject="<img src=x>", text="<script>alert(1)</script> \u202eevil")
    html = lead.get(reverse("notices")).content.decode()
    assert "<img src=x>" not in html
    assert "<script>alert" not in html
    assert "⟨U+202E⟩evil" in html


def test_raters_see_nothing_of_notices(lead: Client) -> None:
    experiment = running(CANARY)
    lifecycle.pause(experiment=experiment, reason="no key", actor=None, at=now())
    assert CANARY in lead.get(reverse("notices")).content.decode()
    for name, role in (("ann", Role.ANNOTATOR), ("none", None)):
        client = Client()
        client.force_login(make_user(name, role))
        seen = []
        for path in ("/", "/glossary/", "/nothing/", "/notices/", "/notices/webhooks/"):
            seen.append(client.get(path))
        for path in ("notices/", "subscriptions/", "webhooks/", "notices/read/"):
            seen += [client.get(f"/api/v1/{path}"), client.post(f"/api/v1/{path}")]
        for response in seen:
            shown = response.content.decode() + str(response.headers)
            page = shown.replace(response.request["PATH_INFO"], "")
            assert CANARY not in page
            if response.request["PATH_INFO"] != "/glossary/":  # which tells what the word means
                assert "notice" not in page.lower()
            assert "badge" not in page
        assert [r.status_code for r in seen if r.request["PATH_INFO"].startswith("/notices/")] == [
            403,
            403,
        ]


# --- mail --------------------------------------------------------------------------


@pytest.fixture
def smtp(settings: Any) -> None:
    settings.SMTP_URL, settings.MAIL_FROM = "smtp://mail.example", "workbench@example.org"
    settings.PUBLIC_URL = "https://audit.example.org"


def reader_of(user: Any, address: str = "lee@example.org") -> NoticeReader:
    user.email = address
    user.save()
    subscribe(user=user, by_mail=True)
    return NoticeReader.objects.get(user=user)


@pytest.mark.both_databases
@pytest.mark.usefixtures("smtp")
def test_a_digest_holds_what_is_new_and_goes_out_hourly_at_most(lee: Any) -> None:
    tell("before the subscription")
    reader = reader_of(lee)
    assert not mail_digest(reader=reader.pk)
    tell("one", text="Paused: no key.")
    tell("own", actor=lee)
    assert mail_digest(reader=reader.pk)
    [letter] = mail.outbox
    assert (letter.to, letter.from_email) == (["lee@example.org"], "workbench@example.org")
    assert letter.subject == "Skill Audit Workbench: 1 notice"
    assert "https://audit.example.org/experiments/panel/" in letter.body
    assert letter.body.count("panel") == 2  # its subject and its address, once
    assert not mail_digest(reader=reader.pk)  # the same message again
    tell("two")
    assert due(now()) == []
    assert due(now() + timedelta(minutes=59)) == []
    assert due(now() + timedelta(minutes=61)) == [reader.pk]


def due(at: datetime) -> list[int]:
    """Return the readers whose digest the sweep publishes at ``at``."""
    return published_by(digest, sweep_digests, at)


def published_by(module: Any, sweep: Callable[..., None], at: datetime) -> list[Any]:
    found: list[Any] = []

    def publish(task: str, uids: Iterable[Any], *, queue: str) -> None:
        found.extend(uids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "publish", publish)
        sweep(now=at)
    return found


@pytest.mark.usefixtures("smtp")
def test_what_was_read_is_not_mailed(lee: Any) -> None:
    reader = reader_of(lee)
    notice = tell()
    assert due(now()) == [reader.pk]
    mark_read(user=lee, newest=notice.uid)
    assert not mail_digest(reader=reader.pk)
    assert mail.outbox == []


@pytest.mark.usefixtures("smtp")
@pytest.mark.parametrize("change", ["demoted", "deactivated", "no address", "unsubscribed"])
def test_who_may_not_see_notices_gets_no_mail(lee: Any, change: str) -> None:
    reader = reader_of(lee)
    tell()
    if change == "demoted":
        set_role(user=lee, role=Role.ANNOTATOR, at=now())
    elif change == "unsubscribed":
        subscribe(user=lee, by_mail=False)
    else:
        lee.is_active, lee.email = (
            change != "deactivated",
            "" if change == "no address" else "a@b.c",
        )
        lee.save()
    assert due(now()) == []
    assert not mail_digest(reader=reader.pk)
    assert mail.outbox == []


@pytest.mark.usefixtures("smtp")
def test_a_mail_that_fails_is_tried_again_and_loses_nothing(lee: Any, settings: Any) -> None:
    reader = reader_of(lee)
    tell()
    settings.EMAIL_BACKEND = "tests.integration.test_notices.Refusing"
    assert due(now()) == [reader.pk]
    assert due(now()) == []  # it is under way
    assert not mail_digest(reader=reader.pk)
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert due(now() + timedelta(minutes=6)) == [reader.pk]
    assert mail_digest(reader=reader.pk)


class Refusing:
    """A mail server that is away."""

    def __init__(self, **_: Any) -> None: ...

    def open(self) -> None:
        raise ConnectionRefusedError

    def close(self) -> None: ...


@pytest.mark.usefixtures("smtp")
def test_a_header_cannot_be_written_from_outside(lee: Any) -> None:
    reader = reader_of(lee, "lee@example.org\nBcc: eve@example.org")
    tell(subject="panel\r\nBcc: eve@example.org", text="a\r\n.\r\nb\u202e")
    assert not mail_digest(reader=reader.pk)
    reader = reader_of(lee)
    assert mail_digest(reader=reader.pk)
    message = mail.outbox[-1].message()
    assert message["Bcc"] is None
    assert "\u202e" not in mail.outbox[-1].body
    assert "panel Bcc: eve@example.org\n" in mail.outbox[-1].body


def test_without_a_mail_server_nothing_is_published(lee: Any) -> None:
    reader_of(lee)
    tell()
    assert due(now()) == []


@pytest.mark.usefixtures("smtp")
def test_mails_are_switched_on_by_page_only_with_an_address(lead: Client, lee: Any) -> None:
    response = lead.post(reverse("notices-mail"), {"by_mail": "on"}, follow=True)
    assert "no address is known for you" in response.content.decode()
    User.objects.filter(pk=lee.pk).update(email="lee@example.org")
    response = lead.post(reverse("notices-mail"), {"by_mail": "on"}, follow=True)
    assert "go to lee@example.org" in response.content.decode()
    lead.post(reverse("notices-mail"))
    assert not NoticeReader.objects.get(user=lee).by_mail


# --- webhooks ----------------------------------------------------------------------


@dataclass
class Receiver:
    """A local HTTP server that answers as it is told and keeps what it was sent."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.requests.append((dict(self.headers), body))
            kept.paths.append(self.path)
            status = kept.answers.pop(0) if kept.answers else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{kept.url}/elsewhere")
            self.end_headers()
            self.wfile.write(b"the receiver's secret thoughts")

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    settings.WEBHOOK_HOSTS = [kept.url]
    settings.PUBLIC_URL = "https://audit.example.org"
    yield kept
    server.shutdown()
    server.server_close()
    thread.join()


def hook(settings: Any, actor: Any, url: str = "https://hooks.example/x", **kinds: Any) -> Webhook:
    if not settings.WEBHOOK_HOSTS:
        settings.WEBHOOK_HOSTS = ["hooks.example"]
    return add_webhook(url=url, kinds=kinds.get("kinds", []), actor=actor, at=now())


def make_due(delivery: Delivery) -> None:
    Delivery.objects.filter(pk=delivery.pk).update(next_attempt_at=now() - timedelta(seconds=1))


def test_a_delivery_is_signed_and_says_what_happened(
    receiver: Receiver, ada: Any, settings: Any
) -> None:
    webhook = hook(settings, ada, receiver.url + "/in?team=1")
    notice = tell()
    delivery = Delivery.objects.get()
    assert deliver(uid=delivery.uid)
    [(headers, body)] = receiver.requests
    assert receiver.paths == ["/in?team=1"]
    sent = json.loads(body)
    assert sent == {
        "id": str(notice.uid),
        "kind": "experiment_paused",
        "subject": "panel",
        "text": notice.text,
        "url": "https://audit.example.org/experiments/panel/",
        "at": notice.at.isoformat(),
    }
    stamp, signed = headers["Workbench-Signature"].split(",")
    seconds = stamp.removeprefix("t=")
    assert abs(int(seconds) - now().timestamp()) < 60
    secret = secret_of(webhook).encode()
    wanted = hmac.new(secret, f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    assert signed == f"v1={wanted}"
    assert headers["Workbench-Delivery"] == str(delivery.uid)
    delivery.refresh_from_db()
    assert (delivery.state, delivery.answer) == (LeaseState.DONE, "answered 200")
    assert not deliver(uid=delivery.uid)  # its message came twice
    assert len(receiver.requests) == 1


def test_every_webhook_has_a_secret_of_its_own_that_is_stored_nowhere(
    ada: Any, settings: Any
) -> None:
    one, other = hook(settings, ada), hook(settings, ada)
    assert secret_of(one) != secret_of(other)
    stored = [*Webhook.objects.values(), *AuditEvent.objects.values()]
    assert secret_of(one) not in str(stored)
    before = secret_of(one)
    settings.SECRET_KEY = "another key of the workbench"
    assert secret_of(one) != before


@pytest.mark.both_databases
def test_a_refused_delivery_comes_again_later_under_the_same_id(
    receiver: Receiver, ada: Any, settings: Any
) -> None:
    hook(settings, ada, receiver.url)
    tell()
    delivery = Delivery.objects.get()
    receiver.answers = [500]
    assert not deliver(uid=delivery.uid)
    delivery.refresh_from_db()
    assert (delivery.state, delivery.answer) == (LeaseState.PENDING, "answered 500")
    assert delivery.next_attempt_at is not None
    assert timedelta(0) < delivery.next_attempt_at - now() <= WAITS[0]
    assert not deliver(uid=delivery.uid)  # not yet
    make_due(delivery)
    assert deliver(uid=delivery.uid)
    ids = {headers["Workbench-Delivery"] for headers, _ in receiver.requests}
    bodies = {body for _, body in receiver.requests}
    assert (len(receiver.requests), len(ids), len(bodies)) == (2, 1, 1)


def test_a_worker_that_dies_while_sending_lets_it_come_again(
    receiver: Receiver, ada: Any, settings: Any
) -> None:
    hook(settings, ada, receiver.url)
    tell()
    delivery = Delivery.objects.get()
    Delivery.objects.update(
        state=LeaseState.RUNNING, tries=1, fencing_token=1, lease_until=now() - timedelta(seconds=1)
    )
    assert published(now()) == [delivery.uid]
    assert deliver(uid=delivery.uid)


def published(at: datetime) -> list[UUID]:
    """Return the deliveries that the sweep publishes at ``at``."""
    return published_by(webhooks, sweep_deliveries, at)


@pytest.mark.both_databases
def test_the_sweep_sends_what_was_lost_or_is_due_and_nothing_else(ada: Any, settings: Any) -> None:
    hook(settings, ada)
    tell()
    delivery = Delivery.objects.get()
    assert published(now()) == []  # its message is under way
    assert published(now() + timedelta(seconds=31)) == [delivery.uid]
    Delivery.objects.update(next_attempt_at=now() + timedelta(hours=1))
    assert published(now() + timedelta(minutes=59)) == []
    assert published(now() + timedelta(minutes=61)) == [delivery.uid]
    Delivery.objects.update(state=LeaseState.DONE)
    assert published(now() + timedelta(days=2)) == []


def test_after_the_last_try_it_is_given_up(receiver: Receiver, ada: Any, settings: Any) -> None:
    hook(settings, ada, receiver.url)
    tell()
    delivery = Delivery.objects.get()
    receiver.answers = [503] * 20
    for _ in range(MAX_TRIES + 3):
        make_due(delivery)
        deliver(uid=delivery.uid)
    delivery.refresh_from_db()
    assert len(receiver.requests) == MAX_TRIES == 8
    assert (delivery.state, delivery.tries) == (LeaseState.DEAD, 8)
    assert delivery.answer == "answered 503"
    # 1 + 5 + 15 minutes, then 1 + 3 + 6 + 12 hours.
    assert sum(WAITS, timedelta()) == timedelta(hours=22, minutes=21)


def test_a_redirect_is_not_followed(receiver: Receiver, ada: Any, settings: Any) -> None:
    hook(settings, ada, receiver.url)
    tell()
    receiver.answers = [302]
    assert not deliver(uid=Delivery.objects.get().uid)
    assert receiver.paths == ["/"]
    assert Delivery.objects.get().answer == "answered 302; redirects are not followed"


def test_a_removed_webhook_gets_nothing_not_even_what_waits(
    receiver: Receiver, ada: Any, settings: Any
) -> None:
    webhook = hook(settings, ada, receiver.url)
    tell("one")
    waiting = Delivery.objects.get()
    remove_webhook(uid=webhook.uid, actor=ada, at=now())
    tell("two")
    assert Delivery.objects.count() == 1
    assert not deliver(uid=waiting.uid)
    # The guard in the delivery itself, for one that was claimed before the removal.
    Delivery.objects.update(state=LeaseState.PENDING)
    assert not deliver(uid=waiting.uid)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.answer) == (LeaseState.DEAD, "not sent: the webhook was removed")
    assert receiver.requests == []


def test_a_webhook_is_told_of_its_kinds_only(ada: Any, settings: Any) -> None:
    hook(settings, ada, kinds=[NoticeKind.BUDGET_REACHED])
    tell("one")
    assert not Delivery.objects.exists()
    tell("two", kind=NoticeKind.BUDGET_REACHED)
    assert Delivery.objects.count() == 1


def test_a_host_that_is_listed_no_more_gets_nothing(
    receiver: Receiver, ada: Any, settings: Any
) -> None:
    hook(settings, ada, receiver.url)
    tell()
    settings.WEBHOOK_HOSTS = ["hooks.example"]
    assert not deliver(uid=Delivery.objects.get().uid)
    assert "is not listed" in Delivery.objects.get().answer
    assert receiver.requests == []


def test_an_answer_is_kept_as_its_status_alone(
    receiver: Receiver, admin: Client, ada: Any, settings: Any
) -> None:
    hook(settings, ada, receiver.url)
    tell()
    deliver(uid=Delivery.objects.get().uid)
    assert "secret thoughts" not in str(Delivery.objects.values())
    html = admin.get(reverse("webhooks")).content.decode()
    assert "answered 200" in html
    assert "secret thoughts" not in html


def test_a_receiver_that_is_away_is_no_fault_of_ours(ada: Any, settings: Any) -> None:
    settings.WEBHOOK_HOSTS = ["http://127.0.0.1:9"]
    hook(settings, ada, "http://127.0.0.1:9/")
    tell()
    assert not deliver(uid=Delivery.objects.get().uid)
    assert Delivery.objects.get().answer == "nothing listens at 127.0.0.1:9"


HOSTS = ["hooks.example", "hooks.example:8443", "http://relay.local:8080", "*.chat.example", "é"]
ALLOWED = [
    "https://hooks.example/a?b=c",
    "https://hooks.example:443/",
    "https://HOOKS.example/",
    "https://hooks.example:8443/",
    "http://relay.local:8080/x",
    "https://one.chat.example/",
]
REFUSED = [
    "http://hooks.example/",
    "https://hooks.example:444/",
    "https://relay.local:8080/",
    "http://relay.local/",
    "https://chat.example/",
    "https://evilchat.example/",
    "http://one.chat.example/",
    "https://one.chat.example:8443/",
    "https://hooks.example.evil.example/",
    "https://hooks.example@evil.example/",
    "https://user:pw@hooks.example/",
    "https://evil.example\\@hooks.example/",
    "https://hooks.example#@evil.example/",
    "https://169.254.169.254/latest",
    "https://2130706433/",
    "https://[::ffff:127.0.0.1]/",
    "https://127.0.0.1:6379/",
    "file:///etc/passwd",
    "gopher://hooks.example/",
    "javascript:alert(1)",
    "//hooks.example/",
    "https:///x",
    "https://hooks.example:99999/",
    "https://hooks.example/\r\nX: y",
    "https://hooks.exa mple/",
    "https://hooks.example/" + "x" * 500,
    "",
]


def test_there_are_no_more_webhooks_than_one_page_shows(ada: Any, settings: Any) -> None:
    made = [hook(settings, ada) for _ in range(MOST_WEBHOOKS)]
    with pytest.raises(BadWebhook, match="remove one"):
        hook(settings, ada)
    remove_webhook(uid=made[0].uid, actor=ada, at=now())
    hook(settings, ada)


@pytest.mark.parametrize("url", ALLOWED)
def test_listed_places_may_be_told(url: str, settings: Any) -> None:
    settings.WEBHOOK_HOSTS = HOSTS
    assert checked_url(url) == url


@pytest.mark.parametrize("url", REFUSED)
def test_nothing_else_may_be_told(url: str, ada: Any, settings: Any) -> None:
    settings.WEBHOOK_HOSTS = HOSTS
    with pytest.raises(BadWebhook):
        add_webhook(url=url, kinds=[], actor=ada, at=now())
    assert not Webhook.objects.exists()


def test_without_listed_hosts_no_webhook_can_be_added_and_the_page_says_how(
    admin: Client, settings: Any
) -> None:
    settings.WEBHOOK_HOSTS = []
    html = admin.get(reverse("webhooks")).content.decode()
    assert "WORKBENCH_WEBHOOK_HOSTS" in html
    assert 'name="url"' not in html
    with pytest.raises(BadWebhook, match="Webhooks are off"):
        checked_url("https://hooks.example/")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1%eth0", "fd00::1",
     "::ffff:127.0.0.1", "0.0.0.0", "224.0.0.1", "100.64.0.1", "2002:7f00:1::",
     # NAT64, site-local, IPv4-compatible, not given out; relays, documentation, segment routing.
     "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "fec0::1", "::7f00:1", "4000::1", "100:0:0:1::1",
     "192.88.99.1", "2002:c058:6301::", "3fff::1", "5f00::1", "2001:0:7f00:1::"],
)  # fmt: skip
def test_a_name_below_a_listed_domain_must_be_at_public_addresses_only(address: str) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", ("93.184.216.34", port)), (0, 0, 0, "", (address, port))]

    with pytest.raises(NotSent, match="not at a public address"):
        public_address("one.chat.example", 443, resolve=resolve)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "2002:5db8:d822::"])
def test_a_public_address_is_called(address: str) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port))]

    assert public_address("one.chat.example", 443, resolve=resolve) == address


def test_the_address_that_was_checked_is_the_one_that_is_called() -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", ("93.184.216.34", port))]

    assert public_address("one.chat.example", 443, resolve=resolve) == "93.184.216.34"

    def nothing(host: str, port: int, **_: Any) -> list[Any]:
        raise OSError

    with pytest.raises(NotSent, match="has no address"):
        public_address("one.chat.example", 443, resolve=nothing)


# --- the webhooks' page and addresses ------------------------------------------------


def test_an_admin_adds_tests_and_removes_a_webhook(receiver: Receiver, admin: Client) -> None:
    kinds = ["budget_reached", "experiment_failed"]
    response = admin.post(
        reverse("webhooks"), {"url": f" {receiver.url}/in ", "kind": kinds}, follow=True
    )
    html = response.content.decode()
    webhook = Webhook.objects.get()
    assert "Added." in html
    assert secret_of(webhook) in html
    assert set(webhook.kinds) == set(kinds)
    assert faults_of(html) == []
    where = {"uid": webhook.uid}
    html = admin.post(reverse("webhook-test", kwargs=where), follow=True).content.decode()
    assert "The test was taken: answered 200." in html
    assert json.loads(receiver.requests[0][1])["kind"] == "test"
    receiver.answers = [404]
    html = admin.post(reverse("webhook-test", kwargs=where), follow=True).content.decode()
    assert "The test was not taken: answered 404." in html
    # What came of the last test stays on the page.
    again = admin.get(reverse("webhooks")).content.decode()
    assert "not taken: answered 404" in again
    assert "answered 200" not in again
    assert not Notice.objects.exists()
    admin.post(reverse("webhook-remove", kwargs=where))
    assert admin.post(reverse("webhook-remove", kwargs=where)).status_code == 404
    assert admin.post(reverse("webhook-test", kwargs=where)).status_code == 404
    assert "No webhook yet." in admin.get(reverse("webhooks")).content.decode()
    told = [event.verb for event in AuditEvent.objects.order_by("pk") if "webhook" in event.verb]
    assert told == ["webhook.added", "webhook.tested", "webhook.tested", "webhook.removed"]
    # An address may be a secret by itself, so the trail has its host alone.
    assert "/in" not in str(AuditEvent.objects.values_list("subject", flat=True))


def test_all_kinds_mean_later_ones_too(receiver: Receiver, admin: Client) -> None:
    admin.post(
        reverse("webhooks"), {"url": receiver.url, "kind": [kind.value for kind in NoticeKind]}
    )
    assert Webhook.objects.get().kinds == []


@pytest.mark.parametrize(
    ("sent", "said", "at"),
    [
        ({"url": "https://evil.example/", "kind": "budget_reached"}, "is not listed", "url"),
        ({"url": "", "kind": "budget_reached"}, "must begin with https://", "url"),
        ({"url": "https://hooks.example/"}, "Told of: choose at least one kind", "kinds"),
    ],
)
def test_a_refused_webhook_keeps_what_was_typed(
    admin: Client, settings: Any, sent: dict[str, str], said: str, at: str
) -> None:
    settings.WEBHOOK_HOSTS = ["hooks.example"]
    response = admin.post(reverse("webhooks"), sent)
    html = response.content.decode()
    assert response.status_code == 400
    assert said in html
    assert f'<a href="#{at}">' in html
    assert f'value="{sent["url"]}"' in html
    assert faults_of(html) == []
    assert not Webhook.objects.exists()


def test_leads_keep_no_webhooks(lead: Client, ada: Any, settings: Any) -> None:
    webhook = hook(settings, ada)
    assert lead.get(reverse("webhooks")).status_code == 403
    assert lead.post(reverse("webhooks")).status_code == 403
    for name in ("webhook-remove", "webhook-test"):
        known = lead.post(reverse(name, kwargs={"uid": webhook.uid}))
        unknown = lead.post(reverse(name, kwargs={"uid": uuid4()}))
        assert known.status_code == unknown.status_code == 403
    assert "Webhooks" not in lead.get(reverse("notices")).content.decode()


# --- JSON ----------------------------------------------------------------------------


def send(client: Client, method: str, name: str, body: Any = None, **where: Any) -> Any:
    url = reverse(f"api-{name}", kwargs=where or None)
    return client.generic(
        method, url, json.dumps(body) if body is not None else "", content_type="application/json"
    )


def test_notices_as_json(lead: Client, lee: Any, settings: Any) -> None:
    settings.PUBLIC_URL = "https://audit.example.org"
    first = tell("one")
    tell("two", kind=NoticeKind.BUDGET_REACHED)
    assert send(lead, "POST", "notices-read", {"newest": str(first.uid)}).status_code == 204
    found = send(lead, "GET", "notices").json()["results"]
    assert [(one["kind"], one["unread"]) for one in found] == [
        ("budget_reached", True),
        ("experiment_paused", False),
    ]
    assert found[0]["url"] == "https://audit.example.org/experiments/panel/"
    unread = lead.get(reverse("api-notices"), {"unread": "true"}).json()["results"]
    assert [one["kind"] for one in unread] == ["budget_reached"]
    for query in ({"unread": "yes"}, {"kind": "x"}, {"actor": "1"}):
        assert lead.get(reverse("api-notices"), query).status_code == 400
    unknown = send(lead, "POST", "notices-read", {"newest": str(uuid4())})
    assert (unknown.status_code, list(unknown.json()["fields"])) == (400, ["newest"])


def test_subscriptions_as_json(lead: Client, lee: Any) -> None:
    assert send(lead, "GET", "subscriptions").json() == {"by_mail": False}
    assert send(lead, "PUT", "subscriptions", {"by_mail": True}).status_code == 400
    User.objects.filter(pk=lee.pk).update(email="lee@example.org")
    assert send(lead, "PUT", "subscriptions", {"by_mail": True}).json() == {"by_mail": True}
    refused = send(lead, "PUT", "subscriptions", {"by_mail": True, "user": 1})
    assert refused.status_code == 400


def test_webhooks_as_json(receiver: Receiver, admin: Client, lead: Client) -> None:
    added = send(admin, "POST", "webhooks", {"url": receiver.url, "kinds": ["budget_reached"]})
    assert added.status_code == 201
    uid = added.json()["uid"]
    assert added.json()["secret"] == secret_of(Webhook.objects.get())
    [listed] = send(admin, "GET", "webhooks").json()["results"]
    assert "secret" not in listed
    assert send(admin, "GET", "webhook", uid=uid).json() == listed
    assert send(admin, "POST", "webhook-test", uid=uid).json() == {
        "taken": True,
        "answer": "answered 200",
    }
    tell("two", kind=NoticeKind.BUDGET_REACHED)
    deliver(uid=Delivery.objects.get().uid)
    [delivery] = send(admin, "GET", "webhook-deliveries", uid=uid).json()["results"]
    assert (delivery["state"], delivery["answer"]) == ("done", "answered 200")
    assert send(admin, "DELETE", "webhook", uid=uid).status_code == 204
    for name, method in (("webhook", "GET"), ("webhook", "DELETE"), ("webhook-test", "POST")):
        assert send(admin, method, name, uid=uid).status_code == 404
    refused = send(admin, "POST", "webhooks", {"url": "https://evil.example/"})
    assert (refused.status_code, list(refused.json()["fields"])) == (400, ["url"])
    assert send(lead, "GET", "webhooks").status_code == 403


def test_a_key_keeps_no_secret_and_a_test_takes_none(receiver: Receiver, admin: Client) -> None:
    from workbench.models import IdempotencyKey

    url, body = reverse("api-webhooks"), json.dumps({"url": receiver.url})

    def post(url: str, key: str, body: str = "") -> Any:
        return admin.post(
            url, body, content_type="application/json", headers={"Idempotency-Key": key}
        )

    added = post(url, "one", body)
    assert added.status_code == 201
    assert added.json()["secret"] not in str(IdempotencyKey.objects.values())
    assert post(url, "one", body).status_code == 409
    test = reverse("api-webhook-test", kwargs={"uid": added.json()["uid"]})
    assert post(test, "two").status_code == 400
    assert receiver.requests == []


def test_a_test_says_what_came_of_it(receiver: Receiver, ada: Any, settings: Any) -> None:
    webhook = hook(settings, ada, receiver.url)
    receiver.answers = [301]
    assert try_webhook(uid=webhook.uid, actor=ada, at=now()) == (
        False,
        "answered 301; redirects are not followed",
    )


def test_the_check_of_the_documents_accepts_our_signature_and_no_other() -> None:
    page = Path(__file__).resolve().parents[2].joinpath("docs/notices.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    check, body, at = names["is_genuine"], b'{"id": "x"}', now()
    header = signature(secret="s", body=body, at=at)
    assert check("s", header, body)
    assert not check("s", header, body + b" ")
    assert not check("other", header, body)
    assert not check("s", signature(secret="s", body=body, at=at - timedelta(hours=1)), body)
    assert not check("s", "t=,v1=", body)
    assert not check("s", "", body)
