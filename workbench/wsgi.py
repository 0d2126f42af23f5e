"""WSGI entry point."""

import gc
import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "workbench.settings")

application = get_wsgi_application()
# What is loaded stays: without this, each full collection takes 0.1 s to walk through it.
_ = get_resolver().url_patterns
gc.collect()
gc.freeze()
