"""The Celery application. Messages are hints; the rows are the queue."""

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, worker_init, worker_process_init

from workbench.supervise.processes import die_with_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "workbench.settings")
# Django's checks load every page, which a worker never shows; the commands run them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("workbench")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect
def _remember_concurrency(*, conf: Any, options: dict[str, Any], **_: Any) -> None:
    """Let tasks know how many run beside each other; the option alone says it to nobody."""
    conf.worker_concurrency = options.get("concurrency") or conf.worker_concurrency


@worker_init.connect
def _load_once(**_: Any) -> None:
    """Load the models' SDK before the pool forks, so that its processes share it."""
    import openai  # noqa: F401


@worker_process_init.connect
def _end_with_the_worker(**_: Any) -> None:
    """A killed worker must not leave a pool process behind that goes on calling a model."""
    die_with_parent()


@worker_process_init.connect
def _say_that_it_works(**_: Any) -> None:
    from workbench.heartbeats import keep_saying

    keep_saying(app.amqp.queues.consume_from)
