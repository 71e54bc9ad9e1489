"""`kdlab ui`: MLflow's own UI in its light form, on loopback."""

import os
import signal
import subprocess
import sys
from types import FrameType

from kdlab.config.home import runs_folder
from kdlab.errors import NotFoundError


def serve_ui(port: int, uri: str | None) -> int:
    """MLflow until Ctrl-C; NotFoundError where there is no store yet."""
    store = runs_folder() / "mlflow.db"
    if uri is None and not store.exists():
        raise NotFoundError(
            f"There is no MLflow store at {store} yet. Run something first: kdlab run "
            "quickstart. Or name one with --uri."
        )
    # One worker and no job runner: 0.4 GB instead of 2.3 GB.
    settings = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    options = ["--backend-store-uri", uri or f"sqlite:///{store}", "--host", "127.0.0.1"]
    options += ["--port", str(port), "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "ui", *options],
        env=os.environ | settings,
        start_new_session=True,
    )
    print(f"MLflow: http://127.0.0.1:{port}/#/experiments  (Ctrl-C ends it)", flush=True)

    def forward(number: int, frame: FrameType | None) -> None:
        os.killpg(process.pid, signal.SIGTERM)  # its workers too

    before = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if code in (0, -signal.SIGTERM) else 1
