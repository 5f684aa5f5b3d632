"""A program in place of Nsight Compute: it runs its program and reports made-up counters, but the true grids, which
launch_child.py leaves beside its result."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = f"""#!{sys.executable}
import json, subprocess, sys
options = [word for word in sys.argv[1:] if word.startswith("--")]
child = sys.argv[1 + len(options):]
given = dict(word.split("=", 1) for word in options if "=" in word)
assert given["--page"] == "raw" and given["--profile-from-start"] == "off" and "--csv" in options, options
code = subprocess.run(child).returncode
log = open(given["--log-file"], "w")
print("==PROF== Connected to process 1", file=log)
{{before}}
if code:
    print("==ERROR== The application returned an error code (%d).", file=log)
    sys.exit(code)
file = json.loads(child[-1])["file"]
functions = [case["function"] for case in json.load(open(file))["cases"]]
metrics = [name for name in given["--metrics"].split(",") if name != "{{lacks}}"]
stalls = ["smsp__average_warps_issue_stalled_%s_per_issue_active.ratio" % name for name in ("wait", "drain")]
columns = ["ID", "Kernel Name", *metrics, *stalls]
print(",".join('"%s"' % name for name in columns), file=log)
print(",".join('"%s"' % {{{{"gpu__time_duration.sum": "us"}}}}.get(name, "") for name in columns), file=log)
for at, (function, grid) in enumerate(zip(functions, json.load(open(file + ".grids")))):
    if function == "{{without}}":
        continue
    values = {{{{name: "%d,%03d.5" % (at + 1, position) for position, name in enumerate(metrics)}}}}
    values["launch__grid_size"], values["launch__block_size"] = map(str, grid)
    row = [str(at), "void mgg::%s<float, 4>(Call)" % function, *values.values(), "0.5", "2.5"]
    print(",".join('"%s"' % cell for cell in row), file=log)
"""


def made(folder: Path, before: str = "", without: str = "", lacks: str = "") -> Path:
    """The folder, with an executable ncu in it.

    before: code that it runs. without: a kernel that it leaves out. lacks: a metric that it does not know.
    """
    folder.mkdir(exist_ok=True)
    path = folder / "ncu"
    path.write_text(SCRIPT.format(before=before, without=without, lacks=lacks))
    path.chmod(0o755)
    return folder
