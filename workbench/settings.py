"""Settings, all by environment. Unset means embedded: SQLite, Valkey and a small model."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from csp.constants import NONE, SELF
from environs import Env

env = Env()

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("WORKBENCH_DATA", "") or BASE_DIR / "var").absolute()
PRODUCTION = env.str("WORKBENCH_ENV", "") == "production"


def _secret_key() -> str:
    """Return SECRET_KEY, or one generated into the data folder at the first start."""
    given = env.str("SECRET_KEY", "")
    if given or PRODUCTION:
        return given or env.str("SECRET_KEY")
    path = DATA_DIR / "secret_key"
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(50))
    return path.read_text()


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
    "csp",
    "django_htmx",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
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

_SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": DATA_DIR / "workbench.sqlite3",
    "OPTIONS": {
        # DEFERRED transactions that turn into writers fail at once with
        # "database is locked"; IMMEDIATE ones wait their turn.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL",
    },
    # A file, not memory: what several connections do to each other is tested too.
    "TEST": {"NAME": DATA_DIR / "test.sqlite3"},
}
if PRODUCTION or env.str("DATABASE_URL", ""):
    DATABASES = {"default": env.dj_db_url("DATABASE_URL", conn_health_checks=True)}
else:
    DATABASES = {"default": _SQLITE}
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
SESSION_SAVE_EVERY_REQUEST = True
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = PRODUCTION
SECURE_HSTS_SECONDS = 31_536_000 if PRODUCTION else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = PRODUCTION
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
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "EXCEPTION_HANDLER": "workbench.kernel.api.exception_handler",
}

LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["stderr"], "level": env.str("WORKBENCH_LOG_LEVEL", "WARNING")},
}
