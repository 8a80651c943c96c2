#!/usr/bin/env bash
# Some 20 MB of plain English for loss curves, from packages of Debian 12 that are loaded, not installed: manual pages,
# four dictionaries, handbooks and references.
#   tests/golden/english_text.sh FILE
set -euo pipefail
[[ $# == 1 ]] || { echo "usage: english_text.sh FILE" >&2; exit 2; }
file=$(realpath -m "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
apt-get -q download manpages manpages-dev dict-foldoc dict-jargon dict-wn dict-gcide debian-handbook \
  debian-reference-en developers-reference >&2
for package in *.deb; do dpkg-deb --extract "$package" .; done
export LC_ALL=C.UTF-8
{
  find usr/share/man -name '*.[1-8].gz' -type f | sort | while read -r page; do
    gunzip -c "$page" | groff -k -mandoc -Tutf8 -P-cbou -rLL=100n 2>/dev/null
  done
  find usr/share/doc usr/share/debian-reference usr/share/developers-reference -name '*.html' -type f 2>/dev/null |
    grep -E 'en-US|\.en\.html|developers-reference/[a-z-]*\.html' | sort -u | xargs python3 -c '
import html.parser, sys
class Text(html.parser.HTMLParser):
    hidden = 0
    def handle_starttag(self, tag, attributes): self.hidden += tag in ("script", "style")
    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style")
        if tag in ("p", "li", "dt", "td", "title", "h1", "h2", "h3", "h4", "pre", "div"): print()
    def handle_data(self, data):
        if not self.hidden and data.strip(): print(" ".join(data.split()), end=" ")
for path in sys.argv[1:]: Text().feed(open(path, errors="replace").read())'
  # As dictionaries are packed: gzip with an index. Of the last, the largest, enough is taken.
  for dictionary in foldoc jargon wn; do gunzip -c "usr/share/dictd/$dictionary.dict.dz"; done | head -c 9000000
  gunzip -c usr/share/dictd/gcide.dict.dz | head -c 4000000
} >"$file"
