"""The Prefect flows: train, ingest, retrain, evaluate, promote, restore, prune; `python -m flows.<name>`.

Prefect reads its settings when it is imported, so they are set here, before any flow's module imports it.
"""

import getpass
import os
from pathlib import Path

from sweetrl.console.logs import work_alone

DEFAULTS = {
    # No server at hand: an embedded one, whose files stay in the project. Nothing of the user's own Prefect is touched.
    "PREFECT_HOME": str(Path.cwd() / ".prefect"),
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # 14 s on an idle machine
    "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": "%(asctime)s %(message)s",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": "%(asctime)s %(message)s",
}
if "PREFECT_API_URL" in os.environ:
    # What a server answers while its PostgreSQL is away; a run whose last state is refused is shown as running forever.
    DEFAULTS["PREFECT_CLIENT_RETRY_EXTRA_CODES"] = "500"
else:
    os.environ["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "true"  # whatever the user's own Prefect is told
work_alone()
for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
try:
    getpass.getuser()
except (KeyError, OSError):  # a container's user without a name: DVC and others ask for one, and end in a trace
    os.environ["USER"] = f"uid-{os.getuid()}"
