#!/usr/bin/env bash
# Creates 19 MB of plain English for loss curves, from packages of Debian 12 that are downloaded but not installed:
# manual pages, a handbook, references, and three dictionaries, the last one in part.
#   tests/golden/english_text.sh FILE      needs apt-get, dpkg-deb, groff, python3
set -euo pipefail
[[ $# == 1 ]] || { echo "usage: english_text.sh FILE" >&2; exit 2; }
for program in apt-get dpkg-deb groff python3; do
  command -v "$program" >/dev/null || { echo "english_text.sh: $program is not installed" >&2; exit 2; }
done
file=$(realpath -m "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
apt-get -q download manpages manpages-dev dict-foldoc dict-jargon dict-wn debian-handbook debian-reference-en \
  developers-reference >&2
for package in *.deb; do dpkg-deb --extract "$package" .; done
export LC_ALL=C.UTF-8
{
  find usr/share/man -name '*.[1-8].gz' -type f | sort | while read -r page; do
    gunzip -c "$page" | groff -k -mandoc -Tutf8 -P-cbou -rLL=100n 2>/dev/null
  done
  find usr/share/doc usr/share/debian-reference usr/share/developers-reference -name '*.html' -type f |
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
  # Dictionaries are packed as gzip with an index.
  cd usr/share/dictd
  head -c 9000000 < <(for name in foldoc jargon wn; do gunzip -c <"$name.dict.dz"; done)
} >"$file"
