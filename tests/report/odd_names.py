"""Checks the report's page and the pictures of runs, folders and machines with unusual names: they are well-formed,
they show the name unchanged, and no part of the name becomes an element.

odd_names.py PATH_OF_trireme CONFIGS FOLDER     creates FOLDER
"""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

trireme, configs, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
NAMES = [
    "Übung mit Umlauten, 漢字 and 🚣",
    'two  blanks, it\'s "quoted"',
    "<&> &amp; &lt;b&gt; <b>bold</b> ]]> <!-- -->",
    "</title></svg></script><script>alert(1)</script>",
    "bell\x07 escape\x1b[31m \x7f",
]
METRICS = "".join(json.dumps({"step": s, "loss": 4 / s, "step_ms": 100.0, "time": 1e9 + s}) + "\n" for s in range(1, 6))


def shown(name):  # replaces the characters that XML does not allow
    return re.sub("[\x01-\x08\x0b\x0c\x0e-\x1f]", "?", name)


def run(*arguments, cwd=None):
    done = subprocess.run([trireme, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def texts(path, bodies=False):
    """Returns the texts and the names of all elements of an SVG or an XHTML page. `bodies`: without the bodies of
    scripts and styles."""
    text = path.read_text(encoding="utf-8")
    if bodies:
        text = re.sub(r"(<(script|style)\b[^>]*>).*?(</\2>)", r"\1\3", text, flags=re.S)
    tree = ElementTree.fromstring(text)
    return [e.text or "" for e in tree.iter()], [e.tag.split("}")[-1] for e in tree.iter()]


folder.mkdir()
plain_tags = None
for number, name in enumerate(["plain", *NAMES]):
    # A run without a config has the name of its folder; another run has the name in its config.
    for where in "folder", "config":
        place = folder / f"{number} {where}"
        run_dir = place / (name.replace("/", "|") if where == "folder" else "run")
        run_dir.mkdir(parents=True)
        (run_dir / "metrics.jsonl").write_text(METRICS)
        if where == "config":
            (run_dir / "resolved.yaml").write_text(f"run:\n  name: {json.dumps(name, ensure_ascii=False)}\n")
        expected = shown(run_dir.name if where == "folder" else name)
        said = run("report", run_dir, "--pictures", place / "pictures", cwd=place)
        said_texts, tags = texts(place / "pictures/loss.svg")
        assert said_texts.count(f"{expected}: loss, nats per token") == 2, (
            name,
            said_texts,
        )  # the title and the text in the picture
        assert "step.svg: not drawn" in said, said
        run("report", run_dir, cwd=place)
        page_texts, page_tags = texts(run_dir / "report.html", bodies=True)
        assert any(expected in text for text in page_texts), (name, page_texts)
        plain_tags = plain_tags or (tags, page_tags)
        assert (tags, page_tags) == plain_tags, (name, page_tags)
        run("report", run_dir, "--text", cwd=place)

    # A cluster file names a machine, which appears in the picture of a simulated step and on its page.
    cluster = (configs / "clusters/h100_nemo.yaml").read_text()
    place = folder / f"{number} cluster"
    place.mkdir()
    (place / "cluster.yaml").write_text(
        re.sub(r"(?m)^(  name: ).*$", lambda m: m[1] + json.dumps(name, ensure_ascii=False), cluster, count=1)
    )
    run(
        "simulate",
        configs / "llama_1b.yaml",
        "--ranks",
        8,
        "--cluster",
        "cluster.yaml",
        "--svg",
        "step.svg",
        "--report",
        "page.html",
        cwd=place,
    )
    assert any(shown(name) in text for text in texts(place / "step.svg")[0]), name
    texts(place / "page.html", bodies=True)

# A folder's name may be any bytes; this one is Latin-1 for é.
run_dir = bytes(folder) + b"/caf\xe9"
Path(run_dir.decode(errors="surrogateescape")).mkdir()
with open(run_dir + b"/metrics.jsonl", "w") as file:
    file.write(METRICS)
run("report", run_dir.decode(errors="surrogateescape"), "--pictures", "pictures", cwd=folder)
assert texts(folder / "pictures/loss.svg")[0].count("caf\N{REPLACEMENT CHARACTER}: loss, nats per token") == 2
run("report", run_dir.decode(errors="surrogateescape"), "--output", "page.html", cwd=folder)
assert any("caf\N{REPLACEMENT CHARACTER}" in text for text in texts(folder / "page.html", bodies=True)[0])
