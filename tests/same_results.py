"""Check that a change of the code changes no result: the same bits, on the same machine.

    python tests/same_results.py record before.json     # on the commit before
    python tests/same_results.py check before.json      # on the commit after: exit 1 if not

Each experiment is run as a user would, by the command line, in a folder of its own. Compared
are the weights of every student, every loss of an epoch and every accuracy.
"""

# ruff: noqa: T201
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

# Teachers in other processes answer in batches of other sizes, and so with other last bits;
# what is trained from them is not among these.
EXPERIMENTS = {
    "smoke/none": [],
    "smoke/in_process": [],
    "smoke/cached": [],
    "smoke/blockwise": [],
    "smoke/search": [],
    "smoke/ensemble": [],
    "two ranks": ["smoke/in_process", "aggregation.type=train/aggregation/all_reduce"],
    "quickstart": ["quickstart", "compare=[none,in_process]", "train.epochs=2"],
    "one process": ["smoke/ensemble", "method.processes=false"],
}


def results(arguments):
    """Run an experiment; return {name of a result: hex digest or figures}."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"KDLAB_HOME": str(Path(tempfile.gettempdir()) / "same")}
        command = [sys.executable, "-m", "kdlab", "run", *arguments]
        command += ["tracking.enabled=false", "--json"]
        ran = subprocess.run(
            command,
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        run = Path(json.loads(ran.stdout.splitlines()[-1])["run_dir"])
        figures = {}
        for path in sorted(run.rglob("*.safetensors")):
            if "checkpoints" in path.parts or "round" in str(path):
                continue
            digest = hashlib.sha256()
            for name, tensor in sorted(load_file(path).items()):
                digest.update(name.encode())
                digest.update(tensor.tobytes())
            figures[str(path.relative_to(run))] = digest.hexdigest()
        for line in (run / "events.jsonl").read_text().splitlines():
            event = json.loads(line) if line else {"event": ""}
            if event.get("member") == "teacher":  # trained once, and kept for the next run
                continue
            if event["event"] in ("epoch_done", "member_done"):
                facts = event.get("result") or event
                numbers = {k: v for k, v in facts.items() if k in ("last", "loss", "top1")}
                key = f"{event['event']} {event.get('member')} {facts.get('epoch', '')}"
                figures[key] = json.dumps(numbers, sort_keys=True)
        return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    measured = {}
    for name, arguments in EXPERIMENTS.items():
        measured[name] = results(arguments or [name])
        print(f"{name}: {len(measured[name])} digests and figures", flush=True)
    if asked.what == "record":
        asked.file.write_text(json.dumps(measured, indent=1))
        return 0
    before = json.loads(asked.file.read_text())
    differing = [
        f"{name}: {what}"
        for name, facts in before.items()
        for what, value in facts.items()
        if measured.get(name, {}).get(what) != value
    ]
    print("\n".join(differing) or "All the same.")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
