"""Settings, all by environment. Unset means embedded: SQLite, Valkey and a small model."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from environs import Env

env = Env()

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("WORKBENCH_DATA", "") or BASE_DIR / "var").absolute()
ENVIRONMENT = env.str("WORKBENCH_ENV", "") or "embedded"
if ENVIRONMENT not in ("embedded", "production"):
    raise ImproperlyConfigured(
        f"WORKBENCH_ENV is {ENVIRONMENT!r}; it may be unset, 'embedded' or 'production'"
    )
PRODUCTION = ENVIRONMENT == "production"
LEAST_KEY_CHARS = 50


def _private_file(path: Path, text: str) -> Path:
    """Make the file with this text, readable by its owner alone, unless it is there already.

    Written aside and linked into place: nobody ever sees it half written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(text)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    return path


def _secret_key() -> str:
    """Return SECRET_KEY, or one generated into the data folder at the first start."""
    if not PRODUCTION and not env.str("SECRET_KEY", ""):
        return _private_file(DATA_DIR / "secret_key", secrets.token_urlsafe(50)).read_text()
    given = env.str("SECRET_KEY")
    if PRODUCTION and len(given) < LEAST_KEY_CHARS:
        raise ImproperlyConfigured(
            f"SECRET_KEY has {len(given)} characters; give at least {LEAST_KEY_CHARS} random ones"
        )
    return given


SECRET_KEY = _secret_key()
DEBUG = False
ALLOWED_HOSTS = env.list("WORKBENCH_HOSTS", ["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "workbench.apps.WorkbenchConfig",
    "skills.apps.SkillsConfig",
    "runs.apps.RunsConfig",
    "annotation.apps.AnnotationConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
    "django_htmx",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "workbench.middleware.no_store",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "workbench.middleware.refuse_nul",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "workbench.middleware.refresh_session",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "workbench.urls"
WSGI_APPLICATION = "workbench.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# --- database ---------------------------------------------------------------

_SQLITE_OPTIONS = {
    # DEFERRED transactions that turn into writers fail at once with
    # "database is locked"; IMMEDIATE ones wait their turn.
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL",
}


def _database() -> dict[str, Any]:
    """Return the database that DATABASE_URL names; without one, SQLite in the data folder."""
    if PRODUCTION or env.str("DATABASE_URL", ""):
        database = dict(env.dj_db_url("DATABASE_URL", conn_health_checks=True))
    else:
        # Sessions and traces are in it, so it is its owner's alone.
        path = _private_file(DATA_DIR / "workbench.sqlite3", "")
        # The tests use a file too: what several connections do to each other is tested.
        test = {"NAME": DATA_DIR / "test.sqlite3"}
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "TEST": test}
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = _SQLITE_OPTIONS
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- background work --------------------------------------------------------

BROKER_URL = env.str("BROKER_URL") if PRODUCTION else env.str("BROKER_URL", "")
# The supervisor passes the embedded broker's socket as BROKER_URL to its children.
CELERY_BROKER_URL = BROKER_URL or "redis+socket:///nonexistent/no-broker-configured"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    # Without these two a message of a killed worker waits about 100 s.
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "socket_connect_timeout": 5,
    # A page or command that publishes must not wait for a broker that is away.
    "max_retries": 1,
    "interval_start": 0,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_POOL_LIMIT = 4
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_TIMEZONE = "UTC"

LEASE_SECONDS = env.float("WORKBENCH_LEASE_SECONDS", 60)
RENEW_SECONDS = env.float("WORKBENCH_RENEW_SECONDS", 15)
SWEEP_SECONDS = env.float("WORKBENCH_SWEEP_SECONDS", 15)
MAX_TRIES = env.int("WORKBENCH_MAX_TRIES", 3)

# --- models -----------------------------------------------------------------

OPENAI_BASE_URL = env.str("OPENAI_BASE_URL", "")
# Set by the supervisor when it serves the embedded model.
EMBEDDED_MODEL_URL = env.str("WORKBENCH_EMBEDDED_MODEL_URL", "")
# Scripted models answer by rule; only tests may use them.
WORKBENCH_ALLOW_SCRIPTED = env.bool("WORKBENCH_ALLOW_SCRIPTED", False)
ALLOW_UNSANDBOXED = env.bool("WORKBENCH_ALLOW_UNSANDBOXED", False)

# --- what leaves the workbench ------------------------------------------------

# smtp://USER:PASSWORD@HOST:PORT, with ?tls=true (STARTTLS) or ?ssl=true; unset means no mail.
SMTP_URL = env.str("WORKBENCH_SMTP_URL", "")
MAIL_FROM = env.str("WORKBENCH_MAIL_FROM", "")
if SMTP_URL and not MAIL_FROM:
    raise ImproperlyConfigured(
        "WORKBENCH_SMTP_URL is set without WORKBENCH_MAIL_FROM, the address mails come from"
    )
if SMTP_URL:
    _SMTP = env.dj_email_url("WORKBENCH_SMTP_URL")
    EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    EMAIL_HOST, EMAIL_PORT = _SMTP["EMAIL_HOST"], _SMTP["EMAIL_PORT"] or 25
    EMAIL_HOST_USER = _SMTP["EMAIL_HOST_USER"] or ""
    EMAIL_HOST_PASSWORD = _SMTP["EMAIL_HOST_PASSWORD"] or ""
    EMAIL_USE_TLS, EMAIL_USE_SSL = _SMTP["EMAIL_USE_TLS"], _SMTP["EMAIL_USE_SSL"]
    DEFAULT_FROM_EMAIL = MAIL_FROM
EMAIL_TIMEOUT = 5
# Hosts that a webhook may name; see workbench/notices/webhooks.py for what an entry means.
WEBHOOK_HOSTS: list[str] = env.list("WORKBENCH_WEBHOOK_HOSTS", [])

# --- web --------------------------------------------------------------------

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "workbench" / "static"]
# Served straight from where they are: nothing has to be collected first.
WHITENOISE_USE_FINDERS = True

LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
SESSION_COOKIE_NAME = "workbench_session"
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = PRODUCTION
SECURE_HSTS_SECONDS = 31_536_000 if PRODUCTION else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = PRODUCTION
# How many proxies stand before the pages and add to X-Forwarded-For; 0 believes no header.
TRUSTED_PROXIES = env.int("WORKBENCH_TRUSTED_PROXIES", 0)
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["workbench.kernel.api.StrictJSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [
        # The first names how to sign in, so that a stranger gets 401.
        "workbench.tokens.BearerAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "EXCEPTION_HANDLER": "workbench.kernel.api.exception_handler",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Skill Audit Workbench",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
}

LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "filters": {"links": {"()": "workbench.kernel.logs.HideLinks"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["links"]}
    },
    "root": {"handlers": ["stderr"], "level": env.str("WORKBENCH_LOG_LEVEL", "WARNING")},
}
