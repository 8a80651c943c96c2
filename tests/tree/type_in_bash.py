"""Types command lines that contain tabs into an interactive bash on a terminal, in which `trireme` is a function that
prints its arguments. Exit status 1: a line was completed differently than expected.

type_in_bash.py COMPLETION_SCRIPT
"""
import os
import pty
import select
import sys
import time

LINES = [  # typed text, and the expected arguments
    ("trireme checkp\tverif\tx", "<checkpoint><verify><x>"),
    ("trireme data prepare --text\tbody", "<data><prepare><--text-field><body>"),
    ("trireme train a --set model.norm=rms\t", "<train><a><--set><model.norm=rmsnorm>"),
    ("trireme train a --set run.dev\tcu\t", "<train><a><--set><run.device=cuda>"),
    ("trireme data prepare --format=js\t", "<data><prepare><--format=jsonl>"),
    ("trireme train a --set=model.norm=rms\t", "<train><a><--set=model.norm=rmsnorm>"),
    ("trireme train a --set=run.dev\tcu\t", "<train><a><--set=run.device=cuda>"),
]
TIMEOUT = 60  # seconds until missing output counts as a failure


def read_until(terminal, text, seen):
    end = time.monotonic() + TIMEOUT
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        if not ready:
            sys.exit(f"no {text!r} in {seen!r}")
        seen += os.read(terminal, 65536).decode(errors="replace")
    return seen.split(text, 1)[1]


child, terminal = pty.fork()
if child == 0:
    os.environ["TERM"] = "dumb"
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
setup = f"""source '{sys.argv[1]}'; trireme() {{ printf 'said:'; printf '<%s>' "$@"; printf ':end\\n'; }}; echo rea''dy\n"""
os.write(terminal, setup.encode())
left = read_until(terminal, "ready\r\n", "")
for typed, expected in LINES:
    os.write(terminal, typed.encode() + b"\n")
    left = read_until(terminal, "said:", left)
    while ":end" not in left:
        left += os.read(terminal, 65536).decode(errors="replace")
    said, left = left.split(":end", 1)
    if said != expected:
        sys.exit(f"{typed!r} became {said}, expected {expected}")
os.write(terminal, b"exit\n")
os.waitpid(child, 0)
