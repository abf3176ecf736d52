#!/bin/sh
# The main job on embedded defaults: name, plan, explain, count, import, audit, look, score; then the loop on this machine:
# probe, plan, sweep, learn, plan again; and the reports of both. Everything it writes is in demo/.
set -e
run() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}
cd "$(dirname "$0")/.."
rm -rf demo && mkdir demo
TRIMARAN_LEDGER=demo/trimaran.sqlite
export TRIMARAN_LEDGER

run trimaran presets
run trimaran plan bloom-176b --on jean-zay-a100-80gb --nodes 48 --gbs 2048 --trainer megatron-deepspeed-2022
run trimaran explain examples/jobs/bloom-176b.yaml
run trimaran flops examples/jobs/bloom-176b.yaml --seconds 104.5 --printed 150.05
run trimaran import --published examples/notes/*.md
run trimaran audit --published --fix
run trimaran audit examples/notes/*.md --fix
run trimaran results size=181B status=ok --limit 12
run trimaran results size=181B status=ok --by tp,pp,mbs
run trimaran score --published
run trimaran results size=181B status=ok -o demo/results.md --markdown
run python benchmarks/loop.py --ranks 4 --short --folder demo/loop
run trimaran report --published -o demo/published.html
run trimaran report --sweep demo/loop/sweeps/taught --ledger demo/loop/taught.sqlite -o demo/report.html
printf '\nLook at demo/report.html (what was measured here) and demo/published.html (other people'"'"'s campaigns).\n'
